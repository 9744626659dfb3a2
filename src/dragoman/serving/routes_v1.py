"""Our own API under /v1: runs, translations with n-best lists, scores and alignments, and streamed translations."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from dragoman.errors import UserError
from dragoman.search import search_to_dict
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_parsing import (
    RequestError,
    cancel_on_disconnect,
    client_address,
    parse_request,
    request_api_key,
)
from dragoman.serving.schemas import (
    RunInfo,
    SentenceTranslation,
    StreamRequest,
    TextTranslation,
    TranslationRequest,
    TranslationResponse,
    request_body_schema,
)
from dragoman.serving.service import ServedRun, Service
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


def routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["Dragoman"])

    @router.get("/runs")
    async def runs() -> list[RunInfo]:
        """List the served runs."""
        return [_run_info(served) for served in service.runs.values()]

    @router.post("/translate", responses=errors, openapi_extra=request_body_schema(TranslationRequest))
    async def translate(request: Request) -> TranslationResponse:
        """Translate texts, with scores, tokens, n-best lists and alignments of every sentence."""
        service.reject_if_full()
        fields = await parse_request(request, TranslationRequest)
        service.authorize(client_address(request), request_api_key(request, fields.api_key))
        texts = [fields.text] if isinstance(fields.text, str) else fields.text
        service.check_text_size([*texts, fields.prefix])
        if fields.prefix and len(texts) != 1:
            raise RequestError(400, f"a prefix needs exactly one text, got {len(texts)}: send them one by one")
        served = service.resolve_run(fields.run, fields.source, fields.target)
        search = service.search_for(served, fields.search, fields.n_best)
        options = DecodeOptions(search, fields.alignment, fields.token_scores, fields.prefix)
        split_texts = [served.split(text, fields.split) for text in texts]
        work = served.translate(split_texts, options)
        results = await cancel_on_disconnect(request, work, service.limits.timeout)
        translations = [
            TextTranslation(
                text=text.join([sentence.text for sentence in sentences], served.pair.target),
                sentences=[SentenceTranslation.from_translation(*pair) for pair in zip(text.sentences, sentences)],
            )
            for text, sentences in zip(split_texts, results)
        ]
        return TranslationResponse(run=served.name, translations=translations)

    @router.post(
        "/stream",
        responses=errors | {200: {"content": {"text/event-stream": {"schema": EVENT_SCHEMA}}}},
        response_class=StreamingResponse,
        openapi_extra=request_body_schema(StreamRequest),
    )
    async def stream(request: Request) -> StreamingResponse:
        """Stream a translation as server-sent events.

        `tokens`: text to append, and tentative text after it; `sentence`: a completed sentence with its hypotheses;
        `done`: the whole text; `error`: what went wrong.
        """
        fields = await parse_request(request, StreamRequest)
        service.authorize(client_address(request), request_api_key(request, fields.api_key))
        service.check_text_size([fields.text, fields.prefix])
        served = service.resolve_run(fields.run, fields.source, fields.target)
        search = service.search_for(served, fields.search, None)
        options = DecodeOptions(search, fields.alignment, prefix=fields.prefix)
        translation = _StreamedTranslation(service, served, served.split(fields.text, fields.split), options)
        first = await translation.start()
        return StreamingResponse(translation.events(first), media_type="text/event-stream")

    return router


def _run_info(served: ServedRun) -> RunInfo:
    run = served.run
    return RunInfo(
        name=served.name,
        source=served.pair.source,
        target=served.pair.target,
        system=run.config.system.name,
        checkpoint=run.checkpoint,
        parameters=sum(weight.numel() for weight in run.model.parameters()),
        search=search_to_dict(run.default_search),
    )


class _StreamedTranslation:
    """Translates a text in a thread of its own, whose decoding steps alternate with batches, and yields events."""

    def __init__(self, service: Service, served: ServedRun, text: SplitText, options: DecodeOptions) -> None:
        self.service, self.served, self.text, self.options = service, served, text, options
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()  # None: the end
        self.stopped = threading.Event()

    async def start(self) -> Event:
        """Start the translation and return its first event, or raise its error."""
        if self.service.active_streams >= self.service.limits.max_streams:
            message = f"{self.service.active_streams} translations are being streamed already: try again"
            raise RequestError(503, message, retry_after=2)
        self.service.active_streams += 1
        threading.Thread(target=self._work, name="streaming", daemon=True).start()
        try:
            first = await self.queue.get()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        if isinstance(first, Exception):
            raise first
        assert first is not None  # the last event is 'done'
        return first

    async def events(self, first: Event) -> AsyncIterator[str]:
        """Yield the events in the format of server-sent events."""
        event: Event | Exception | None = first
        try:
            while event is not None:
                if isinstance(event, Exception):
                    is_public = isinstance(event, UserError | RequestError)
                    message = self.service.public_message(event) if is_public else "the translation failed"
                    event = ("error", {"error": message})
                yield f"event: {event[0]}\ndata: {json.dumps(event[1], ensure_ascii=False)}\n\n"
                event = await self.queue.get()
        finally:
            self.stopped.set()  # stops the translation if the client disconnects

    # ---- in the thread

    def _put(self, event: Event | Exception | None) -> None:
        self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    def _put_tokens(self, sentence: int, text: str, tentative_text: str = "") -> None:
        if text or tentative_text:
            self._put(("tokens", {"sentence": sentence, "text": text, "tentative_text": tentative_text}))

    def _work(self) -> None:
        try:
            self._translate()
        except Exception as error:  # reported to the client
            self._put(error)
        finally:
            self._put(None)
            self.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self.service.active_streams -= 1

    def _translate(self) -> None:
        run, timeout = self.service.streaming_run(self.served), self.service.limits.timeout
        deadline = time.monotonic() + timeout
        gaps = self.text.gaps_for_language(self.served.pair.target)
        texts = []
        self._put_tokens(0, gaps[0])
        for number, sentence in enumerate(self.text.sentences):
            prefix = self.options.prefix if number == 0 else ""
            stream = run.stream(sentence, search=self.options.search, alignment=self.options.alignment, prefix=prefix)
            with closing(stream):
                while True:
                    if self.stopped.is_set():
                        return
                    if time.monotonic() > deadline:
                        raise RequestError(503, f"the translation took longer than {timeout:g} seconds")
                    with self.service.device_lock:
                        tokens = next(stream, None)
                    if tokens is None:
                        break
                    self._put_tokens(number, tokens.text, tokens.tentative_text)
                    if tokens.translation is not None:
                        texts.append(tokens.translation.text)
                        result = SentenceTranslation.from_translation(sentence, tokens.translation)
                        self._put(("sentence", {"sentence": number, **result.model_dump(mode="json")}))
            self._put_tokens(number, gaps[number + 1])
        self._put(("done", {"run": self.served.name, "text": self.text.join(texts, self.served.pair.target)}))
