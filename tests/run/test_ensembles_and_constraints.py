"""Ensembles, prefixes, and phrases that translations must or must not contain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from dragoman import load
from dragoman.config import from_dict
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, MinimumBayesRisk, Sample
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

TEXTS = ["the dog sleeps .", "a cat sees the old house .", "", "we read ."]
SHORT = Beam(3, length_limit=LengthLimit(0, 8, 8))


def made(folder: Path, corpus: Path, system: str, seed: int, size: int = 400) -> Run:
    names = {"source": "train.en", "target": "train.de", "valid_source": "valid.en", "valid_target": "valid.de"}
    files = {side: [str(corpus / name)] for side, name in names.items()}
    settings = {"name": system, "size": "tiny", "settings": {"model_dim": 16, "layers": 1}}
    training = {
        "steps": 3,
        "validation_interval": 3,
        "validation_sentences": 1,
        "seed": seed,
        "device": "cpu",
        "batch_tokens": 400,
    }
    config = {"data": files, "text": {"vocab_size": size}, "system": settings, "training": training}
    prepare_run(folder, from_dict(config), lambda text: None)
    Trainer(folder, Display()).train()
    return load(folder, device="cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, 300, seed=1, valid=20, test=20)
    return folder


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [made(folder / name, corpus, name, seed) for seed, name in enumerate(("transformer", "bahdanau"), 1)]


def test_an_ensemble_of_a_run_with_itself_is_the_run(runs: list[Run]) -> None:
    for run in runs:
        alone, doubled = (one.translate(TEXTS, search=SHORT) for one in (run, run.ensemble(run)))
        assert [one.text for one in alone] == [one.text for one in doubled]
        assert [one.score for one in alone] == pytest.approx([one.score for one in doubled], abs=1e-4)


def test_an_ensemble_of_different_systems_does_not_depend_on_their_order(runs: list[Run]) -> None:
    one, other = (a.ensemble(b).translate(TEXTS, search=SHORT) for a, b in ((runs[0], runs[1]), (runs[1], runs[0])))
    assert [translation.text for translation in one] == [translation.text for translation in other]
    assert [translation.score for translation in one] == pytest.approx([t.score for t in other], abs=1e-4)
    assert one[2].text == ""


def test_an_ensemble_with_another_vocabulary_is_refused(runs: list[Run], corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has another vocabulary"):
        runs[0].ensemble(made(tmp_path / "other", corpus, "transformer", 1, size=450))


def test_minimum_bayes_risk_chooses_among_the_candidates(runs: list[Run]) -> None:
    beam = replace(SHORT, size=6, n_best=6)
    for candidates, references in ((beam, None), (Sample(n_best=8, length_limit=SHORT.length_limit), beam)):
        settings = MinimumBayesRisk(candidates, references, n_best=2)
        found = runs[1].translate(TEXTS, search=settings)
        every = runs[1].translate(TEXTS, search=candidates)
        others = every if references is None else runs[1].translate(TEXTS, search=references)
        for one, some, other in zip(found, every, others):
            if not one.text:
                continue
            texts, judges = ([t.text for t in (many, *many.alternatives)] for many in (some, other))
            scores = [t.score for t in (other, *other.alternatives)]
            weights = np.exp(scores) if references or candidates is beam else None
            worth = [
                np.average([sacrebleu.sentence_chrf(text, [judge]).score for judge in judges], weights=weights)
                for text in texts
            ]
            assert worth[texts.index(one.text)] == pytest.approx(max(worth))
            assert len(one.alternatives) == 1


def test_translations_begin_with_their_prefix(runs: list[Run]) -> None:
    prefixes = ["der Hund", "", "", "wir"]
    found = runs[0].translate(TEXTS, search=SHORT, prefixes=prefixes)
    free = runs[0].translate(TEXTS, search=SHORT)
    assert all(one.text.startswith(prefix) for one, prefix in zip(found, prefixes))
    assert found[1].text == free[1].text
    with pytest.raises(UserError, match="prefixes must have one entry for each of 4 texts, but has 2"):
        runs[0].translate(TEXTS, search=SHORT, prefixes=["", ""])
    with pytest.raises(UserError, match=r"a target prefix has \d+ tokens, but the translation may have at most 2"):
        runs[0].translate(
            TEXTS,
            search=replace(SHORT, length_limit=LengthLimit(0, 3, 3)),
            prefixes=["der alte Hund schläft", "", "", ""],
        )


def test_included_and_excluded_phrases_hold(runs: list[Run]) -> None:
    required = [["Hund"], ["alte Katze", "sieht"], [], []]
    found = runs[0].translate(TEXTS, search=replace(SHORT, length_limit=LengthLimit(0, 14, 14)), include=required)
    for one, phrases in zip(found, required):
        assert all(phrase in one.text for phrase in phrases)
    written = {word for one in runs[0].translate(TEXTS, search=SHORT) for word in one.text.split() if word.isalpha()}
    without = runs[0].translate(TEXTS, search=SHORT, exclude=sorted(written))
    assert not {word for one in without for word in one.text.split()} & written
    with pytest.raises(UserError, match="required"):
        runs[0].translate(TEXTS, search=Sample(), include=required)
    with pytest.raises(UserError, match="the target prefix 'Hund' contains a forbidden phrase"):
        runs[0].translate(TEXTS, search=SHORT, prefixes=["Hund"] * 4, exclude=["Hund"])
    with pytest.raises(UserError):
        runs[0].translate(TEXTS, search=SHORT, include=[["Hund"]] * 4, exclude=["Hund"])
