"""A small Transformer that is trained here writes the same sentences in Dragoman, CTranslate2 and ONNX Runtime."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

import dragoman
from dragoman.data import phrasebook

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")
SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_exported_models_write_the_same_sentences(tmp_path: Path) -> None:
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    script = import_module("exported_models")
    phrasebook.write(tmp_path / "corpus", pairs=2000, valid=20, test=20)
    run = dragoman.train(
        tmp_path / "run",
        source=tmp_path / "corpus" / "train.en",
        target=tmp_path / "corpus" / "train.de",
        system="transformer",
        size="tiny",
        settings={
            "training.steps": 100,
            "training.recipe": "plain",
            "training.batch_tokens": 800,
            "training.validation_sentences": 4,
            "training.device": "cpu",
            "text.vocab_size": 600,
            "system.settings.model_dim": 32,
            "system.settings.heads": 2,
            "search.max_target_length": 40,
        }
        | {f"system.settings.{name}": value for name, value in script.MARIAN_SHAPED.items()},
        callback=lambda event: None,
    )
    texts = (tmp_path / "corpus" / "test.en").read_text(encoding="utf-8").splitlines()
    results = script.compare(run, run.encode_sources(texts), rounds=1, threads=1, batch_size=8, beam_size=3)
    equal = {(result.engine, result.search): result.equal for result in results}
    assert equal["ONNX Runtime float32", "greedy"] == 1
    assert equal["CTranslate2 float32", "greedy"] == equal["CTranslate2 float32", "beam 3"] == 1
    assert {result.search for result in results if result.engine == "CTranslate2 int8"} == {"greedy", "beam 3"}
    assert all(result.sentences_per_second > 0 for result in results)
