"""The history of a training over HTTP and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

import dragoman
from dragoman.run import Run

SENTENCE = "The old man reads the book."


def history(client: TestClient, **fields: object) -> dict:
    response = client.post("/v1/history", json={"run": "run", "text": SENTENCE, **fields})
    return response.json() | {"status": response.status_code}


def test_checkpoints_are_listed_by_step(client: TestClient) -> None:
    listed = client.get("/v1/runs/run/checkpoints").json()["checkpoints"]
    assert [entry["step"] for entry in listed] == [0, 1, 2, 3, 4]
    assert listed[0]["checkpoint"] == "history/000000"


@pytest.mark.parametrize("name", ["history/000001", "000004"])
def test_an_entry_equals_what_the_checkpoint_computes(client: TestClient, folder: Path, name: str) -> None:
    final = "Der alte Mann liest das Buch."
    entry = history(client, checkpoint=name, translation=final)["entry"]
    run = dragoman.load(folder, name, device="cpu")
    assert entry["final"]["score"] == pytest.approx(run.score([SENTENCE], [final])[0].score, abs=1e-4)
    assert sum(entry["final"]["token_scores"]) == pytest.approx(entry["final"]["score"], abs=1e-4)
    found = run.translate([SENTENCE], alignment=False)[0]
    assert entry["found"]["target"]["text"] == found.text
    assert entry["found"]["score"] == pytest.approx(found.score, abs=1e-3)
    for row in entry["final"]["cross_attention"]:
        assert sum(row) == pytest.approx(1, abs=1e-4)


def test_unknown_checkpoints_and_long_texts_are_rejected(client: TestClient, run: Run) -> None:
    for name in ("history/000077", "../../config.yaml", ""):
        answer = history(client, checkpoint=name, translation="Der Hund.")
        assert answer["status"] == 400
        assert "/v1/runs/run/checkpoints" in answer["error"]
    answer = history(client, checkpoint="000004", translation="Hund " * 400)
    assert answer["status"] == 400
    assert "at most 128 tokens" in answer["error"]
    assert history(client, checkpoint="000004")["error"] == "the field 'translation' is missing"
