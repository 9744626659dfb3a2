"""`dragoman evaluate` of translators, taggers, language models and models of masked words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from calling import Answer, Dragoman
from sacrebleu import BLEU

from dragoman import load
from dragoman.cli import main
from dragoman.data import phrasebook

POSITIONS = 80  # that the models have
LONG = "the " * 120


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=200, valid=10, test=10)
    for name in ("train", "test"):
        lines = (folder / f"{name}.en").read_text(encoding="utf-8").splitlines()
        tags = [" ".join("UP" if word[0].isupper() else "low" for word in line.split()) for line in lines]
        (folder / f"{name}.tags").write_text("".join(f"{one}\n" for one in tags), encoding="utf-8")
        for other, path in (("de", f"{name}.tsv"), ("tags", f"{name}.tags.tsv")):
            targets = (folder / f"{name}.{other}").read_text(encoding="utf-8").splitlines()
            pairs = "".join(f"{source}\t{target}\n" for source, target in zip(lines, targets))
            (folder / path).write_text(pairs, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of each kind, hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    settings = [
        "training.batch_tokens=800",
        "text.vocab_size=400",
        "data.max_length=30",
        "training.validation_sentences=1",
    ]
    settings += [f"system.settings.{one}" for one in ("model_dim=16", "layers=1", "heads=2")]
    for system, source, more in [
        ("bart", "train.tsv", [f"system.settings.max_positions={POSITIONS}"]),
        ("gpt", "train.en", [f"system.settings.max_positions={POSITIONS}"]),
        ("roberta", "train.en", []),
        ("tagger", "train.tags.tsv", []),
    ]:
        options = [part for setting in (*settings, *more) for part in ("--set", setting)]
        arguments = ["train", folder / system, "--system", system, "--source", corpus / source, "--steps", 1, *options]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["dragoman", *map(str, arguments), "--device", "cpu"])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code
    return folder


def scores(answer: Answer) -> dict[str, dict[str, float]]:
    assert answer.code == 0, answer.err
    return {score["name"]: score for score in json.loads(answer.out)["scores"]}


def test_a_test_set_in_one_file_is_evaluated_and_scored_like_two(
    dragoman: Dragoman, runs: Path, corpus: Path, tmp_path: Path
) -> None:
    two = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    expected = scores(dragoman("evaluate", runs / "bart", *two, "--beam-size", 1, "--json"))
    assert (
        scores(dragoman("evaluate", runs / "bart", "--source", corpus / "test.tsv", "--beam-size", 1, "--json"))
        == expected
    )
    assert list(expected) == ["BLEU", "chrF", "TER", "exact match", "perplexity"]
    scored = dragoman("score", runs / "bart", "--source", corpus / "test.tsv").out
    assert scored == dragoman("score", runs / "bart", "--source", two[1], "--target", two[3]).out
    lines = dragoman("translate", runs / "bart", corpus / "test.en", "--beam-size", 1).out
    assert dragoman("translate", runs / "bart", corpus / "test.tsv", "--beam-size", 1).out == lines
    texts = lines.splitlines()
    references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    assert expected["BLEU"]["value"] == pytest.approx(BLEU().corpus_score(texts, [references]).score)


def test_a_tagger_is_evaluated_on_words_and_tags_in_one_file(dragoman: Dragoman, runs: Path, corpus: Path) -> None:
    two = ["--source", corpus / "test.en", "--reference", corpus / "test.tags"]
    expected = scores(dragoman("evaluate", runs / "tagger", *two, "--json"))
    assert scores(dragoman("evaluate", runs / "tagger", "--source", corpus / "test.tags.tsv", "--json")) == expected
    words = sum(len(line.split()) for line in (corpus / "test.en").read_text(encoding="utf-8").splitlines())
    assert expected["token accuracy"]["detail"]["tokens"] == words  # type: ignore[index]
    tagged = dragoman("tag", runs / "tagger", corpus / "test.en").out
    assert dragoman("tag", runs / "tagger", corpus / "test.tags.tsv").out == tagged
    answer = dragoman("evaluate", runs / "tagger", *two, "--metrics", "perplexity")
    assert (answer.code, "perplexity cannot be computed" in answer.err) == (2, True)


def test_several_references(dragoman: Dragoman, runs: Path, corpus: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    more = ["--beam-size", 1, "--json", "--metrics", "chrf,exact"]
    first = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    scores(dragoman("evaluate", runs / "bart", *first, *more, "--output", own))
    for order in ([*first, "--reference", own], [*first[:2], "--reference", own, *first[2:]]):
        found = scores(dragoman("evaluate", runs / "bart", *order, *more))
        assert found["exact match"]["value"] == 100.0
        assert found["chrF"]["value"] == pytest.approx(100.0)


def test_a_reference_longer_than_the_positions_is_skipped(dragoman: Dragoman, runs: Path, tmp_path: Path) -> None:
    source, reference = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("Anna reads.\nThe dog sleeps.\n")
    reference.write_text(f"Anna liest.\n{LONG}\n", encoding="utf-8")
    files = ["--source", source, "--reference", reference, "--beam-size", 1]
    only = dragoman("evaluate", runs / "bart", *files, "--metrics", "bleu", "--json")
    assert list(scores(only)) == ["BLEU"]
    assert "positions" not in only.err
    answer = dragoman("evaluate", runs / "bart", *files, "--metrics", "bleu,perplexity", "--json")
    found = scores(answer)["perplexity"]
    assert "skipped 1 lines with more tokens than the model has learned positions" in answer.err
    assert found["detail"]["skipped"] == 1  # type: ignore[index]
    (one,) = load(runs / "bart", device="cpu").score(["Anna reads."], ["Anna liest."])
    assert found["value"] == pytest.approx(math.exp(-one.score / len(one.tokens)))
    refused = dragoman("score", runs / "bart", "--source", source, "--target", reference)
    assert (refused.code, "line 2 of" in refused.err) == (2, True)


def test_perplexity_of_a_language_model(dragoman: Dragoman, runs: Path, tmp_path: Path) -> None:
    texts = ["The old man reads.", "", "A book."]
    path = tmp_path / "text"
    path.write_text("".join(f"{text}\n" for text in [*texts, LONG]), encoding="utf-8")
    answer = dragoman("evaluate", runs / "gpt", "--source", path, "--json")
    found = scores(answer)
    assert "skipped 1 lines with more tokens" in answer.err
    scored = load(runs / "gpt", device="cpu").score(None, texts)
    total, tokens = sum(one.score for one in scored), sum(len(one.tokens) for one in scored)
    assert found["perplexity"]["value"] == pytest.approx(math.exp(-total / tokens))
    assert found["word perplexity"]["value"] == pytest.approx(math.exp(-total / (4 + 2 + 3)))  # an END for each line
    assert found["bits per character"]["value"] == pytest.approx(-total / math.log(2) / (18 + 7 + 3))
    assert list(scores(dragoman("evaluate", runs / "gpt", "--source", path, "--metrics", "perplexity", "--json"))) == [
        "perplexity"
    ]
    refused = dragoman("evaluate", runs / "gpt", "--source", path, "--metrics", "bleu")
    assert (refused.code, "bleu cannot be computed for text without references" in refused.err) == (2, True)


def test_pseudo_perplexity_of_a_masked_language_model(dragoman: Dragoman, runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("The old man reads.\nA book.\n", encoding="utf-8")
    run = load(runs / "roberta", device="cpu")
    total, tokens = 0.0, 0
    for text in ("The old man reads.", "A book."):
        ids = run.encode_sources([text])[0]
        for place in range(len(run.framing.source_prefix), len(ids) - len(run.framing.source_suffix)):
            masked = [*ids]
            masked[place] = run.source_tokenizer.mask
            total += float(run.logits(torch.tensor([masked]), None)[0, place].log_softmax(-1)[ids[place]])
            tokens += 1
    found = scores(dragoman("evaluate", runs / "roberta", "--source", path, "--json"))
    assert found["pseudo-perplexity"]["value"] == pytest.approx(math.exp(-total / tokens), rel=1e-4)


@pytest.mark.parametrize(
    ("system", "arguments", "message"),
    [
        ("bart", ["--source", "test.en"], "translates, but the test set has no references"),
        ("bart", ["--source", "test.en", "--reference", "test.de", "--alignments", "test.en"], "test.en, line 1"),
        ("bart", ["--source", "test.tsv", "--output", "no/where"], "create the folder no"),
        ("gpt", ["--source", "test.en", "--output", "out"], "is a language model, which scores texts"),
        ("tagger", ["--source", "test.tags.tsv", "--alignments", "test.align"], "has no word alignments"),
    ],
)
def test_impossible_evaluations_are_rejected_before_translation(
    dragoman: Dragoman,
    runs: Path,
    corpus: Path,
    system: str,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(corpus)
    answer = dragoman("evaluate", runs / system, *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert "translating" not in answer.err


def test_a_run_against_another_run_and_against_a_file(dragoman: Dragoman, corpus: Path, runs: Path) -> None:
    test_set = ["--source", corpus / "test.tsv", "--metrics", "chrf,rouge-l"]
    itself = json.loads(dragoman("evaluate", runs / "bart", *test_set, "--against", runs / "bart", "--json").out)
    assert itself["baseline"] == str(runs / "bart")
    (rows,) = itself["comparisons"].values()
    assert [(row["metric"], row["difference"], row["p_value"]) for row in rows] == [("chrf", 0, 1), ("rouge-l", 0, 1)]
    options = ["--against", corpus / "test.de", "--test", "randomization", "--resamples", "200"]
    text = dragoman("evaluate", runs / "bart", *test_set, *options).out
    assert f"{runs / 'bart'} against {corpus / 'test.de'}, paired randomization test" in text
    assert "100.00 [100.00, 100.00]" in text  # the references have the best score


def test_mistakes_in_a_comparison_are_explained(dragoman: Dragoman, corpus: Path, runs: Path) -> None:
    test_set = ["--source", corpus / "test.tsv"]
    answer = dragoman("evaluate", runs / "bart", *test_set, "--against", corpus / "train.de")
    assert "test.tsv has 10 lines but" in answer.err
    answer = dragoman("evaluate", runs / "bart", *test_set, "--against", runs / "bart", "--test", "coin")
    assert "unknown value of --test 'coin'" in answer.err
    answer = dragoman("evaluate", runs / "bart", *test_set, "--metrics", "perplexity", "--against", runs / "bart")
    assert "--against tests differences in metrics that compare translations" in answer.err
