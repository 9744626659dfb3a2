"""Load test of `dragoman serve`: correctness, throughput, latency and memory.

    python benchmarks/serving.py RUN [--clients 64] [--seconds 60] [--requests 10000]

Starts `dragoman serve RUN` on loopback and requests translations of the run's validation data: from one client, from
many clients, and from more clients than its queue admits. Every response must equal that of the single client. The
clients run in this process and also use processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import dragoman
from translation_speed import validation_texts


@dataclass
class Responses:
    """Responses to a group of clients."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: dict[int, list[float]] = field(default_factory=dict)
    wrong: int = 0

    def add(self, status: int, latency: float) -> None:
        self.statuses[status] += 1
        self.latencies.setdefault(status, []).append(latency)

    @property
    def rate(self) -> float:
        return self.statuses[200] / self.seconds

    def line(self, name: str) -> str:
        cuts = {status: statistics.quantiles([0.0, *latencies], n=100) for status, latencies in self.latencies.items()}
        parts = [
            f"{self.statuses[status]:,} × {status}: p50 {1e3 * cut[49]:.1f} ms, p99 {1e3 * cut[98]:.1f} ms"
            for status, cut in sorted(cuts.items())
        ]
        return f"{name:24} {self.rate:7.1f} responses/s   {'; '.join(parts)}   wrong: {self.wrong}"


class Client:
    """A client with a persistent connection."""

    def __init__(self, port: int, pair: tuple[str, str]) -> None:
        self.port, self.pair = port, pair

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def request(self, text: str) -> tuple[int, str]:
        body = json.dumps({"q": text, "source": self.pair[0], "target": self.pair[1]}).encode()
        head = "POST /translate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length"))
        self.retry = next((int(line.partition(":")[2]) for line in lines if line.startswith("retry-after")), 1)
        reply = json.loads(await self.reader.readexactly(length))
        return int(lines[0].split()[1]), reply.get("translatedText", "")


async def load(
    port: int,
    pair: tuple[str, str],
    texts: list[str],
    expected: dict[str, str],
    clients: int,
    seconds: float,
    min_requests: int,
) -> Responses:
    """Send requests from `clients` clients for `seconds` and until there are `min_requests` responses."""
    responses, start = Responses(), time.monotonic()

    async def client_loop(number: int) -> None:
        generator = random.Random(number)
        async with Client(port, pair) as client:
            while time.monotonic() - start < seconds or sum(responses.statuses.values()) < min_requests:
                text, sent = generator.choice(texts), time.monotonic()
                status, reply = await client.request(text)
                responses.add(status, time.monotonic() - sent)
                responses.wrong += status == 200 and reply != expected[text]
                if status != 200:
                    await asyncio.sleep(client.retry + generator.random())

    await asyncio.gather(*(client_loop(number) for number in range(clients)))
    responses.seconds = time.monotonic() - start
    return responses


async def single_client(port: int, pair: tuple[str, str], texts: list[str]) -> tuple[dict[str, str], Responses]:
    responses, start, translations = Responses(), time.monotonic(), {}
    async with Client(port, pair) as client:
        for text in texts:
            sent = time.monotonic()
            status, translations[text] = await client.request(text)
            responses.add(status, time.monotonic() - sent)
    responses.seconds = time.monotonic() - start
    return translations, responses


class Server:
    """A `dragoman serve` process."""

    def __init__(self, run: str, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "dragoman",
            "serve",
            run,
            "--port",
            "0",
            "--quiet",
            "--requests-per-minute",
            "0",
            *options,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rpartition(":")[2])

    @property
    def memory(self) -> int:
        """Resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait()


def sentences(folder: str, count: int) -> list[str]:
    run = dragoman.load(folder, device="cpu")
    texts = [str(text) for text in validation_texts(run, 4 * count)]
    return list(dict.fromkeys(text for text in texts if text.strip()))[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder, or RUN=en-de")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=0, help="minimum number of requests under load")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--option", action="append", default=[], help="for the service, such as --option=--int8")
    options = parser.parse_args()
    from dragoman.serving import infer_language_pair, parse_run_argument

    folder, pair = parse_run_argument(options.run)
    pair = pair or infer_language_pair(dragoman.load(folder, device="cpu"))
    texts = sentences(str(folder), options.texts)
    server = Server(options.run, *options.option)
    expected, single = asyncio.run(single_client(server.port, pair, texts))
    print(single.line("one client"), flush=True)
    asyncio.run(load(server.port, pair, texts, expected, options.clients, 3, 0))  # warm-up
    before = server.memory
    many = asyncio.run(load(server.port, pair, texts, expected, options.clients, options.seconds, options.requests))
    print(many.line(f"{options.clients} clients"))
    times = many.rate / single.rate
    print(f"{'':24} {times:.1f} times that of one client; memory {before} MiB before, {server.memory} MiB after")
    assert server.end() == 0
    server = Server(options.run, "--max-queue", "32", *options.option)
    overload = asyncio.run(load(server.port, pair, texts, expected, 4 * options.clients, min(options.seconds, 15), 0))
    print(overload.line(f"{4 * options.clients} clients, queue 32"))
    assert server.end() == 0
    if many.wrong or overload.wrong or set(many.statuses) != {200} or not set(overload.statuses) <= {200, 503}:
        sys.exit("a response was wrong or missing")


if __name__ == "__main__":
    main()
