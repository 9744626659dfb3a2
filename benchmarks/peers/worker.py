"""Worker process of benchmarks/training.py: runs training steps on request and reports their time.

Its argument is a JSON object. Every line of stdin is a number of steps; the reply is one line of JSON on stdout.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peers.corpus import padded
from peers.protocol import Pairs, Precision, Sizes

# module and function that returns a training step
SYSTEMS = {
    "ours": ("ours", "trainer"),
    "plain": ("plain", "trainer"),
    "marian": ("marian", "trainer"),
    "marian-compiled": ("marian", "compiled_trainer"),
    "eole": ("eole", "trainer"),
    "joeynmt": ("joeynmt", "trainer"),
    "matmul": ("", ""),
}


UNSORTED = {"joeynmt"}  # toolkits that do not sort sentences by length


def matmul(device: str, precision: Precision) -> Callable[[], int]:
    """Return a function that multiplies square matrices and returns its FLOPs."""
    size = 8192 if device == "cuda" else 2048
    a, b = torch.randn(2, size, size, device=device, dtype=getattr(torch, precision)).unbind()

    def step() -> int:
        torch.mm(a, b)
        return 2 * size**3

    return step


def build_step(request: dict[str, Any]) -> tuple[Callable[[], int], int]:
    """Return a function that runs a step and returns its target tokens, and the number of warm-up steps."""
    device, precision, sizes, folder = (
        request["device"],
        request["precision"],
        Sizes(**request["sizes"]),
        Path(request["folder"]),
    )
    if request["system"] == "matmul":
        return matmul(device, precision), 3
    module, name = SYSTEMS[request["system"]]
    make = getattr(importlib.import_module(f"peers.{module}"), name)
    if request["system"] == "ours":
        return make(sizes, device, precision, folder / "store", request["tokens"]), request["warm_up"]
    with np.load(folder / "pairs.npz") as file:
        pairs = Pairs(*(file[name] for name in Pairs._fields))
    batches = padded(
        pairs, request["tokens"], request["batches"], request["sort_all"] or request["system"] not in UNSORTED
    )
    step, repeated = make(sizes, device, precision), cycle(batches)

    def next_step() -> int:
        batch = next(repeated)
        step(batch)
        return batch.tokens

    return next_step, max(request["warm_up"], len(batches) if device == "cuda" else 0)


def timed(step: Callable[[], int], steps: int, device: str) -> tuple[float, float, int]:
    """Run steps and return wall seconds, processor seconds and the sum of their results."""
    if device == "cuda":
        torch.cuda.synchronize()
    start, worked = time.perf_counter(), time.process_time()
    done = sum(step() for _ in range(steps))
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - worked, done


def memory(device: str) -> int:
    """Return the peak memory in bytes: allocated on the GPU, or resident on a CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    request = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a toolkit must not mix with the replies

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    torch.set_num_threads(request["threads"])
    torch.manual_seed(1)
    device = request["device"]
    step, warm_up = build_step(request)
    timed(step, 1, device)
    first = time.time() - request["began"]  # from the start of this process, imports included
    warm_up_seconds, _, _ = timed(step, warm_up, device)
    reply(first_step=first, warm_up=warm_up_seconds, warm_up_steps=warm_up, torch=torch.__version__)
    for line in sys.stdin:
        seconds, worked, done = timed(step, int(line), device)
        reply(seconds=seconds, worked=worked, done=done, memory=memory(device))
    os._exit(0)  # do not wait for the thread that prepares batches


if __name__ == "__main__":
    main()
