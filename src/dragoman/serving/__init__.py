"""The service: runs over HTTP, for LibreTranslate's clients and for our own."""

from __future__ import annotations

from dragoman.errors import UserError

try:
    import fastapi  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError:
    raise UserError("the service needs FastAPI and uvicorn: run pip install '.[serve]' in the source tree") from None

from dragoman.serving.app import application
from dragoman.serving.languages import Pair, pair_of, told
from dragoman.serving.server import is_loopback, listening, serve
from dragoman.serving.service import Service
from dragoman.serving.settings import Batching, Keys, Limits

__all__ = [
    "Batching",
    "Keys",
    "Limits",
    "Pair",
    "Service",
    "application",
    "is_loopback",
    "listening",
    "pair_of",
    "serve",
    "told",
]
