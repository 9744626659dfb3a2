"""Measure training with 1, 2 and 4 processes on this machine, and project the throughput of many GPUs.

    python benchmarks/scaling.py --preset small --processes 1,2,4 --steps 2 --rounds 3

Every process has one thread and batches of its own, and sums its gradients with the others through gloo on the loopback
interface. All groups of processes stay in memory, and run a few steps in turns. The first table shows target tokens per
second of a group, its ratio to one process, the largest ratio that the cores of this machine allow, and the share of a
step that is communication.

Communication is then measured alone, for gradients of several sizes. A ring sums n copies of B bytes in the time
2 (n − 1) l + 2 (n − 1) / n · B / b; latency l and bandwidth b are fitted by least squares, and the second table shows
measured and computed times.

The projection assumes:

- the same formula, with the latency and the bandwidth of the GPUs' network (`--latency-us`, `--bandwidth-gb`: what one
  GPU sends per second; the slowest link of the ring counts), and, for comparison, those measured here;
- the time of a step on one GPU, `--gpu-batch-tokens` / `--gpu-tokens-per-second`, by default `base` on one H200;
- one batch per GPU and step; float32 gradients of `--gpu-preset`, summed after the backward pass and not during it;
- processes that are equally fast, and batches of equally many tokens: nobody waits for the slowest one.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from device_info import device_name
from dragoman.models import count_parameters
from dragoman.training.parallel import ProcessGroup, ReplicatedStrategy
from peers import ours
from peers.protocol import PRESETS, Sizes
from training import read_data

HERE = Path(__file__).parent
GRADIENT_BYTES = (2**12, 2**18, 2**22, 2**25)  # of the gradients whose sums are timed
REPETITIONS = 10  # sums of each size; the shortest time counts
PROJECTED_GPUS = (1, 2, 4, 8, 16, 32, 64)


# ---- one process


def work(request: dict[str, Any]) -> None:
    """Train on request: each line of stdin is a number of steps, or "sum"; the reply is one line of JSON."""
    torch.set_num_threads(1)
    processes = ProcessGroup.join()
    step = ours.trainer(
        Sizes(**request["sizes"]), "cpu", "float32", Path(request["store"]), request["tokens"], processes
    )
    communication = timed_communication()
    step()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "sum":
            reply: dict[str, Any] = {"sums": [time_sum(size) for size in GRADIENT_BYTES]}
        else:
            communication[0], start = 0.0, time.perf_counter()
            tokens = sum(step() for _ in range(int(line)))
            reply = {"tokens": tokens, "seconds": time.perf_counter() - start, "communication": communication[0]}
        print(json.dumps(reply), flush=True)
    os._exit(0)  # do not wait for the thread that prepares batches


def timed_communication() -> list[float]:
    """Let all sums over the processes add their seconds, waiting included, to the only element of the list."""
    seconds, reduce = [0.0], ReplicatedStrategy.reduce_gradients

    def timed(self: ReplicatedStrategy, weights: Sequence[nn.Parameter]) -> None:
        start = time.perf_counter()
        reduce(self, weights)
        seconds[0] += time.perf_counter() - start

    ReplicatedStrategy.reduce_gradients = timed  # type: ignore[method-assign]
    return seconds


def time_sum(size: int) -> float:
    """Return the seconds in which the processes sum `size` bytes of each."""
    values, times = torch.zeros(size // 4), []
    for _ in range(REPETITIONS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        times.append(time.perf_counter() - start)
    return min(times)


# ---- the measurement


class Group:
    """The processes of one training."""

    def __init__(self, request: dict[str, Any], count: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
        common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        common |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(count)
        ]
        self.replies()
        self.rounds: list[float] = []  # target tokens a second
        self.shares: list[float] = []  # of communication in a step

    def replies(self) -> list[dict[str, Any]]:
        """Return the next reply of each process."""
        lines = [process.stdout.readline() for process in self.processes if process.stdout]
        if not all(lines):
            sys.exit("a process has ended: see its message above")
        return [json.loads(line) for line in lines]

    def ask(self, line: str) -> list[dict[str, Any]]:
        """Send all processes the same request, and return their replies."""
        for process in self.processes:
            assert process.stdin is not None
            print(line, file=process.stdin, flush=True)
        return self.replies()

    def round(self, steps: int) -> None:
        replies = self.ask(str(steps))
        self.rounds.append(sum(reply["tokens"] / reply["seconds"] for reply in replies))
        self.shares.append(median(reply["communication"] / reply["seconds"] for reply in replies))

    def sum_times(self) -> list[float]:
        """Return the seconds for each size of `GRADIENT_BYTES`: of the slowest process."""
        return [max(times) for times in zip(*(reply["sums"] for reply in self.ask("sum")))]

    def end(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def ring_factors(count: int, size: int) -> tuple[float, float]:
    """Return how many latencies, and how many bytes of one process, the sum of `size` bytes over processes takes."""
    return 2.0 * (count - 1), 2.0 * (count - 1) / count * size


def fit(times: dict[int, list[float]]) -> tuple[float, float]:
    """Return latency (s) and bandwidth (bytes/s) of the ring that explains the times, by their relative errors."""
    rows, ones = [], []
    for count, seconds in times.items():
        for size, time_taken in zip(GRADIENT_BYTES, seconds):
            rows.append([factor / time_taken for factor in ring_factors(count, size)])
            ones.append(1.0)
    (latency, inverse), *_ = np.linalg.lstsq(np.array(rows), np.array(ones), rcond=None)
    return max(0.0, float(latency)), 1 / max(float(inverse), 1e-15)


def projection(options: argparse.Namespace, latency: float, bandwidth: float) -> list[str]:
    """Return the table of GPUs, with a network as given, and with the communication measured here."""
    size = 4 * count_parameters(ours.spec(PRESETS[options.gpu_preset]))
    compute = options.gpu_batch_tokens / options.gpu_tokens_per_second
    networks = [(options.latency_us * 1e-6, options.bandwidth_gb * 1e9), (latency, bandwidth)]
    lines = [
        f"{'GPUs':>5}"
        + "".join(f"{name:>28}{'efficiency':>12}" for name in ("tokens/s, given network", "tokens/s, as here"))
    ]
    for count in PROJECTED_GPUS:
        line, (steps, sent) = f"{count:>5}", ring_factors(count, size)
        for one_latency, one_bandwidth in networks:
            efficiency = compute / (compute + steps * one_latency + sent / one_bandwidth)
            line += f"{count * efficiency * options.gpu_tokens_per_second:>28,.0f}{efficiency:>12.1%}"
        lines.append(line)
    return lines


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run all groups, print the tables, and return the figures."""
    sizes = PRESETS[options.preset]
    read_data(argparse.Namespace(source=None, pairs=options.pairs), sizes, folder)  # writes a token store
    request = {"sizes": asdict(sizes), "store": str(folder / "store"), "tokens": options.tokens}
    groups = {count: Group(request, count) for count in options.processes}
    for _ in range(options.rounds):
        for group in groups.values():
            group.round(options.steps)
    times = {count: group.sum_times() for count, group in groups.items() if count > 1}
    for group in groups.values():
        group.end()
    alone, cores = groups[1].rounds, len(os.sched_getaffinity(0))
    print(f"{'processes':>9}{'tokens/s':>12}{'ratio':>8}{'at most':>9}{'communication':>15}")
    results: dict[str, Any] = {}
    for count, group in groups.items():
        ratio = median(rate / own for rate, own in zip(group.rounds, alone))
        share = median(group.shares)
        print(f"{count:>9}{median(group.rounds):>12,.0f}{ratio:>8.2f}{min(count, cores):>9}{share:>15.1%}")
        results[str(count)] = {"rounds": group.rounds, "ratio": ratio, "communication": share}
    if times:
        latency, bandwidth = fit(times)
        print(f"\nring of gloo: latency {latency * 1e6:,.0f} µs, bandwidth {bandwidth / 1e9:.2f} GB/s")
        print(f"{'processes':>9}{'bytes':>12}{'measured ms':>14}{'computed ms':>14}")
        for count, seconds in times.items():
            for size, measured in zip(GRADIENT_BYTES, seconds):
                steps, sent = ring_factors(count, size)
                computed = steps * latency + sent / bandwidth
                print(f"{count:>9}{size:>12,}{measured * 1e3:>14.2f}{computed * 1e3:>14.2f}")
        results |= {"sum_times": times, "latency": latency, "bandwidth": bandwidth}
        print(
            f"\nprojection for {options.gpu_preset}: {options.gpu_tokens_per_second:,.0f} tokens/s per GPU, "
            f"{options.gpu_batch_tokens:,} tokens per GPU and step, {options.latency_us:g} µs and "
            f"{options.bandwidth_gb:g} GB/s per GPU"
        )
        print("\n".join(projection(options, latency, bandwidth)))
    return results


def main() -> None:
    def numbers(text: str) -> list[int]:
        return sorted({1, *(int(part) for part in text.split(","))})  # the ratios are to one process

    presets = [name for name, sizes in PRESETS.items() if sizes.kind == "transformer"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=presets, default="small", help="size of the model that is trained here")
    parser.add_argument("--processes", type=numbers, default=[1, 2, 4], help="numbers of processes")
    parser.add_argument("--tokens", type=int, default=2048, help="target tokens per process and step")
    parser.add_argument("--pairs", type=int, default=20_000, help="pairs of the synthetic corpus")
    parser.add_argument("--steps", type=int, default=2, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of every group")
    parser.add_argument("--gpu-preset", choices=presets, default="base", help="size of the model of the projection")
    parser.add_argument("--gpu-tokens-per-second", type=float, default=694_008, help="of one GPU")
    parser.add_argument("--gpu-batch-tokens", type=int, default=25_000, help="target tokens per GPU and step")
    parser.add_argument("--bandwidth-gb", type=float, default=50.0, help="GB that a GPU sends per second")
    parser.add_argument("--latency-us", type=float, default=20.0, help="µs of a message between two GPUs")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
    print(f"{device_name(torch.device('cpu'))}, PyTorch {torch.__version__}: {options.preset}, one thread per process")
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, Path(folder))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
