"""Runs are loaded while the server listens, and reloaded while requests are answered."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import shutil
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import dragoman
from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.serving import ApiKeys, LanguagePair, RunSource, Service, ServiceLimits, bind_socket, create_app, serve
from dragoman.serving.api_keys import ApiKey
from dragoman.storage import replace_symlink

PATIENCE = 300  # seconds: an upper bound for a busy machine
TEXTS = ["Anna reads.", "The man sleeps.", "The woman sees the dog.", "Ben buys a book."]
ADMIN = ApiKey("operator", hashlib.sha256(b"secret").digest(), admin=True)
HEADERS = {"authorization": "Bearer secret"}


def write_version(folder: Path, name: str, sign: float) -> None:
    """Write a checkpoint of a run with other weights, and make it the best one."""
    best = folder / "checkpoints" / "best"
    tensors = {key: sign * value for key, value in checkpoint.read_tensors(best, "model").items()}
    if not (folder / "checkpoints" / name).exists():
        checkpoint.save(folder / "checkpoints" / name, {"model": tensors}, checkpoint.read_values(best))
    replace_symlink(best, name)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, which the test may change; without its data, from which a service would learn."""
    shutil.copytree(folder, tmp_path / "run", symlinks=True, ignore=shutil.ignore_patterns("data"))
    return tmp_path / "run"


def open_run(folder: Path) -> Run:
    return dragoman.load(folder, device="cpu")


def service_of(folder: Path) -> Service:
    source = RunSource(folder, LanguagePair("en", "de"), "best", open_run)
    keys = ApiKeys([ADMIN, "plain"], required=False)
    return Service([source], ServiceLimits(requests_per_minute=0), keys=keys)


@pytest.fixture
def reloadable(copied: Path) -> Service:
    return service_of(copied)


@pytest.fixture
def client(reloadable: Service) -> Iterator[TestClient]:
    with TestClient(create_app(reloadable), "http://localhost", raise_server_exceptions=False) as opened:
        yield opened


def versions(client: TestClient) -> list[tuple[str, str]]:
    return [(run["checkpoint"], run["version"]) for run in client.get("/v1/runs").json()]


def test_reload_with_an_admin_key(client: TestClient, copied: Path) -> None:
    ((first, version),) = versions(client)
    assert client.post("/admin/reload").status_code == 403
    wrong = client.post("/admin/reload", headers={"authorization": "Bearer plain"})
    assert (wrong.status_code, "admin: true" in wrong.json()["error"]) == (403, True)
    unchanged = client.post("/admin/reload", headers=HEADERS)
    assert unchanged.json()["reloads"] == {"run": {"result": "unchanged", "version": version, "error": ""}}
    write_version(copied, "000099", -1)
    found = client.post("/admin/reload", headers=HEADERS)
    assert (found.status_code, found.json()["error"], found.json()["reloads"]["run"]["result"]) == (
        200,
        None,
        "reloaded",
    )
    ((second, new_version),) = versions(client)
    assert (second, new_version.split("-")[0], new_version == version) == ("000099", "000099", False)
    assert client.get("/readyz").json()["runs"] == {"run": new_version}
    text = client.get("/metrics").text
    assert 'dragoman_reloads_total{result="reloaded",run="run"} 1.0' in text
    assert f'dragoman_run_info{{checkpoint="000099",run="run",version="{new_version}"}} 1.0' in text
    assert f'checkpoint="{first}"' not in text


def test_a_version_that_cannot_be_loaded_leaves_the_old_one(client: TestClient, copied: Path) -> None:
    before = versions(client)
    answer = client.post("/v1/translate", json={"text": TEXTS}).json()
    write_version(copied, "000099", -1)
    weights = copied / "checkpoints" / "000099" / "model.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-100])
    failed = client.post("/admin/reload", headers=HEADERS)
    assert (failed.status_code, failed.json()["error"]) == (500, "not reloaded: run")
    assert failed.json()["reloads"]["run"]["result"] == "failed"
    assert str(copied) not in failed.text
    assert versions(client) == before
    assert client.post("/v1/translate", json={"text": TEXTS}).json() == answer
    assert client.get("/readyz").status_code == 200
    weights.write_bytes(intact)
    assert client.post("/admin/reload", headers=HEADERS).status_code == 200
    assert versions(client) != before


def test_other_files_are_reloaded_too(client: TestClient, reloadable: Service, copied: Path) -> None:
    service = reloadable
    service.reloader.file_readers["API keys"] = lambda: setattr(service, "keys", ApiKeys.read(copied / "keys"))
    failed = client.post("/admin/reload", headers=HEADERS)
    assert (failed.status_code, failed.json()["error"]) == (500, "not reloaded: API keys")
    (copied / "keys").write_text("another\n")
    assert client.post("/admin/reload", headers=HEADERS).json()["reloads"]["API keys"]["result"] == "reloaded"
    assert client.post("/admin/reload", headers=HEADERS).status_code == 403


def test_watched_run_is_reloaded_once(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.serving.run_reloading.WATCH_INTERVAL_SECONDS", 0.01)
    service, loads = service_of(copied), []
    load = service.load_run
    monkeypatch.setattr(service, "load_run", lambda name, source: (loads.append(name), load(name, source))[1])
    service.reloader.watch()
    with TestClient(create_app(service), "http://localhost") as client:
        (before,) = versions(client)
        write_version(copied, "000099", -1)
        _until(lambda: versions(client)[0] != before)
        assert versions(client)[0][0] == "000099"
        (copied / "model.json").write_text("{")
        _until(lambda: 'dragoman_reloads_total{result="failed",run="run"}' in client.get("/metrics").text)
        assert client.post("/v1/translate", json={"text": TEXTS}).status_code == 200
    assert loads == ["run"] * 3  # at the start, the new version, and the damaged one only once


def _until(true: Callable[[], object]) -> None:
    done = threading.Event()
    for _ in range(PATIENCE * 100):
        if true():
            return
        done.wait(0.01)
    raise AssertionError("it did not happen")


def test_no_request_is_dropped_while_runs_are_reloaded(
    copied: Path, listening: Callable[[Service], Iterator[tuple[str, int]]]
) -> None:
    """Clients ask all the time; every answer is that of one version, the one that the response names."""
    service = service_of(copied)
    old_run = open_run(copied)
    expected: dict[str, list[str]] = {}

    def ask() -> tuple[int, str, str, int]:
        number = len(answers) % len(TEXTS)
        body = json.dumps({"q": TEXTS[number], "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(f"{url}/translate", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return (
                response.status,
                response.headers["x-dragoman-version"],
                json.load(response)["translatedText"],
                number,
            )

    def ask_for_stream() -> tuple[int, str, str, int]:
        number = len(answers) % len(TEXTS)
        request = urllib.request.Request(
            f"{url}/v1/stream", json.dumps({"text": TEXTS[number]}).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            event, _, data = response.read().decode().strip().rpartition("\ndata: ")
            assert event.endswith("event: done"), data
            return response.status, response.headers["x-dragoman-version"], json.loads(data)["text"], number

    def keep_asking(ask: Callable[[], tuple[int, str, str, int]]) -> None:
        try:
            while not stop.is_set():
                answers.append(ask())
        except Exception as error:
            errors.append(error)

    def wait_for_answers() -> None:
        before = len(answers)
        _until(lambda: len(answers) > before + 20)

    answers: list[tuple[int, str, str, int]] = []
    errors: list[Exception] = []
    stop, server = threading.Event(), listening(service)
    url = "http://{}:{}".format(*next(server))
    first = service.runs["run"]
    expected[first.version] = [one.text for one in old_run.translate(TEXTS)]
    weights = weakref.ref(next(first.run.model.parameters()))
    threads = [threading.Thread(target=keep_asking, args=(one,)) for one in [ask, ask_for_stream] * 3]
    for thread in threads:
        thread.start()
    del first
    for name, sign in (("000098", -1.0), ("000099", 1.0), ("000098", 1.0)):
        wait_for_answers()
        write_version(copied, name, sign)
        results = service.reloader.reload()
        assert results["run"].result == "reloaded"
        expected[results["run"].version] = [one.text for one in open_run(copied).translate(TEXTS)]
    wait_for_answers()
    stop.set()
    for thread in threads:
        thread.join()
    for _ in server:  # stops it
        pass
    assert not errors
    assert len(expected) == 3
    assert expected[answers[0][1]] != expected[results["run"].version]
    for status, version, text, number in answers:
        assert (status, text) == (200, expected[version][number])
    assert {version for _, version, _, _ in answers} == set(expected)
    gc.collect()
    assert weights() is None  # the first version is freed


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Restores the loggers that a server configures."""
    loggers = [logging.getLogger(name) for name in ("dragoman.serving", "uvicorn.error", "py.warnings")]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, logger.handlers, logger.propagate, level in before:
        logger.setLevel(level)


@pytest.mark.usefixtures("own_logging")
def test_server_is_alive_while_runs_are_loaded(copied: Path) -> None:
    """/livez answers, /readyz and translations get 503; then the command's error ends the server."""
    loading, continued = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    def open_slowly(folder: Path) -> Run:
        loading.set()
        assert continued.wait(PATIENCE)
        raise UserError(f"{folder} is damaged")

    def status(path: str) -> int:
        try:
            return int(urllib.request.urlopen(url + path, timeout=PATIENCE).status)
        except urllib.error.HTTPError as error:
            return error.code

    def look() -> None:
        loading.wait(PATIENCE)
        seen.update({path: status(path) for path in ("/livez", "/readyz", "/health", "/v1/runs", "/metrics", "/")})
        continued.set()

    bound = bind_socket("127.0.0.1", 0)
    url = "http://{}:{}".format(*bound.getsockname())
    looking = threading.Thread(target=look)
    looking.start()
    with pytest.raises(UserError, match="is damaged"):
        serve(Service([RunSource(copied, LanguagePair("en", "de"), "best", open_slowly)]), bound)
    looking.join()
    bound.close()
    assert seen == {"/livez": 200, "/readyz": 503, "/health": 503, "/v1/runs": 503, "/metrics": 200, "/": 200}
