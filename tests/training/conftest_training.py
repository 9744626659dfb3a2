from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import Config, from_dict
from dragoman.data import phrasebook


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred pairs of the phrasebook as files."""
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=400, valid=12, test=12)
    return folder


def small_config(corpus: Path, system: str = "transformer", **training: object) -> Config:
    """A model that trains in a moment."""
    heads = {"heads": 2} if system == "transformer" else {}
    return from_dict(
        {
            "data": {
                "source": [str(corpus / "train.en")],
                "target": [str(corpus / "train.de")],
                "valid_source": [str(corpus / "valid.en")],
                "valid_target": [str(corpus / "valid.de")],
                "longest": 60,
            },
            "text": {"size": 400, "dropout": 0.1},
            "system": {"name": system, "size": "tiny", "settings": {"width": 16, "layers": 1, **heads}},
            "training": {
                "tokens": 300,
                "steps": 23,
                "validate_every": 9,
                "validate_sentences": 4,
                "keep": 2,
                "learning_rate": 0.01,
                "warmup": 3,
                "device": "cpu",
                **training,
            },
            "search": {"beam": 2},
        }
    )
