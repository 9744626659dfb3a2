"""What a run folder tells about its training: records that grow, states, warnings, sentences that change."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.watch.training_log import GrowingFile, TrainingLog, thin_out
from dragoman.watch.training_warnings import training_warnings


def write_lines(path: Path, *records: object) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))


def test_only_complete_lines_are_read_and_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    growing = GrowingFile(path)
    assert growing.read() == []
    write_lines(path, {"step": 1})
    with path.open("a") as file:
        file.write('{"step": ')
    assert growing.read() == [{"step": 1}]
    with path.open("a") as file:
        file.write("2}\nnot JSON\n[3]\n")
    assert growing.read() == [{"step": 1}, {"step": 2}]
    (tmp_path / "new").write_text('{"step": 7}\n')
    (tmp_path / "new").replace(path)
    assert growing.read() == [{"step": 7}]
    path.write_text("")  # shorter than before
    assert growing.read() == []


def status(tmp_path: Path, **changes: Any) -> str:
    values = {"state": "training", "pid": os.getpid(), "host": socket.gethostname(), "updated": time.time()}
    (tmp_path / "status.json").write_text(json.dumps(values | changes))
    return TrainingLog(tmp_path).read()["state"]


def test_states(tmp_path: Path) -> None:
    assert TrainingLog(tmp_path / "not yet").read()["state"] == "preparing"
    assert status(tmp_path) == "training"
    assert status(tmp_path, state="finished") == "finished"
    assert status(tmp_path, host="another machine", pid=1) == "training"
    assert status(tmp_path, pid=2**22 + 1) == "stopped"  # above the largest process id of Linux
    (tmp_path / "status.json").write_text("{")
    assert TrainingLog(tmp_path).read()["state"] == "preparing"


def test_curves_are_those_of_the_records(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", {"kind": "train", "step": 10, "loss": 3.0, "perplexity": math.e**2})
    write_lines(tmp_path / "metrics.jsonl", {"kind": "train", "step": 20, "gradient_norm": float("nan")})
    valid = {"kind": "valid", "step": 20, "loss": 1.5, "accuracy": 40.0, "bleu": 12.5, "selection_metric": "bleu"}
    write_lines(tmp_path / "metrics.jsonl", valid)
    read = TrainingLog(tmp_path).read()
    curves = {curve["name"]: curve["points"] for curve in read["curves"]}
    assert curves["training loss"] == [(10.0, pytest.approx(2.0))]
    assert curves["validation loss"] == [(20.0, 1.5)]
    assert curves["BLEU"] == [(20.0, 12.5)]
    assert "gradient norm" not in curves  # it was not finite
    assert read["validation"] == {"loss": 1.5, "BLEU": 12.5, "accuracy": 40.0}
    json.dumps(read, allow_nan=False)


def test_changes_of_validation_sentences(tmp_path: Path) -> None:
    for step, text in ((10, "Der"), (20, "Der"), (30, "Der Hund")):
        row = {"source": "The dog", "reference": "Der Hund", "translation": text}
        write_lines(tmp_path / "samples" / f"{step:06d}.jsonl", row)
    (sentence,) = TrainingLog(tmp_path).read()["sentences"]
    assert sentence["changes"] == [{"step": 10, "translation": "Der"}, {"step": 30, "translation": "Der Hund"}]


def test_sentences_of_a_training_that_was_resumed_from_an_earlier_step(tmp_path: Path) -> None:
    """Its later validations are removed, and then written again with other translations."""
    for step, text in ((10, "Der"), (20, "Die")):
        write_lines(tmp_path / "samples" / f"{step:06d}.jsonl", {"source": "The dog", "translation": text})
    log, rewritten = TrainingLog(tmp_path), tmp_path / "samples" / "000020.jsonl"
    assert [change["translation"] for change in log.read()["sentences"][0]["changes"]] == ["Der", "Die"]
    rewritten.write_text(json.dumps({"source": "The dog", "translation": "Der Hund"}) + "\n")
    written = rewritten.stat().st_mtime_ns + 10**9  # a second later, whatever the resolution of the clock
    os.utime(rewritten, ns=(written, written))
    assert [change["translation"] for change in log.read()["sentences"][0]["changes"]] == ["Der", "Der Hund"]
    rewritten.unlink()
    assert [change["translation"] for change in log.read()["sentences"][0]["changes"]] == ["Der"]


def test_warnings() -> None:
    rising = [{"loss": loss} for loss in (1.0, 1.1, 1.2, 1.3)]
    assert ["overfits" in text for text in training_warnings({}, [], rising)] == [True]
    assert training_warnings({}, [], rising[:3]) == []
    assert training_warnings({}, [], [*rising[:3], {"loss": 1.0}]) == []
    norms = [{"gradient_norm": 1.0}] * 20
    assert training_warnings({}, norms, []) == []
    assert "25 times" in training_warnings({}, [*norms, {"gradient_norm": 25.0}], [])[0]
    assert "3 of the recent steps" in training_warnings({}, [{"skipped": 3}], [])[0]
    assert "400 seconds" in training_warnings({"state": "training", "seconds_since_update": 400}, [], [])[0]
    assert training_warnings({"state": "finished", "seconds_since_update": 400}, [], []) == []


@pytest.mark.parametrize("count", [0, 1, 400, 401, 5000])
def test_thinned_curves_keep_their_last_point(count: int) -> None:
    points = [(float(n), 0.0) for n in range(count)]
    thinned = thin_out(points, 400)
    assert len(thinned) <= 400
    assert thinned[-1:] == points[-1:]
