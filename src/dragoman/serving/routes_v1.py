"""Our own API under /v1: runs, translations with n-best lists, scores and alignments, and streamed translations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from dragoman.run import Translation
from dragoman.search import search_to_dict
from dragoman.serving import schemas
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_parsing import RequestError, cancel_on_disconnect
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.serving.translation_events import server_sent_events, translation_events
from dragoman.text.language_names import language_name
from dragoman.text.sentences import SplitText

EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": ["tokens", "sentence", "done", "error"]},
        "data": {"type": "string", "description": "A JSON object."},
    },
    "required": ["event", "data"],
}


def routes(service: Service) -> APIRouter:
    """Return the routes /v1/runs, /v1/translate and /v1/stream."""
    router = APIRouter(prefix="/v1", tags=["Dragoman"], responses=schemas.ERROR_RESPONSES)

    @router.get("/runs")
    async def runs() -> list[schemas.RunInfo]:
        """List the served runs."""
        return [_run_info(service, served) for served in service.runs.values()]

    @router.post("/translate", openapi_extra=schemas.request_body_schema(schemas.TranslationRequest))
    async def translate(request: Request) -> schemas.TranslationResponse:
        """Translate texts, with scores, tokens, n-best lists and alignments of every sentence."""
        service.reject_if_full()
        fields = await service.accept(request, schemas.TranslationRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        texts = fields.sources(served.run)
        if fields.prefix and len(texts) != 1:
            raise RequestError(400, f"a prefix needs exactly one text, got {len(texts)}: send them one by one")
        search = service.search_for(served, fields.search, fields.n_best)
        options = DecodeOptions(
            search, alignment=fields.alignment, token_scores=fields.token_scores, prefix=fields.prefix
        )
        split_texts = [served.split(text, fields.split) for text in texts]
        translating = served.translate(split_texts, options)
        results = await cancel_on_disconnect(request, translating, service.limits.timeout)
        responses = (
            _text_response(served, text, translations, include_warnings=fields.warnings)
            for text, translations in zip(split_texts, results)
        )
        translations = await asyncio.to_thread(list, responses)
        return schemas.TranslationResponse(run=served.name, translations=translations)

    @router.post(
        "/stream",
        responses={200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}},
        response_class=StreamingResponse,
        openapi_extra=schemas.request_body_schema(schemas.StreamRequest),
    )
    async def stream(request: Request) -> StreamingResponse:
        """Stream a translation as server-sent events.

        `tokens`: text to append, and tentative text after it; `sentence`: a completed sentence with its hypotheses;
        `done`: the whole text; `error`: what went wrong.
        """
        service.reject_if_full()
        fields = await service.accept(request, schemas.StreamRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        search = service.search_for(served, fields.search, n_best=None)
        options = DecodeOptions(search, alignment=fields.alignment, prefix=fields.prefix)
        (text,) = fields.sources(served.run)
        split_text = served.split(text, fields.split)
        events = translation_events(service, served, split_text, options, include_warnings=fields.warnings)
        # the first event is awaited here, so that an error of the request is raised before the response begins
        first = await cancel_on_disconnect(request, anext(events), service.limits.timeout)
        return StreamingResponse(server_sent_events(service, events, first), media_type="text/event-stream")

    return router


def _run_info(service: Service, served: ServedRun) -> schemas.RunInfo:
    """Describe a run for clients: languages, system (architecture), checkpoint, size, routes and default search."""
    run = served.run
    return schemas.RunInfo(
        name=served.name,
        source=served.pair and served.pair.source,
        target=served.pair and served.pair.target,
        languages=[schemas.LanguageChoice(code=code, name=language_name(code)) for code in run.languages],
        system=run.config.system.name,
        checkpoint=run.checkpoint,
        version=served.version,
        loaded_at=datetime.fromtimestamp(served.loaded_at, UTC).isoformat(timespec="seconds"),
        routes={route.name: share for route in service.routes.values() if (share := route.shares.get(served.name))},
        parameters=sum(weight.numel() for weight in run.model.parameters()),
        search=search_to_dict(run.default_search),
    )


def _text_response(
    served: ServedRun, text: SplitText, translations: Sequence[Translation], include_warnings: bool
) -> schemas.TextTranslation:
    """Return the response for a text: its translation, and those of its sentences, with warnings if requested.

    `translations` has one result for each sentence of `text`, which may hold alternatives.
    """
    # white space before the text, and after each sentence, as the language writes it: in Chinese without spaces
    _, *spaces_after = text.gaps_for_language(served.target_language)
    details = [
        schemas.SentenceTranslation.from_translation(
            source, translation, space_after, served.warnings(source, translation) if include_warnings else None
        )
        for source, translation, space_after in zip(text.sentences, translations, spaces_after)
    ]
    joined = text.join([translation.text for translation in translations], served.target_language)
    return schemas.TextTranslation(text=joined, sentences=details)
