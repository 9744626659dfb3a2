"""The process that listens."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from dragoman.errors import UserError
from dragoman.serving.app import create_app
from dragoman.serving.header_timeout import header_timeout_protocol
from dragoman.serving.service import Service

#: seconds after which a thread that computes lets another one run; the thread that answers needs little, but often
SWITCH = 0.0005


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port that is taken is said before runs are opened."""
    bound = None
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(kind, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        if bound is not None:
            bound.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"nothing can listen at {host} port {port}: {reason}; try another --port") from None
    return bound


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def create_server(service: Service, ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """What answers requests; `ready` is called when it does."""
    config = uvicorn.Config(
        create_app(service),
        http=header_timeout_protocol(service.limits.receive_timeout),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=service.limits.max_connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=round(service.limits.timeout) + 1,
    )
    return _Server(config, ready)


def serve(service: Service, bound: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Answer requests until the process is told to end; then finish what was accepted.

    A second signal ends it at once.
    """
    sys.setswitchinterval(SWITCH)
    before = {one: signal.signal(one, _quietly) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        create_server(service, ready).run(sockets=[bound])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _quietly(number: int, frame: object) -> None:
    """uvicorn sends itself the signal again that it has ended by: that was all that was asked for."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
