"""How a run learned, under /v1: its checkpoints, and what each of them makes of a sentence."""

from __future__ import annotations

import asyncio
import json
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from dragoman.lens.inspection_types import to_jsonable
from dragoman.lens.run_report import REPORT_FILE
from dragoman.lens.training_history import history_checkpoints, inspect_checkpoint
from dragoman.run import Run
from dragoman.serving import schemas
from dragoman.serving.checkpoint_cache import CheckpointCache, RecentlyUsed
from dragoman.serving.job_queue import LONG_COST
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.routes_inspection import NOT_FOUND_RESPONSE, check_token_counts
from dragoman.serving.service import Service
from dragoman.watch.training_log import TrainingLog

MAX_CHECKPOINT_BYTES = 2_000_000_000  # weights of checkpoints in memory, besides those of the served runs
MAX_HISTORY_RESPONSES = 512  # responses of /v1/history that are kept
MAX_CHECKPOINTS = 48  # that the slider of the web page can select


#: a report has inline styles, but neither scripts nor resources
REPORT_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-popups",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class ProgressResponse(BaseModel):
    run: str
    report: bool = Field(description="Whether the run has a report.")
    state: str = Field(description="preparing, training, finished, interrupted, failed, stopped or unknown.")
    step: int
    curves: list[schemas.TrainingCurve]
    warnings: list[str]
    messages: list[dict[str, Any]]
    sentences: list[dict[str, Any]] = Field(description="Validation sentences with the changes of their translation.")


class CheckpointInfo(BaseModel):
    step: int
    checkpoint: str = Field(description="Name of the checkpoint.", examples=["history/000016", "000500"])


class CheckpointsResponse(BaseModel):
    run: str
    checkpoints: list[CheckpointInfo] = Field(description="In order of steps; evenly spaced ones if there are many.")


class HistoryRequest(schemas.RunSelection):
    """A sentence to translate with a checkpoint of a run, and the translation whose probability is followed."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="One sentence: it is not split.")
    checkpoint: str = Field(description="Name of a checkpoint, as in /v1/runs/{name}/checkpoints.")
    translation: str = Field(description="The final translation, which the checkpoint is forced to generate.")

    @property
    def texts(self) -> list[str]:
        """The sentence and its final translation."""
        return [self.text, self.translation]


class HistoryResponse(BaseModel):
    run: str
    entry: dict[str, object] = Field(description="As in `dragoman show history --json`.")


def check_tokens(service: Service, run: Run, sentence: str, translation: str) -> None:
    """Raise a RequestError if a sentence or its translation has more than `limits.max_inspected_tokens` tokens."""
    target_tokens = run.target_tokenizer.encode(translation)
    check_token_counts(service, sentence=len(run.encode_sources([sentence])[0]), translation=len(target_tokens))


def routes(service: Service) -> APIRouter:
    """Return the routes that show how a run was trained: progress, report, checkpoints, and history of a sentence."""
    router = APIRouter(prefix="/v1", tags=["Inspection"], responses=schemas.ERROR_RESPONSES)
    checkpoints = CheckpointCache(MAX_CHECKPOINT_BYTES)
    responses: RecentlyUsed[str, str] = RecentlyUsed(MAX_HISTORY_RESPONSES)  # of /v1/history, as JSON
    reading = asyncio.Lock()  # a log is read by one thread at a time
    logs: dict[str, TrainingLog] = {}  # by the name of the run

    @router.get("/runs/{name}/progress", responses=NOT_FOUND_RESPONSE | {200: {"model": ProgressResponse}})
    async def progress(request: Request, name: str) -> JSONResponse:
        """The training of a run, which may still be running: its state, curves, warnings and validation sentences."""
        folder = service.authorized_run(request, name).member_folders[0]
        log = logs.setdefault(name, TrainingLog(folder))
        async with reading:
            values = await asyncio.to_thread(log.read)
        return JSONResponse({"run": name, "report": (folder / REPORT_FILE).is_file(), **values})

    @router.get(
        "/runs/{name}/report",
        responses=NOT_FOUND_RESPONSE | {200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
        response_class=JSONResponse,  # of errors
    )
    async def report(request: Request, name: str) -> HTMLResponse:
        """The report of a training: report.html of the run folder, without the path of the folder."""
        folder = service.authorized_run(request, name).member_folders[0]
        try:
            text = await asyncio.to_thread((folder / REPORT_FILE).read_text, encoding="utf-8")
        except OSError:
            raise RequestError(404, f"the run {name} has no report: training writes it at its end") from None
        for path in (str(folder), str(folder.resolve())):
            text = text.replace(escape(path), name)
        return HTMLResponse(text, headers=REPORT_HEADERS)

    @router.get("/runs/{name}/checkpoints", responses=NOT_FOUND_RESPONSE)
    async def list_checkpoints(request: Request, name: str) -> CheckpointsResponse:
        """The checkpoints of a run from its first to its last step, for a slider; none of an ensemble."""
        run = service.authorized_run(request, name)
        steps = [] if len(run.member_folders) > 1 else history_checkpoints(run, MAX_CHECKPOINTS)
        infos = [CheckpointInfo(step=step, checkpoint=checkpoint) for step, checkpoint in steps]
        return CheckpointsResponse(run=name, checkpoints=infos)

    @router.post(
        "/history",
        responses={200: {"model": HistoryResponse}},
        response_class=JSONResponse,
        openapi_extra=schemas.request_body_schema(HistoryRequest),
    )
    async def history(request: Request) -> Response:
        """Translate a sentence with one checkpoint of a run, and score the final translation with it."""
        fields = await service.accept(request, HistoryRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        check_tokens(service, served.run, fields.text, fields.translation)
        steps = {step.checkpoint: step for step in history_checkpoints(served.run)}
        if fields.checkpoint not in steps:
            known = f"/v1/runs/{served.name}/checkpoints lists those it has"
            raise RequestError(400, f"the run {served.name} has no checkpoint {fields.checkpoint!r}: {known}")
        search = None if fields.search is None else service.validate_search(served, fields.search)
        version = f"{served.name} {served.version}"  # by which cached checkpoints and responses are found

        def inspect() -> str:
            """Load the checkpoint, if it is not loaded yet, and return what it makes of the sentence as JSON."""
            run = checkpoints.open(version, served.run, fields.checkpoint)
            entry = inspect_checkpoint(run, steps[fields.checkpoint], fields.text, fields.translation, search)
            return json.dumps({"run": served.name, "entry": to_jsonable(entry)}, ensure_ascii=False)

        key = f"{version} {served.run.language_pair} {fields.model_dump_json(exclude={'api_key'})}"
        text = await service.inspect(request, lambda: responses.get(key, inspect), LONG_COST)  # short jobs come first
        return Response(text, media_type="application/json")

    return router
