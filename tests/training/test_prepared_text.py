"""The text that a run learns from: normalized or cleaned by settings as by hand before."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest_training import small_config

from dragoman.config import Config, replace_settings
from dragoman.training.prepare import PreparedRun, prepare_run


def prepared(folder: Path, config: Config, **files: Path) -> tuple[PreparedRun, dict[str, bytes]]:
    """A run prepared on other files, and the contents of its token stores and tokenizers."""
    settings = {f"data.{name}": [str(path)] for name, path in files.items()}
    run = prepare_run(folder, replace_settings(config, settings), lambda text: None)
    paths = [*folder.glob("tokenizer*.json"), *(folder / "data").rglob("*.tokens"), *(folder / "data").rglob("*.ends")]
    return run, {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def config(corpus: Path) -> Config:
    settings = {"data.valid_source": [], "data.valid_target": []}  # pairs are held out
    return replace_settings(small_config(corpus, steps=1), settings)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_lower_cased_corpus_is_that_of_lower_cased_files(corpus: Path, config: Config, tmp_path: Path) -> None:
    files = {}
    for side, language in (("source", "en"), ("target", "de")):
        lines = (corpus / f"train.{language}").read_text(encoding="utf-8").lower().splitlines()
        files[side] = write(tmp_path / f"lower.{language}", lines)
    _, expected = prepared(tmp_path / "by_hand", config, **files)
    _, found = prepared(tmp_path / "by_setting", replace_settings(config, {"text.lowercase": True}))
    assert len(expected) > 4
    assert found == expected
