"""Inspections of runs and sentences under /v1, which the web page shows."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from dragoman.lens import inspect_sentence
from dragoman.lens.axes import downsample
from dragoman.lens.beam_recorder import recorded_searches
from dragoman.lens.inspection_types import BeamTree, Inspection, to_jsonable
from dragoman.lens.position_encodings import position_encodings
from dragoman.lens.run_report import read_samples, training_curves, validation_records
from dragoman.lens.walk import walk_through
from dragoman.lens.word_alternatives import word_alternatives
from dragoman.run import Run, Source
from dragoman.search import Hypothesis, TokenSearch
from dragoman.search.constraints import NO_CONSTRAINTS
from dragoman.serving import schemas
from dragoman.serving.inspection_queue import SharedSearch
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_parsing import RequestError, cancel_on_disconnect
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.text import split_words
from dragoman.text.bpe_merges import Pair
from dragoman.text.bpe_trace import count_words, learn_trace, parse_word_counts

NUM_POSITIONS = 64  # whose encodings are shown
MAX_PAGE_EXAMPLES = 4  # source sentences to try a run with
MIN_EXAMPLE_WORDS, MAX_EXAMPLE_WORDS = 4, 14
MAX_BPE_CHARACTERS, MAX_BPE_MERGES, MAX_BPE_PAIRS = 2000, 200, 24  # of byte-pair encoding on the page
NOT_FOUND_RESPONSE: dict[int | str, dict[str, Any]] = {
    404: {"model": schemas.ErrorResponse, "description": "Unknown run"}
}


def routes(service: Service) -> APIRouter:
    """Return the routes of inspections, which show how a run works and what it does with a sentence."""
    router = APIRouter(prefix="/v1", tags=["Inspection"], responses=schemas.ERROR_RESPONSES)

    @router.post(
        "/lens",
        responses={200: {"model": schemas.LensResponse}},
        response_class=JSONResponse,
        openapi_extra=schemas.request_body_schema(schemas.LensRequest),
    )
    async def lens(request: Request) -> Response:
        """Inspect a sentence and its translation: attention, token probabilities, layers, beam."""
        fields = await service.accept(request, schemas.LensRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        inspecting = _inspection(service, served, fields)
        text = await cancel_on_disconnect(request, inspecting, service.limits.timeout)
        return Response(text, media_type="application/json")

    @router.post(
        "/walk",
        responses={200: {"model": schemas.WalkResponse}},
        response_class=JSONResponse,
        openapi_extra=schemas.request_body_schema(schemas.WalkRequest),
    )
    async def walk(request: Request) -> Response:
        """Follow one prediction through the model: the numbers of every layer, and the logits of the next token."""
        fields = await service.accept(request, schemas.WalkRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        text = await service.inspect(request, _walk(service, served, fields))
        return Response(text, media_type="application/json")

    @router.post("/alternatives", openapi_extra=schemas.request_body_schema(schemas.AlternativesRequest))
    async def alternatives(request: Request) -> schemas.AlternativesResponse:
        """The most probable words at a position of a translation, with the translations that continue from there."""
        fields = await service.accept(request, schemas.AlternativesRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        run = service.streaming_run(served)
        source = _checked_source(service, run, fields.text, fields.features, fields.prefix)
        found = await service.inspect(request, lambda: word_alternatives(run, source, fields.prefix, fields.count))
        words = [schemas.AlternativeInfo.model_validate(alternative) for alternative in found]
        return schemas.AlternativesResponse(run=served.name, alternatives=words)

    @router.post("/bpe", openapi_extra=schemas.request_body_schema(schemas.BPERequest))
    async def bpe(request: Request) -> schemas.BPEResponse:
        """Byte-pair encoding of a short text, merge by merge."""
        fields = await service.accept(request, schemas.BPERequest)
        return await service.inspect(request, lambda: _bpe(fields))

    @router.get("/runs/{name}/curves", responses=NOT_FOUND_RESPONSE)
    async def curves(request: Request, name: str) -> schemas.CurvesResponse:
        """Training curves of a run: loss, quality, learning rate and speed by step."""
        run = service.authorized_run(request, name)
        return schemas.CurvesResponse(run=name, curves=await service.inspect(request, lambda: _curves(run)))

    @router.get("/runs/{name}/positions", responses=NOT_FOUND_RESPONSE | {200: {"model": schemas.PositionsResponse}})
    async def positions(request: Request, name: str) -> Response:
        """Position encodings of a run."""
        model = service.authorized_run(request, name).model

        def inspect() -> str:
            """Return the position encodings as JSON."""
            return _to_json(run=name, positions=to_jsonable(position_encodings(model, NUM_POSITIONS)))

        return Response(await service.inspect(request, inspect), media_type="application/json")

    @router.get("/runs/{name}/examples", responses=NOT_FOUND_RESPONSE)
    async def examples(request: Request, name: str) -> schemas.ExamplesResponse:
        """A few source sentences to try a run with."""
        run = service.authorized_run(request, name)
        return schemas.ExamplesResponse(run=name, examples=await service.inspect(request, lambda: _examples(run)))

    return router


def _inspection(service: Service, served: ServedRun, fields: schemas.LensRequest) -> Awaitable[str]:
    """Check the limits on the tokens of a sentence, and queue its inspection with a served run; awaited, it is JSON.

    Too many tokens, or a search that is not allowed, is a RequestError. `fields.translation` None: it is searched for.
    """
    # a copy of the run: the search engines that the run itself caches are used by batches of translations
    run, limits = service.streaming_run(served), service.limits
    translation = None if fields.translation is None else run.target_tokenizer.encode(fields.translation)
    source = _checked_source(service, run, fields.text, fields.features, translation)
    search = None if fields.search is None else service.validate_search(served, fields.search)
    prefix = fields.prefix  # of the translation: text, or token ids; "" or []: none
    forced_tokens = len(run.target_tokenizer.encode(prefix) if isinstance(prefix, str) else prefix)

    def inspect(recorded: tuple[Hypothesis, BeamTree] | None) -> Inspection:
        """Inspect the sentence; an inspection with more attention weights than may be sent is a RequestError.

        `recorded` is the result of its search (best hypothesis, and tree of all) if it was done together with those of
        other requests; None: the sentence is searched here.
        """
        inspection = inspect_sentence(
            run,
            source,
            fields.translation,
            search=search,
            prefix=prefix or None,
            alternatives=fields.alternatives,
            recorded=recorded,
        )
        weights, limit = sum(layer.weights.numel() for layer in inspection.attention), limits.max_attention_weights
        if weights > limit:
            message = f"the attention of this sentence has {weights:,} weights, but at most {limit:,} are sent"
            raise RequestError(400, f"{message}: shorten it")
        return inspection

    def render(inspection: Inspection) -> str:
        """Return the response as JSON."""
        return _to_json(run=served.name, forced_tokens=forced_tokens, inspection=inspection.to_dict())

    source_ids, used_search = run.encode_sources([source])[0], search or run.default_search
    shared_search = None  # a search in one batch with those of other requests, unless tokens are forced or drawn
    if translation is None and not prefix and isinstance(used_search, TokenSearch) and not used_search.is_random:
        shared_search = SharedSearch(
            key=(served.batcher, run.language_pair, used_search),  # the batcher stands for one version of the run
            source_ids=source_ids,
            # pad_batch: the source tokens as a padded batch, and their lengths
            search_all=lambda sources: recorded_searches(run, *run.pad_batch(sources), used_search, NO_CONSTRAINTS),
        )
    # in tokens: the search, unless a translation is given, and the pass through the model that is inspected
    cost = DecodeOptions(used_search).cost(len(source_ids)) if translation is None else len(translation)
    return service.inspections.search_and_inspect(inspect, len(source_ids) + cost, shared_search, render)


def _checked_source(
    service: Service, run: Run, text: str, features: str | None, translation: Sequence[int] | None
) -> Source:
    """Return the source of an inspection: the text, with its word features such as V;PST if it has any.

    A sentence or a translation (token ids; None: none is given) with more than `limits.max_inspected_tokens` is a
    RequestError.
    """
    (source,) = run.with_features([text], None if features is None else [features])  # a batch of one text
    check_token_counts(service, sentence=len(run.encode_sources([source])[0]), translation=len(translation or ()))
    return source


def check_token_counts(service: Service, sentence: int, translation: int) -> None:
    """Raise a RequestError if a sentence or its translation has more tokens than may be inspected."""
    limit = service.limits.max_inspected_tokens
    for name, tokens in (("sentence", sentence), ("translation", translation)):
        if tokens > limit:
            raise RequestError(400, f"a {name} of at most {limit} tokens can be inspected, but this one has {tokens:,}")


def _walk(service: Service, served: ServedRun, fields: schemas.WalkRequest) -> Callable[[], str]:
    """Check the limits on the tokens of a sentence, and return a function that walks through the model with it.

    The walk follows the prediction of the target token after `fields.tokens` from layer to layer; the function returns
    it as JSON. `fields.position` is the source token, and `fields.head` the attention head, that it shows.
    """
    run = service.streaming_run(served)  # a copy with search engines of its own: those of the run are used by batches
    # a language model has no source text: only the target tokens before the prediction are limited
    if fields.text is None and len(fields.tokens) > (limit := service.limits.max_inspected_tokens):
        raise RequestError(400, f"at most {limit} tokens can be followed, but there are {len(fields.tokens):,}")
    text, features = fields.text, fields.features
    source = None if text is None else _checked_source(service, run, text, features, fields.tokens)

    def inspect() -> str:
        """Follow the prediction of the next token through the model."""
        walk = walk_through(run, source, fields.tokens, position=fields.position, head=fields.head)
        return _to_json(run=served.name, walk=to_jsonable(walk))

    return inspect


def _bpe(fields: schemas.BPERequest) -> schemas.BPEResponse:
    """Learn byte-pair encoding from the text of a request, and describe every merge.

    A text with more than MAX_BPE_CHARACTERS is a RequestError. `fields.counts`: the text is like "low=5 lower=2", words
    with counts.
    """
    if len(fields.text) > MAX_BPE_CHARACTERS:
        message = f"byte-pair encoding is shown for at most {MAX_BPE_CHARACTERS:,} characters, but the text has"
        raise RequestError(400, f"{message} {len(fields.text):,}: shorten it")
    words = parse_word_counts(fields.text) if fields.counts else count_words(fields.text)
    trace = learn_trace(
        words,
        max_merges=MAX_BPE_MERGES,
        vocab_size=fields.vocab_size,
        compression_ratio=fields.compression_ratio,
        tie_break=fields.ties,
        utf8_bytes=fields.utf8_bytes,
    )

    def most_frequent(counts: Sequence[tuple[Pair, int]]) -> list[tuple[str, str, int]]:
        """Return the first of the pairs of symbols, which are sorted by count, as (left, right, count)."""
        return [(*pair, count) for pair, count in counts[:MAX_BPE_PAIRS]]

    merges = [
        schemas.BPEMerge(
            pair=step.pair,
            count=step.count,
            tied=list(step.tied[:MAX_BPE_PAIRS]),
            num_symbols=step.num_symbols,
            compression=step.compression,
            pair_counts=most_frequent(step.pair_counts),
            num_pairs=len(step.pair_counts),
        )
        for step in trace.steps
    ]
    return schemas.BPEResponse(
        words=[(count, list(trace.initial[word])) for word, count in words.items()],
        vocabulary=list(trace.vocabulary),
        merges=merges,
        final_counts=most_frequent(trace.final_counts),
        stopped=trace.stopped,
    )


def _to_json(**response: object) -> str:
    """Return the fields of a response as compact JSON, a large text.

    Call this in the thread of inspections: in the event loop, other requests would wait for it.
    """
    return json.dumps(response, ensure_ascii=False, separators=(",", ":"))


def _curves(run: Run) -> list[schemas.TrainingCurve]:
    """Return the training curves of a run as (step, value), without values that are not finite, which JSON lacks.

    A curve with many points is replaced by means of neighboring points; one without points is left out.
    """
    finite = {
        name: [(float(step), float(value)) for step, value in points if math.isfinite(value)]
        for name, points in training_curves(validation_records(run)).items()
    }
    return [
        schemas.TrainingCurve(name=name, points=list(downsample(points))) for name, points in finite.items() if points
    ]


def _examples(run: Run) -> list[str]:
    """Return a few different short sources from the last validation of a run; none if none was recorded."""
    samples = read_samples(run.member_folders[0])  # by step; member_folders: one, or those of an ensemble
    last_validation = samples[max(samples)] if samples else []
    sources = dict.fromkeys(sample.source for sample in last_validation)  # without duplicates, in order
    short = (source for source in sources if MIN_EXAMPLE_WORDS <= len(split_words(source)) <= MAX_EXAMPLE_WORDS)
    return list(islice(short, MAX_PAGE_EXAMPLES))
