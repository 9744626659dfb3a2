"""The page of a training: another process shows it, and the training does not notice."""

from __future__ import annotations

import importlib.util
import json
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import train_small_run
from starlette.testclient import TestClient

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.watch.watch_process import watched
from dragoman.watch.watch_server import check_packages


def test_training_is_the_same_with_a_page_that_cannot_be_served(folder: Path, capfd: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        again = train_small_run(folder.parent, "watched", "--watch", "--watch-port", port)
    assert f"the web page that shows a training cannot listen at port {port}" in capfd.readouterr().err
    first, second = (checkpoint.read_tensors(run / "checkpoints" / "last", "model") for run in (folder, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_page_shows_the_run_and_ends_with_the_training(folder: Path, capfd: Any) -> None:
    with watched(folder):
        text, deadline = "", time.monotonic() + 120
        while "http://" not in text and time.monotonic() < deadline:
            text += capfd.readouterr().err
            time.sleep(0.05)
        url = text.split()[-1]
        with urllib.request.urlopen(url + "v1/progress") as response:
            progress = json.load(response)
        with urllib.request.urlopen(url) as response:
            assert b"watch.js" in response.read()
            assert "default-src 'self'" in response.headers["content-security-policy"]
        foreign = urllib.request.Request(url, headers={"host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(foreign)
    assert (progress["state"], progress["step"], progress["total_steps"]) == ("finished", 4, 4)
    assert "pid" not in progress
    assert "host" not in progress
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package fastapi: install it with pip install 'dragoman\[serve\]'"):
        check_packages()


def test_progress_and_report_of_a_served_run(client: TestClient, folder: Path) -> None:
    progress = client.get("/v1/runs/run/progress").json()
    assert (progress["state"], progress["report"], progress["step"]) == ("finished", True, 4)
    report = client.get("/v1/runs/run/report")
    assert report.status_code == 200
    assert "default-src 'none'" in report.headers["content-security-policy"]
    assert str(folder) not in report.text
    assert client.get("/v1/runs/unknown/progress").status_code == 404
