"""Preparations in one process share what depends on equal text settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest_training import small_config

from dragoman.config import Config, override_settings
from dragoman.errors import UserError
from dragoman.training.preparation_cache import PreparationCache
from dragoman.training.prepare import prepare_run


@pytest.fixture
def config(corpus: Path) -> Config:
    return override_settings(small_config(corpus, "bahdanau"), ["data.num_workers=1"])


def test_equal_text_settings_share_tokenizers_and_stores(tmp_path: Path, config: Config) -> None:
    cache, messages = PreparationCache(), []
    other = override_settings(config, ["system.settings.model_dim=24", "training.batch_tokens=500"])
    first = prepare_run(tmp_path / "first", config, messages.append, cache=cache)
    second = prepare_run(tmp_path / "second", other, messages.append, cache=cache)
    alone = prepare_run(tmp_path / "alone", other, print)
    assert sum(message.startswith("learning a vocabulary") for message in messages) == 1
    for path in (path for path in (tmp_path / "second" / "data").rglob("*") if path.is_file()):
        relative = path.relative_to(tmp_path / "second")
        assert path.samefile(tmp_path / "first" / relative)  # a hard link
        assert path.read_bytes() == (tmp_path / "alone" / relative).read_bytes()
    assert replace(second.preflight, memory=None) == replace(alone.preflight, memory=None)
    assert second.preflight.memory == alone.preflight.memory != first.preflight.memory
    assert second.config == alone.config


def test_other_text_settings_share_nothing(tmp_path: Path, config: Config) -> None:
    cache = PreparationCache()
    prepare_run(tmp_path / "first", config, print, cache=cache)
    prepare_run(tmp_path / "second", override_settings(config, ["text.vocab_size=350"]), print, cache=cache)
    first, second = ((tmp_path / name / "tokenizer.json").read_text(encoding="utf-8") for name in ("first", "second"))
    assert first != second
    alone = tmp_path / "alone"
    prepare_run(alone, override_settings(config, ["text.vocab_size=350"]), print)
    assert (alone / "tokenizer.json").read_text(encoding="utf-8") == second


def test_stores_of_a_failed_preparation_are_written_again(tmp_path: Path, config: Config) -> None:
    cache = PreparationCache()
    with pytest.raises(UserError, match="batch_tokens is 5"):
        prepare_run(tmp_path / "failed", override_settings(config, ["training.batch_tokens=5"]), print, cache=cache)
    prepare_run(tmp_path / "second", config, print, cache=cache)
    assert (tmp_path / "second" / "data" / "train").is_dir()
