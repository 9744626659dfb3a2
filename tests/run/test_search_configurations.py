"""Every search configuration through a run: reranking, exact search, the run's default search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman import load
from dragoman.config import from_dict, from_yaml, to_yaml
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.search import (
    Beam,
    ExactSearch,
    LengthLimit,
    MinimumBayesRisk,
    Rerank,
    RerankWeights,
    Sample,
    SearchConfig,
    search_to_dict,
)
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

TEXTS = ["the dog sleeps .", "a cat sees the old house .", "", "we read ."]
SHORT = LengthLimit(0, 6, 6)
BEAM = Beam(6, n_best=6, length_limit=SHORT)


def made(folder: Path, files: dict[str, Path], system: str) -> Run:
    settings = {"name": system, "size": "tiny", "settings": {"model_dim": 16, "layers": 1}}
    training = {"steps": 3, "validation_interval": 3, "validation_sentences": 1, "device": "cpu", "batch_tokens": 600}
    given = {side: [str(path)] for side, path in files.items()}
    config = {"data": given, "text": {"vocab_size": 400}, "system": settings, "training": training}
    prepare_run(folder, from_dict(config), lambda text: None)
    Trainer(folder, Display()).train()
    return load(folder, device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """From English to German, back, and one that knows German alone."""
    folder = tmp_path_factory.mktemp("runs")
    phrasebook.write(folder / "text", 300, seed=1, valid=20, test=20)
    english, german = folder / "text" / "train.en", folder / "text" / "train.de"
    return {
        "there": made(folder / "there", {"source": english, "target": german}, "bahdanau"),
        "back": made(folder / "back", {"source": german, "target": english}, "bahdanau"),
        "german": made(folder / "german", {"source": german}, "gpt"),
    }


def test_reranking_uses_the_scores_of_other_runs(runs: dict[str, Run]) -> None:
    there, back, german = runs["there"], runs["back"], runs["german"]
    weights = RerankWeights(0.7, 0.4, 0.9)
    plain = there.translate(TEXTS, search=BEAM)
    found = there.translate(TEXTS, search=Rerank(BEAM, weights, back, german, n_best=6))
    moved = 0
    for text, before, after in zip(TEXTS, plain, found):
        some = [before, *before.alternatives]
        if not text:
            assert after.text == ""
            continue
        worth = [
            one.score
            + 0.7 * back.score([one.text], [text])[0].score
            + 0.4 * german.score(None, [one.text])[0].score
            + 0.9 * len(one.tokens)
            for one in some
        ]
        order = sorted(range(6), key=lambda i: -worth[i])
        texts = [one.text for one in (after, *after.alternatives)]
        assert texts == [some[i].text for i in order]
        assert [one.score for one in (after, *after.alternatives)] == [some[i].score for i in order]  # still log p(y|x)
        moved += order != sorted(order)
    assert moved


def test_other_runs_can_be_given_by_their_folders(runs: dict[str, Run]) -> None:
    there, back = runs["there"], runs["back"]
    by_name, open_already = (Rerank(BEAM, RerankWeights(1.0), channel) for channel in (str(back.folder), back))
    assert there.translate(TEXTS, search=by_name) == there.translate(TEXTS, search=open_already)
    assert there.open_run(str(back.folder)) is there.open_run(str(back.folder))
    with pytest.raises(UserError, match="does not exist"):
        there.translate(TEXTS, search=Rerank(BEAM, RerankWeights(1.0), "nowhere"))


def test_reranking_needs_suitable_runs(runs: dict[str, Run]) -> None:
    assert [runs[name].is_language_model for name in ("there", "back", "german")] == [False, False, True]
    with pytest.raises(UserError, match="whose scores need sources"):
        runs["there"].translate(TEXTS, search=Rerank(BEAM, RerankWeights(language=1.0), language_model=runs["back"]))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_no_translation_is_better_than_a_proven_one(runs: dict[str, Run], alpha: float) -> None:
    length = LengthLimit(0, 2, 2)
    proved = runs["there"].translate(TEXTS, search=ExactSearch(length_penalty=alpha, length_limit=length))
    beam = runs["there"].translate(TEXTS, search=Beam(50, alpha, "steps", length_limit=length))
    for text, best, other in zip(TEXTS, proved, beam):
        if text:
            assert best.proven_optimal
            assert other.proven_optimal is None
            worth = [one.score / (len(one.tokens) + 1) ** alpha for one in (best, other) if one.finished]
            assert worth[0] >= max(worth) - 1e-5


def test_exact_search_reports_that_it_gave_up(runs: dict[str, Run]) -> None:
    found = runs["there"].translate(TEXTS, search=ExactSearch(max_expansions=1, length_limit=LengthLimit(0, 12, 12)))
    assert [one.proven_optimal for one in found] == [False, False, None, False]
    beam = runs["there"].translate(TEXTS, search=Beam(5, 0.0, length_limit=LengthLimit(0, 12, 12)))
    assert all(one.score >= other.score - 1e-5 for one, other in zip(found, beam) if other.finished)


def test_exact_search_refuses_ensembles_and_constraints(runs: dict[str, Run]) -> None:
    there = runs["there"]
    with pytest.raises(UserError, match="works with a single model"):
        there.ensemble(there).translate(TEXTS, search=ExactSearch())
    for wish in ({"prefixes": ["der"] * 4}, {"include": [["Hund"]] * 4}, {"exclude": ["Hund"]}):
        with pytest.raises(UserError, match="does not support prefixes, required or forbidden phrases"):
            there.translate(TEXTS, search=ExactSearch(), **wish)  # type: ignore[arg-type]


def test_the_default_search_is_that_of_the_configuration(runs: dict[str, Run], tmp_path: Path) -> None:
    there = runs["there"]
    assert there.default_search == there.beam_config() == Beam(5, length_limit=there.length_limit)
    own = there.config.search
    assert there.length_limit == LengthLimit(own.length_ratio or 0.0, own.length_offset or 0, 1024)
    assert runs["german"].length_limit == LengthLimit(
        2.0, 20, 1024
    )  # a language model has no pairs to derive limits from
    for search in (Sample(seed=3, length_limit=SHORT), MinimumBayesRisk(BEAM), Rerank(BEAM, RerankWeights(length=1.0))):
        settings = replace(there.config, search=replace(there.config.search, strategy=search_to_dict(search)))
        (tmp_path / "config.yaml").write_text(to_yaml(settings), encoding="utf-8")
        assert from_yaml(tmp_path / "config.yaml") == settings
        own = Run(
            there.folder,
            settings,
            there.model,
            there.source_tokenizer,
            there.target_tokenizer,
            there.framing,
            there.checkpoint,
            there.inference_weights,  # the same kernels, which round in the same way
        )
        assert own.default_search == search
        assert own.translate(TEXTS) == there.translate(TEXTS, search=search)
        assert own.translate(TEXTS[:1], beam_size=2) == there.translate(TEXTS[:1], beam_size=2)


def test_the_search_configuration_is_validated_before_training(tmp_path: Path) -> None:
    config = from_dict({"search": {"strategy": {"kind": "Beem"}}})
    with pytest.raises(UserError, match="did you mean 'Beam'"):
        prepare_run(tmp_path / "run", config, lambda text: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "search", [BEAM, Sample(n_best=2, length_limit=SHORT), ExactSearch(length_limit=SHORT, max_expansions=50)]
)
def test_every_search_continues_a_prompt(runs: dict[str, Run], search: SearchConfig) -> None:
    found = runs["german"].generate(["der", ""], search)
    assert found[0].text.startswith("der")
    with pytest.raises(UserError, match="reranking works for translations of source texts only"):
        runs["german"].generate(["der"], Rerank(BEAM, RerankWeights(length=1.0)))


@pytest.mark.parametrize("search", [Beam(2), Sample(seed=1)])
def test_a_search_without_a_length_limit_has_that_of_the_run(runs: dict[str, Run], search: SearchConfig) -> None:
    run = load(runs["there"].folder, device="cpu")
    run.config = replace(run.config, search=replace(run.config.search, length_ratio=0.0, length_offset=2))
    assert max(len(translation.tokens) for translation in run.translate(TEXTS, search=search)) <= 2
    longer = replace(search, length_limit=LengthLimit(offset=5))  # the ratio is that of the run
    assert 2 < max(len(translation.tokens) for translation in run.translate(TEXTS, search=longer)) <= 5
