"""The static files of the web page, read once at startup."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dragoman.serving.request_parsing import RequestError

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: no resources from other hosts, no inline scripts
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class PageFile(NamedTuple):
    content: bytes
    content_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Read all files of the page by name; only these can be requested."""
    pages = {}
    for file in files("dragoman.serving").joinpath("page").iterdir():
        content_type = CONTENT_TYPES.get(file.name.rpartition(".")[2])
        if content_type is not None:
            content = file.read_bytes()
            pages[file.name] = PageFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return pages


def routes() -> APIRouter:
    router, pages = APIRouter(include_in_schema=False), page_files()

    @router.get("/")
    async def index(request: Request) -> Response:
        return _response(request, pages["index.html"])

    @router.get("/page/{name}")
    async def file(request: Request, name: str) -> Response:
        if name not in pages:
            raise RequestError(404, "not found")
        return _response(request, pages[name])

    return router


def _response(request: Request, file: PageFile) -> Response:
    headers = HEADERS | {"etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.content_type, headers=headers)
