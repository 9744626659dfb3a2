"""A page on this machine that shows a training from its run folder."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import threading
import time
from pathlib import Path
from typing import IO, Any

from dragoman.errors import UserError
from dragoman.watch.training_log import TrainingLog

PACKAGES = ("fastapi", "prometheus_client", "uvicorn")  # of the extra `serve`
LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
LINGER_SECONDS = 3.0  # for which the page is still served after the end of a training, so that browsers get its result
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def check_packages() -> None:
    """Raise a UserError unless the packages of the web page are installed; nothing is imported."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"the web page that shows a training needs the package {name}: install it with pip install "
                "'dragoman[serve]', or train without --watch"
            )


class WatchServer:
    """Serves the page of a training on this machine only, until a stream ends (`stop_at_end_of`) or a signal comes."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Show the run folder `folder` at a port of this machine (0: any free one); a UserError if it is taken."""
        check_packages()
        self.log, self.name = TrainingLog(folder), folder.resolve().name
        self.last_request = -LINGER_SECONDS  # in the clock time.monotonic; before anything was requested: long ago
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind(("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise UserError(
                f"the web page that shows a training cannot listen at port {port} ({error.strerror}): choose another "
                "one with --port, or with --watch-port of 'dragoman train'"
            ) from None
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"

        import uvicorn

        config = uvicorn.Config(
            self._app(), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)

    def _app(self) -> Any:
        """Return the ASGI application: the page, its files, and the progress as JSON."""
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
        from starlette.staticfiles import StaticFiles

        files = StaticFiles(packages=[("dragoman.serving", "page")])
        reading = asyncio.Lock()  # the log is read by one thread at a time

        async def progress(request: Request) -> Response:
            """Return what the run folder says about the training as JSON."""
            self.last_request = time.monotonic()
            async with reading:
                values = await asyncio.to_thread(self.log.read)
            return JSONResponse({"run": self.name, **values}, headers={"cache-control": "no-store"})

        async def page_file(request: Request) -> Response:
            """Return a file of the page, by default the page itself (watch.html)."""
            response = await files.get_response(request.path_params.get("name", "watch.html"), request.scope)
            response.headers.update(HEADERS)
            return response

        routes = [Route("/", page_file), Route("/page/{name}", page_file), Route("/v1/progress", progress)]
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS)])

    def serve(self) -> None:
        """Serve the page until the server is stopped."""
        self.server.run(sockets=[self.socket])

    def stop_at_end_of(self, stream: IO[bytes]) -> None:
        """Start a thread that stops the server when `stream` ends, as standard input does with the parent process.

        A browser that has the page open gets LINGER_SECONDS to request the final state.
        """

        def wait() -> None:
            """Read the stream to its end, then stop the server."""
            while stream.read(1):
                pass
            if time.monotonic() - self.last_request < LINGER_SECONDS:  # a browser shows the page
                time.sleep(LINGER_SECONDS)
            self.server.should_exit = True

        threading.Thread(target=wait, daemon=True).start()


def lower_priority() -> None:
    """Lower the priority of this process, so that the training has the processor first; only on POSIX systems."""
    if hasattr(os, "nice"):
        os.nice(10)
