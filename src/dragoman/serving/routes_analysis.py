"""Error analysis under /v1: the test set as a table, the diagnosis of a run, and gradients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from dragoman.lens.gradients import measure_gradient_reach
from dragoman.lens.inspection_types import to_jsonable
from dragoman.lens.run_report import read_samples
from dragoman.lens.saliency import measure_saliency
from dragoman.lens.sentence_errors import ERROR_KINDS
from dragoman.serving import schemas
from dragoman.serving.analysis_jobs import AnalysisJob, AnalysisJobs
from dragoman.serving.analysis_table import AnalysisRequest, Row, outcome_counts, row_values, select_rows
from dragoman.serving.job_queue import LONG_COST
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.routes_inspection import NOT_FOUND_RESPONSE
from dragoman.serving.routes_learning import check_tokens
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service

MAX_GRADIENT_SENTENCES, MAX_GRADIENT_WORDS, MAX_GRADIENT_POSITIONS = 6, 40, 12


class JobState(BaseModel):
    run: str
    state: str = Field(description="waiting, running, done or failed.")
    done: int = Field(description="Sentences that were analyzed.")
    total: int
    error: str = ""
    scores: dict[str, dict[str, Any]] = Field(description="Corpus scores with their signatures, when it is done.")
    error_counts: dict[str, int] = Field(description="Number of sentences with each kind of error.")


class AnalysisResponse(BaseModel):
    run: str
    test_set: str
    runs: list[JobState]
    error_kinds: dict[str, str] = Field(description="Explanations of the kinds of errors.")
    outcomes: dict[str, int] = Field(description="Sentences in which the run is better, worse or equal, by chrF.")
    count: int = Field(description="Number of rows that pass the filters.")
    rows: list[dict[str, Any]]


class DiagnosisResponse(BaseModel):
    run: str
    state: str
    error: str = ""
    diagnosis: dict[str, Any] = Field(description="As in `dragoman diagnose --json`, when it is done.")


class SaliencyRequest(schemas.RunSelection):
    """A sentence and its translation whose gradients are measured."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="One sentence: it is not split.")
    translation: str

    @property
    def texts(self) -> list[str]:
        """The sentence and its translation."""
        return [self.text, self.translation]


class SaliencyResponse(BaseModel):
    run: str
    saliency: dict[str, Any] = Field(description="As in `dragoman show saliency --json`.")


class GradientsResponse(BaseModel):
    run: str
    gradients: dict[str, Any] | None = Field(description="As in `dragoman show gradients --json`.")


def routes(service: Service) -> APIRouter:
    """Return the routes that analyze a run: table of its test set, diagnosis, saliency and gradients."""
    router = APIRouter(prefix="/v1", tags=["Analysis"], responses=schemas.ERROR_RESPONSES)
    jobs = AnalysisJobs(service)

    def run_named(name: str, source: str | None = None, target: str | None = None) -> ServedRun:
        """Return the run called `name`, set to two languages if it is multilingual (None: its default).

        An unknown run is rejected with status 404.
        """
        try:
            return service.run_by_name(name).for_languages(source, target)
        except RequestError as error:
            raise RequestError(404, error.message) from None

    @router.get("/runs/{name}/analysis", responses=NOT_FOUND_RESPONSE)
    async def analysis(request: Request, name: str) -> AnalysisResponse:
        """The test set as a table: translations, scores and errors; the first request starts the analysis.

        Fields of the query: compare, sort, descending, offset, limit, min_words, max_words, error, rare, contains,
        outcome, and source and target for a multilingual run.
        """
        fields = await service.accept(request, AnalysisRequest)
        names = [name]
        if fields.compare and fields.compare != name:  # a second run, shown beside the first
            names.append(fields.compare)
        runs = [run_named(run_name, fields.source, fields.target) for run_name in names]
        served = runs[0]

        def respond() -> AnalysisResponse:
            """Read the test set of the first run, start analyses of all on it, and select the rows."""
            test_set = jobs.test_set(served)
            return _table(test_set.name, [(run.name, jobs.analyze(run, test_set_of=served)) for run in runs], fields)

        return await asyncio.to_thread(respond)

    @router.get("/runs/{name}/diagnosis", responses=NOT_FOUND_RESPONSE)
    async def diagnosis(request: Request, name: str) -> DiagnosisResponse:
        """The known failures of translation, measured on the run; the first request starts the measurement.

        Fields of the query: source and target, the languages of a multilingual run.
        """
        service.authorize(request)
        served = run_named(name, request.query_params.get("source"), request.query_params.get("target"))
        job = await asyncio.to_thread(jobs.diagnose, served)
        return DiagnosisResponse(run=name, state=job.state, error=job.error, diagnosis=job.result)

    @router.post(
        "/saliency",
        responses={200: {"model": SaliencyResponse}},
        response_class=JSONResponse,
        openapi_extra=schemas.request_body_schema(SaliencyRequest),
    )
    async def saliency(request: Request) -> Response:
        """How strongly each token influences the probability of each target token: norms of gradients."""
        fields = await service.accept(request, SaliencyRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        check_tokens(service, served.run, fields.text, fields.translation)

        def measure() -> str:
            """Measure the gradients, and return them as JSON."""
            measured = measure_saliency(served.run, fields.text, fields.translation)
            return json.dumps({"run": served.name, "saliency": to_jsonable(measured)}, ensure_ascii=False)

        return Response(await service.inspect(request, measure), media_type="application/json")

    @router.get("/runs/{name}/gradients", responses=NOT_FOUND_RESPONSE | {200: {"model": GradientsResponse}})
    async def gradients(request: Request, name: str) -> JSONResponse:
        """How far gradients reach in a run, measured on a few validation sentences; null if it has none."""
        service.authorize(request)
        run = run_named(name, request.query_params.get("source"), request.query_params.get("target")).run

        def measure() -> dict[str, Any] | None:
            """Measure the gradients of some short validation sentences."""
            samples = read_samples(run.member_folders[0])  # by step; member_folders: one, or those of an ensemble
            last_validation = samples[max(samples)] if samples else []
            pairs = [(sample.source, sample.reference) for sample in last_validation]
            chosen = [pair for pair in pairs if all(0 < len(text.split()) <= MAX_GRADIENT_WORDS for text in pair)]
            if not chosen:
                return None
            sources, targets = zip(*chosen[:MAX_GRADIENT_SENTENCES])
            return to_jsonable(measure_gradient_reach(run, sources, targets, MAX_GRADIENT_POSITIONS))

        measured = await service.inspect(request, measure, cost=LONG_COST)  # short jobs come first
        return JSONResponse({"run": name, "gradients": measured})

    return router


def _table(test_set: str, jobs: list[tuple[str, AnalysisJob]], fields: AnalysisRequest) -> AnalysisResponse:
    """Return the response for the analyses of one or two runs: their states, and the rows that `fields` select.

    `test_set` is the name of the test set; `jobs` are names of runs with their analyses. Only sentences that all of
    them have reached are shown, and of these the page that `fields.offset` and `fields.limit` name.
    """
    states, analyses = [], [job.analysis for _, job in jobs if job.analysis is not None]
    for name, job in jobs:
        scores = {} if job.analysis is None else job.analysis.scores
        counts = {} if job.analysis is None else job.analysis.error_counts()
        values = {key: {"value": score.value, "signature": score.signature} for key, score in scores.items()}
        states.append(
            JobState(
                run=name,
                state=job.state,
                done=job.done,
                total=job.total,
                error=job.error,
                scores=values,
                error_counts=counts,
            )
        )
    rows: list[Row] = []
    if len(analyses) == len(jobs):  # all have begun
        # indices in the test set, by which an analysis holds its sentences
        common = set.intersection(*(set(analysis.sentences) for analysis in analyses))
        rows = [tuple(analysis.sentences[index] for analysis in analyses) for index in sorted(common)]
    selected = select_rows(rows, fields)
    page = selected[fields.offset : fields.offset + fields.limit]
    return AnalysisResponse(
        run=jobs[0][0],
        test_set=test_set,
        runs=states,
        error_kinds=ERROR_KINDS,
        outcomes=outcome_counts(rows) if len(jobs) > 1 else {},
        count=len(selected),
        rows=[to_jsonable(row_values(row)) for row in page],
    )
