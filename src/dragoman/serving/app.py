"""The service as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from dragoman import __version__
from dragoman.errors import UserError
from dragoman.serving import routes_inspection, routes_libretranslate, routes_page, routes_v1
from dragoman.serving.request_guard import RequestGuard
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.schemas import ErrorResponse
from dragoman.serving.service import Service

ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": description}
    for status, description in {
        400: "Invalid request",
        403: "Missing or invalid API key",
        408: "The request arrived too slowly",
        413: "The request is too large",
        415: "The body is neither JSON nor a form",
        429: "Too many requests of this client",
        500: "Internal error",
        503: "The service is overloaded",
    }.items()
}


def create_app(service: Service) -> FastAPI:
    """Build the application; the service starts and stops with it, and finishes accepted requests."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.close)

    # FastAPI's documentation pages load scripts from other hosts, so they are disabled
    app = FastAPI(title="Dragoman", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(RequestGuard, limits=service.limits, metrics=service.metrics)
    app.include_router(routes_libretranslate.routes(service, ERROR_RESPONSES))
    app.include_router(routes_v1.routes(service, ERROR_RESPONSES))
    app.include_router(routes_inspection.routes(service, ERROR_RESPONSES))
    app.include_router(routes_page.routes())

    @app.get("/metrics", response_class=PlainTextResponse, tags=["Prometheus"])
    async def metrics() -> PlainTextResponse:
        """Metrics in the Prometheus text format."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        return JSONResponse({"error": error.message}, error.status, error.headers)

    @app.exception_handler(UserError)
    async def user_error(_: Request, error: UserError) -> Response:
        return JSONResponse({"error": service.public_message(error)}, 400)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail).lower()}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def internal_error(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the service failed: see its log"}, 500)

    return app
