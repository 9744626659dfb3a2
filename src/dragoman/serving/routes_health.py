"""Liveness and readiness, for supervisors, load balancers and containers."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.serving.request_parsing import RequestError
from dragoman.serving.service import Service

#: paths that are answered while runs are loaded, because they use none
PATHS_WITHOUT_RUNS = ("/livez", "/readyz", "/metrics", "/openapi.json", "/")
PAGE_FOLDER = "/page/"  # static files of the web page


class LivenessResponse(BaseModel):
    status: Literal["alive"]


class ReadinessResponse(BaseModel):
    """Whether requests are accepted."""

    status: Literal["ready", "starting", "stopping", "full"]
    runs: dict[str, str] = Field(description="Versions of the loaded runs.")


def routes(service: Service) -> APIRouter:
    """Return the routes /livez and /readyz (liveness and readiness probes)."""
    router = APIRouter(tags=["Health"])

    @router.get("/livez")
    async def livez() -> LivenessResponse:
        """Whether the process is alive: it answers, even while it loads runs."""
        return LivenessResponse(status="alive")

    @router.get("/readyz", responses={200: {"model": ReadinessResponse}, 503: {"model": ReadinessResponse}})
    async def readyz() -> Response:
        """Whether runs are loaded and warmed up, requests fit into the queue, and the service is not being stopped."""
        status = service.readiness
        body = ReadinessResponse(status=status, runs={name: run.version for name, run in service.runs.items()})
        headers = {} if status == "ready" else {"retry-after": "1"}
        return JSONResponse(body.model_dump(), 200 if status == "ready" else 503, headers)

    return router


class StartupGate:
    """ASGI middleware that rejects requests which need a run until the runs are loaded."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Guard the application `app` of a service until its runs are loaded."""
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with status 503 if it needs a run while the service is loading its runs."""
        path = scope.get("path", "")
        needs_run = scope["type"] == "http" and path not in PATHS_WITHOUT_RUNS and not path.startswith(PAGE_FOLDER)
        if needs_run and self.service.readiness == "starting":
            error = RequestError(503, "the service is loading its runs: try again in a moment", retry_after=2)
            await error.response()(scope, receive, send)
        else:
            await self.app(scope, receive, send)
