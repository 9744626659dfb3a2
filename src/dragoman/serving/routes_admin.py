"""Routes for operators and owners of API keys: reload runs, and see what a key has used."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from dragoman.serving import schemas
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import request_record
from dragoman.serving.service import Service


class ReloadInfo(BaseModel):
    """What became of a run or file."""

    result: Literal["reloaded", "unchanged", "failed"]
    version: str = Field(description="Version of the run that answers requests now.")
    error: str = Field(description="Why it failed.")


class ReloadResponse(BaseModel):
    error: str | None = Field(None, description="Which runs or files failed; null: none.")
    reloads: dict[str, ReloadInfo] = Field(description="Results by run or file.")


class UsageResponse(BaseModel):
    """What an API key has used today."""

    name: str
    characters: int
    characters_per_day: int | None
    requests_per_minute: int | None
    seconds_until_reset: float = Field(description="Until midnight, UTC.")


def routes(service: Service) -> APIRouter:
    """Return the routes /admin/reload (read changed files again) and /v1/usage (of an API key)."""
    router = APIRouter(tags=["Operations"], responses=schemas.ERROR_RESPONSES)

    @router.post("/admin/reload", responses={200: {"model": ReloadResponse}, 500: {"model": ReloadResponse}})
    async def reload(request: Request) -> Response:
        """Load runs, API keys and certificates that have changed on disk; needs an API key with admin rights.

        Requests are answered meanwhile. What cannot be loaded stays as it was, and the status is 500.
        """
        key = service.authorize(request)
        if key is None or not key.admin:
            raise RequestError(403, "reloading needs an API key with 'admin: true' in the file of --api-keys")
        results = await asyncio.to_thread(service.reloader.reload)  # by name of the run or file
        failed = [name for name, result in results.items() if result.result == "failed"]
        error = f"not reloaded: {', '.join(failed)}" if failed else None
        request_record().error = error or ""  # for the log
        reloads = {name: ReloadInfo(**asdict(result)) for name, result in results.items()}
        body = ReloadResponse(error=error, reloads=reloads)
        return JSONResponse(body.model_dump(), 500 if failed else 200)

    @router.get("/v1/usage")
    async def usage(request: Request) -> UsageResponse:
        """What the API key of the request has used today, and its quotas."""
        key = service.authorize(request)
        if key is None:
            raise RequestError(403, "an API key is required: send it as 'Authorization: Bearer …'")
        return UsageResponse(
            name=key.name,
            characters=service.quotas.used_characters(key.name),
            characters_per_day=key.characters_per_day,
            requests_per_minute=key.requests_per_minute,
            seconds_until_reset=service.quotas.seconds_until_reset(),
        )

    return router
