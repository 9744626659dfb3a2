"""Which part of a training step takes the time: a few steps of a run's model on its data.

    python benchmarks/profile_step.py RUN [--steps 8 --warmup 4 --device cpu --json]

The run is not changed: the steps start from new weights in a temporary folder. Waiting for data, forward pass and
optimizer are timed one after the other, without CUDA graphs, which is a little slower than training; the tokens per
second are those of training.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from device_info import device_name, peak_memory_bytes, synchronize
from dragoman import config as configuration
from dragoman.models import training_flops
from dragoman.run import read_spec
from dragoman.run_files import CONFIG_FILE
from dragoman.training.display import SilentDisplay
from dragoman.training.matmul_speed import matmul_flops_per_second
from dragoman.training.train_step import StepBatches
from dragoman.training.trainer import Trainer

#: kinds of operations and patterns of their names, the first match counts: kernels on a GPU, operators on a CPU
OPERATION_KINDS = {
    "attention": r"attention|flash|fmha|flex",
    "recurrent cells": r"lstm|gru|rnn|_cell",
    "softmax and loss": r"softmax|nll_loss|cross_?entropy|logsumexp",
    "norms": r"norm",
    "dropout": r"dropout|bernoulli|random|philox|rand",
    "optimizer": r"adam|sgd|foreach|multi_tensor|lerp|newton",
    "convolutions": r"conv(?!ert)",
    "matrix products": r"mm\b|addmm|bmm|baddbmm|matmul|gemm|linear|cutlass|sm\d+_xmma|nvjet|cublas|::mv|::dot",
    "embeddings and indexing": r"embedding|index|gather|scatter|take",
    "copies and memory": r"copy|memcpy|memset|::to\b|clone|contiguous|zero_|fill_|empty|cat\b|stack|pin_memory|resize",
    "elementwise": r"triton|elementwise|add|sub|mul|div|relu|gelu|silu|tanh|sigmoid|exp|log|where|mask|sum|mean"
    r"|pow|sqrt|neg|abs|max|min|cumsum|arange|reduce|threshold|clamp",
}
OTHER_KIND = "other"


@dataclass(frozen=True)
class StepProfile:
    run: str
    device: str
    precision: str
    steps: int
    seconds_per_step: float
    tokens_per_second: float  # target tokens without padding
    tflops: float  # 10¹² floating-point operations per second
    matmul_tflops: float  # of a large matrix product
    peak_memory: int  # bytes
    phases: dict[str, float]  # shares of the time of a step
    operation_kinds: dict[str, float]  # shares of the time of the device
    slowest_operations: list[tuple[str, str, float]]  # name, kind, share

    def lines(self) -> list[str]:
        speed = f"{self.seconds_per_step * 1000:,.1f} ms per step, {self.tokens_per_second:,.0f} target tokens/s"
        lines = [f"{self.run}: {self.device}, {self.precision}, {self.steps} steps", speed]
        lines.append(f"{self.tflops:.3g} TFLOP/s; a matrix product reaches {self.matmul_tflops:.3g} TFLOP/s")
        lines.append(f"peak memory {self.peak_memory / 2**30:.2f} GiB")
        for title, shares in (("phases of a step", self.phases), ("kinds of operations", self.operation_kinds)):
            lines += ["", title, *(f"  {name:26}{share:8.1%}" for name, share in shares.items())]
        slowest = [f"  {name[:60]:62}{share:8.1%}  {kind}" for name, kind, share in self.slowest_operations]
        return [*lines, "", "slowest operations", *slowest]


def profile_run(folder: Path, steps: int, warmup: int, device: str | None) -> StepProfile:
    """Profile training steps of a run from the beginning of its data."""
    with copied_run(folder) as copy:
        config = configuration.from_yaml(copy / CONFIG_FILE)
        if device is not None:
            precision = "float32" if device == "cpu" else config.training.precision
            changes = {"training.device": device, "training.precision": precision}
            config = configuration.replace_settings(config, changes)
        trainer = Trainer(copy, SilentDisplay(), config)
        trainer.model.train()
        stepper = Stepper(trainer)
        stepper.run(warmup)
        start = time.perf_counter()
        batches = stepper.run(steps)
        seconds = max(1e-9, time.perf_counter() - start)
        kinds, slowest = operation_shares(stepper, min(steps, 4))
        phases = phase_shares(stepper, min(steps, 4))  # last: it disables CUDA graphs
        stepper.stream.close()
        return StepProfile(
            run=str(folder),
            device=device_name(trainer.device),
            precision=config.training.precision,
            steps=steps,
            seconds_per_step=seconds / steps,
            tokens_per_second=sum(step.target_tokens for step in batches) / seconds,
            tflops=flops(trainer, batches) / seconds / 1e12,
            matmul_tflops=matmul_flops_per_second(trainer.device, config.training.precision) / 1e12,
            peak_memory=peak_memory_bytes(trainer.device),
            phases=phases,
            operation_kinds=kinds,
            slowest_operations=slowest,
        )


@contextmanager
def copied_run(folder: Path) -> Iterator[Path]:
    """Make a temporary run folder with links to the data and settings of a run, but without its checkpoints."""
    read_spec(folder)  # raises a UserError if it is not a run folder
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for path in [*folder.glob("*.json"), *folder.glob("*.yaml"), folder / "data", folder / "initial"]:
            if path.exists():
                (copy / path.name).symlink_to(path.resolve())
        yield copy


class Stepper:
    """Runs training steps with a tiny learning rate."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.step = trainer, 0
        self.stream = trainer._iterate_steps()

    def run(self, count: int, wait: Callable[[], StepBatches] | None = None) -> list[StepBatches]:
        """Run `count` steps and wait for the device; `wait` returns the batches of the next step."""
        taken = []
        for _ in range(count):
            batches = wait() if wait else next(self.stream)
            self.step += 1
            self.trainer.train_step(batches.batches, self.step, 1e-6, max(1, batches.target_tokens))
            taken.append(batches)
        synchronize(self.trainer.device)
        return taken


def flops(trainer: Trainer, steps: Sequence[StepBatches]) -> float:
    """Count the operations of steps; every pair counts with the mean lengths of its batch."""
    total = 0.0
    for _, batch in (pair for step in steps for pair in step.batches):
        pairs = max(1, batch.num_sentences)
        lengths = (max(1, round(tokens / pairs)) for tokens in (batch.source_tokens, batch.target_tokens))
        total += pairs * training_flops(trainer.model.spec, *lengths)
    return total


def phase_shares(stepper: Stepper, count: int) -> dict[str, float]:
    """Return the shares of the phases of a step, with a synchronization after each phase."""
    train_step, device = stepper.trainer.train_step, stepper.trainer.device
    times: defaultdict[str, float] = defaultdict(float)
    train_step.graphs = None

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            synchronize(device)
            start = time.perf_counter()
            result = function(*arguments, **options)
            synchronize(device)
            times[name] += time.perf_counter() - start
            return result

        return call

    train_step.objective = timed("forward", train_step.objective)
    train_step.optimizer.step = timed("optimizer", train_step.optimizer.step)  # type: ignore[method-assign]
    start = time.perf_counter()
    stepper.run(count, timed("waiting for data", lambda: next(stepper.stream)))
    total = max(1e-9, time.perf_counter() - start)
    times["backward and everything else"] = max(0.0, total - sum(times.values()))
    return {name: seconds / total for name, seconds in times.items()}


def operation_shares(stepper: Stepper, count: int) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """Return the shares of kinds of operations in the time of the device, and the ten slowest operations."""
    gpu = stepper.trainer.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as profiler:
        stepper.run(count)
    times: defaultdict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        if gpu and event.device_type.name == "CUDA":
            times[event.key] += event.self_device_time_total
        elif not gpu and event.key.startswith("aten::"):
            times[event.key] += event.self_cpu_time_total
    total = max(1e-9, sum(times.values()))
    by_kind: defaultdict[str, float] = defaultdict(float)
    for name, microseconds in times.items():
        by_kind[operation_kind(name)] += microseconds / total
    slowest = [(name, operation_kind(name), share / total) for name, share in _descending(times)[:10]]
    return dict(_descending(by_kind)), slowest


def _descending(times: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda item: -item[1])


def operation_kind(name: str) -> str:
    kinds = (kind for kind, pattern in OPERATION_KINDS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(kinds, OTHER_KIND)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=8, help="measured steps (default: 8)")
    parser.add_argument("--warmup", type=int, default=4, help="steps before the measurement (default: 4)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: that of the run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(arguments)
    result = profile_run(options.run, options.steps, options.warmup, options.device)
    print(json.dumps(asdict(result)) if options.json else "\n".join(result.lines()))


if __name__ == "__main__":
    main()
