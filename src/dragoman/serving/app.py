"""The service as an ASGI application: routes, the static files of the web page, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles

from dragoman import __version__
from dragoman.errors import UserError
from dragoman.serving import (
    routes_admin,
    routes_analysis,
    routes_documentation,
    routes_files,
    routes_health,
    routes_inspection,
    routes_learning,
    routes_libretranslate,
    routes_v1,
)
from dragoman.serving.request_guard import RequestGuard
from dragoman.serving.request_log import ID_HEADER, RUN_HEADER, VERSION_HEADER, RequestLog
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import request_record
from dragoman.serving.service import Service
from dragoman.serving.service_log import LogSettings
from dragoman.serving.web_access import HostCheck, WebAccess

#: no resources from other hosts, no inline scripts; a figure is a blob: while it is converted to PNG
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; img-src 'self' blob:",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def create_app(
    service: Service, access: WebAccess | None = None, log: LogSettings | None = None, start: bool = True
) -> FastAPI:
    """Build the web application of a service: its routes, the files of the web page, and answers to errors.

    Args:
        service: is started with the application (unless `start` is false), and closed with it.
        access: further host names, and web sites whose scripts may call the service; None: neither.
        log: what is logged about requests; None: the default.
        start: false if the caller starts the service itself.
    """
    access = access or WebAccess()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Start the service before the first request, and close it after the last."""
        if start:
            await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.close)

    # FastAPI's documentation pages load scripts from other hosts, so they are disabled
    app = FastAPI(
        title="Dragoman",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    # middleware that is added later sees a request earlier
    app.add_middleware(routes_health.StartupGate, service=service)
    app.add_middleware(RequestGuard, limits=service.limits, metrics=service.metrics)
    if access.cors_origins:
        headers = ["content-type", "authorization", "x-request-id", "x-client-id"]
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=headers,
            expose_headers=["retry-after", ID_HEADER, RUN_HEADER, VERSION_HEADER],
        )
    app.add_middleware(HostCheck, access=access)
    app.add_middleware(RequestLog, service=service, settings=log or LogSettings())
    app.include_router(routes_health.routes(service))
    app.include_router(routes_admin.routes(service))
    app.include_router(routes_libretranslate.routes(service))
    app.include_router(routes_files.routes(service))
    app.include_router(routes_v1.routes(service))
    app.include_router(routes_inspection.routes(service))
    app.include_router(routes_learning.routes(service))
    app.include_router(routes_analysis.routes(service))
    app.include_router(routes_documentation.routes(app, PAGE_HEADERS))
    page_files = StaticFiles(packages=[("dragoman.serving", "page")])

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(request: Request, name: str) -> Response:
        """A static file of the web page, such as main.js."""
        response = await page_files.get_response(name, request.scope)
        response.headers.update(PAGE_HEADERS)
        return response

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        """The web page."""
        return await page_file(request, "index.html")

    @app.get("/metrics", response_class=PlainTextResponse, tags=["Prometheus"])
    async def metrics() -> PlainTextResponse:
        """Metrics in the Prometheus text format."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def error_response(_: Request, error: Exception) -> Response:
        """Answer a RequestError, a UserError or an HTTPException with JSON: `{"error": message}`."""
        if isinstance(error, RequestError):
            return error.response()
        message = service.public_message(error)
        status, headers = 400, None  # of a UserError
        if isinstance(error, HTTPException):  # of the framework, such as 404 for an unknown path
            message, status, headers = str(error.detail).lower(), error.status_code, error.headers
        request_record().error = message  # for the log
        return JSONResponse({"error": message}, status, headers)

    for error_type in (RequestError, UserError, HTTPException):
        app.add_exception_handler(error_type, error_response)
    return app


def _operation_id(route: APIRoute) -> str:
    """Return the name of an operation in the OpenAPI description, from which clients derive names of functions.

    It is the path without parameters: /v1/runs/{name}/curves becomes v1_runs_curves.
    """
    return "_".join(part for part in route.path.replace("-", "_").split("/") if part and not part.startswith("{"))
