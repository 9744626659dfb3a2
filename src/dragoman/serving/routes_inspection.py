"""What can be seen of runs and of sentences, under /v1: what the page shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from dragoman.lens.axes import downsample
from dragoman.lens.inspection_types import Inspection, to_jsonable
from dragoman.lens.position_encodings import position_encodings
from dragoman.lens.run_report import read_samples
from dragoman.run import Run
from dragoman.serving.request_error import RequestError
from dragoman.serving.request_parsing import cancel_on_disconnect, client_address, parse_request, request_api_key
from dragoman.serving.schemas import (
    CurvesResponse,
    ErrorResponse,
    ExamplesResponse,
    LensRequest,
    LensResponse,
    PositionsResponse,
    TrainingCurve,
    request_body_schema,
)
from dragoman.serving.service import ServedRun, Service
from dragoman.text import split_words

Answer = TypeVar("Answer")
PLACES = 64  # that are compared
EXAMPLES = 4
UNKNOWN: dict[int | str, dict[str, Any]] = {404: {"model": ErrorResponse, "description": "There is no such run"}}

#: the kind of a record, its measure, and what the curve of it is called
CURVES = [
    ("train", "perplexity", "training loss"),
    ("valid", "loss", "validation loss"),
    ("valid", "bleu", "BLEU"),
    ("valid", "exact_match", "exactly right"),
    ("valid", "accuracy", "accuracy"),
    ("train", "learning_rate", "learning rate"),
    ("train", "tokens_per_second", "tokens per second"),
]


def routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["Seeing"])

    @router.post(
        "/lens",
        responses=errors | {200: {"model": LensResponse}},
        response_class=JSONResponse,
        openapi_extra=request_body_schema(LensRequest),
    )
    async def lens(request: Request) -> Response:
        """All that can be seen of a sentence and its translation: attention, probabilities, layers, the beam."""
        asked = await parse_request(request, LensRequest)
        service.authorize(client_address(request), request_api_key(request, asked.api_key))
        told = asked.prefix if isinstance(asked.prefix, str) else ""
        service.check_text_size([asked.text, asked.translation or "", told])
        served = service.resolve_run(asked.run, asked.source, asked.target)
        look = _look(service, served, asked)
        text = await cancel_on_disconnect(request, service.inspections(look), service.limits.timeout)
        return Response(text, media_type="application/json")

    @router.get("/runs/{name}/curves", responses=errors | UNKNOWN)
    async def curves(request: Request, name: str) -> CurvesResponse:
        """How a run was trained: loss, quality, learning rate and speed by step."""
        served = _named(service, request, name)
        return await _looked(service, request, lambda: CurvesResponse(run=name, curves=training_curves(served.run)))

    @router.get("/runs/{name}/positions", responses=errors | UNKNOWN | {200: {"model": PositionsResponse}})
    async def positions(request: Request, name: str) -> Response:
        """How a run tells places apart: what its position parts add, turn or prefer."""
        served = _named(service, request, name)

        def look() -> str:
            return _json(
                PositionsResponse(run=name, positions=to_jsonable(position_encodings(served.run.model, PLACES)))
            )

        return Response(await _looked(service, request, look), media_type="application/json")

    @router.get("/runs/{name}/examples", responses=errors | UNKNOWN)
    async def examples(request: Request, name: str) -> ExamplesResponse:
        """A few sentences that a run can be tried with."""
        served = _named(service, request, name)
        return await _looked(
            service, request, lambda: ExamplesResponse(run=name, examples=example_sentences(served.run))
        )

    return router


async def _looked(service: Service, request: Request, work: Callable[[], Answer]) -> Answer:
    return await cancel_on_disconnect(request, service.inspections(work), service.limits.timeout)


def _named(service: Service, request: Request, name: str) -> ServedRun:
    """The run that an address names, for those who may ask."""
    service.authorize(client_address(request), request_api_key(request, None))
    try:
        return service.run_by_name(name)
    except RequestError as error:
        raise RequestError(404, error.message) from None


def _look(service: Service, served: ServedRun, asked: LensRequest) -> Callable[[], str]:
    """What is to be done for a look, as JSON; what cannot be shown is refused before."""
    run, limits = service.streaming_run(served), service.limits
    size = len(run.encode_sources([asked.text])[0])
    if size > limits.max_inspected_tokens:
        raise RequestError(
            400,
            f"a sentence of at most {limits.max_inspected_tokens} pieces can be looked into, but this one has {size:,}",
        )
    search = None if asked.search is None else service.validate_search(served, asked.search)
    forced = len(run.target_tokenizer.encode(asked.prefix)) if isinstance(asked.prefix, str) else len(asked.prefix)
    if asked.translation is not None:
        written = len(run.target_tokenizer.encode(asked.translation))
        if written > limits.max_inspected_tokens:
            raise RequestError(
                400,
                f"a translation of at most {limits.max_inspected_tokens} pieces can be looked into, but this one has {written:,}",
            )

    def look() -> str:
        seen = run.lens(
            asked.text,
            asked.translation,
            search=search,
            prefix=asked.prefix or None,
            alternatives=asked.alternatives,
        )
        _check(seen, limits.max_attention_weights)
        return _json(LensResponse(run=served.name, forced_tokens=forced, inspection=seen.to_dict()))

    return look


def _check(seen: Inspection, most: int) -> None:
    weights = sum(looks.weights.numel() for looks in seen.attention)
    if weights > most:
        raise RequestError(
            400, f"the attention of this sentence has {weights:,} weights, of which {most:,} can be shown: shorten it"
        )


def _json(answer: BaseModel) -> str:
    """In the thread that looks, so that the one that answers goes on."""
    return json.dumps(dict(answer), ensure_ascii=False, separators=(",", ":"))


def training_curves(run: Run) -> list[TrainingCurve]:
    """What was measured in training. A loss is −log p of a piece, without label smoothing."""
    metrics = run.metrics()
    found = []
    for kind, measure, name in CURVES:
        points = [(one["step"], one[measure]) for one in metrics if one["kind"] == kind and measure in one]
        if measure == "perplexity":
            points = [(step, math.log(value)) for step, value in points if value > 0]
        finite = [(float(step), float(value)) for step, value in points if math.isfinite(value)]
        if finite:
            found.append(TrainingCurve(name=name, points=list(downsample(finite))))
    return found


def example_sentences(run: Run) -> list[str]:
    """Sentences of a length that is worth looking at, of the last validation."""
    samples = read_samples(run.folder)
    sources = dict.fromkeys(sample.source for sample in samples[max(samples)]) if samples else {}
    return [source for source in sources if 4 <= len(split_words(source)) <= 14][:EXAMPLES]
