"""Fuzzing of `dragoman serve`: requests from its OpenAPI document (schemathesis), and mutated bytes over sockets.

    python benchmarks/fuzz_service.py RUN --minutes 10 [--seed 0] [--folder FOLDER]

Both kinds run at the same time, against one service. A status of 500 or above other than 503, a response that never
comes, a traceback in the log, the end of the process or memory that grows without end is a failure; the bytes of such a
request are saved in --folder.
schemathesis is part of the extra `dev`; without it only bytes are mutated.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

RESPONSE_SECONDS = 60  # until a request must be answered, or its connection closed
MAX_GROWTH_MIB = 200  # of the service's memory in the second half of the time
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"

BODIES: list[tuple[str, dict[str, object]]] = [
    ("/translate", {"q": "Anna reads.", "source": "en", "target": "de", "format": "html", "alternatives": 2}),
    ("/detect", {"q": "Anna reads."}),
    ("/v1/translate", {"text": ["Anna reads.", "Ben sleeps."], "n_best": 2, "alignment": True, "token_scores": True}),
    ("/v1/translate", {"text": "Anna reads.", "search": {"kind": "Sample", "n_best": 2, "top_k": 5, "seed": 1}}),
    ("/v1/stream", {"text": "Anna reads. Ben sleeps.", "prefix": "Anna", "search": {"kind": "Beam", "size": 2}}),
    ("/v1/lens", {"text": "Anna reads.", "prefix": [5, 7], "alternatives": 3}),
    ("/v1/bpe", {"text": "low lower lowest", "ties": "first"}),
    ("/v1/saliency", {"text": "Anna reads.", "translation": "Anna liest."}),
    ("/v1/walk", {"text": "Anna reads.", "tokens": [5], "position": 1, "head": 1}),
]
GETS = ["/", "/health", "/languages", "/v1/runs", "/metrics", "/openapi.json", "/v1/runs/x/curves", "/page/main.js"]
FRAGMENTS = [
    b"\r\n",
    b"\r\n\r\n",
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "\U0001f600".encode(),
    b'"\\ud800"',
    b"NaN",
    b"1e999",
    b"-1",
    b"99999999999999999999",
    b"[" * 200,
    b'{"a":' * 50,
    b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: websocket\r\nconnection: upgrade\r\n",
    b"host: evil.example\r\n",
    b"%00%ff",
    b"../../",
    b"&q=",
    b"true",
    b"null",
]


def valid_request(generator: random.Random) -> bytes:
    """Return the bytes of a request that the service understands."""
    if generator.random() < 0.2:
        method, path = generator.choice(["GET", "HEAD"]), generator.choice(GETS)
        return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    path, fields = generator.choice(BODIES)
    kind = generator.random()
    if kind < 0.7:
        content_type, body = "application/json", json.dumps(fields, ensure_ascii=generator.random() < 0.5).encode()
    elif kind < 0.85:
        content_type = "application/x-www-form-urlencoded"
        body = "&".join(f"{name}={value}" for name, value in fields.items()).encode()
    else:
        content_type = "multipart/form-data; boundary=b"
        parts = (f'--b\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
        body = ("".join(parts) + "--b--\r\n").encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
    if generator.random() < 0.15:
        return f"{head}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def mutated(generator: random.Random, data: bytes) -> bytes:
    """Return the bytes of a request with a few random changes."""
    changed = bytearray(data)
    # most changes keep the length of the body, so that the request is complete
    for _ in range(generator.choice([0, 1, 1, 2, 4, 16])):
        if not changed:
            break
        kind, position = generator.randrange(6), generator.randrange(len(changed))
        end = min(len(changed), position + generator.choice([1, 2, 8, 64]))
        if kind in (0, 1):
            changed[position] = generator.randrange(256)
        elif kind == 2:
            del changed[position:end]
        elif kind == 3:
            changed[position:position] = generator.choice(FRAGMENTS)
        elif kind == 4:
            fragment = generator.choice(FRAGMENTS)
            changed[position : position + len(fragment)] = fragment
        else:
            changed[position:position] = changed[position:end]
    if generator.random() < 0.05:
        del changed[generator.randrange(len(changed) + 1) :]
    if generator.random() < 0.05:
        changed += valid_request(generator)  # a second request on the connection
    return bytes(changed)


def exchange(port: int, data: bytes, ends: bool) -> tuple[list[int], str]:
    """Send bytes; return the statuses of the responses, and what went wrong ('' if nothing did)."""
    with socket.create_connection(("127.0.0.1", port), timeout=RESPONSE_SECONDS) as connection:
        received = b""
        try:
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            else:  # a complete request: the response ends the exchange
                connection.settimeout(RESPONSE_SECONDS)
            while chunk := connection.recv(65536):
                received += chunk
                if not ends and STATUS_LINE.match(received):
                    break
        except TimeoutError:
            return [], "no response"
        except OSError:
            pass  # closed by the service
    statuses = [int(status) for status in STATUS_LINE.findall(received)]
    bad = [status for status in statuses if status >= 500 and status != 503]
    return statuses, f"status {bad[0]}: {received[-500:]!r}" if bad else ""


class ByteFuzzer(threading.Thread):
    """Sends mutated requests until a time; remembers statuses and failures."""

    def __init__(self, port: int, seed: int, end: float, folder: Path) -> None:
        super().__init__()
        self.port, self.seed, self.end, self.folder = port, seed, end, folder
        self.statuses: Counter[int] = Counter()
        self.requests, self.failures = 0, list[str]()

    def run(self) -> None:
        generator = random.Random(self.seed)
        while time.monotonic() < self.end:
            data = mutated(generator, valid_request(generator))
            try:
                statuses, problem = exchange(self.port, data, ends=generator.random() < 0.8)
            except OSError as error:
                statuses, problem = [], f"no connection: {error}"
            self.requests += 1
            self.statuses.update(statuses)
            if problem:
                path = self.folder / f"failure-{self.seed}-{len(self.failures)}"
                path.write_bytes(data)
                self.failures.append(f"{problem} (request in {path})")
                if len(self.failures) > 20:
                    return


class MemoryReader(threading.Thread):
    """Reads the resident memory of a process twenty times until a time."""

    def __init__(self, process: int, end: float) -> None:
        super().__init__()
        self.status, self.end = Path(f"/proc/{process}/status"), end
        self.readings: list[int] = []  # in MiB

    def run(self) -> None:
        interval = (self.end - time.monotonic()) / 20
        while time.monotonic() + interval / 2 < self.end and self.status.exists():
            time.sleep(interval)
            if match := re.search(r"VmRSS:\s*(\d+) kB", self.status.read_text()):  # none: the process has ended
                self.readings.append(int(match[1]) // 1024)

    def growth(self) -> int:
        """Return by how much the last reading exceeds the largest one of the first half."""
        first_half = self.readings[: (len(self.readings) + 1) // 2]
        return self.readings[-1] - max(first_half) if first_half else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder, or RUN=en-de")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=4, help="that mutate bytes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for failing requests and the log (default: a new one)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    log, end = folder / "service.log", time.monotonic() + 60 * options.minutes
    command = [sys.executable, "-m", "dragoman", "serve", options.run, "--port", "0", "--requests-per-minute", "0"]
    with log.open("w") as log_file:
        service = subprocess.Popen([*command, "--timeout", "20"], stdout=subprocess.PIPE, stderr=log_file, text=True)
    assert service.stdout is not None
    url = service.stdout.readline().strip()
    port = int(url.rpartition(":")[2])
    memory = MemoryReader(service.pid, end)
    fuzzers = [ByteFuzzer(port, options.seed + number, end, folder) for number in range(options.threads)]
    for thread in (memory, *fuzzers):
        thread.start()
    problems = run_schemathesis(url, 60 * options.minutes, options.seed, folder)
    for thread in (memory, *fuzzers):
        thread.join()
    print(f"memory in MiB, in the course of time: {', '.join(map(str, memory.readings))}")
    if (growth := memory.growth()) > MAX_GROWTH_MIB:
        problems.append(f"the memory of the service grew by {growth} MiB in the second half of the time")
    problems += [failure for fuzzer in fuzzers for failure in fuzzer.failures]
    statuses = sum((fuzzer.statuses for fuzzer in fuzzers), Counter[int]())
    print(f"{sum(fuzzer.requests for fuzzer in fuzzers):,} mutated requests: {dict(sorted(statuses.items()))}")
    if service.poll() is not None:
        problems.append(f"the service has ended with status {service.returncode}")
    service.terminate()
    if service.wait(60) != 0:
        problems.append(f"the service ended with status {service.returncode}")
    if "Traceback" in log.read_text(errors="replace"):
        problems.append(f"there is a traceback in {log}")
    print("\n".join(problems) or "no failure")
    sys.exit(1 if problems else 0)


def run_schemathesis(url: str, seconds: float, seed: int, folder: Path) -> list[str]:
    """Test the service with requests that its OpenAPI document describes; return what went wrong."""
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists() and shutil.which("schemathesis") is None:
        print("schemathesis is not installed: only bytes are mutated")
        return []
    command = [str(program) if program.exists() else "schemathesis", "run", f"{url}/openapi.json"]
    command += ["--checks", CHECKS, "--max-time", str(round(seconds)), "--seed", str(seed), "--workers", "2"]
    command += ["--continue-on-failure", "--suppress-health-check", "all", "--no-color", "--request-timeout", "60"]
    output = folder / "schemathesis.txt"
    with output.open("w") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=folder, check=False).returncode
    print("\n".join(output.read_text().splitlines()[-15:]))
    return [] if status == 0 else [f"schemathesis found failures: see {output}"]


if __name__ == "__main__":
    main()
