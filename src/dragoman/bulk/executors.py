"""Where the blocks of a job are processed: in this process, in several processes, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dragoman.bulk.block_worker import BlockResult, BlockWorker
from dragoman.bulk.blocks import BlockTask
from dragoman.bulk.ray_executor import RayExecutor
from dragoman.errors import UserError
from dragoman.processes import FEWER_WORKERS, THREAD_VARIABLES, available_cpus, parallel_map

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Maps blocks of files with a worker, or other items with a function."""

    def check(self) -> None:
        """Raise a UserError if it cannot be used, such as a cluster that does not answer."""
        ...

    def map(self, worker: BlockWorker, tasks: Iterable[BlockTask]) -> Iterator[list[BlockResult]]:
        """Yield `worker(task)` for each task, in any order: a list of the results of its blocks of consecutive rows."""
        ...

    def map_in_order(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """Yield `function(item)` for each item, in order; only a few items are taken in advance."""
        ...


@dataclass(frozen=True)
class LocalExecutor:
    """This process, or several processes on this machine, each of which opens the run."""

    num_workers: int = 1

    def check(self) -> None:
        """Processes of this machine can always be used."""

    def map(self, worker: BlockWorker, tasks: Iterable[BlockTask]) -> Iterator[list[BlockResult]]:
        """Yield `worker(task)` for each task, in order: a list of the results of its blocks of consecutive rows.

        The tasks are computed by `num_workers` processes, or by this one if it is 1.
        """
        return self._map(worker, tasks, "continue with the same command and --resume, or a smaller --num-workers, too")

    def map_in_order(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """Yield `function(item)` for each item, in order, computed by `num_workers` processes, or by this one if 1."""
        return self._map(function, items, FEWER_WORKERS)

    def _map(self, function: Callable[[Item], Result], items: Iterable[Item], remedy: str) -> Iterator[Result]:
        """Yield `function(item)` for each item, in order; `remedy` says what to do if a process ends early."""
        if self.num_workers > 1:
            # spawned processes inherit the environment, from which libraries read the number of threads on import
            threads = str(max(1, available_cpus() // self.num_workers))
            for variable in THREAD_VARIABLES:
                os.environ.setdefault(variable, threads)
        return parallel_map(function, items, self.num_workers, remedy)


def executor_from_text(
    place: str, num_workers: int | None, gpus_per_worker: float = 0.0, cpus_per_worker: float = 1.0
) -> Executor:
    """Return the executor that the option `--on` names: processes of this machine, or actors on a Ray cluster.

    Args:
        place: local, ray (the running cluster of this machine, or a new one) or ray://HOST:PORT.
        num_workers: processes or actors; None: one process, or as many actors as the cluster has room for.
        gpus_per_worker, cpus_per_worker: GPUs and CPUs that a Ray actor takes, such as 0.5; not used locally.
    """
    if place == "local":
        return LocalExecutor(num_workers=num_workers or 1)
    if place == "ray" or place.startswith("ray://"):
        return RayExecutor(
            address=place.removeprefix("ray").removeprefix("://"),  # HOST:PORT or ""
            num_actors=num_workers,
            gpus_per_actor=gpus_per_worker,
            cpus_per_actor=cpus_per_worker,
        )
    raise UserError(
        "--on must be local (processes of this machine), ray (a Ray cluster of this machine) or ray://HOST:PORT "
        f"(another Ray cluster), got {place!r}"
    )
