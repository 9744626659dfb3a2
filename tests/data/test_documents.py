"""Documents: empty lines and files end them, units of them are held out, and a line that is cut ends once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pair_encoding import choose_holdout, held_out

from dragoman.data import DATA_FORMATS, Corpus, Encoding, TokenStore, write_store
from dragoman.data.data_formats import HOLDOUT_UNIT_LINES
from dragoman.objectives import Objective, TaskContext, build_objective
from dragoman.objectives.masked_language_modeling import truncate_pair
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.text.normalization import TextNormalizer

PAD, UNKNOWN, START, END, MASK, SEPARATOR, CLASS = range(7)
FIRST = "a1 a2\na3\n\nb1\n \nc1\nc2\n"
SECOND = "d1\nd2\n"


@pytest.fixture
def corpora(tmp_path: Path) -> list[Corpus]:
    for name, text in (("first", FIRST), ("second", SECOND)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return [Corpus(tmp_path / "first"), Corpus(tmp_path / "second")]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return learn_tokenizer(" ".join([FIRST, SECOND]).split(), "word", 100)


def store_of(corpora: list[Corpus], tokenizer: Tokenizer, folder: Path, reading: str, longest: int = 50) -> TokenStore:
    kind = DATA_FORMATS[reading].with_normalizer(TextNormalizer(whitespace=True))
    examples = kind.encode(list(kind.read(corpora)), Encoding(tokenizer, tokenizer, longest, FRAMINGS_OF["bert"]))
    return write_store(folder / "store", [examples], tokenizer.vocab_size)


def material(system: str, tokenizer: Tokenizer) -> TaskContext:
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, True)
    model = SYSTEMS[system].spec(vocabulary, "tiny", model_dim=16, layers=1, heads=2).build()
    return TaskContext(model, tokenizer, tokenizer, model.spec.default_framing)


FRAMINGS_OF = {
    name: SYSTEMS[name].spec(VocabularySizes(100, 100, True), "tiny").default_framing
    for name in ("bert", "gpt", "bart")
}


def test_empty_lines_and_files_end_a_document(corpora: list[Corpus]) -> None:
    pairs = list(DATA_FORMATS["documents"].read(corpora))
    assert [pair.source for pair in pairs] == ["a1 a2", "a3", "b1", "c1", "c2", "d1", "d2"]
    assert [pair.follows_previous for pair in pairs] == [False, True, False, False, True, False, True]
    assert [pair.line for pair in pairs] == [1, 2, 4, 6, 7, 1, 2]


def test_units_are_held_out_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"line {n}\n" for n in range(40 * HOLDOUT_UNIT_LINES)), encoding="utf-8")
    pairs = list(DATA_FORMATS["documents"].read([Corpus(tmp_path / "text")]))
    held = choose_holdout(pairs, 3 * HOLDOUT_UNIT_LINES)
    valid = held_out(held, pairs)
    assert len(valid) == held.pairs == 3 * HOLDOUT_UNIT_LINES
    for first in range(0, 3 * HOLDOUT_UNIT_LINES, HOLDOUT_UNIT_LINES):
        part = valid[first : first + HOLDOUT_UNIT_LINES]
        assert [pair.follows_previous for pair in part] == [False] + [True] * (HOLDOUT_UNIT_LINES - 1)
        assert [pair.line - part[0].line for pair in part] == list(range(HOLDOUT_UNIT_LINES))


def test_the_next_sentence_comes_from_the_same_document(
    corpora: list[Corpus], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    store = store_of(corpora, tokenizer, tmp_path, "documents")
    objective = build_objective("masked-lm", material("bert", tokenizer), {"next_sentence": True, "mask_rate": 0.0})
    assert type(objective).data_format_for({"next_sentence": True}) == "documents"
    assert type(objective).data_format_for({}) == "text"
    assert objective.build_row is not None
    truly_next = {0: 1, 3: 4, 5: 6}
    random = np.random.default_rng(1)
    labels: dict[int, set[int]] = {}
    for index in range(len(store)):
        for _ in range(30):
            row = objective.build_row(store, index, random)
            labels.setdefault(index, set()).add(row.sentence_label)
            ids = np.where(row.target != PAD, row.target, row.source)  # without masks
            second = ids[1 + int((ids == SEPARATOR).argmax()) : -1].tolist()
            follows = index in truly_next and second == store.source(truly_next[index]).tolist()
            assert (row.sentence_label == 0) == follows
            other = next(n for n in range(len(store)) if store.source(n).tolist() == second)
            assert follows or not store.same_document(index, other)
    assert labels == {index: {0, 1} if index in truly_next else {1} for index in range(len(store))}


@pytest.mark.parametrize("text", ["a1\n", "a1\na3\n", "a1\n\nb1\n", "a1\na3\nc1\n"])
def test_in_a_tiny_corpus_only_the_next_sentence_is_labelled_so(
    text: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text(text, encoding="utf-8")
    store = store_of([Corpus(tmp_path / "text")], tokenizer, tmp_path, "documents")
    objective = build_objective("masked-lm", material("bert", tokenizer), {"next_sentence": True, "mask_rate": 0.0})
    assert objective.build_row is not None
    lines = text.splitlines()
    sentences = [tokenizer.encode(line) for line in lines if line]
    pairs = [[tokenizer.encode(line) for line in pair] for pair in pairwise(lines) if all(pair)]
    random = np.random.default_rng(1)
    for index in [*range(len(store))] * 20:
        row = objective.build_row(store, index, random)
        ids = np.where(row.target != PAD, row.target, row.source)  # without masks
        _, first, separator, second, _ = ids.tolist()  # each sentence is a token
        assert separator == SEPARATOR
        assert [first] == sentences[index]
        assert (row.sentence_label == 0) == ([[first], [second]] in pairs)


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [((3, 3), 10, (3, 3)), ((8, 8), 10, (5, 5)), ((20, 3), 10, (7, 3)), ((2, 20), 9, (2, 7)), ((9, 9), 5, (3, 2))],
)
def test_pairs_are_truncated_longest_first(lengths: tuple[int, int], room: int, kept: tuple[int, int]) -> None:
    first, second = np.arange(lengths[0]), np.arange(lengths[1])
    one, two = truncate_pair(first, second, room)
    assert (len(one), len(two)) == kept
    assert one.tolist() == first[lengths[0] - kept[0] :].tolist()  # what is near the other sentence stays
    assert two.tolist() == second[: kept[1]].tolist()


def test_a_long_pair_keeps_both_sentences(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a1 " * 40 + "\n" + "b1 " * 40 + "\n" + "c1\nd1\n", encoding="utf-8")
    store = store_of([Corpus(tmp_path / "text")], tokenizer, tmp_path, "documents")
    objective = build_objective("masked-lm", material("bert", tokenizer), {"next_sentence": True, "max_length": 23})
    assert objective.build_row is not None
    for seed in range(10):
        row = objective.build_row(store, 0, np.random.default_rng(seed))
        assert len(row.source) <= 23
        assert (row.source == SEPARATOR).sum() == 2
        assert row.token_type_ids is not None
        assert 2 <= row.token_type_ids.sum() < 22


def targets(objective: Objective, store: TokenStore) -> list[list[int]]:
    assert objective.build_row is not None
    rows = [objective.build_row(store, index, np.random.default_rng(0)) for index in range(len(store))]
    return [row.target.tolist() for row in rows]


def test_a_split_line_has_one_bos_and_one_eos(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a1 a2 a3 b1 c1\nc2\n", encoding="utf-8")
    store = store_of([Corpus(tmp_path / "text")], tokenizer, tmp_path, "text", longest=2)
    line = tokenizer.encode("a1 a2 a3 b1 c1")
    last = tokenizer.encode("c2")
    assert [store.source(n).tolist() for n in range(len(store))] == [line[:2], line[2:4], line[4:], last]
    assert [store.starts_line(n) for n in range(4)] == [True, False, False, True]
    assert [store.ends_line(n) for n in range(4)] == [False, False, True, True]
    language = build_objective("causal-lm", material("gpt", tokenizer), {})
    assert targets(language, store) == [[START, *line[:2]], line[2:4], [START, *line[4:], END], [START, *last, END]]
    denoising = build_objective(
        "denoising", material("bart", tokenizer), {"infill_rate": 0.0, "permute_sentences": False}
    )
    start = FRAMINGS_OF["bart"].bos
    assert targets(denoising, store) == [
        [start, *line[:2]],
        [start, *line[2:4]],
        [start, *line[4:], END],
        [start, *last, END],
    ]
