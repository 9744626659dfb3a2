"""One system in a process of its own, which does some steps whenever it is asked to and says how long they took.

It is told what to do in JSON as its argument, then reads a number of steps a line from stdin and answers every one with
a line of JSON on stdout.
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

# the module and the function that makes a step
SYSTEMS = {
    "ours": ("ours", "trainer"),
    "marian": ("marian", "trainer"),
    "marian-compiled": ("marian", "compiled_trainer"),
    "eole": ("eole", "trainer"),
    "joeynmt": ("joeynmt", "trainer"),
    "matmul": ("", ""),
}


UNSORTED = {"joeynmt"}  # batches are made of sentences as they come, which is how it makes them itself


def matmul(device: str, precision: Precision) -> Callable[[], int]:
    """A product of square matrices; answers its floating-point operations."""
    size = 8192 if device == "cuda" else 2048
    a, b = torch.randn(2, size, size, device=device, dtype=getattr(torch, precision)).unbind()

    def step() -> int:
        torch.mm(a, b)
        return 2 * size**3

    return step


def stepper(asked: dict[str, Any]) -> tuple[Callable[[], int], int]:
    """What does a step and says how much it did, and how many steps it wants to be warmed up."""
    device, precision, sizes, folder = (
        asked["device"],
        asked["precision"],
        Sizes(**asked["sizes"]),
        Path(asked["folder"]),
    )
    if asked["system"] == "matmul":
        return matmul(device, precision), 3
    module, name = SYSTEMS[asked["system"]]
    make = getattr(importlib.import_module(f"peers.{module}"), name)
    if asked["system"] == "ours":
        return make(sizes, device, precision, folder / "store", asked["tokens"]), asked["warm_up"]
    with np.load(folder / "pairs.npz") as file:
        pairs = Pairs(*(file[name] for name in Pairs._fields))
    batches = padded(pairs, asked["tokens"], asked["batches"], asked["sort_all"] or asked["system"] not in UNSORTED)
    step, endless = make(sizes, device, precision), cycle(batches)

    def next_step() -> int:
        batch = next(endless)
        step(batch)
        return batch.tokens

    return next_step, max(asked["warm_up"], len(batches) if device == "cuda" else 0)


def timed(step: Callable[[], int], steps: int, device: str) -> tuple[float, float, int]:
    """Seconds until everything is done, seconds of the processor that this process used, and how much was done."""
    if device == "cuda":
        torch.cuda.synchronize()
    began, worked = time.perf_counter(), time.process_time()
    done = sum(step() for _ in range(steps))
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - worked, done


def memory(device: str) -> int:
    """Peak bytes: what torch allocated on a GPU, what was resident of this process elsewhere."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a system prints is no answer

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    torch.set_num_threads(asked["threads"])
    torch.manual_seed(1)
    device = asked["device"]
    step, warm_up = stepper(asked)
    timed(step, 1, device)
    first = time.time() - asked["began"]  # from the start of this process, imports and all
    warming, _, _ = timed(step, warm_up, device)
    answer(first_step=first, warm_up=warming, warm_up_steps=warm_up, torch=torch.__version__)
    for line in sys.stdin:
        seconds, worked, done = timed(step, int(line), device)
        answer(seconds=seconds, worked=worked, done=done, memory=memory(device))
    os._exit(0)  # a thread that prepares batches must not keep the process


if __name__ == "__main__":
    main()
