"""Translation by several processes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dragoman import load
from dragoman.config import from_dict
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.processes import fork_map
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, Sample
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("workers")
    phrasebook.write(folder / "corpus", 300, seed=1, valid=20, test=20)
    names = {"source": "train.en", "target": "train.de", "valid_source": "valid.en", "valid_target": "valid.de"}
    files = {side: [str(folder / "corpus" / name)] for side, name in names.items()}
    system = {"name": "transformer", "size": "tiny", "settings": {"model_dim": 16, "layers": 1}}
    training = {
        "steps": 3,
        "validation_interval": 3,
        "validation_sentences": 1,
        "seed": 1,
        "device": "cpu",
        "batch_tokens": 400,
    }
    config = {"data": files, "text": {"vocab_size": 400}, "system": system, "training": training}
    prepare_run(folder / "run", from_dict(config), lambda text: None)
    Trainer(folder / "run", Display()).train()
    made = load(folder / "run", device="cpu")
    made.config = replace(made.config, search=replace(made.config.search, batch_tokens=120))  # many batches
    return made


def test_results_of_forks_come_in_order() -> None:
    parent = os.getpid()
    results = list(fork_map(lambda item: (item * item, os.getpid()), range(7), 2, torch.set_num_threads))
    assert [square for square, _ in results] == [0, 1, 4, 9, 16, 25, 36]
    assert parent not in {process for _, process in results}
    assert list(fork_map(lambda item: os.getpid(), range(2), 1, torch.set_num_threads)) == [parent, parent]


def test_an_error_in_a_fork_is_raised_in_the_parent() -> None:
    def work(item: int) -> int:
        raise UserError(f"{item} is wrong")

    with pytest.raises(UserError, match="0 is wrong"):
        list(fork_map(work, range(3), 2, torch.set_num_threads))


def test_a_fork_that_dies_is_reported() -> None:
    with pytest.raises(UserError, match="has ended unexpectedly"):
        list(fork_map(lambda item: os._exit(3), range(3), 2, torch.set_num_threads))


@pytest.mark.parametrize(
    "search", [Beam(3, length_limit=LengthLimit(0, 8, 8)), Sample(2, length_limit=LengthLimit(0, 8, 8), seed=5)]
)
def test_several_workers_give_the_translations_of_one(run: Run, search: Beam | Sample, tmp_path: Path) -> None:
    phrasebook.write(tmp_path / "corpus", 60, seed=2, valid=5, test=5)
    texts = [*(tmp_path / "corpus" / "train.en").read_text().splitlines(), "", "we read ."]
    one, other = (some.translate(texts, search=search) for some in (run, run.with_workers(2)))
    assert [translation.text for translation in one] == [translation.text for translation in other]
    assert [translation.alignment for translation in one] == [translation.alignment for translation in other]
    assert [translation.score for translation in one] == pytest.approx([t.score for t in other], abs=1e-4)


def test_impossible_numbers_of_workers_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="at least 1"):
        run.with_workers(0)
    monkeypatch.setattr(Run, "device", torch.device("cuda"))
    with pytest.raises(UserError, match="need a CPU"):
        run.with_workers(2)
