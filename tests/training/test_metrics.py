"""The files in which a training records its measurements, and what is removed from them when it is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.lens.run_report import read_samples
from dragoman.run_files import read_metrics
from dragoman.training.metrics import MetricsLog


@pytest.fixture
def validated(tmp_path: Path) -> Path:
    """A run folder with validations at steps 10, 20 and 30."""
    (tmp_path / "samples").mkdir()
    records = [{"kind": "valid", "step": step} for step in (10, 20, 30)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for step in (10, 20, 30):
        sample = {"source": "The dog", "reference": "Der Hund", "translation": str(step)}
        (tmp_path / "samples" / f"{step:06d}.jsonl").write_text(json.dumps(sample) + "\n")
    return tmp_path


def test_validations_after_the_resumed_step_are_forgotten(validated: Path) -> None:
    log = MetricsLog(validated, step=20)
    for step, remaining in ((20, [10, 20]), (10, [10]), (-1, [])):
        log.truncate_after(step)
        assert [record["step"] for record in read_metrics(validated)] == remaining
        assert list(read_samples(validated)) == remaining
    log.close()


def test_only_the_first_process_removes_validations(validated: Path) -> None:
    MetricsLog(validated, step=10, enabled=False).close()
    assert [record["step"] for record in read_metrics(validated)] == [10, 20, 30]
    assert list(read_samples(validated)) == [10, 20, 30]
