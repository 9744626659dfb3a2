"""Load test of `dragoman serve`: correctness, throughput, latency, memory and its end.

    python benchmarks/serving.py RUN [--clients 64] [--seconds 60] [--requests 10000]
    python benchmarks/serving.py RUN --scenario typing [--typists 64] [--long 8]
    python benchmarks/serving.py RUN --scenario memory [--requests 100000]
    python benchmarks/serving.py RUN --scenario signals

Starts `dragoman serve RUN` on loopback.

- load: requests translations of the run's validation data from one client, from many clients, and from more clients
  than its queue admits. Every response must equal that of the single client. The clients run in this process and also
  use processor time.
- typing: users type on the page, which streams the translation at every pause and inspects it, while others send long
  texts with a beam of 64; all clients run in other processes. Users without ids count as one client (--no-ids).
- memory: the resident memory of the service over many short requests, with inspections, walks and gradients, as those
  of the page, in between.
- signals: SIGTERM under load answers the accepted requests; a second Ctrl-C ends the service at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dragoman
from serving_clients import Client, Responses, typing_load
from translation_speed import validation_texts

INSPECTED = 5  # sentences inspected in each twentieth of the scenario memory


async def translated(client: Client, pair: tuple[str, str], text: str) -> tuple[int, str]:
    """Return the status of a response and its translation."""
    status, reply = await client.post("/translate", {"q": text, "source": pair[0], "target": pair[1]})
    return status, json.loads(reply).get("translatedText", "")


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
        async with Client(port) as client:
            while time.monotonic() - start < seconds or sum(responses.statuses.values()) < min_requests:
                text, sent = generator.choice(texts), time.monotonic()
                status, reply = await translated(client, pair, text)
                responses.add(status, time.monotonic() - sent)
                responses.wrong += status == 200 and reply != expected[text]
                if status != 200:
                    await asyncio.sleep(client.retry + generator.random())

    await asyncio.gather(*(client_loop(number) for number in range(clients)))
    responses.seconds = time.monotonic() - start
    return responses


async def single_client(port: int, pair: tuple[str, str], texts: list[str]) -> tuple[dict[str, str], Responses]:
    responses, start, translations = Responses(), time.monotonic(), {}
    async with Client(port) as client:
        for text in texts:
            sent = time.monotonic()
            status, translations[text] = await translated(client, pair, text)
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
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rpartition(":")[2])

    @property
    def cpu_seconds(self) -> float:
        """Processor time that the service has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> int:
        """Resident memory in MiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait()

    def log(self) -> str:
        """The log, after the end of the process."""
        self._log.seek(0)
        return self._log.read()


def sentences(folder: str, count: int) -> list[str]:
    run = dragoman.load(folder, device="cpu")
    texts = [str(text) for text in validation_texts(run, 4 * count)]
    return list(dict.fromkeys(text for text in texts if text.strip()))[:count]


def load_scenario(options: argparse.Namespace, pair: tuple[str, str], texts: list[str]) -> bool:
    """One client, many clients, and more clients than the queue admits."""
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
    is_correct = not many.wrong and not overload.wrong
    return is_correct and set(many.statuses) == {200} and set(overload.statuses) <= {200, 503}


def typing_scenario(options: argparse.Namespace, pair: tuple[str, str], texts: list[str]) -> bool:
    """Users who type on the page, with and without long requests of others."""
    name, has_ids = Path(options.run.partition("=")[0]).resolve().name, not options.no_ids
    is_good = True
    for long in dict.fromkeys((0, options.long)):
        server = Server(options.run, *options.option)
        typing_load(server.port, name, texts, 5, 8, 0)  # warm-up
        used = server.cpu_seconds
        found = typing_load(server.port, name, texts, options.seconds, options.typists, long, has_ids=has_ids)
        cores = (server.cpu_seconds - used) / options.seconds
        print(f"{options.typists} typists, {long} long requests; load average {os.getloadavg()[0]:.1f}; ", end="")
        print(f"the service used {cores:.2f} cores")
        for kind, responses in found.items():
            print(responses.line(kind), flush=True)
        typists = [found["streams"], found["inspections"]]
        slow = max(responses.quantile(99) for responses in typists)
        errors = sum(responses.errors for responses in typists)
        print(f"{'':24} typists: {errors} errors, p99 {slow:.2f} s; memory {server.memory} MiB", flush=True)
        is_good &= errors == 0 and slow < options.max_p99
        assert server.end() == 0
    return is_good


async def inspect(port: int, run: str, texts: list[str]) -> None:
    """Inspect some sentences in all ways that the page offers, one after the other."""
    async with Client(port) as client:
        for text in texts:
            replies = [await client.get(f"/v1/runs/{run}/{name}") for name in ("gradients", "positions", "curves")]
            status, reply = await client.post("/v1/translate", {"text": text})
            translation = json.loads(reply)["translations"][0]["text"]
            for name in ("lens", "saliency"):
                replies.append(await client.post(f"/v1/{name}", {"text": text, "translation": translation}))
            for name in ("walk", "stream"):
                replies.append(await client.post(f"/v1/{name}", {"text": text}))
            assert {status, *(status for status, _ in replies)} == {200}, replies


def memory_scenario(options: argparse.Namespace, pair: tuple[str, str], texts: list[str]) -> bool:
    """Resident memory over many short requests: that of the second half exceeds that of the first by at most 20 MiB."""
    name = Path(options.run.partition("=")[0]).resolve().name
    server, total, done = Server(options.run, *options.option), options.requests or 100_000, 0
    short = sorted(texts, key=len)[: len(texts) // 4]
    print(f"{'requests':>9} {'seconds':>8} {'MiB':>6}")
    expected, _ = asyncio.run(single_client(server.port, pair, short))
    start, readings = time.monotonic(), list[int]()
    while done < total and time.monotonic() - start < options.max_minutes * 60:
        part = asyncio.run(load(server.port, pair, short, expected, options.clients, 0, max(100, total // 20)))
        asyncio.run(inspect(server.port, name, short[:INSPECTED]))
        done += part.statuses[200]
        readings.append(server.memory)
        print(f"{done:9,} {time.monotonic() - start:8.0f} {readings[-1]:6}", flush=True)
        assert not part.wrong
        assert set(part.statuses) == {200}
    assert server.end() == 0
    half = (len(readings) + 1) // 2
    return len(readings) < 2 or max(readings[half:]) <= max(readings[:half]) + 20


def signals_scenario(options: argparse.Namespace, pair: tuple[str, str], texts: list[str]) -> bool:
    """SIGTERM under load ends the service with status 0 and no lost answer; a second SIGINT ends it at once."""
    results = []
    # 130 is the status by which a shell reports SIGINT; it is negative if the signal itself ends the process
    for signals, expected in (([signal.SIGTERM], {0}), ([signal.SIGINT, signal.SIGINT], {130, -signal.SIGINT})):
        server = Server(options.run, *options.option)
        responses = asyncio.run(_interrupted_load(server, pair, texts, signals, options.clients))
        status, log = server.process.wait(120), server.log()
        has_traceback = "Traceback" in log
        names = " and ".join(one.name for one in signals)
        print(f"{names} under load: exit status {status}, traceback: {has_traceback}, answers:")
        print(f"    {dict(responses)}", flush=True)
        is_lossless = "incomplete" not in responses or len(signals) > 1
        results.append(status in expected and not has_traceback and is_lossless)
    return all(results)


async def _interrupted_load(
    server: Server, pair: tuple[str, str], texts: list[str], signals: list[signal.Signals], clients: int
) -> dict[str, int]:
    """Send signals while clients wait for answers; count the statuses, refused connections and incomplete answers."""
    counts: dict[str, int] = {}

    async def one_client(number: int) -> None:
        generator = random.Random(number)
        async with Client(server.port) as client:
            while True:
                try:
                    status, _ = await translated(client, pair, generator.choice(texts))
                except asyncio.IncompleteReadError as error:  # a connection without a request may be closed
                    name = "incomplete" if error.partial else "closed"
                except OSError:
                    name = "refused"
                else:
                    name = str(status)
                counts[name] = counts.get(name, 0) + 1
                if not name.isdigit():
                    return
                if status != 200:
                    await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(one_client(number)) for number in range(clients)]
    await asyncio.sleep(5)
    for one in signals:
        server.process.send_signal(one)
        await asyncio.sleep(0.02)
    await asyncio.gather(*tasks)
    return counts


SCENARIOS = {
    "load": load_scenario,
    "typing": typing_scenario,
    "memory": memory_scenario,
    "signals": signals_scenario,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder, or RUN=en-de")
    parser.add_argument("--scenario", choices=list(SCENARIOS), default="load")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=0, help="minimum number of requests under load")
    parser.add_argument("--typists", type=int, default=64, help="users who type on the page")
    parser.add_argument("--long", type=int, default=8, help="concurrent requests of long texts with a beam of 64")
    parser.add_argument("--no-ids", action="store_true", help="users do not send an id, as if they were one client")
    parser.add_argument("--max-p99", type=float, default=2.0, help="seconds, for users who type")
    parser.add_argument("--max-minutes", type=float, default=60, help="of the scenario memory")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--option", action="append", default=[], help="for the service, such as --option=--int8")
    options = parser.parse_args()
    from dragoman.serving import infer_language_pair, parse_run_argument

    folder, pair = parse_run_argument(options.run)
    pair = pair or infer_language_pair(dragoman.load(folder, device="cpu"))
    if not SCENARIOS[options.scenario](options, pair, sentences(str(folder), options.texts)):
        sys.exit("a response was wrong, missing or too slow")


if __name__ == "__main__":
    main()
