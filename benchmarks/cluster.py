"""Jobs over many files: overhead of Ray, and a calculator of time and cost.

    python benchmarks/cluster.py measure RUN --lines 200000 --rounds 3
    python benchmarks/cluster.py measure RUN --lines 400000 --rounds 2 --device cuda
    python benchmarks/cluster.py blocks --blocks 10000
    python benchmarks/cluster.py project --lines-per-second 40 --sentences 1e10 --nodes 100 --workers-per-node 8 \\
        --price 12.5 --block-seconds 0.01

`measure` translates LINES short lines with two local processes and with two Ray workers, in turns, and prints the ratio
of their speeds; starting up counts, and is also shown. On a GPU, which the workers share, it also prints how busy the
GPU is between the first and the last block (the share of time with a kernel running, from nvidia-smi). `blocks` maps
empty blocks, and prints seconds per block: what the driver needs to schedule one. `project` computes hours, cost and
bottleneck of a large job from such figures.

All servers of Ray listen on the loopback address, with an object store of 200 MB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported: listen on the loopback address only

import dragoman
from dragoman.bulk import BulkJob, Executor, LocalExecutor, RayExecutor, RowTask, RunRows
from dragoman.bulk.block_worker import ProcessRows, Rows
from dragoman.bulk.row_formats import RowResult
from dragoman.bulk.run_rows import translate_rows
from dragoman.cli.bulk_jobs import LoadRun
from dragoman.cli.options import ModelOptions
from dragoman.console import format_duration
from dragoman.search import search_to_dict

WORKERS = 2
OBJECT_STORE_BYTES = 200_000_000


@contextmanager
def local_cluster(cpus: int, gpus: int = 0) -> Iterator[None]:
    """Start a Ray cluster of one node, and end it."""
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=cpus, num_gpus=gpus, object_store_memory=OBJECT_STORE_BYTES, **options)
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Nothing:
    """A run that returns an empty result for every row."""

    def __call__(self) -> ProcessRows:
        """Return the function that processes rows."""
        return process_nothing


def process_nothing(rows: Rows, first_index: int) -> list[RowResult]:
    """Return an empty result for every row."""
    return [RowResult(("",))] * len(rows)


@dataclass
class Timing:
    """How long a job takes, from the beginning.

    Attributes:
        seconds: all of them, and `first` those until the first block was complete.
        busy: samples of the share of time in which the GPU was busy after it, in percent; empty without a GPU.
    """

    seconds: float = 0.0
    first: float = 0.0
    busy: list[float] = field(default_factory=list)


def timed(job: BulkJob, executor: Executor, watch_gpu: bool = False) -> Timing:
    """Run a job from the beginning, and return how long it took."""
    timing, begin = Timing(), time.perf_counter()
    watcher: subprocess.Popen[str] | None = None
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200"]
    for state in job.run(executor, overwrite=True):
        if state.blocks and not timing.first:
            timing.first = time.perf_counter() - begin
            watcher = subprocess.Popen(query, stdout=subprocess.PIPE, text=True) if watch_gpu else None
    timing.seconds = time.perf_counter() - begin
    if watcher is not None:
        watcher.terminate()
        timing.busy = [float(line) for line in watcher.communicate()[0].splitlines() if line.strip().isdigit()]
    return timing


def measure(arguments: argparse.Namespace) -> None:
    """Compare the speed of local processes and Ray workers."""
    gpus = int(arguments.device == "cuda")
    run = dragoman.load(arguments.run, device="cpu")
    sentences = [run.decode_source(row) for row in _validation_sources(run.folder)]
    sentences = sorted(sentences, key=len)[: max(1, len(sentences) // 2)]  # short ones
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "in.txt"
        lines = (sentences[n % len(sentences)] for n in range(arguments.lines))
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        options = {"search": search_to_dict(run.beam_config(1))}
        open_run = RunRows(
            LoadRun(Path(arguments.run).resolve(), ModelOptions(device=arguments.device).load),
            RowTask(translate_rows, {"translation": str}, options),
        )
        executors: dict[str, Executor] = {
            "local": LocalExecutor(WORKERS),
            "ray": RayExecutor(num_actors=WORKERS, gpus_per_actor=gpus / WORKERS),
        }
        speeds: dict[str, list[float]] = {name: [] for name in executors}
        busy: dict[str, list[float]] = {name: [] for name in executors}
        with local_cluster(WORKERS, gpus):
            for _ in range(arguments.rounds):
                for name, executor in executors.items():
                    job = BulkJob([str(text)], f"{folder}/{name}", open_run, {}, block_bytes=arguments.block_kib << 10)
                    timing = timed(job, executor, watch_gpu=bool(gpus))
                    speed = arguments.lines / timing.seconds
                    speeds[name].append(speed)
                    busy[name] += timing.busy
                    print(f"{name}: {speed:,.0f} lines/s, first block after {timing.first:.1f} s", end="")
                    print(f", GPU busy {fmean(timing.busy):.1f} %" if timing.busy else "", flush=True)
        outputs = [(Path(folder) / name / "in.txt").read_bytes() for name in speeds]
    best = {name: max(values) for name, values in speeds.items()}
    ratio = median(ray / local for ray, local in zip(speeds["ray"], speeds["local"]))
    print(f"ray / local: {ratio:.3f} (median of {arguments.rounds} rounds), {best['ray'] / best['local']:.3f} (best)")
    if gpus:
        print(f"GPU busy, ray / local: {fmean(busy['ray']) / fmean(busy['local']):.3f}")
    print(f"outputs are {'equal' if outputs[0] == outputs[1] else 'DIFFERENT'}")


def _validation_sources(folder: Path) -> list:
    """Return the token ids of the validation sources of a run."""
    from dragoman.data import TokenStore

    store = TokenStore(folder / "data" / "valid")
    return [store.source(index) for index in range(len(store))]


def blocks(arguments: argparse.Namespace) -> None:
    """Measure what the scheduler needs per block, with blocks of one empty line."""
    memory = Path("/dev/shm")  # where there is one: otherwise waiting for the disk takes most of the time
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        (folder / "in.txt").write_bytes(b"\n" * arguments.blocks)
        executors: dict[str, Executor] = {"local, one process": LocalExecutor(), "ray": RayExecutor(num_actors=WORKERS)}
        with local_cluster(WORKERS):
            for name, executor in executors.items():
                job = BulkJob([str(folder / "in.txt")], str(folder / "out"), Nothing(), {}, block_bytes=1)
                timing = timed(job, executor)
                per_block = (timing.seconds - timing.first) / arguments.blocks
                print(f"{name}: {arguments.blocks:,} empty blocks in {timing.seconds:.1f} s", flush=True)
                print(f"  first block after {timing.first:.1f} s, then {1000 * per_block:.2f} ms per block", flush=True)
    finally:
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Projection:
    """A large job, computed from measured speeds.

    Assumptions: workers do not disturb each other; every block takes the average time; the driver needs
    `block_seconds` per block and works in parallel to the workers; joining reads and writes every output byte once at
    `driver_mb_per_second`; a machine fails every `hours_between_failures` hours, and loses half a block per worker.
    """

    sentences: float
    lines_per_second: float  # of a worker
    nodes: int
    workers_per_node: int
    block_lines: float
    block_seconds: float
    start_seconds: float
    bytes_per_sentence: float
    driver_mb_per_second: float
    hours_between_failures: float
    price: float  # of a node per hour

    def hours(self) -> dict[str, float]:
        """Return the hours of each stage that may be the bottleneck."""
        workers = self.nodes * self.workers_per_node
        blocks = self.sentences / self.block_lines
        return {
            "workers": (self.sentences / self.lines_per_second / workers + self.start_seconds) / 3600,
            "scheduling by the driver": blocks * self.block_seconds / 3600,
            "joining by the driver": self.sentences * self.bytes_per_sentence / self.driver_mb_per_second / 3.6e9,
        }

    def lines(self) -> list[str]:
        """Return the result as text."""
        stages = self.hours()
        total = max(stages["workers"], stages["scheduling by the driver"], stages["joining by the driver"])
        failures = total * self.nodes / self.hours_between_failures
        lost = failures * self.workers_per_node * self.block_lines / self.lines_per_second / 2 / 3600
        blocks = self.sentences / self.block_lines
        out = [f"{stage}: {hours:,.1f} hours" for stage, hours in stages.items()]
        out.append(f"time: {total:,.1f} hours; bottleneck: {max(stages, key=lambda stage: stages[stage])}")
        out.append(f"cost: {total * self.nodes * self.price:,.0f} ({self.nodes} nodes at {self.price:g} per hour)")
        out.append(f"{failures:,.1f} failures of nodes expected, which cost {lost:,.2f} worker hours")
        out.append(f"{blocks:,.0f} blocks: two files each in OUT/blocks, {blocks * 2:,.0f} in one folder")
        wait = format_duration(self.block_lines / self.lines_per_second)
        return [*out, f"a block takes {wait}; beyond {self.max_workers():,.0f} workers the driver is the bottleneck"]

    def max_workers(self) -> float:
        """Return the number of workers that the driver can keep busy."""
        per_block = self.block_seconds + self.block_lines * self.bytes_per_sentence / self.driver_mb_per_second / 1e6
        return self.block_lines / self.lines_per_second / per_block


def main() -> None:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("measure")
    command.add_argument("run")
    command.add_argument("--lines", type=int, default=200_000)
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--block-kib", type=int, default=256)
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    command = commands.add_parser("blocks")
    command.add_argument("--blocks", type=int, default=10_000)
    command = commands.add_parser("project")
    defaults = {"sentences": 1e10, "nodes": 100, "workers_per_node": 8, "block_lines": 5000.0, "block_seconds": 0.01}
    defaults |= {"start_seconds": 60.0, "bytes_per_sentence": 100.0, "driver_mb_per_second": 200.0}
    defaults |= {"hours_between_failures": 2000.0, "price": 1.0, "lines_per_second": 100.0}
    for name, value in defaults.items():
        command.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    arguments = parser.parse_args()
    if arguments.command == "project":
        print("\n".join(Projection(**{name: getattr(arguments, name) for name in defaults}).lines()))
    else:
        {"measure": measure, "blocks": blocks}[arguments.command](arguments)


if __name__ == "__main__":
    main()
