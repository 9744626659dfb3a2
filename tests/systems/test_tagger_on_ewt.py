"""The tagger on a real corpus, where one is at hand: DRAGOMAN_DATA names a folder that holds ud_ewt."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from dragoman import evaluation
from dragoman.config import from_dict
from dragoman.run import load
from dragoman.training.display import Display
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer

DATA = Path(os.environ.get("DRAGOMAN_DATA", "no folder")) / "ud_ewt"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="DRAGOMAN_DATA names no folder with ud_ewt")
def test_tagging_accuracy(tmp_path: Path) -> None:
    """Every word tagged with its commonest tag gives about 86 % on this corpus: context must add to that."""
    files = {"source": [str(DATA / "train.tsv.gz")], "valid_source": [str(DATA / "dev.tsv.gz")], "format": "tsv"}
    training = {"steps": 1200, "validation_interval": 300, "device": "cpu"}
    values = {"data": files, "system": {"name": "tagger", "size": "tiny"}, "training": training}
    prepare_run(tmp_path / "run", from_dict(values), lambda text: None)
    Trainer(tmp_path / "run", Display()).train()
    run = load(tmp_path / "run", device="cpu")
    with gzip.open(DATA / "test.tsv.gz", "rt", encoding="utf-8") as file:
        words, tags = zip(*(line.rstrip("\n").split("\t") for line in file))
    found = [" ".join(sentence.tags) for sentence in run.tag(words)]
    assert evaluation.TEXT_METRICS["accuracy"](found, list(tags)).value > 86.0
