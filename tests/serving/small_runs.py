"""Small runs that are trained by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli import main


def train_small_run(place: Path, name: str, *more: object) -> Path:
    """Train a small run for four steps on the phrasebook in a folder."""
    settings = [
        "system.settings.model_dim=16",
        "system.settings.layers=1",
        "training.batch_tokens=400",
        "text.vocab_size=400",
    ]
    settings += ["search.max_target_length=12", "training.keep_history=6"]
    options = [part for setting in settings for part in ("--set", setting)]
    files = ["--source", place / "book" / "train.en", "--target", place / "book" / "train.de"]
    arguments = [
        "train",
        place / name,
        *files,
        "--system",
        "bahdanau",
        "--steps",
        4,
        "--device",
        "cpu",
        *options,
        *more,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return place / name
