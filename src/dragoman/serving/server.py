"""The server process: socket, uvicorn with a timeout for headers, and signals."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from dragoman.errors import UserError
from dragoman.processes import STOP_SIGNALS
from dragoman.serving.app import create_app
from dragoman.serving.service import Service
from dragoman.serving.service_log import LogSettings, configure_logging, logger
from dragoman.serving.systemd import keep_watchdog_quiet, notify_reloading, notify_systemd
from dragoman.serving.tls import TlsFiles
from dragoman.serving.web_access import WebAccess

#: seconds after which Python switches threads: the event loop needs little time, but often
THREAD_SWITCH_INTERVAL = 0.0005
HttpProtocol: Any = AutoHTTPProtocol  # uvicorn's class for HTTP/1.1, with httptools if that is installed, or h11


@dataclass(frozen=True)
class ServerOptions:
    """How a service is offered.

    Attributes:
        access: its host names, and web sites that may use it
        log: what is logged
        tls: certificate and key for https; None: http
        trusted_proxies: addresses of reverse proxies whose header X-Forwarded-For names the client; empty: 127.0.0.1
        shutdown_delay: seconds from a signal to stop, when /readyz begins to fail, until no requests are accepted
    """

    access: WebAccess = field(default_factory=WebAccess)
    log: LogSettings = field(default_factory=LogSettings)
    tls: TlsFiles | None = None
    trusted_proxies: tuple[str, ...] = ()
    shutdown_delay: float = 0.0


#: ports above 1023 that browsers do not connect to (Fetch standard, “bad port”)
BLOCKED_PORTS = frozenset(
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080}
)


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a socket to the first address of a host name, and return it; a UserError if that is not possible.

    This is done before the runs are loaded, so that an occupied port is reported at once.
    """
    bound = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        if bound is not None:
            bound.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"the service cannot listen on host {host}, port {port}: {reason}; try another --port or --host"
        ) from None
    return bound


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def header_timeout_protocol(timeout: float) -> type[asyncio.Protocol]:
    """Return a protocol class that closes connections on which no complete headers arrive within `timeout` seconds.

    uvicorn waits for headers forever. The application itself limits the time for bodies.
    """

    class HeaderTimeoutProtocol(HttpProtocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Start the timer of the first request."""
            super().connection_made(transport)
            self._update_timer()

        def data_received(self, data: bytes) -> None:
            """Stop the timer once the headers are complete."""
            super().data_received(data)
            self._update_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop the timer when the connection ends."""
            self._cancel_timer()
            super().connection_lost(exc)

        def _update_timer(self) -> None:
            """Start the timer while headers are awaited, and stop it while a request is answered.

            `cycle` is the request that uvicorn answers or has answered last; None before the first.
            """
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel_timer()
            elif self.timer is None:
                self.timer = self.loop.call_later(timeout, self._close)

        def _cancel_timer(self) -> None:
            """Stop the timer, if it runs."""
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _close(self) -> None:
            """Answer with status 408 and close the connection."""
            body = json.dumps({"error": f"the request did not arrive within {timeout:g} seconds"}).encode()
            head = "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            self.transport.close()

    return HeaderTimeoutProtocol


def create_server(
    service: Service, ready: Callable[[], None] = lambda: None, options: ServerOptions | None = None
) -> ServiceServer:
    """Create the HTTP server of a service. It listens before the runs are loaded, so that /livez answers meanwhile.

    `ready` is called when they are loaded; `options` None: the defaults.
    """
    options = options or ServerOptions()
    tls = options.tls
    config = uvicorn.Config(
        create_app(service, options.access, options.log, start=False),  # the server below starts the service
        http=header_timeout_protocol(service.limits.receive_timeout),
        loop="asyncio",  # uvloop, if some package installs it, raises errors where a client has closed its connection
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=service.limits.max_connections,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=round(service.limits.timeout) + 1,  # seconds: until the last answer is due
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        forwarded_allow_ips=list(options.trusted_proxies) or None,
    )
    if tls is not None:

        def reload_certificate() -> None:
            """Read the certificate again for new connections; `config.ssl` is None until uvicorn has started."""
            if config.ssl is not None:
                tls.load_into(config.ssl)

        service.reloader.file_readers["certificate"] = reload_certificate
    return ServiceServer(config, service, ready, options.shutdown_delay)


def serve(
    service: Service,
    bound: socket.socket,
    ready: Callable[[], None] = lambda: None,
    options: ServerOptions | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish accepted requests; a second signal stops at once.

    SIGHUP reloads the files that have changed. An error while runs are loaded is raised.

    Args:
        service: whose runs are loaded while the server listens already.
        bound: the socket to listen at, from `bind_socket`.
        ready: called when the runs are loaded.
        options: host names, log and https; None: the defaults.
    """
    options = options or ServerOptions()
    configure_logging(options.log)
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL)  # short, so that the event loop runs soon, although others compute
    server = create_server(service, ready, options)
    # uvicorn handles signals while it runs, and raises the one that stopped it again at its end: it is ignored then, so
    # that the process exits normally
    previous = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    if hasattr(signal, "SIGHUP"):
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, server.handle_hangup)
    try:
        server.run(sockets=[bound])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if server.is_loading:  # stopped before the runs were loaded: only the end of the process ends the loading thread
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    if server.loading_error is not None:
        raise server.loading_error


class ServiceServer(uvicorn.Server):
    """A server that loads runs while it listens, reloads them at SIGHUP, and ends the process at the second signal."""

    def __init__(
        self, config: uvicorn.Config, service: Service, ready: Callable[[], None], shutdown_delay: float = 0.0
    ) -> None:
        """Configure uvicorn; `ready` is called when the runs of the service are loaded.

        After the signal to stop, requests are accepted for another `shutdown_delay` seconds.
        """
        super().__init__(config)
        self.shutdown_delay, self._stopping = shutdown_delay, False
        self.service, self._ready = service, ready
        self.loading_error: BaseException | None = None
        self._loading = threading.Thread(target=self._load, name="loading runs", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._had_terminal = _has_terminal()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then to load the runs in a thread."""
        await super().startup(sockets)
        if self.started:  # it listens
            self._loop = asyncio.get_running_loop()
            self._watchdog = asyncio.create_task(keep_watchdog_quiet())  # kept, or it would be garbage-collected
            self._loading.start()

    @property
    def is_loading(self) -> bool:
        """Whether runs are being loaded."""
        return self._loading.is_alive()

    def _load(self) -> None:
        """Start the service, then call `ready` in the thread of the server; an error stops the server."""
        try:
            self.service.start()
        except BaseException as error:
            self.loading_error, self.should_exit = error, True  # should_exit makes uvicorn stop
            return
        assert self._loop is not None
        with suppress(RuntimeError):  # the server has been stopped
            self._loop.call_soon_threadsafe(self._on_loaded)

    def _on_loaded(self) -> None:
        """Report to the caller (`ready`) and to systemd that the runs are loaded."""
        self._ready()
        notify_systemd("READY=1")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal to stop: finish accepted requests at the first one, end the process at the second.

        After the first signal, requests are still accepted for `shutdown_delay` seconds, unless runs are being loaded.
        """
        if self.should_exit or self._stopping:  # should_exit: uvicorn's, set when the server is to stop
            os._exit(128 + sig)  # as a shell reports a signal; the service has nothing to save
        self._stopping = True
        self.service.begin_to_stop()
        notify_systemd("STOPPING=1")
        logger.info("stopping after the accepted requests; Ctrl-C stops at once")
        if self.shutdown_delay and self._loop is not None and not self.is_loading:
            stop = partial(super().handle_exit, sig, frame)
            self._loop.call_soon_threadsafe(self._loop.call_later, self.shutdown_delay, stop)  # stops after the delay
        else:
            super().handle_exit(sig, frame)

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGHUP: stop if it was sent because the terminal was closed; else reload changed files in a thread."""
        if self._had_terminal and not _has_terminal():
            self.handle_exit(signal.SIGTERM, frame)
        else:
            threading.Thread(target=self._reload, name="reloading", daemon=True).start()

    def _reload(self) -> None:
        """Reload the runs and files that have changed, and tell systemd when that begins and ends."""
        notify_reloading()
        self.service.reloader.reload()
        notify_systemd("READY=1")


def _has_terminal() -> bool:
    """Whether the standard input (file descriptor 0) is a terminal that is open."""
    try:
        return os.isatty(0)
    except OSError:
        return False
