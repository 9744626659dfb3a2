"""Clients for load tests of `dragoman serve`: persistent connections, users who type on the page, long requests."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

CHARACTERS_PER_SECOND = 5.0  # that a user types
PAUSE_PROBABILITY = 0.3  # after a word
PAUSE_SECONDS = (0.5, 2.0)
READING_SECONDS = (2.0, 5.0)  # after a sentence
TYPING_DELAY = 0.35  # seconds without a key after which the page translates


@dataclass
class Responses:
    """Responses to a group of clients."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: dict[int, list[float]] = field(default_factory=dict)
    wrong: int = 0

    def add(self, status: int, latency: float) -> None:
        """Count a response; status 0: the client gave up and closed the connection."""
        self.statuses[status] += 1
        self.latencies.setdefault(status, []).append(latency)

    def merge(self, other: Responses) -> None:
        """Add the responses of another process."""
        self.statuses.update(other.statuses)
        for status, latencies in other.latencies.items():
            self.latencies.setdefault(status, []).extend(latencies)
        self.wrong += other.wrong
        self.seconds = max(self.seconds, other.seconds)

    @property
    def rate(self) -> float:
        return self.statuses[200] / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> int:
        """Responses with a status other than 200, without those that the client did not wait for."""
        return sum(count for status, count in self.statuses.items() if status not in (0, 200))

    def quantile(self, percent: int) -> float:
        """A percentile of all latencies in seconds; a client that gave up counts with the time that it waited."""
        latencies = [latency for some in self.latencies.values() for latency in some]
        return statistics.quantiles([0.0, *latencies], n=100)[percent - 1] if latencies else float("nan")

    def line(self, name: str) -> str:
        cuts = {status: statistics.quantiles([0.0, *latencies], n=100) for status, latencies in self.latencies.items()}
        parts = [
            f"{self.statuses[status]:,} × {status or 'superseded'}: p50 {1e3 * cut[49]:.1f} ms, "
            f"p95 {1e3 * cut[94]:.1f} ms, p99 {1e3 * cut[98]:.1f} ms"
            for status, cut in sorted(cuts.items())
        ]
        return f"{name:24} {self.rate:7.1f} responses/s   {'; '.join(parts)}   wrong: {self.wrong}"


class Client:
    """A client with a persistent connection."""

    def __init__(self, port: int, client_id: str = "") -> None:
        self.port, self.client_id, self.retry = port, client_id, 1
        self.writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one; the next request opens another."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    async def post(self, path: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        """Send a POST request; return the status and the body of the response."""
        return await self.send("POST", path, json.dumps(fields).encode())

    async def get(self, path: str) -> tuple[int, bytes]:
        """Send a GET request; return the status and the body of the response."""
        return await self.send("GET", path, b"")

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the response.

        Like a browser, it tries again if the service has closed a connection that was not used for a while.
        """
        if self.writer is not None:
            try:
                return await self._send(method, path, body)
            except asyncio.IncompleteReadError as error:
                self.close()
                if error.partial:
                    raise
            except ConnectionError:
                self.close()
        return await self._send(method, path, body)

    async def _send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request on the open connection, or on a new one."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"x-client-id: {self.client_id}\r\n" if self.client_id else ""
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self.retry = int(headers.get("retry-after", 1))
        if "content-length" in headers:
            reply = await self.reader.readexactly(int(headers["content-length"]))
        else:  # chunked
            reply = b""
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                reply += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), reply


# ---- users who type on the page


def typed_texts(generator: random.Random, texts: list[str]) -> Iterator[tuple[float, str]]:
    """Yield seconds of typing and the text at each pause that is long enough for the page to translate it."""
    while True:
        words, typed, seconds = generator.choice(texts).split(), "", 0.0
        for number, word in enumerate(words):
            typed = f"{typed} {word}".strip()
            seconds += (len(word) + 1) / CHARACTERS_PER_SECOND
            if number == len(words) - 1 or generator.random() < PAUSE_PROBABILITY:
                yield seconds + TYPING_DELAY, typed
                pause = READING_SECONDS if number == len(words) - 1 else PAUSE_SECONDS
                seconds = generator.uniform(*pause) - TYPING_DELAY


async def typist(
    port: int, run: str, texts: list[str], seconds: float, number: int, has_id: bool
) -> tuple[Responses, Responses]:
    """Type on the page: stream the translation at every pause, then inspect it; the next pause cancels both."""
    streams, inspections, end = Responses(), Responses(), time.monotonic() + seconds
    generator = random.Random(number)
    client = Client(port, f"typist {number}" if has_id else "")
    await asyncio.sleep(generator.random() * 3)

    async def translate(text: str) -> None:
        """Translate and inspect as the page does."""
        for path, fields, responses in (
            ("/v1/stream", {"text": text}, streams),
            ("/v1/lens", {"text": text, "alternatives": 8}, inspections),
        ):
            start = time.monotonic()
            try:
                status, reply = await client.post(path, {"run": run, **fields})
                if status == 200 and b"event: error" in reply:
                    status = 500
            except asyncio.CancelledError:  # the user has typed more
                responses.add(0, time.monotonic() - start)
                client.close()
                raise
            except (OSError, EOFError):
                status = 599
                client.close()
            responses.add(status, time.monotonic() - start)
            if status != 200:
                return

    task: asyncio.Task[None] | None = None
    for wait, text in typed_texts(generator, texts):
        await asyncio.sleep(min(wait, max(0.0, end - time.monotonic())))
        if task is not None and not task.done():
            task.cancel()
        if task is not None:
            with suppress(asyncio.CancelledError):
                await task
        if time.monotonic() >= end:
            break
        task = asyncio.create_task(translate(text))
    client.close()
    streams.seconds = inspections.seconds = seconds
    return streams, inspections


async def long_requests(port: int, run: str, text: str, seconds: float, beam: int) -> Responses:
    """Send a long text again and again, with a wide beam and without an id."""
    responses, start = Responses(), time.monotonic()
    async with Client(port) as client:
        while time.monotonic() - start < seconds:
            sent = time.monotonic()
            fields = {"run": run, "text": text, "search": {"kind": "Beam", "size": beam}}
            try:
                async with asyncio.timeout(max(1.0, start + seconds - sent)):
                    status, _ = await client.post("/v1/translate", fields)
            except TimeoutError:  # the measurement ends
                client.close()
                status = 0
            responses.add(status, time.monotonic() - sent)
            if status != 200:
                await asyncio.sleep(client.retry)
    responses.seconds = seconds
    return responses


def _typists_process(
    queue: Any, port: int, run: str, texts: list[str], seconds: float, numbers: list[int], has_ids: bool
) -> None:
    """Let some users type, in a process of its own."""

    async def together() -> list[tuple[Responses, Responses]]:
        return await asyncio.gather(*(typist(port, run, texts, seconds, number, has_ids) for number in numbers))

    streams, inspections = Responses(), Responses()
    for stream, inspection in asyncio.run(together()):
        streams.merge(stream)
        inspections.merge(inspection)
    queue.put(("streams", streams))
    queue.put(("inspections", inspections))


def _long_process(queue: Any, port: int, run: str, text: str, seconds: float, count: int, beam: int) -> None:
    """Send long requests, in a process of its own."""

    async def together() -> list[Responses]:
        return await asyncio.gather(*(long_requests(port, run, text, seconds, beam) for _ in range(count)))

    total = Responses()
    for responses in asyncio.run(together()):
        total.merge(responses)
    queue.put(("long", total))


def typing_load(
    port: int,
    run: str,
    texts: list[str],
    seconds: float,
    typists: int,
    long: int,
    long_characters: int = 9_900,
    beam: int = 64,
    has_ids: bool = True,
    processes: int = 2,
) -> dict[str, Responses]:
    """Let users type while long requests are answered; return the responses by kind: streams, inspections, long."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    groups = [list(range(first, typists, processes)) for first in range(processes)]
    workers = [
        context.Process(target=_typists_process, args=(queue, port, run, texts, seconds, numbers, has_ids))
        for numbers in groups
        if numbers
    ]
    if long:
        generator = random.Random(0)
        words = " ".join(generator.choice(texts) for _ in range(long_characters // 8))[:long_characters]
        workers.append(context.Process(target=_long_process, args=(queue, port, run, words, seconds, long, beam)))
    for worker in workers:
        worker.start()
    total: dict[str, Responses] = {}
    for _ in range(2 * sum(map(bool, groups)) + bool(long)):
        kind, responses = queue.get(timeout=seconds + 120)
        total.setdefault(kind, Responses()).merge(responses)
    for worker in workers:
        worker.join()
    return total
