"""Where the time of a step goes: some steps of a run's own model on its own data, which change nothing of the run."""

from __future__ import annotations

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from dragoman import config as configuration
from dragoman.data import DataPosition
from dragoman.models.flops import training_flops
from dragoman.run import CONFIG_FILE, read_spec
from dragoman.run.device_info import device_name, peak_memory_bytes
from dragoman.training.accumulation import StepBatches
from dragoman.training.display import SilentDisplay
from dragoman.training.train_step import TrainStep
from dragoman.training.trainer import Trainer

PHASES = ("waiting for data", "forward", "backward", "optimiser", "everything else")
#: kinds of operations by what their names hold, the first that fits; kernels of a GPU and operators of the CPU alike
KINDS = {
    "attention": r"attention|flash|fmha|flex",
    "recurrent cells": r"lstm|gru|rnn|_cell",
    "softmax and loss": r"softmax|nll_loss|cross_?entropy|logsumexp",
    "norms": r"norm",
    "dropout": r"dropout|bernoulli|random|philox|rand",
    "optimiser": r"adam|sgd|foreach|multi_tensor|lerp|newton",
    "convolutions": r"conv(?!ert)",
    "matrix products": r"mm\b|addmm|bmm|baddbmm|matmul|gemm|linear|cutlass|sm\d+_xmma|nvjet|cublas|::mv|::dot",
    "embeddings and indexing": r"embedding|index|gather|scatter|take",
    "copies and memory": r"copy|memcpy|memset|::to\b|clone|contiguous|zero_|fill_|empty|cat\b|stack|pin_memory|resize",
    "element by element": r"triton|elementwise|add|sub|mul|div|relu|gelu|silu|tanh|sigmoid|exp|log|where|mask|sum|mean"
    r"|pow|sqrt|neg|abs|max|min|cumsum|arange|reduce|threshold|clamp",
}
OTHER = "everything else"
Spent = defaultdict[str, float]  # seconds, or a share, by name


@dataclass(frozen=True)
class Profile:
    """Shares are of the time of a step; `kinds` are of the time of the device."""

    run: str
    device: str
    precision: str
    steps: int
    seconds_per_step: float
    tokens_per_second: float  # target tokens, no padding
    padding: float
    phases: dict[str, float]
    kinds: dict[str, float]
    slowest: list[tuple[str, str, float]]  # operation, kind, share
    tflops: float | None  # None where the operations of a part are not known
    matmul_tflops: float
    share_of_matmul: float | None
    peak_memory: int  # bytes: of the GPU, or of this process

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        speed = f"{self.seconds_per_step * 1000:,.1f} ms a step, {self.tokens_per_second:,.0f} target tokens/s"
        out = [f"{self.run}: {self.device}, {self.precision}, {self.steps} steps"]
        out.append(f"{speed}, {self.padding:.1%} padding")
        if self.tflops is not None and self.share_of_matmul is not None:
            out.append(
                f"{self.tflops:.3g} TFLOP/s, {self.share_of_matmul:.1%} of the {self.matmul_tflops:.3g} TFLOP/s at "
                "which this machine multiplies matrices"
            )
        out += [f"{self.peak_memory / 2**30:.2f} GiB of memory at most", "", "of a step"]
        out += [f"  {name:26}{share:8.1%}" for name, share in self.phases.items()]
        out += ["", "of what is computed"]
        out += [f"  {name:26}{share:8.1%}" for name, share in self.kinds.items()]
        out += ["", "the slowest operations"]
        return out + [f"  {name[:60]:62}{share:8.1%}  {kind}" for name, kind, share in self.slowest]


def profile_run(folder: Path, steps: int = 8, warm_up: int = 4, device: str | None = None) -> Profile:
    """Profile steps of a run from the beginning of its data, from untrained weights, in a folder of its own."""
    with borrowed(folder) as scratch:
        config = configuration.from_yaml(scratch / CONFIG_FILE)
        if device is not None:
            precision = "float32" if device == "cpu" else config.training.precision
            changes = {"training.device": device, "training.precision": precision}
            config = configuration.replace_settings(config, changes)
        trainer = Trainer(scratch, SilentDisplay(), config)
        trainer.model.train()
        measured = Measured(trainer)
        for _ in range(warm_up):
            measured.step()
        seconds, answers, padding = measured.several(steps)
        kinds, slowest = measured.kinds(min(steps, 4))
        phases = measured.phases(min(steps, 4))  # last: what was recorded cannot be replayed after it
        peak = matmul_speed(trainer.device, config.training.precision)
        operations = measured.operations()
        measured.close()
        tflops = None if operations is None else operations * steps / seconds / 1e12
        return Profile(
            run=str(folder),
            device=device_name(trainer.device),
            precision=config.training.precision,
            steps=steps,
            seconds_per_step=seconds / steps,
            tokens_per_second=answers / seconds,
            padding=padding,
            phases=phases,
            kinds=kinds,
            slowest=slowest,
            tflops=tflops,
            matmul_tflops=peak / 1e12,
            share_of_matmul=None if tflops is None else tflops * 1e12 / peak,
            peak_memory=peak_memory_bytes(trainer.device),
        )


@contextmanager
def borrowed(folder: Path) -> Iterator[Path]:
    """A folder that looks like the run before its first step; what is written there does not reach the run."""
    read_spec(folder)  # says so if it is no run
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for path in [*folder.glob("*.json"), *folder.glob("*.yaml"), folder / "data", folder / "initial"]:
            if path.exists():
                (scratch / path.name).symlink_to(path.resolve())
        yield scratch


class Measured:
    """Steps of a trainer, looked at from different sides."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.done = trainer, 0
        self.stream = trainer._stream(DataPosition())
        self.gpu = trainer.device.type == "cuda"

    def close(self) -> None:
        self.stream.close()

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.trainer.device)

    def step(self) -> StepBatches:
        group: StepBatches = next(self.stream)
        self.done += 1
        self.trainer.train_step(group.batches, self.done, 1e-6, max(1, group.target_tokens))
        return group

    def several(self, count: int) -> tuple[float, int, float]:
        """Seconds and answers of some steps as they are done in training, and the mean share of padding."""
        self.wait()
        start = time.perf_counter()
        taken = [self.step() for _ in range(count)]
        self.wait()
        seconds = max(1e-9, time.perf_counter() - start)
        self.lengths = [self._lengths(batch) for group in taken for _, batch in group.batches]
        padding = [batch.padding_ratio for group in taken for _, batch in group.batches]
        return seconds, sum(group.target_tokens for group in taken), float(np.mean(padding))

    @staticmethod
    def _lengths(batch: Any) -> tuple[int, float, float]:
        pairs = max(1, len(batch) * (2 if batch.twins else 1))
        return pairs, batch.source_tokens / pairs, batch.target_tokens / pairs

    def operations(self) -> float | None:
        """Floating-point operations of a step; a pair counts as one of the mean lengths of its batch."""
        spec = self.trainer.model.spec
        try:
            each = [
                pairs * training_flops(spec, max(1, round(source)), max(1, round(target)))
                for pairs, source, target in self.lengths
            ]
        except Exception:  # a user's own part, say
            return None
        return sum(each) / len(each) * self.trainer.config.training.gradient_accumulation

    def phases(self, count: int) -> dict[str, float]:
        """Shares of the parts of a step, each waited for: a little slower than in training, where they overlap."""
        spent: Spent = defaultdict(float)
        watched = Watched(self.trainer.train_step, spent, self.wait)
        whole = time.perf_counter()
        with watched:
            for _ in range(count):
                start = time.perf_counter()
                group: StepBatches = next(self.stream)
                spent["waiting for data"] += time.perf_counter() - start
                self.done += 1
                self.trainer.train_step(group.batches, self.done, 1e-6, max(1, group.target_tokens))
                self.wait()
        whole = max(1e-9, time.perf_counter() - whole)
        spent["everything else"] = max(0.0, whole - sum(spent.values()))
        return {name: spent[name] / whole for name in PHASES}

    def kinds(self, count: int) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
        """Shares of what is computed by kind of operation, and the ten operations that take longest."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.gpu else [])]
        with profile(activities=activities) as profiler, record_function("steps"):
            for _ in range(count):
                self.step()
            self.wait()
        spent: Spent = defaultdict(float)
        for event in profiler.key_averages():
            if self.gpu and event.device_type.name == "CUDA":
                spent[event.key] += event.self_device_time_total
            elif not self.gpu and event.key.startswith("aten::"):
                spent[event.key] += event.self_cpu_time_total
        whole = max(1e-9, sum(spent.values()))
        by_kind: Spent = defaultdict(float)
        for name, microseconds in spent.items():
            by_kind[kind_of(name)] += microseconds / whole
        slowest = [(name, kind_of(name), spent[name] / whole) for name, _ in _most(spent)[:10]]
        return dict(_most(by_kind)), slowest


class Watched:
    """Takes the time of the forward pass, the backward pass and the update of a stepper while it is entered.

    Nothing is replayed as a graph meanwhile, of which only the whole could be timed.
    """

    def __init__(self, stepper: TrainStep, spent: Spent, wait: Any) -> None:
        self.stepper, self.spent, self.wait = stepper, spent, wait

    def __enter__(self) -> None:
        stepper = self.stepper
        self.before = stepper.loss, stepper._gradients, stepper._update
        stepper.graphs = None
        stepper.loss = self._timed("forward", stepper.loss)
        stepper._update = self._timed("optimiser", stepper._update)  # type: ignore[method-assign]
        stepper._gradients = self._backward(stepper._gradients)  # type: ignore[method-assign]

    def __exit__(self, *details: object) -> None:
        stepper = self.stepper
        stepper.loss, stepper._gradients, stepper._update = self.before  # type: ignore[method-assign]

    def _timed(self, name: str, function: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            self.wait()
            start = time.perf_counter()
            found = function(*arguments)
            self.wait()
            self.spent[name] += time.perf_counter() - start
            return found

        return timed

    def _backward(self, function: Any) -> Any:
        """What gradients take beyond the forward pass within them."""

        def timed(*arguments: Any) -> None:
            self.wait()
            start, forward = time.perf_counter(), self.spent["forward"]
            function(*arguments)
            self.wait()
            self.spent["backward"] += time.perf_counter() - start - (self.spent["forward"] - forward)

        return timed


def _most(spent: Spent) -> list[tuple[str, float]]:
    return sorted(spent.items(), key=lambda item: -item[1])


def kind_of(operation: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, operation, re.IGNORECASE)), OTHER)


def matmul_speed(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """Operations a second of a large product of matrices, the best of several: what this machine can do at most."""
    gpu = device.type == "cuda"
    size = 8192 if gpu else 1024
    kind = torch.bfloat16 if precision == "bfloat16" else torch.float32
    one, other = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < end or not best:
            start = time.perf_counter()
            for _ in range(10 if gpu else 1):
                one @ other
            if gpu:
                torch.cuda.synchronize(device)
            best = max(best, (10 if gpu else 1) * 2 * size**3 / max(1e-9, time.perf_counter() - start))
    return best
