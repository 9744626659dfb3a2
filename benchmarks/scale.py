"""Measure time and memory of data preparation and batching by corpus size.

    python benchmarks/scale.py --pairs 100000 300000 1000000 5000000 --folder /somewhere/with/space --table scale.md

Writes random sentences of about 12 Zipf-distributed words, prepares a run from them and builds batches, each in its own
process. Memory is the peak resident memory, mapped files included; that of the workers is the largest of all workers.
The last lines extrapolate to a billion pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

VOCABULARY_WORDS = 50_000
CORPUS_CHUNK = 100_000
NUM_BATCHES = 500
BATCH_TOKENS = 4096
BILLION = 10**9


@dataclass(frozen=True)
class Row:
    """Measurements of a corpus; times in seconds, sizes and memory in MiB."""

    pairs: int
    text: float  # MiB
    store: float
    prepared: float
    workers: int
    own_time: float  # processor time of the process that reads and writes
    workers_time: float  # processor time of all tokenizing processes
    memory: float
    worker_memory: float
    opened: float  # seconds until the store is open
    first: float  # seconds until the first batch
    batches: float  # per second
    batch_memory: float


def write_corpus(folder: Path, pairs: int) -> None:
    """Write two files of sentences whose words follow Zipf's law."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(random.choice(letters, random.integers(2, 10))) for _ in range(VOCABULARY_WORDS)])
    shares = 1 / np.arange(1, VOCABULARY_WORDS + 1)
    cumulative = np.cumsum(shares / shares.sum())
    with (folder / "train.en").open("w") as source, (folder / "train.de").open("w") as target:
        for start in range(0, pairs, CORPUS_CHUNK):
            lengths = random.poisson(11, min(CORPUS_CHUNK, pairs - start)) + 1
            numbers = np.searchsorted(cumulative, random.random(int(lengths.sum())))
            ends = np.cumsum(lengths)
            sentence, reversed_words = words[numbers].tolist(), words[(numbers + 7) % VOCABULARY_WORDS].tolist()
            for first, end in zip(ends - lengths, ends):
                source.write(" ".join(sentence[first:end]) + ".\n")
                target.write(" ".join(reversed_words[first:end][::-1]) + ".\n")


def peak(process: str) -> float:
    """Return the peak resident memory of a process in MiB; getrusage would include that of its parent."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


class ChildMemoryMonitor(Thread):
    """Records the peak memory of the largest child process, twice a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest, self.done = 0.0, Event()

    def __enter__(self) -> ChildMemoryMonitor:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.join()

    def run(self) -> None:
        while not self.done.wait(0.5):
            for task in Path("/proc/self/task").iterdir():
                children = (task / "children").read_text().split()
                self.highest = max([self.highest, *map(peak, children)])


def prepare_run(folder: Path, workers: int | None) -> dict[str, Any]:
    """Prepare a run and return time and memory."""
    from dragoman.config import from_dict
    from dragoman.training.prepare import prepare_run

    data = {"source": [str(folder / "train.en")], "target": [str(folder / "train.de")], "workers": workers}
    config = from_dict({"data": data, "training": {"device": "cpu"}, "system": {"name": "transformer", "size": "tiny"}})
    start = time.monotonic()
    with ChildMemoryMonitor() as monitor:
        prepare_run(folder / "run", config, lambda text: print(text, file=sys.stderr))
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "prepared": time.monotonic() - start,
        "own_time": own.ru_utime + own.ru_stime,
        "workers_time": others.ru_utime + others.ru_stime,
        "memory": peak("self"),
        "worker_memory": monitor.highest,
    }


def make_batches(folder: Path) -> dict[str, Any]:
    """Open the token store and build batches from the middle of the second epoch on."""
    import torch  # noqa: F401  its import time is not measured

    from dragoman.data import Batches, DataPosition, TokenStore

    start = time.monotonic()
    batches = Batches(TokenStore(folder / "run" / "data" / "train"), BATCH_TOKENS, seed=1)
    opened = time.monotonic()
    stream = batches.iterate_from(DataPosition(1, batches.windows // 2, 0))
    next(stream)
    first = time.monotonic()
    for _ in islice(stream, NUM_BATCHES):
        pass
    return {
        "opened": opened - start,
        "first": first - start,
        "batches": NUM_BATCHES / (time.monotonic() - first),
        "batch_memory": peak("self"),
    }


def run_in_subprocess(stage: str, folder: Path, workers: int | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--stage", stage, "--folder", str(folder)]
    command += [] if workers is None else ["--workers", str(workers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def measure(pairs: int, where: Path | None, workers: int | None) -> Row:
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        write_corpus(folder, pairs)
        results = run_in_subprocess("prepare", folder, workers)
        results |= run_in_subprocess("batches", folder, workers)
        text = sum((folder / f"train.{side}").stat().st_size for side in ("en", "de")) / 2**20
        files = (folder / "run" / "data" / "train").rglob("*")
        store = sum(file.stat().st_size for file in files if file.is_file()) / 2**20
    return Row(pairs, text, store, workers=workers or len(os.sched_getaffinity(0)), **results)


def table(rows: list[Row]) -> list[str]:
    names = ["pairs", "text", "store", "prepared in", "memory", "of a worker", "store opened in", "first batch after"]
    lines = [[*names, "batches a second", "memory"], ["---:"] * 10]
    for row in rows:
        sizes = [f"{size:,.0f} MiB" for size in (row.text, row.store)]
        memory = [f"{size:,.0f} MiB" for size in (row.memory, row.worker_memory)]
        start = [f"{1000 * seconds:,.0f} ms" for seconds in (row.opened, row.first)]
        last = [f"{row.batches:,.0f}", f"{row.batch_memory:,.0f} MiB"]
        lines.append([f"{row.pairs:,}", *sizes, f"{row.prepared:,.0f} s", *memory, *start, *last])
    return [f"| {' | '.join(line)} |" for line in lines]


def projection(rows: list[Row]) -> list[str]:
    """Extrapolate the growth between the two largest corpora to a billion pairs."""
    before, last = rows[-2:]
    pairs = last.pairs - before.pairs

    def extrapolate(name: str) -> float:
        slope = (getattr(last, name) - getattr(before, name)) / pairs
        return float(getattr(last, name) + max(0.0, slope) * (BILLION - last.pairs))

    own, others = extrapolate("own_time") / 3600, extrapolate("workers_time") / 3600
    here = f"{last.workers} workers"
    return [
        f"Projected to {BILLION:,} pairs from the growth between {before.pairs:,} and {last.pairs:,}:",
        f"prepared in {extrapolate('prepared') / 3600:,.1f} hours with {here}; reading and writing take {own:,.1f} "
        f"hours of one core and the rest {others:,.1f}, which 16 cores share: about {max(own, others / 15):,.1f} "
        "hours;",
        f"a store of {extrapolate('store') / 1024:,.0f} GiB in {-(-BILLION // 2**22)} shards.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=None, help="working folder (default: temporary)")
    parser.add_argument("--workers", type=int, default=None, help="tokenizing processes (default: one per core)")
    parser.add_argument("--table", type=Path, default=None, help="also write the table to this file")
    parser.add_argument("--stage", choices=("prepare", "batches"), default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        folder = options.folder
        stage = prepare_run(folder, options.workers) if options.stage == "prepare" else make_batches(folder)
        print(json.dumps(stage))
        return
    rows: list[Row] = []
    for pairs in options.pairs:
        rows.append(measure(pairs, options.folder, options.workers))
        print(json.dumps(asdict(rows[-1])), file=sys.stderr, flush=True)
        lines = table(rows) + (["", *projection(rows)] if len(rows) > 1 else [])
        if options.table:
            options.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
