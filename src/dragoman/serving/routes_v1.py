"""Our own API under /v1: runs, translations with n-best lists, scores and alignments, and streamed translations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from dragoman.errors import UserError
from dragoman.run import Translation
from dragoman.search import search_to_dict
from dragoman.serving import schemas
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_parsing import RequestError, cancel_on_disconnect
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.text.language_names import language_name
from dragoman.text.sentences import SplitText

Event = tuple[str, dict[str, Any]]  # name and data
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
        options = DecodeOptions(search, fields.alignment, fields.token_scores, fields.prefix)
        split_texts = [served.split(text, fields.split) for text in texts]
        translating = served.translate(split_texts, options)
        results = await cancel_on_disconnect(request, translating, service.limits.timeout)
        responses = (_text_response(served, *text, fields.warnings) for text in zip(split_texts, results))
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
        fields = await service.accept(request, schemas.StreamRequest)
        served = service.resolve_run(fields.run, fields.source, fields.target)
        search = service.search_for(served, fields.search, n_best=None)
        options = DecodeOptions(search, fields.alignment, prefix=fields.prefix)
        (text,) = fields.sources(served.run)
        events = _translation_events(service, served, served.split(text, fields.split), options, fields.warnings)
        executor = ThreadPoolExecutor(1, "streaming")
        first = await _next_event(executor, events)  # an error of the request is raised here
        return StreamingResponse(_server_sent_events(service, executor, events, first), media_type="text/event-stream")

    return router


def _run_info(service: Service, served: ServedRun) -> schemas.RunInfo:
    """Describe a run for clients: languages, system, checkpoint, size and default search."""
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
    served: ServedRun, text: SplitText, translations: Sequence[Translation], has_warnings: bool
) -> schemas.TextTranslation:
    """Describe the translations of the sentences of a text, with warnings if they were requested."""
    details = [
        schemas.SentenceTranslation.from_translation(
            source, translation, space, served.warnings(source, translation) if has_warnings else None
        )
        for source, translation, space in zip(
            text.sentences, translations, text.gaps_for_language(served.target_language)[1:]
        )
    ]
    joined = text.join([translation.text for translation in translations], served.target_language)
    return schemas.TextTranslation(text=joined, sentences=details)


def _translation_events(
    service: Service, served: ServedRun, text: SplitText, options: DecodeOptions, has_warnings: bool
) -> Generator[Event]:
    """Translate the sentences of a text one after the other, and yield events: tokens, sentence and done.

    Each decoding step holds the device lock, so steps alternate with other requests. Gaps are the white space between
    sentences.
    """
    run, timeout = service.streaming_run(served), service.limits.timeout
    deadline = time.monotonic() + timeout
    gaps = text.gaps_for_language(served.target_language)
    translations = []
    with service.stream_slot():
        yield from _token_events(0, gaps[0])
        for number, sentence in enumerate(text.sentences):
            prefix = options.prefix if number == 0 else ""
            stream = run.stream(sentence, search=options.search, alignment=options.alignment, prefix=prefix)
            with closing(stream):
                while True:
                    if time.monotonic() > deadline:
                        raise RequestError(503, f"the translation took longer than {timeout:g} seconds")
                    with service.device_lock:
                        tokens = next(stream, None)
                    if tokens is None:
                        break
                    yield from _token_events(number, tokens.text, tokens.tentative_text)
                    if tokens.translation is not None:
                        translations.append(tokens.translation.text)
                        warnings = served.warnings(sentence, tokens.translation) if has_warnings else None
                        result = schemas.SentenceTranslation.from_translation(
                            sentence, tokens.translation, gaps[number + 1], warnings
                        )
                        yield "sentence", {"sentence": number, **result.model_dump(mode="json")}
            yield from _token_events(number, gaps[number + 1])
        yield "done", {"run": served.name, "text": text.join(translations, served.target_language)}


def _token_events(sentence: int, text: str, tentative_text: str = "") -> Iterator[Event]:
    """Yield the event for new text of a sentence, or nothing if there is none."""
    if text or tentative_text:
        yield "tokens", {"sentence": sentence, "text": text, "tentative_text": tentative_text}


async def _next_event(executor: ThreadPoolExecutor, events: Generator[Event]) -> Event | None:
    """Compute the next event of a stream in its thread, the only one of `executor`; None at the end."""
    return await asyncio.get_running_loop().run_in_executor(executor, next, events, None)


async def _server_sent_events(
    service: Service, executor: ThreadPoolExecutor, events: Generator[Event], first: Event | None
) -> AsyncIterator[str]:
    """Yield `first` and further events in the format of server-sent events; an exception becomes an error event.

    The translation stops if the client disconnects.
    """
    event = first
    try:
        while event is not None:
            yield _format_event(*event)
            event = await _next_event(executor, events)
    except Exception as error:
        is_public = isinstance(error, UserError | RequestError)
        yield _format_event(
            "error", {"error": service.public_message(error) if is_public else "the translation failed"}
        )
    finally:
        executor.submit(events.close)
        executor.shutdown(wait=False)


def _format_event(name: str, data: dict[str, Any]) -> str:
    """Format a server-sent event: its name, and its data as JSON."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
