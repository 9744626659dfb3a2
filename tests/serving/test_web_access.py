"""Host names, other web sites, HEAD requests, addresses, and the end of a service."""

from __future__ import annotations

import signal
import socket

import pytest
from starlette.testclient import TestClient

from dragoman.errors import UserError
from dragoman.serving import Service, WebAccess, reachable_urls
from dragoman.serving.server import create_server


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:5000", "127.0.0.1:80", "[::1]:5000", "192.0.2.7", "app.localhost", "LocalHost.", ""],
)
def test_own_names(host: str) -> None:
    assert WebAccess().accepts_host(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1", "x@y z"]
)
def test_names_of_others_are_rejected(host: str, client: TestClient) -> None:
    assert not WebAccess().accepts_host(host)
    response = client.get("/health", headers={"host": host})
    assert (response.status_code, "--allowed-host" in response.json()["error"]) == (421, True)


def test_names_that_are_allowed() -> None:
    assert WebAccess().accepts_host(socket.gethostname().upper())
    assert WebAccess(("Translate.example.org",)).accepts_host("translate.example.org:443")
    assert not WebAccess(("translate.example.org",)).accepts_host("www.translate.example.org")
    assert WebAccess(("*",)).accepts_host("evil.example")


@pytest.mark.parametrize("path", ["/", "/health", "/languages", "/v1/runs", "/page/main.js", "/metrics", "/none"])
def test_head_is_get_without_a_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert path == "/metrics" or head.headers["content-length"] == get.headers["content-length"]
    assert client.head("/translate").status_code == 405  # GET /translate is


def test_scripts_of_other_web_sites(serving) -> None:  # type: ignore[no-untyped-def]
    question = {"origin": "https://a.example", "access-control-request-method": "POST"}
    question |= {"access-control-request-headers": "content-type"}
    closed, one, every = (serving(access=WebAccess((), origins)) for origins in ((), ("https://a.example",), ("*",)))
    assert "access-control-allow-origin" not in closed.get("/languages", headers=question).headers
    for client, allowed in ((one, "https://a.example"), (every, "*")):
        preflight = client.options("/translate", headers=question)
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, allowed)
        response = client.post("/translate", json={"q": ""}, headers=question)
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (400, allowed)
    other = one.options("/translate", headers=question | {"origin": "https://b.example"})
    assert (other.status_code, other.headers.get("access-control-allow-origin")) == (400, None)


def test_addresses_that_can_be_opened() -> None:
    assert reachable_urls("127.0.0.1", 80) == ["http://127.0.0.1:80"]
    assert reachable_urls("::1", 80) == ["http://[::1]:80"]
    urls = reachable_urls("0.0.0.0", 5000)
    assert urls[-1] == "http://localhost:5000"
    assert not any("0.0.0.0" in url for url in urls)


def test_addresses_without_a_route_to_the_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by the name of the machine; loopback addresses are of no use to others."""

    class Unconnected(socket.socket):
        def connect(self, address: object) -> None:
            raise OSError("Network is unreachable")

    def getaddrinfo(*_: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 0)) for address in ("127.0.1.1", "192.168.7.3", "192.168.7.3")]

    monkeypatch.setattr("dragoman.serving.web_access.socket.socket", Unconnected)
    monkeypatch.setattr("dragoman.serving.web_access.socket.getaddrinfo", getaddrinfo)
    assert reachable_urls("0.0.0.0", 80) == ["http://192.168.7.3:80", "http://localhost:80"]


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/path", "https://", ""])
def test_origins_that_no_browser_sends_are_rejected(origin: str) -> None:
    with pytest.raises(UserError, match="such as https:"):
        WebAccess(cors_origins=(origin,))


def test_second_signal_ends_the_service_at_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("dragoman.serving.server.os._exit", codes.append)
    server = create_server(service)
    server.handle_exit(signal.SIGINT, None)
    assert (server.should_exit, codes) == (True, [])  # accepted requests are finished
    server.handle_exit(signal.SIGINT, None)
    assert codes == [130]
