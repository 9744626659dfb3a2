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
from dragoman.serving import libre, own, pages, seeing
from dragoman.serving.guard import Guard, headers_of
from dragoman.serving.refusal import RequestError
from dragoman.serving.schemas import Error
from dragoman.serving.service import Service

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "What was asked for cannot be done"},
    403: {"model": Error, "description": "An API key is wanted"},
    408: {"model": Error, "description": "The request was too slow"},
    413: {"model": Error, "description": "The request is too long"},
    415: {"model": Error, "description": "The body is neither JSON nor a form"},
    429: {"model": Error, "description": "Too many requests of this client"},
    500: {"model": Error, "description": "A fault of the service"},
    503: {"model": Error, "description": "Too many requests in all"},
}


def application(service: Service) -> FastAPI:
    """All routes over some runs; the runs work from its start to its shutdown, which finishes what was accepted."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(service.start)
        yield
        await asyncio.to_thread(service.close)

    # the pages that FastAPI makes of the description are fetched from other hosts: there are none
    app = FastAPI(title="Dragoman", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics)
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
        return JSONResponse({"error": error.message}, error.status, headers_of(error))

    @app.exception_handler(UserError)
    async def mistaken(_: Request, error: UserError) -> Response:
        return JSONResponse({"error": service.said(error)}, 400)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail).lower()}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the service failed here: see its log"}, 500)

    return app
