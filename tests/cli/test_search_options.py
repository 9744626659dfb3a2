"""Search options: options and search configurations, reranking, exact search, tuning, and rejected combinations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import Answer, Dragoman

from dragoman import load
from dragoman.cli import main
from dragoman.data import phrasebook
from dragoman.search import (
    Beam,
    ExactSearch,
    LengthLimit,
    MinimumBayesRisk,
    Rerank,
    RerankWeights,
    Sample,
    Speculative,
    search_from_dict,
)
from dragoman.search.engine import SearchEngine


def sentence(answer: Answer) -> str:
    """The one plain sentence of a refusal."""
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    last = answer.err.strip().splitlines()[-1]
    assert last.startswith("dragoman: ")
    return last


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """There and back in whole words, there in pieces, and German alone; targets have six tokens at most."""
    folder = tmp_path_factory.mktemp("runs")
    phrasebook.write(folder / "text", pairs=200, valid=6, test=6)
    english, german = folder / "text" / "train.en", folder / "text" / "train.de"
    small = [
        "system.settings.model_dim=16",
        "system.settings.layers=1",
        "training.batch_tokens=800",
        "text.vocab_size=400",
    ]
    small += ["search.max_target_length=6", "search.beam_size=3", "training.validation_sentences=1"]
    for name, system, files, kind in (
        ("there", "bahdanau", ["--source", english, "--target", german], "word"),
        ("back", "bahdanau", ["--source", german, "--target", english], "word"),
        ("pieces", "bahdanau", ["--source", english, "--target", german], "bpe"),
        ("german", "gpt", ["--source", german], "word"),
    ):
        settings = [part for setting in (*small, f"text.tokenizer={kind}") for part in ("--set", setting)]
        arguments = ["train", folder / name, *files, "--system", system, "--steps", 2, "--device", "cpu", *settings]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code
    (folder / "some.en").write_text("Anna reads.\nThe dog sleeps.\n", encoding="utf-8")
    return folder


def command(runs: Path, *more: object) -> list[object]:
    return ["translate", runs / "there", runs / "some.en", "--device", "cpu", *more]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], lambda own: own),
        (["--beam-size", 2, "--length-penalty", 0.5, "--min-length", 3], {"size": 2, "length_penalty": 0.5}),
        (
            ["--n-best", 4, "--length-normalization", "gnmt", "--early-stopping", "steps"],
            {"size": 4, "n_best": 4, "length_normalization": "gnmt", "early_stopping": "steps"},
        ),
        (["--early-stopping", "true"], {"early_stopping": True}),
        (["--early-stopping", "false"], {"early_stopping": False}),
        (["--early-stopping", "never"], {"early_stopping": "never"}),
        (["--num-finished", 2], {"early_stopping": True, "num_finished": 2}),
        (["--num-finished", 4, "--early-stopping", "false"], {"early_stopping": False, "num_finished": 4}),
        (
            ["--max-new-tokens", 4, "--early-stopping", "steps", "--min-length", 2],
            {"early_stopping": "steps", "length_limit": LengthLimit(ratio=0, offset=4, max=4, min=2)},
        ),
        (["--num-groups", 2], {"size": 4, "num_groups": 2}),
        (["--sample", "--top-k", 5, "--seed", 9, "--n-best", 2], Sample),
        (["--mbr", "bleu", "--num-candidates", 4], MinimumBayesRisk),
        (["--mbr", "chrf", "--sample"], MinimumBayesRisk),
        (["--rerank-length-weight", 0.5, "--beam-size", 4], Rerank),
        (["--exact", "--max-expansions", 7, "--length-penalty", 0.25], ExactSearch),
        (["--draft-model", "runs/tiny", "--draft-tokens", 2], Speculative),
    ],
)
def test_options_and_search_config_give_the_same_search(
    options: list[object], expected: object, dragoman: Dragoman, runs: Path, tmp_path: Path
) -> None:
    shown = dragoman(*command(runs, *options, "--show-search"))
    assert shown.code == 0, shown.err
    (tmp_path / "search.json").write_text(shown.out, encoding="utf-8")
    again = dragoman(*command(runs, "--search", tmp_path / "search.json", "--show-search"))
    assert again.out == shown.out
    found = search_from_dict(json.loads(shown.out))
    if isinstance(expected, type):
        assert isinstance(found, expected)
    elif isinstance(expected, dict):
        assert isinstance(found, Beam)
        assert expected.items() <= vars(found).items()
    else:
        assert found == load(runs / "there", device="cpu").default_search


def test_a_search_config_translates_like_its_options(dragoman: Dragoman, runs: Path) -> None:
    shown = dragoman(*command(runs, "--beam-size", 2, "--n-best", 2, "--show-search"))
    plain = dragoman(*command(runs, "--beam-size", 2, "--n-best", 2))
    assert dragoman(*command(runs, "--search", shown.out)) == plain
    assert plain.out.count("\n") == 6


def test_both_stopping_rules(dragoman: Dragoman, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A beam of three takes T steps, or ends at the step in which the first hypothesis finishes."""
    taken = []
    decode_step = SearchEngine.decode_step

    def count(engine: SearchEngine, *arguments: object, **named: object) -> object:
        taken.append(1)
        return decode_step(engine, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(SearchEngine, "decode_step", count)

    def steps(*options: object) -> int:
        taken.clear()
        answer = dragoman("translate", runs / "there", runs / "one.en", "--device", "cpu", *options)
        assert answer.code == 0, answer.err
        return len(taken)

    (runs / "one.en").write_text("Anna reads.\n", encoding="utf-8")
    every = ["--early-stopping", "steps", "--max-new-tokens"]
    assert [steps(*every, limit) for limit in (1, 4, 9)] == [1, 4, 9]  # the run's own limit is 6
    run = load(runs / "there", device="cpu")
    searches = {
        limit: Beam(3, early_stopping="steps", length_limit=LengthLimit(0, limit, limit)) for limit in range(1, 40)
    }
    first = next(
        limit for limit, search in searches.items() if run.translate(["Anna reads."], search=search)[0].finished
    )
    assert steps("--num-finished", 1, "--max-new-tokens", 40) == first
    assert steps("--num-finished", 2, "--max-new-tokens", 40) >= first


def test_reranked_with_other_runs(dragoman: Dragoman, runs: Path) -> None:
    judges = ["--rerank-with", f"{runs / 'back'}:0.5", "--rerank-with", runs / "german", "--num-candidates", 4]
    shown = search_from_dict(json.loads(dragoman(*command(runs, *judges, "--show-search")).out))
    assert isinstance(shown, Rerank)
    assert shown.weights == RerankWeights(0.5, 1.0)
    assert (shown.channel_model, shown.language_model) == (str(runs / "back"), str(runs / "german"))
    answer = dragoman(*command(runs, *judges))
    assert answer.code == 0, answer.err
    found = load(runs / "there", device="cpu").translate(["Anna reads.", "The dog sleeps."], search=shown)
    assert answer.out.splitlines() == [one.text for one in found]
    twice = ["--rerank-with", runs / "back", "--rerank-with", runs / "pieces"]
    assert "are both channel models: leave one out" in sentence(dragoman(*command(runs, *twice)))


def test_exact_search_reports_unproven_translations(dragoman: Dragoman, runs: Path, tmp_path: Path) -> None:
    answer = dragoman(*command(runs, "--exact", "--max-expansions", 3))
    assert "because exact search reached --max-expansions: 2" in answer.err
    assert "--max-expansions" in answer.err
    written = dragoman(*command(runs, "--exact", "--max-expansions", 3, "--output", tmp_path / "out", "--json-lines"))
    assert "because exact search reached --max-expansions: 2" in written.err
    lines = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    assert [line["proven_optimal"] for line in lines] == [False, False]
    assert [line["text"] for line in lines] == answer.out.splitlines()


def test_weights_are_tuned(dragoman: Dragoman, runs: Path) -> None:
    test = ["--source", runs / "text" / "test.en", "--reference", runs / "text" / "test.de", "--device", "cpu"]
    tune = ["tune", runs / "there", *test, "--rerank-with", runs / "back", "--num-candidates", 3, "--metric", "chrf"]
    found = json.loads(dragoman(*tune, "--json").out)
    assert found["score"] >= found["baseline_score"]
    assert set(found["weights"]) == {"channel", "language", "length"}
    assert found["weights"]["language"] == 0
    assert "chrf" in dragoman(*tune).out
    assert "did you mean 'bleu'" in sentence(dragoman(*tune[:-1], "blue"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--num-candidates", 4], "--num-candidates needs --mbr or --rerank-with or --rerank-length-weight: add --mbr"),
        (["--seed", 4], "--seed needs --sample"),
        (["--diversity-penalty", 1], "--diversity-penalty needs --num-groups"),
        (["--all-steps"], "--all-steps is now called --early-stopping steps"),
        (["--early-stopping", "soon"], "unknown value of --early-stopping 'soon'"),
        (["--sample", "--early-stopping", "steps"], "--sample and --early-stopping cannot be combined"),
        (["--num-finished", 2, "--early-stopping", "steps"], "use --early-stopping=true or false"),
        (["--num-finished", 1, "--n-best", 2], "--num-finished is 1, fewer than the 2 hypotheses to return"),
        (["--sample", "--num-finished", 2], "--sample and --num-finished cannot be combined"),
        (["--max-new-tokens", 3, "--min-length", 4], "--min-length is 4, more than the maximum of 3 tokens"),
        (["--max-expansions", 4], "--max-expansions needs --exact"),
        (["--draft-tokens", 4], "--draft-tokens needs --draft-model"),
        (["--sample", "--coverage-penalty", 0.1], "--sample and --coverage-penalty cannot be combined"),
        (["--exact", "--beam-size", 3], "--exact and --beam-size cannot be combined"),
        (["--mbr", "bleu", "--rerank-length-weight", 1], "--mbr and --rerank-length-weight cannot be combined"),
        (["--draft-model", "x", "--n-best", 2], "--draft-model and --n-best cannot be combined"),
        (["--mbr", "blue"], "did you mean 'bleu'"),
        (["--mbr", "bleu", "--beam-size", 2, "--num-candidates", 3], "a beam of 2 hypotheses cannot return the 3 best"),
        (["--mbr", "bleu", "--beam-size", 1], "the search for candidates returns only 1"),
        (["--beam-size", 100_000], "a beam of 100000 hypotheses is larger than the"),
        (["--num-groups", 2, "--beam-size", 3], "--num-groups is 2, which does not divide a beam of 3"),
        (["--min-length", 9], "--min-length is 9, more than the maximum of 6"),
        (["--rerank-with", "nowhere"], "nowhere does not exist"),
        (["--rerank-with", "nowhere:0.5"], "nowhere does not exist"),
        (["--draft-model", "nowhere"], "nowhere does not exist"),
        (["--search", "{}", "--beam-size", 3], "--search describes the search completely: leave --beam-size out"),
        (["--search", '{"kind": "Beam", "siz": 3}'], "did you mean 'size'"),
        (["--search", '{"kind": "Beam", "size": 0}'], "'size' of Beam must be at least 1"),
        (["--search", "nowhere.json"], "cannot read the search configuration nowhere.json"),
        (["--exclude", " "], "phrase"),
        (["--exact", "--exclude", "Hund"], "does not support prefixes, required or forbidden phrases"),
    ],
)
def test_contradictory_options_are_rejected(more: list[object], expected: str, dragoman: Dragoman, runs: Path) -> None:
    assert expected in sentence(dragoman(*command(runs, *more)))


@pytest.mark.parametrize(
    ("option", "line", "expected"),
    [
        ("--include", "die die die die die die", "have 6 tokens, but its target may have at most 5"),
        ("--include", "Nilpferdwaage", "'Nilpferdwaage' has a word outside the target vocabulary"),
        ("--prefixes", "die die die die die die", "target prefix has 6 tokens, but the translation may have at most 5"),
        ("--prefixes", "Nilpferdwaage", "the target prefix 'Nilpferdwaage' has a word outside the target vocabulary"),
    ],
)
def test_impossible_constraints(
    option: str, line: str, expected: str, dragoman: Dragoman, runs: Path, tmp_path: Path
) -> None:
    others = len((runs / "some.en").read_text(encoding="utf-8").splitlines()) - 1
    (tmp_path / "wishes").write_text(line + "\n" * (1 + others), encoding="utf-8")
    assert expected in sentence(dragoman(*command(runs, option, tmp_path / "wishes")))


@pytest.mark.parametrize("option", ["--include", "--prefixes"])
def test_constraints_need_one_line_per_source(option: str, dragoman: Dragoman, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "wishes").write_text("die\n" * 99, encoding="utf-8")
    assert "has 99 lines, but" in sentence(dragoman(*command(runs, option, tmp_path / "wishes")))


def test_an_ensemble_of_different_vocabularies(dragoman: Dragoman, runs: Path) -> None:
    assert "has another vocabulary than" in sentence(dragoman(*command(runs, "--ensemble", runs / "pieces")))
    assert "has another vocabulary than" in sentence(dragoman(*command(runs, "--draft-model", runs / "pieces")))
