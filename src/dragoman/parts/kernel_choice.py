"""Choice of the fastest of several kernels by measuring them, once per machine and shape.

Which library multiplies small matrices fastest depends on the processor, the shape and the number of rows, often by a
factor of five, and cannot be told from the name of the library. Kernels round differently, so that the choices are kept
in a file: all processes of a machine, now and later, compute the same numbers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dragoman.parts.machine_cache import machine_file

Product = Callable[[Tensor], Tensor]  # x → x Wᵀ + b, over the last dimension

MIN_ROUNDS_OF_ALL, MIN_ROUNDS = 2, 5  # rounds of measurements for all kernels, and for those that may be the fastest
MAX_EXCESS = 0.5  # a kernel takes no further part if its shortest time exceeds that of another by more than this share
MAX_SECONDS = 0.25  # after which no further round of measurements begins; reached only on a busy machine
TIME_TOLERANCE = 0.05  # two times are equal if they differ by less than this share
EVICTING_BYTES = 16 << 20  # memory written before a measurement: more than the second-level caches of a few cores
#: in the file name: choices that were measured in another way are not read
CHOICES_VERSION = "reproduced times, int8 first, at most 2^24 weights, compiled steps"


class KernelChoices:
    """The fastest kernels by shape, as a text file of JSON lines; the first line of a shape counts.

    Processes append to the file, and never change it, so that all of them agree. If the file cannot be written, the
    choices are those of the process.
    """

    def __init__(self, path: Path) -> None:
        """Keep the choices in the file `path`, which need not exist."""
        self.path, self.names = path, dict[str, str]()  # shape of a matrix product → name of its fastest kernel
        self.size = 0  # bytes of the file that have been read

    def find(self, shape: str) -> str | None:
        """Return the name of the kernel that this or another process chose for a product, None if none did.

        `shape` describes the product: precision, size of the matrix, and number of rows that it is multiplied by.
        """
        if shape not in self.names:
            self._read()
        return self.names.get(shape)

    def add(self, shape: str, name: str) -> str:
        """Write the kernel `name` to the file as the choice for a product, and return the first choice in the file.

        Another process may have written its choice first: then all use that one. `shape` describes the product.
        """
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(json.dumps([shape, name]).encode() + b"\n")
            self._read()
        return self.names.setdefault(shape, name)

    def _read(self) -> None:
        """Read the lines that were appended since the last call; ignore damaged ones."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(self.size)
            for line in file:
                if line.endswith(b"\n"):  # otherwise another process is just writing it
                    self.size += len(line)
                    with suppress(ValueError):
                        shape, name = json.loads(line)
                        self.names.setdefault(str(shape), str(name))


def kernel_choices() -> KernelChoices:
    """Return the stored choices of the fastest kernels for this processor, version of torch and number of threads."""
    return _choices_in(machine_file(f"{torch.get_num_threads()}.jsonl", CHOICES_VERSION, torch.__version__))


@cache
def _choices_in(path: Path | None) -> KernelChoices:
    """Return the choices of a file; None: those of this process, in a path that cannot be written."""
    return KernelChoices(path or Path(os.devnull) / "kernels")


def fastest(kernels: Mapping[str, Product], x: Tensor, margin: float = TIME_TOLERANCE) -> str:
    """Return the name of the kernel that is fastest for the input x, the first of equally fast ones.

    A later kernel is faster if its time is shorter by more than the share `margin`. `kernels` are functions by name.

    The kernels run in turns, until the two shortest times of each agree: other programs only make a kernel slower. One
    that is clearly slower than another takes no further part once its own times agree: with two threads, another
    program on one core delays a kernel of both threads, but not one that uses a single thread.

    Before each call the CPU's caches are overwritten. In a model, the weights of all other layers are read between two
    calls of a layer, so that its own weights come from the memory or a shared cache, not from the cache of one core.
    """
    for product in kernels.values():
        product(x)  # warms up
    times: dict[str, list[float]] = {name: [] for name in kernels}  # seconds
    other_weights = torch.zeros(EVICTING_BYTES, dtype=torch.uint8)
    end, rounds = time.perf_counter() + MAX_SECONDS, 0
    while len(times) > 1:
        if rounds >= MIN_ROUNDS and (time.perf_counter() > end or all(map(_is_reproduced, times.values()))):
            break
        for name, measured in times.items():
            other_weights.add_(1)  # overwrites the caches of the cores of all threads
            before = time.perf_counter()
            kernels[name](x)
            measured.append(time.perf_counter() - before)
        rounds += 1
        shortest = {name: min(measured) for name, measured in times.items()}
        limit = (1 + MAX_EXCESS) * min(shortest.values())
        if rounds >= MIN_ROUNDS_OF_ALL:  # keep kernels that are nearly the fastest, or whose times do not agree yet
            times = {
                name: measured
                for name, measured in times.items()
                if shortest[name] <= limit or not _is_reproduced(measured)
            }
    chosen, *others = times
    for name in others:
        if min(times[name]) < (1 - margin) * min(times[chosen]):
            chosen = name
    return chosen


def _is_reproduced(times: list[float]) -> bool:
    """Whether a kernel took its shortest time twice, within a tolerance: then other programs have not delayed it."""
    shortest, second, *_ = sorted(times)
    return second < (1 + TIME_TOLERANCE) * shortest
