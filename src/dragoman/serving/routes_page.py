"""The page: files that are read once, and given as they are to whoever opens it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dragoman.serving.request_error import RequestError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: nothing from other hosts, nothing that is written into the page itself
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Leaf(NamedTuple):
    """A file of the page."""

    content: bytes
    kind: str
    tag: str  # another one for other content


def leaves() -> dict[str, Leaf]:
    """All files of the page by their names: what is not among them cannot be asked for."""
    found = {}
    for file in files("dragoman.serving").joinpath("page").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            found[file.name] = Leaf(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


def routes() -> APIRouter:
    router, known = APIRouter(include_in_schema=False), leaves()

    @router.get("/")
    async def page(request: Request) -> Response:
        return _answer(request, known["index.html"])

    @router.get("/page/{name}")
    async def file(request: Request, name: str) -> Response:
        if name not in known:
            raise RequestError(404, "not found")
        return _answer(request, known[name])

    return router


def _answer(request: Request, leaf: Leaf) -> Response:
    headers = HEADERS | {"etag": leaf.tag}
    if request.headers.get("if-none-match") == leaf.tag:
        return Response(status_code=304, headers=headers)
    return Response(leaf.content, media_type=leaf.kind, headers=headers)
