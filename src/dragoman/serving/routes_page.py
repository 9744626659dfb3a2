"""The static files of the web page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles

#: no resources from other hosts, no inline scripts
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def routes() -> APIRouter:
    router, files = APIRouter(include_in_schema=False), StaticFiles(packages=[("dragoman.serving", "page")])

    @router.get("/")
    @router.get("/page/{name}")
    async def page(request: Request, name: str = "index.html") -> Response:
        response = await files.get_response(name, request.scope)
        response.headers.update(HEADERS)
        return response

    return router
