"""`prepare` and then `train --resume` give what `train` gives."""

from __future__ import annotations

from pathlib import Path

from calling import Dragoman

from dragoman import load
from dragoman.data import phrasebook


def test_a_prepared_run_is_trained_like_any_other(dragoman: Dragoman, tmp_path: Path) -> None:
    phrasebook.write(tmp_path / "pb", pairs=120, valid=5, test=5)
    corpus = tmp_path / "pb"
    files = ("--source", corpus / "train.en", "--target", corpus / "train.de", "--clean", "--device", "cpu")
    options = (
        "--system",
        "bahdanau",
        "--steps",
        2,
        "--set",
        "system.settings.model_dim=16",
        "--set",
        "search.max_target_length=6",
    )
    assert dragoman("train", tmp_path / "whole", *files, *options).code == 0
    answer = dragoman("prepare", tmp_path / "run", *files, *options, "--num-workers", 1)
    assert answer.code == 0, answer.err
    assert "train it with:" in answer.err
    assert not (tmp_path / "run" / "checkpoints" / "last").exists()
    assert dragoman("train", tmp_path / "run", "--resume").code == 0
    whole, run = load(tmp_path / "whole", device="cpu"), load(tmp_path / "run", device="cpu")
    assert run.checkpoint == whole.checkpoint == "000002"
    for name, weight in run.model.state_dict().items():
        assert (weight == whole.model.state_dict()[name]).all()
    assert "already contains a run" in dragoman("prepare", tmp_path / "run", *files).err
    assert "--on must be local" in dragoman("prepare", tmp_path / "new", *files, "--on", "spark").err
    assert not (tmp_path / "new").exists()
