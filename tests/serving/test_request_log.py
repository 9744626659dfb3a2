"""Request ids, the log, metrics by run and version, liveness and readiness."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from dragoman.run import Run
from dragoman.serving import LanguagePair, LogSettings, Service, ServiceLimits, create_app
from dragoman.serving.run_versions import run_version
from dragoman.serving.service_log import JsonFormatter, TextFormatter, hide_texts, logger

PAIR = {"source": "en", "target": "de"}


class Lines(logging.Handler):
    """Collects formatted lines of the log."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lines of the JSON log of a test."""
    handler = Lines(JsonFormatter())
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def open_client(run: Run, log: LogSettings, limits: ServiceLimits | None = None) -> TestClient:
    service = Service([(run, LanguagePair("en", "de"))], limits or ServiceLimits(requests_per_minute=0))
    return TestClient(create_app(service, log=log), "http://localhost", raise_server_exceptions=False)


def test_valid_request_id_is_returned(client: TestClient) -> None:
    assert client.get("/languages", headers={"x-request-id": "a-1.b:c"}).headers["x-request-id"] == "a-1.b:c"
    for path, status in (("/languages", 200), ("/nothing", 404), ("/translate", 405), ("/metrics", 200)):
        response = client.get(path, headers={"x-request-id": "a" * 129})
        assert response.status_code == status
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    misdirected = client.get("/languages", headers={"host": "evil.example", "x-request-id": "x"})
    assert (misdirected.status_code, misdirected.headers["x-request-id"]) == (421, "x")


@pytest.mark.parametrize("given", ["", "two words", 'quote"', "new\tline", "ü"])
def test_invalid_request_ids_are_replaced(client: TestClient, given: str) -> None:
    response = client.get("/languages", headers={"x-request-id": given.encode()})
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


def test_one_line_per_request_without_text(client: TestClient, run: Run, lines: list[str]) -> None:
    response = client.post("/translate", json={"q": "Anna reads.", **PAIR}, headers={"x-request-id": "id-1"})
    client.get("/livez")  # asked every few seconds: not logged
    client.post("/v1/translate", json={"text": "Anna reads.", "run": "Anna"})
    first, second = map(json.loads, lines)
    version = run_version(run.folder, run.checkpoint)
    assert (response.headers["x-dragoman-run"], response.headers["x-dragoman-version"]) == ("run", version)
    expected = {"level": "info", "message": "request", "request_id": "id-1", "method": "POST", "route": "/translate"}
    expected |= {"status": 200, "run": "run", "version": version, "characters": 11, "client": "testclient"}
    assert {name: first[name] for name in expected} == expected
    assert 0 < first["queue_seconds"] < first["seconds"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert (second["status"], second["run"]) == (400, None)
    assert "Anna" not in "".join(lines)


def test_texts_and_addresses_are_optional(run: Run, lines: list[str]) -> None:
    with open_client(run, LogSettings(texts=True, addresses=False)) as client:
        client.post("/translate", json={"q": ["Anna reads.", "Ben\nsleeps."], **PAIR})
        client.post("/translate", json={"q": "a", "source": "en", "target": "xx"})
    first, second = map(json.loads, lines)
    assert (first["texts"], first["client"]) == (["Anna reads.", "Ben\nsleeps."], None)
    assert "xx" in second["error"]


def test_internal_error_is_logged_with_the_request_id_and_without_text(
    client: TestClient, run: Run, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Run, sentences: list[str], *_: object, **__: object) -> None:
        raise ValueError(f"cannot translate {sentences[0]}")

    monkeypatch.setattr(type(run), "translate_stream", fail)
    question = {"q": "Anna reads the secret. Ben sleeps.", **PAIR}
    response = client.post("/translate", json=question, headers={"x-request-id": "id-2"})
    assert (response.status_code, response.headers["x-request-id"]) == (500, "id-2")
    assert response.json() == {"error": "the service failed: see its log for the request id-2"}
    failure, request = map(json.loads, lines)
    assert (failure["level"], failure["request_id"]) == ("error", "id-2")
    assert "ValueError: cannot translate [text]" in failure["traceback"]
    assert (request["status"], request["request_id"]) == (500, "id-2")
    assert "secret" not in "".join(lines)


def test_text_format() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "request", None, None)
    record.created = 0.5
    record.fields = {"route": "/translate", "seconds": 0.25, "run": None, "error": "too many", "texts": ["a=b"]}
    expected = '1970-01-01T00:00:00.500Z request route=/translate seconds=0.250 error="too many" texts=["a=b"]'
    assert TextFormatter().format(record) == expected
    record.levelno, record.levelname, record.fields = logging.ERROR, "ERROR", {}
    assert TextFormatter().format(record) == "1970-01-01T00:00:00.500Z ERROR request"


def test_hidden_texts_are_lines_and_sentences() -> None:
    texts = ["First one. Second one.\nThird 'one'", "of"]
    assert hide_texts("bad Second one. of Third 'one'", texts) == "bad [text] of [text]"
    assert hide_texts(repr("Third 'one'\n"), texts) == '"[text]\\n"'


def test_liveness_and_readiness(client: TestClient, run: Run) -> None:
    assert client.get("/livez").json() == {"status": "alive"}
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert ready.json()["runs"] == {"run": run_version(run.folder, run.checkpoint)}


def test_readiness_while_starting_full_and_stopping(run: Run) -> None:
    service = Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0, max_queue=1))
    client = TestClient(create_app(service), "http://localhost")  # not entered: the service does not start
    assert (client.get("/livez").status_code, client.get("/readyz").json()["status"]) == (200, "starting")
    early = client.post("/translate", json={"q": "Anna reads.", **PAIR})
    assert (early.status_code, early.headers["retry-after"]) == (503, "2")
    assert client.get("/").status_code == client.get("/metrics").status_code == 200
    with client:
        assert "dragoman_ready 1.0" in client.get("/metrics").text
        service.runs["run"].batcher.max_queue = 0
        full = client.get("/readyz")
        assert (full.status_code, full.json()["status"], full.headers["retry-after"]) == (503, "full", "1")
        service.runs["run"].batcher.max_queue = 1
        service.begin_to_stop()
        assert client.get("/readyz").json()["status"] == "stopping"
        assert client.post("/translate", json={"q": "Anna reads.", **PAIR}).status_code == 200
        assert "dragoman_ready 0.0" in client.get("/metrics").text


def test_metrics_of_runs_and_of_the_process(client: TestClient, run: Run) -> None:
    (translation,) = run.translate(["The man sleeps."])
    version = run_version(run.folder, run.checkpoint)

    def metric(name: str) -> float:
        values = re.findall(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.M)
        return float(values[0]) if values else 0.0

    labels = f'{{run="run",version="{version}"}}'
    names = [f"dragoman_source_tokens_total{labels}", f"dragoman_target_tokens_total{labels}"]
    names += [f'dragoman_run_requests_total{{run="run",status="200",version="{version}"}}']
    names += ['dragoman_queue_seconds_count{run="run"}', 'dragoman_run_request_seconds_count{run="run"}']
    before = [metric(name) for name in names]
    assert client.post("/translate", json={"q": "The man sleeps.", **PAIR}).status_code == 200
    added = [metric(name) - value for name, value in zip(names, before)]
    source = len(run.source_tokenizer.encode_batch(["The man sleeps."])[0])
    assert added == [source, len(translation.tokens), 1, 1, 1]
    assert metric("process_resident_memory_bytes") > 0


def test_failure_of_a_stream_is_logged(client: TestClient, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("cannot translate The secret sleeps.")

    monkeypatch.setattr("dragoman.serving.request_batching.Batcher._translate", fail)
    response = client.post("/v1/stream", json={"text": "\nThe secret sleeps."}, headers={"x-request-id": "id-3"})
    assert (response.status_code, "the translation failed" in response.text) == (200, True)
    failure, request = map(json.loads, lines)
    assert "ValueError: cannot translate [text]" in failure["traceback"]
    assert (failure["request_id"], request["request_id"], request["status"]) == ("id-3", "id-3", 500)
    assert "secret" not in "".join(lines)
