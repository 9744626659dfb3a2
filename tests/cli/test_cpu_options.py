"""The command line's ways to be faster on a CPU: bytes, a shortlist, workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import Dragoman

from dragoman.config import from_dict
from dragoman.data import phrasebook
from dragoman.search.shortlist import SHORTLIST_FILE
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cpu")
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
    search = {"length_ratio": 0.0, "length_offset": 8, "max_target_length": 8, "batch_tokens": 60}
    config = {"data": files, "text": {"vocab_size": 400}, "system": system, "training": training, "search": search}
    prepare_run(folder / "run", from_dict(config), lambda text: None)
    Trainer(folder / "run", Display()).train()
    return folder / "run"


@pytest.fixture(scope="module")
def lines(run: Path) -> Path:
    path = run.parent / "lines.en"
    path.write_text("\n".join((run.parent / "corpus" / "test.en").read_text().splitlines()[:12]) + "\n")
    return path


def test_several_workers_give_the_output_of_one(dragoman: Dragoman, run: Path, lines: Path) -> None:
    alone = dragoman("translate", run, lines, "--device", "cpu")
    several = dragoman("translate", run, lines, "--device", "cpu", "--num-workers", 2)
    assert (several.code, several.out) == (alone.code, alone.out)
    assert len(alone.out.splitlines()) == 12


def test_int8_weights(dragoman: Dragoman, run: Path, lines: Path) -> None:
    answer = dragoman("translate", run, lines, "--device", "cpu", "--int8")
    assert answer.code == 0
    assert len(answer.out.splitlines()) == 12


def test_a_shortlist_is_learned_and_used(dragoman: Dragoman, run: Path, lines: Path) -> None:
    missing = dragoman("translate", run, lines, "--device", "cpu", "--shortlist")
    assert missing.code == 2
    assert "dragoman shortlist" in missing.err
    learned = dragoman("shortlist", run, "--translations", 20, "--frequent-tokens", 30)
    assert learned.code == 0
    assert (run / SHORTLIST_FILE).exists()
    answer = dragoman("translate", run, lines, "--device", "cpu", "--shortlist")
    assert answer.code == 0
    assert len(answer.out.splitlines()) == 12


def test_a_shortlist_needs_a_run_folder(dragoman: Dragoman, tmp_path: Path) -> None:
    answer = dragoman("shortlist", tmp_path)
    assert answer.code == 2
    assert "is not a run folder" in answer.err
