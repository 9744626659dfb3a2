"""The comparison on character-level tasks: files, the peer's settings, and the word error rate."""

from __future__ import annotations

import gzip
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script() -> Any:
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return import_module("characters")


def test_words_and_sounds(script: Any, tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"xxx_{split}.tsv.gz").write_bytes(gzip.compress("ab\tɑ b\nba\tb ɑ\n".encode()))
    task = script.g2p_task(tmp_path, "xxx", tmp_path / "task")
    assert task.columns("dev") == [["ab", "ɑ b"], ["ba", "b ɑ"]]
    assert script.word_error_rate(["ɑ b", "b a"], task, "dev") == 50.0
    settings = script.peer_settings(
        task, tmp_path, script.PEER_MODELS["soft attention"], Namespace(minutes=61.5, seed=1)
    )
    assert settings["trainer"]["max_time"] == "00:01:01:30"
    assert settings["data"]["target_sep"] == " "
    assert "features_encoder" not in settings["model"]["init_args"]


def test_lemmas_and_features(script: Any, tmp_path: Path) -> None:
    task = script.inflection_task(20, tmp_path / "forms")
    assert {len(row) for row in task.columns("train")} == {3}
    model = script.PEER_MODELS["hard attention, monotonic"]
    settings = script.peer_settings(task, tmp_path, model, Namespace(minutes=1, seed=1))
    assert settings["data"]["features_col"] == 3
    assert settings["model"]["init_args"]["features_encoder"]["init_args"]["hidden_size"] == 400
