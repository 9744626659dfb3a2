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
from dragoman.serving import routes_inspection as seeing
from dragoman.serving import routes_libretranslate as libre
from dragoman.serving import routes_page as pages
from dragoman.serving import routes_v1 as own
from dragoman.serving.request_error import RequestError
from dragoman.serving.request_guard import RequestGuard, error_headers
from dragoman.serving.schemas import ErrorResponse
from dragoman.serving.service import Service

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "What was asked for cannot be done"},
    403: {"model": ErrorResponse, "description": "An API key is wanted"},
    408: {"model": ErrorResponse, "description": "The request was too slow"},
    413: {"model": ErrorResponse, "description": "The request is too long"},
    415: {"model": ErrorResponse, "description": "The body is neither JSON nor a form"},
    429: {"model": ErrorResponse, "description": "Too many requests of this client"},
    500: {"model": ErrorResponse, "description": "A fault of the service"},
    503: {"model": ErrorResponse, "description": "Too many requests in all"},
}


def create_app(service: Service) -> FastAPI:
    """All routes over some runs; the runs work from its start to its shutdown, which finishes what was accepted."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.close)

    # the pages that FastAPI makes of the description are fetched from other hosts: there are none
    app = FastAPI(title="Dragoman", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    app.add_middleware(RequestGuard, limits=service.limits, metrics=service.metrics)
    app.include_router(libre.routes(service, ERRORS))
    app.include_router(own.routes(service, ERRORS))
    app.include_router(seeing.routes(service, ERRORS))
    app.include_router(pages.routes())

    @app.get("/metrics", response_class=PlainTextResponse, tags=["Prometheus"])
    async def metrics() -> PlainTextResponse:
        """Counters for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        return JSONResponse({"error": error.message}, error.status, error_headers(error))

    @app.exception_handler(UserError)
    async def mistaken(_: Request, error: UserError) -> Response:
        return JSONResponse({"error": service.public_message(error)}, 400)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail).lower()}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the service failed here: see its log"}, 500)

    return app
