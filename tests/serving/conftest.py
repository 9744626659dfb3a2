from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_browser import browser, home, idle_pages, runs, show  # noqa: F401
from small_runs import train_small_run
from starlette.testclient import TestClient

import dragoman
from dragoman.data import phrasebook
from dragoman.run import Run
from dragoman.serving import (
    ApiKeys,
    BatchingSettings,
    LanguagePair,
    Service,
    ServiceLimits,
    WebAccess,
    bind_socket,
    create_app,
)
from dragoman.serving.server import create_server

Serving = Callable[..., TestClient]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that has hardly learned anything."""
    place = tmp_path_factory.mktemp("serving")
    phrasebook.write(place / "book", pairs=300, valid=10, test=10)
    return train_small_run(place, "run")


@pytest.fixture(scope="session")
def run(folder: Path) -> Run:
    return dragoman.load(folder, device="cpu")


@pytest.fixture
def serving(run: Run) -> Iterator[Serving]:
    """A client of a service with such limits."""
    opened = []

    def open_client(
        limits: ServiceLimits | None = None,
        keys: ApiKeys | None = None,
        batching: BatchingSettings | None = None,
        access: WebAccess | None = None,
    ) -> TestClient:
        service = Service(
            [(run, LanguagePair("en", "de"))], limits or ServiceLimits(requests_per_minute=0), batching, keys
        )
        client = TestClient(create_app(service, access), "http://localhost", raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    """A client of a service that the tests of a file share."""
    service = Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0))
    with TestClient(create_app(service), base_url="http://localhost", raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(run: Run) -> Service:
    """A service that listens."""
    return Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0, receive_timeout=300))


@pytest.fixture(scope="module")
def hasty_service(run: Run) -> Service:
    """A service that waits half a second for a request to arrive."""
    return Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0, receive_timeout=0.5))


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[tuple[str, int]]:
    yield from listen(service)


@pytest.fixture(scope="module")
def hasty(hasty_service: Service) -> Iterator[tuple[str, int]]:
    yield from listen(hasty_service)


def listen(service: Service) -> Iterator[tuple[str, int]]:
    ready, bound = threading.Event(), bind_socket("127.0.0.1", 0)
    server = create_server(service, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    assert ready.wait(300)
    yield bound.getsockname()
    server.should_exit = True
    thread.join()
    bound.close()


@pytest.fixture(scope="session")
def listening() -> Callable[[Service], Iterator[tuple[str, int]]]:
    """Starts a server, yields its address, and stops it."""
    return listen


@pytest.fixture(scope="module")
def url(address: tuple[str, int]) -> str:
    return "http://{}:{}/".format(*address)
