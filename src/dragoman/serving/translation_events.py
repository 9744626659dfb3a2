"""Streamed translations as server-sent events, with the sentences of a text in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dragoman.errors import UserError
from dragoman.run import StreamedTokens
from dragoman.serving import schemas
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import request_record
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.serving.service_log import log_failure
from dragoman.text.sentences import SplitText

Event = tuple[str, dict[str, Any]]  # name and data


async def translation_events(
    service: Service, served: ServedRun, text: SplitText, options: DecodeOptions, include_warnings: bool = False
) -> AsyncGenerator[Event]:
    """Translate the sentences of a text, together with those of other requests, and yield events: (name, data).

    Sentences are translated in any order; their events come one sentence after the other, with the white space between
    them: `tokens` (new text), `sentence` (a whole one, with warnings if `include_warnings`) and at last `done`. The
    translation is canceled when the generator is closed.
    """
    async with service.stream_slot():
        # white space before the first sentence and after each, as the language writes it: in Chinese without spaces
        gaps = text.gaps_for_language(served.target_language)
        for event in _token_events(0, gaps[0]):
            yield event
        translations: list[str] = []
        held_back: dict[int, list[StreamedTokens]] = {}  # parts not sent yet, by the index of their sentence
        async for index, new_part in _parts(service, served, text, options):
            held_back.setdefault(index, []).append(new_part)
            while parts := held_back.pop(len(translations), None):
                current = len(translations)  # index of the first sentence that is not complete, whose parts are sent
                for part in parts:  # tentative_text: how the best hypothesis goes on, which may still change
                    for event in _token_events(current, part.text, part.tentative_text):
                        yield event
                    if part.translation is not None:  # the last part of the sentence
                        source = text.sentences[current]
                        warnings = None
                        if include_warnings:
                            warnings = await asyncio.to_thread(served.warnings, source, part.translation)
                        result = schemas.SentenceTranslation.from_translation(
                            source, part.translation, gaps[current + 1], warnings
                        )
                        yield "sentence", {"sentence": current, **result.model_dump(mode="json")}
                        for event in _token_events(current, gaps[current + 1]):
                            yield event
                        translations.append(part.translation.text)
                if len(translations) == current:
                    break  # the sentence is not complete, so those after it are held back
        yield "done", {"run": served.name, "text": text.join(translations, served.target_language)}


async def _parts(
    service: Service, served: ServedRun, text: SplitText, options: DecodeOptions
) -> AsyncIterator[tuple[int, StreamedTokens]]:
    """Yield (index of a sentence, new part of its translation) in the order in which parts are generated.

    A translation that takes longer than `limits.timeout` seconds is a RequestError (503).
    """
    loop, deadline = asyncio.get_running_loop(), time.monotonic() + service.limits.timeout
    arrived: asyncio.Queue[tuple[int, StreamedTokens] | None] = asyncio.Queue()  # None: the end

    def put(item: tuple[int, StreamedTokens] | None) -> None:
        """Pass a part, or None at the end, from the thread that translates to the event loop."""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    options = replace(options, is_streamed=True)
    job = served.submit(text.sentences, options, on_tokens=lambda index, part: put((index, part)))
    if job is None:  # there are no sentences
        return
    job.future.add_done_callback(lambda _: put(None))
    try:
        while True:
            try:
                item = await asyncio.wait_for(arrived.get(), deadline - time.monotonic())
            except TimeoutError:
                limit = f"{service.limits.timeout:g} seconds"
                raise RequestError(503, f"the translation took longer than {limit}", retry_after=10) from None
            if item is None:
                await served.result(job)  # raises the error of the translation
                return
            yield item
    finally:
        job.future.cancel()  # stops the translation if the client has gone


def _token_events(sentence: int, text: str, tentative_text: str = "") -> Iterator[Event]:
    """Yield the event for new text of a sentence (by index), and tentative text after it; none if both are empty.

    Tentative text may still change: the next event replaces it.
    """
    if text or tentative_text:
        yield "tokens", {"sentence": sentence, "text": text, "tentative_text": tentative_text}


async def server_sent_events(service: Service, events: AsyncGenerator[Event], first: Event) -> AsyncIterator[str]:
    """Yield `first` and further events in the format of server-sent events; an exception becomes an error event.

    If the client disconnects, the generator `events` is closed, which stops the translation.
    """
    try:
        yield _format_event(*first)
        async for event in events:
            yield _format_event(*event)
    except Exception as error:
        record, is_public = request_record(), isinstance(error, UserError | RequestError)
        record.error = service.public_message(error) if is_public else "the translation failed"
        # the response has begun with status 200, but the log gets the status of the error
        record.status = error.status if isinstance(error, RequestError) else 400 if is_public else 500
        if not is_public:
            log_failure(record)
        yield _format_event("error", {"error": record.error})
    finally:
        await events.aclose()


def _format_event(name: str, data: dict[str, Any]) -> str:
    """Format a server-sent event: its name, and its data as JSON."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
