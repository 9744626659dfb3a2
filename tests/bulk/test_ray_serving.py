"""The service on Ray Serve: the answers of a local service, whatever dies on the way."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from starlette.testclient import TestClient

import dragoman
from dragoman.cli.options import ModelOptions
from dragoman.cli.serve import ServiceBuilder
from dragoman.cli.serve_options import AnalysisOptions, KeyOptions, LimitOptions, RoutingOptions, SuggestionOptions
from dragoman.data import phrasebook
from dragoman.serving import ServerOptions, create_app

pytest.importorskip("ray.serve")
from ray_nodes import Nodes, connect_with_path, ray_processes, two_nodes  # needs Ray

from dragoman.serving.ray_serving import ReplicaOptions, deploy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXTS = [f"The dog number {n} sleeps." for n in range(120)]
Fetch = Callable[..., tuple[int, bytes]]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> ServiceBuilder:
    """A service of a run that has hardly learned anything."""
    folder = tmp_path_factory.mktemp("ray")
    phrasebook.write(folder / "book", pairs=200, valid=5, test=5)
    settings = {"training.steps": 2, "system.settings.model_dim": 16, "search.max_target_length": 8}
    files = {"source": folder / "book" / "train.en", "target": folder / "book" / "train.de"}
    dragoman.train(folder / "run", **files, system="bahdanau", settings=settings, callback=lambda event: None)
    groups = (KeyOptions(), SuggestionOptions(), RoutingOptions(), AnalysisOptions())
    model, limits = ModelOptions(device="cpu"), LimitOptions(requests_per_minute=0)
    return ServiceBuilder([str(folder / "run")], model, "float32", limits, *groups, is_local=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Three nodes, to which this process is connected."""
    from ray import serve

    with two_nodes() as started:
        started.add()
        connect_with_path(started.address)
        started.wait(3)
        yield started
        serve.shutdown()


@pytest.fixture(scope="module")
def fetch(build: ServiceBuilder, nodes: Nodes) -> Fetch:
    """Send a request to the service, which has two replicas; returns status and body."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    deploy_version(build, nodes, "1", port)

    def fetch(path: str, fields: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        body = fields if fields is None or isinstance(fields, bytes) else json.dumps(fields).encode()
        headers = headers or {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    return fetch


def deploy_version(build: ServiceBuilder, nodes: Nodes, version: str, port: int = 0) -> None:
    options = ReplicaOptions(min_replicas=2, max_replicas=2, cpus=0.4)
    deploy("run", build, version, ServerOptions(), options, address=nodes.address, port=port)


@contextmanager
def under_load(fetch: Fetch) -> Iterator[dict[str, tuple[int, bytes]]]:
    """Translate all texts again and again with two clients, until the block ends."""
    answers: dict[str, tuple[int, bytes]] = {}
    stop = threading.Event()

    def translate(texts: list[str]) -> None:
        while not stop.is_set():
            for text in texts:
                answer = fetch("/translate", {"q": text, "source": "en", "target": "de"})
                answers[text] = max(answers.get(text, answer), answer)  # the worst one

    clients = [threading.Thread(target=translate, args=(TEXTS[n::2],)) for n in range(2)]
    for client in clients:
        client.start()
    try:
        yield answers
    finally:
        stop.set()
        for client in clients:
            client.join()


@pytest.fixture(scope="module")
def expected(build: ServiceBuilder) -> Iterator[TestClient]:
    """A client of the same service in this process."""
    with TestClient(create_app(build()), "http://localhost") as client:
        yield client


def translations(client: TestClient) -> dict[str, tuple[int, bytes]]:
    fields = [{"q": text, "source": "en", "target": "de"} for text in TEXTS]
    return {field["q"]: (200, client.post("/translate", json=field).content) for field in fields}


def test_the_same_routes_and_answers(fetch: Fetch, expected: TestClient) -> None:
    for path in ("/", "/page/main.js", "/languages", "/livez", "/nothing"):
        answer = expected.get(path)
        assert fetch(path) == (answer.status_code, answer.content)
    runs = [json.loads(fetch("/v1/runs")[1])[0], expected.get("/v1/runs").json()[0]]
    assert runs[0] | {"loaded_at": ""} == runs[1] | {"loaded_at": ""}
    for path, fields in (
        ("/translate", {"q": ["The dog sleeps.", "A cat"], "source": "en", "target": "de", "alternatives": 2}),
        ("/v1/translate", {"text": "The dog sleeps.", "alignment": True}),
        ("/v1/lens", {"text": "The dog sleeps."}),
        ("/v1/stream", {"text": "The dog sleeps."}),
        ("/translate", {"q": 7}),
    ):
        answer = expected.post(path, json=fields)
        status, body = fetch(path, fields)
        assert status == answer.status_code, path
        assert body == answer.content or path == "/v1/stream"
        assert body[-40:] == answer.content[-40:]
    assert fetch("/translate", b"x" * 12_000_000)[0] == 413


def test_a_document_is_downloaded_from_any_replica(fetch: Fetch) -> None:
    parts = [("file", '; filename="a.txt"', "The dog sleeps."), ("source", "", "en"), ("target", "", "de")]
    form = "".join(f'--x\r\ncontent-disposition: form-data; name="{a}"{b}\r\n\r\n{c}\r\n' for a, b, c in parts)
    headers = {"content-type": "multipart/form-data; boundary=x"}
    status, body = fetch("/translate_file", f"{form}--x--\r\n".encode(), headers)
    assert status == 200, body
    path = "/" + json.loads(body)["translatedFileUrl"].split("/", 3)[3]
    answers = {fetch(path) for _ in range(10)}  # from both replicas
    assert len(answers) == 1
    assert answers.pop()[0] == 200


def test_dying_replicas_and_nodes_drop_no_request(fetch: Fetch, nodes: Nodes, expected: TestClient) -> None:
    with under_load(fetch) as answers:
        for number in range(4):
            time.sleep(4)
            for process in ray_processes("ray::ServeReplica:run:run run")[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if number == 1:
                nodes.kill_last()
        limit = time.monotonic() + 60
        while len(answers) < len(TEXTS) and time.monotonic() < limit:
            time.sleep(0.2)
    assert answers == translations(expected)


def test_a_new_version_replaces_replicas_without_dropping_requests(
    fetch: Fetch, build: ServiceBuilder, nodes: Nodes, expected: TestClient
) -> None:
    before = set(ray_processes("ray::ServeReplica:run:run run"))
    with under_load(fetch) as answers:
        deploy_version(build, nodes, "2")
        limit = time.monotonic() + 60
        while len(answers) < len(TEXTS) and time.monotonic() < limit:
            time.sleep(0.2)
    assert answers == translations(expected)
    assert not before & set(ray_processes("ray::ServeReplica:run:run run"))


def test_another_run_is_served_below_its_own_path(
    fetch: Fetch, build: ServiceBuilder, nodes: Nodes, expected: TestClient
) -> None:
    options = ReplicaOptions(cpus=0.2)
    deploy("other", build, "1", ServerOptions(), options, address=nodes.address, port=0, route_prefix="/other")
    fields = {"q": "The dog sleeps.", "source": "en", "target": "de"}
    answer = expected.post("/translate", json=fields).content
    assert fetch("/other/translate", fields) == fetch("/translate", fields) == (200, answer)
    page = expected.get("/").content
    assert b'"./page/main.js"' in page
    assert fetch("/other/") == fetch("/other") == (200, page)  # the second is redirected to the first
    assert fetch("/other/page/main.js") == (200, expected.get("/page/main.js").content)
    parts = [("file", '; filename="a.txt"', "The dog sleeps."), ("source", "", "en"), ("target", "", "de")]
    form = "".join(f'--x\r\ncontent-disposition: form-data; name="{a}"{b}\r\n\r\n{c}\r\n' for a, b, c in parts)
    status, body = fetch(
        "/other/translate_file", f"{form}--x--\r\n".encode(), {"content-type": "multipart/form-data; boundary=x"}
    )
    assert status == 200
    path = "/" + json.loads(body)["translatedFileUrl"].split("/", 3)[3]
    assert path.startswith("/other/")
    assert fetch(path)[0] == 200


def test_replicas_are_added_while_requests_wait(fetch: Fetch, build: ServiceBuilder, nodes: Nodes) -> None:
    options = ReplicaOptions(min_replicas=1, max_replicas=2, target_requests=1, cpus=0.2)
    deploy("growing", build, "1", ServerOptions(), options, address=nodes.address, port=0, route_prefix="/growing")
    replica = "ray::ServeReplica:growing:growing run"
    assert len(ray_processes(replica)) == 1
    statuses, stop = set[int](), threading.Event()

    def translate(client: int) -> None:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            text = f"The dog number {number} sleeps near the house {client}."
            statuses.add(fetch("/growing/translate", {"q": [text] * 20, "source": "en", "target": "de"})[0])

    clients = [threading.Thread(target=translate, args=(number,)) for number in range(8)]
    for client in clients:
        client.start()
    limit = time.monotonic() + 120  # Ray adds replicas when requests have waited for about 30 seconds
    while len(ray_processes(replica)) < 2 and time.monotonic() < limit:
        time.sleep(0.5)
    found = len(ray_processes(replica))
    time.sleep(5)  # the new replica answers, too
    stop.set()
    for client in clients:
        client.join()
    assert found == 2
    assert statuses == {200}
