"""The preflight counts what is there, drops what cannot be trained on, and says what looks wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_encoding import encode_pairs, inspect_encoded, inspect_pairs

from dragoman.data import MemoryEstimate, SentencePair
from dragoman.data.preflight import CorpusOverlap, LengthStats, load_preflight
from dragoman.data.text_profile import count_chunk
from dragoman.errors import UserError


def corpus(*texts: tuple[str, str | None]) -> list[SentencePair]:
    return [SentencePair(source, target, "train", line) for line, (source, target) in enumerate(texts, 1)]


def test_lengths_are_counted_by_words_characters_and_tokens(tokenizer) -> None:
    report = inspect_pairs(corpus(("a bc", "ü"), ("abcdef", "xy z  w"), ("a b c", "é")), tokenizer)
    assert (report.pairs_read, report.pairs) == (3, 3)
    assert report.source.words == LengthStats(total=6, mean=2.0, median=2, p95=3, max=3)
    assert report.source.characters == LengthStats(total=15, mean=5.0, median=5, p95=6, max=6)
    assert report.target.characters == LengthStats(total=9, mean=3.0, median=1, p95=7, max=7)
    assert report.target.tokens == LengthStats(total=11, mean=11 / 3, median=2, p95=7, max=7)  # two bytes a letter ü
    assert report.ratio == 11 / 15


@given(st.lists(st.integers(0, 30), min_size=1))
def test_quantiles_are_those_of_the_inverted_distribution(values: list[int]) -> None:
    counts = {value: values.count(value) for value in values}
    lengths = LengthStats.from_histogram(counts)
    expected = np.quantile(values, [0.5, 0.95], method="inverted_cdf")
    assert [lengths.median, lengths.p95] == expected.tolist()
    assert lengths.mean == pytest.approx(np.mean(values))
    assert (lengths.total, lengths.max) == (sum(values), max(values))


def test_empty_and_overlong_pairs_are_dropped_with_reason_and_location(tokenizer) -> None:
    pairs = corpus(("a", "b"), ("", "b"), ("a", " \t"), ("abcde", "b"), ("a", "bcdef"), ("", ""), ("abcd", "bcde"))
    kept, report = inspect_encoded(encode_pairs(pairs, tokenizer), tokenizer, max_length=4)
    assert [encoded.pair.line for encoded in kept] == [1, 7]
    assert {reason: (found.pairs, found.locations) for reason, found in report.dropped.items()} == {
        "source empty": (2, ["train:2", "train:6"]),
        "target empty": (1, ["train:3"]),
        "source longer than 4 tokens": (1, ["train:4"]),
        "target longer than 4 tokens": (1, ["train:5"]),
    }
    assert (report.pairs_read, report.pairs) == (7, 2)
    assert "71 % of the training pairs were dropped" in report.warnings


def test_only_the_first_locations_are_reported(tokenizer) -> None:
    report = inspect_pairs(corpus(("a", "b"), *[("", "x")] * 10), tokenizer)
    assert report.dropped["source empty"].pairs == 10
    assert report.dropped["source empty"].locations == ["train:2", "train:3", "train:4"]


def test_no_usable_pairs_is_an_error(tokenizer) -> None:
    with pytest.raises(UserError, match=r"none of 2 pairs can be used to train on \(1 source empty, 1 target empty\)"):
        inspect_pairs(corpus(("", "b"), ("a", "")), tokenizer)
    with pytest.raises(UserError, match="no text"):
        inspect_pairs([], tokenizer)


def test_duplicates_identical_and_lopsided_pairs_are_counted_but_kept(tokenizer) -> None:
    report = inspect_pairs(
        corpus(("a", "b"), ("b", "a"), ("a", "b"), ("a", "b"), ("a", "c"), ("same", "same"), ("x", "y" * 8)), tokenizer
    )
    assert report.pairs == 7
    assert report.duplicates == 2
    assert (report.identical.pairs, report.identical.locations) == (1, ["train:6"])
    assert (report.length_mismatch.pairs, report.length_mismatch.locations) == (
        1,
        ["train:7"],
    )  # 9 > 4 · 2, with the end counted
    assert "29 % of the training pairs are duplicates of an earlier pair" in report.warnings
    assert "14 % of the training pairs have the same text on both sides, which teaches copying" in report.warnings


@pytest.mark.parametrize(("equal", "is_warned"), [(5, False), (40, True)])
def test_words_that_are_corrected_are_often_equal(tokenizer, equal: int, is_warned: bool) -> None:
    """But if nearly all are, the same file was probably given twice."""
    pairs = corpus(*[("same", "same")] * equal, ("color", "colour"), ("favor", "favour"))
    report = replace(inspect_pairs(pairs, tokenizer), text=count_chunk(pairs).profile())
    assert any("the same text on both sides" in warning for warning in report.warnings) == is_warned


def test_a_task_whose_targets_are_long_gets_no_warning(tokenizer) -> None:
    few, most = ([("x", "y" * 8)] * count + [("a", "b"), ("b", "c"), ("c", "d")] for count in (1, 9))
    assert any("very different lengths" in warning for warning in inspect_pairs(corpus(*few), tokenizer).warnings)
    assert not any("very different lengths" in warning for warning in inspect_pairs(corpus(*most), tokenizer).warnings)


def test_overlap_with_other_corpora(tokenizer) -> None:
    train = corpus(("a", "b"), ("a", "b"), ("c", "d"), ("e", "f"))
    valid = corpus(("a", "b"), ("c", "other"), ("new", "x"), ("b", "a"))
    report = inspect_pairs(train, tokenizer, references={"valid": valid, "test": corpus(("new", "y"), ("c", "z"))})
    assert report.overlaps == [
        CorpusOverlap("valid", 4, pairs_in_train=1, sources_in_train=2, train_pairs=2, train_sources=3),
        CorpusOverlap("test", 2, pairs_in_train=0, sources_in_train=1, train_pairs=0, train_sources=1),
    ]
    assert "25 % of the pairs of valid are also in train: scores will be too optimistic" in report.warnings
    assert "50 % of the sources of test are also in train: scores will be too optimistic" in report.warnings


def test_unknown_tokens_are_reported(tokenizer) -> None:
    report = inspect_pairs(corpus(("ab~d", "efgh")), tokenizer)
    assert (report.source.unknown, report.target.unknown) == (0.25, 0)
    assert any(warning.startswith("25 % of the source tokens are unknown") for warning in report.warnings)


def test_a_clean_corpus_gives_no_warning(tokenizer) -> None:
    report = inspect_pairs(corpus(*[(f"s {number}", f"t {number}") for number in range(1000)]), tokenizer)
    assert report.warnings == []


def test_samples_show_the_segmentation(tokenizer) -> None:
    report = inspect_pairs(corpus(("", "x"), ("ab", "c"), *[("d", "e")] * 9), tokenizer)
    assert len(report.samples) == 3
    first = report.samples[0]
    assert (first.source_tokens, first.source_decoded, first.target_tokens) == (["a", "b"], "ab", ["c"])


def test_monolingual_text_has_no_target(tokenizer) -> None:
    report = inspect_pairs(corpus(("abc", None), ("", None), ("abc", None)), tokenizer)
    assert (report.pairs, report.target, report.ratio, report.duplicates) == (2, None, None, 1)
    assert report.dropped["source empty"].pairs == 1
    assert any("a b c" in line for line in report.lines())


def test_long_samples_are_cut_where_they_are_printed(tokenizer) -> None:
    """Of 100 letters, which are tokens here, 60 are printed."""
    report = inspect_pairs(corpus(("a" * 100, "b" * 60)), tokenizer)
    lines = report.lines()
    assert f"  {' '.join('a' * 60)} … (40 more)" in lines
    assert f"    → {' '.join('b' * 60)}" in lines
    assert len(report.samples[0].source_tokens) == 100


def test_memory_is_sixteen_bytes_a_parameter_and_the_activations(tokenizer) -> None:
    memory = MemoryEstimate.for_adam(parameters=64 * 2**20, trained=64 * 2**20, activations=3 * 2**29)
    assert memory.total == 2**30 + 3 * 2**29
    _, report = inspect_encoded(encode_pairs(corpus(("a", "b")), tokenizer), tokenizer, memory=memory)
    assert any("about 2.5 GiB of memory: 1.0 GiB model" in line for line in report.lines())


def test_the_report_is_json_and_readable(tokenizer) -> None:
    report = inspect_pairs(corpus(("a b", "b"), ("", "b")), tokenizer, references={"valid": corpus(("a b", "b"))})
    assert json.loads(json.dumps(report.to_dict()))["dropped"]["source empty"] == {"pairs": 1, "locations": ["train:2"]}
    text = "\n".join(report.lines())
    assert "Kept 1 of 2 pairs" in text
    assert "dropped 1: source empty (train:2)" in text
    assert "warning: 100 % of the pairs of valid are also in train" in text


def test_reports_of_earlier_versions_are_read_under_present_names(tmp_path: Path) -> None:
    old = {"read": 2, "pairs": 1, "lopsided": {"pairs": 1, "first": ["a:1"]}, "samples": [{"source_pieces": ["a"]}]}
    (tmp_path / "preflight.json").write_text(json.dumps(old), encoding="utf-8")
    present = {"pairs_read": 2, "pairs": 1, "length_mismatch": {"pairs": 1, "locations": ["a:1"]}}
    assert load_preflight(tmp_path) == present | {"samples": [{"source_tokens": ["a"]}]}
