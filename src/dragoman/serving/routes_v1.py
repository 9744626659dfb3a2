"""Our own interface, under /v1: runs by name, searches, n-best lists, scores, alignments, and words as they come."""

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
from dragoman.serving.request_error import RequestError
from dragoman.serving.request_parsing import cancel_on_disconnect, client_address, parse_request, request_api_key
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

Event = tuple[str, dict[str, Any]]  # its name and what it says
EVENT = {
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
        """The runs that are served."""
        return [_about(served) for served in service.runs.values()]

    @router.post("/translate", responses=errors, openapi_extra=request_body_schema(TranslationRequest))
    async def translate(request: Request) -> TranslationResponse:
        """Translations with scores, tokens and, where they are asked for, alternatives and alignments."""
        service.reject_if_full()
        asked = await parse_request(request, TranslationRequest)
        service.authorize(client_address(request), request_api_key(request, asked.api_key))
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        service.check_text_size([*texts, asked.prefix])
        if asked.prefix and len(texts) != 1:
            raise RequestError(400, f"a prefix is for one text, but {len(texts)} came: send them one by one")
        served = service.resolve_run(asked.run, asked.source, asked.target)
        way = DecodeOptions(_search(service, served, asked), asked.alignment, asked.token_scores, asked.prefix)
        cut = [served.split(text, asked.split) for text in texts]
        found = await cancel_on_disconnect(request, served.translate(cut, way), service.limits.timeout)
        translations = [
            TextTranslation(
                text=text.join([one.text for one in some], served.pair.target),
                sentences=[SentenceTranslation.from_translation(*both) for both in zip(text.sentences, some)],
            )
            for text, some in zip(cut, found)
        ]
        return TranslationResponse(run=served.name, translations=translations)

    @router.post(
        "/stream",
        responses=errors | {200: {"content": {"text/event-stream": {"schema": EVENT}}}},
        response_class=StreamingResponse,
        openapi_extra=request_body_schema(StreamRequest),
    )
    async def stream(request: Request) -> StreamingResponse:
        """A translation as it is written, as server-sent events.

        `tokens`: text that is added, and what will likely follow it; `sentence`: all about one that is complete; `done`:
        the whole text; `error`: what went wrong.
        """
        asked = await parse_request(request, StreamRequest)
        service.authorize(client_address(request), request_api_key(request, asked.api_key))
        service.check_text_size([asked.text, asked.prefix])
        served = service.resolve_run(asked.run, asked.source, asked.target)
        way = DecodeOptions(_search(service, served, asked), asked.alignment, prefix=asked.prefix)
        writing = _Writing(service, served, served.split(asked.text, asked.split), way)
        first = await writing.start()
        return StreamingResponse(writing.events(first), media_type="text/event-stream")

    return router


def _about(served: ServedRun) -> RunInfo:
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


def _search(service: Service, served: ServedRun, asked: TranslationRequest | StreamRequest) -> Any:
    best = asked.n_best if isinstance(asked, TranslationRequest) else None
    if asked.search is not None and best is not None:
        raise RequestError(400, "'best' and 'search' both say how to search: write it into the search")
    if best is not None:
        if best > service.limits.max_hypotheses:
            raise RequestError(
                400, f"at most {service.limits.max_hypotheses} translations of a sentence can be given, not {best:,}"
            )
        return served.beam_search(best)
    return served.run.default_search if asked.search is None else service.validate_search(served, asked.search)


class _Writing:
    """A text that a thread translates word by word, its steps between those of the batches."""

    def __init__(self, service: Service, served: ServedRun, text: SplitText, way: DecodeOptions) -> None:
        self.service, self.served, self.text, self.way = service, served, text, way
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self.stopped = threading.Event()

    async def start(self) -> Event:
        """The first event, or the error where nothing comes of it."""
        if self.service.active_streams >= self.service.limits.max_streams:
            raise RequestError(
                503, f"{self.service.active_streams} translations are being sent already: try again", retry_after=2
            )
        self.service.active_streams += 1
        threading.Thread(target=self._work, name="streaming", daemon=True).start()
        try:
            first = await self.queue.get()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        if isinstance(first, Exception):
            raise first
        assert first is not None  # 'done' is always said
        return first

    async def events(self, first: Event) -> AsyncIterator[str]:
        """As the protocol of server-sent events writes them."""
        event: Event | Exception | None = first
        try:
            while event is not None:
                if isinstance(event, Exception):
                    known = isinstance(event, UserError | RequestError)
                    event = (
                        "error",
                        {"error": self.service.public_message(event) if known else "the translation failed"},
                    )
                yield f"event: {event[0]}\ndata: {json.dumps(event[1], ensure_ascii=False)}\n\n"
                event = await self.queue.get()
        finally:
            self.stopped.set()  # whoever has left costs no more

    def _say(self, event: Event | Exception | None) -> None:
        self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    def _work(self) -> None:
        try:
            self._translate()
        except Exception as error:  # whatever it was, it is said
            self._say(error)
        finally:
            self._say(None)
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.service.active_streams -= 1

    def _translate(self) -> None:
        run, limit = self.service.streaming_run(self.served), self.service.limits.timeout
        ends = time.monotonic() + limit
        gaps = self.text.gaps_for_language(self.served.pair.target)
        texts = []
        self._piece(0, gaps[0])
        for number, sentence in enumerate(self.text.sentences):
            prefix = self.way.prefix if number == 0 else ""
            pieces = run.stream(sentence, search=self.way.search, alignment=self.way.alignment, prefix=prefix)
            with closing(pieces):
                while True:
                    if self.stopped.is_set():
                        return
                    if time.monotonic() > ends:
                        raise RequestError(503, f"the translation took longer than {limit:g} seconds")
                    with self.service.device_lock:
                        piece = next(pieces, None)
                    if piece is None:
                        break
                    self._piece(number, piece.text, piece.tentative_text)
                    if piece.translation is not None:
                        texts.append(piece.translation.text)
                        told = SentenceTranslation.from_translation(sentence, piece.translation).model_dump(mode="json")
                        self._say(("sentence", {"sentence": number, **told}))
            self._piece(number, gaps[number + 1])
        self._say(("done", {"run": self.served.name, "text": self.text.join(texts, self.served.pair.target)}))

    def _piece(self, number: int, text: str, likely: str = "") -> None:
        if text or likely:
            self._say(("tokens", {"sentence": number, "text": text, "tentative_text": likely}))
