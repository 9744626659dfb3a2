"""Processes that train one model together, started by torchrun.

The first process (rank 0) prepares, validates, writes files and prints; the others only compute. Control messages go
between CPUs (gloo) and never wait for a GPU; gradients and weights go between GPUs (NCCL) if there are GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dragoman.config import Config
from dragoman.errors import UserError

TIMEOUT = timedelta(minutes=10)  # for a process that does not answer; one that has ended is noticed at once
HEARTBEAT_SECONDS = 20.0  # between messages of the first process while the others wait for it

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a training as torchrun numbers them; a single one without torchrun."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # number of this process on its machine

    @staticmethod
    def join() -> ProcessGroup:
        """Connect to the other processes that torchrun has started."""
        world_size = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
        if world_size == 1:
            return ProcessGroup()
        processes = ProcessGroup(int(os.environ["RANK"]), world_size, int(os.environ.get("LOCAL_RANK", 0)))
        if not dist.is_initialized():
            with processes.report_lost_process(
                lambda: "the processes of this training did not find each other: start all of them"
            ):
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group(backend, timeout=TIMEOUT)
        return processes

    def destroy(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def assign_device(self, device: torch.device) -> torch.device:
        """Return the device of this process: its own GPU on a machine with several."""
        if self.world_size == 1 or device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"this machine has at least {self.local_rank + 1} processes but {torch.cuda.device_count()} GPUs: "
                "start torchrun with at most as many processes per machine (--nproc-per-node) as it has GPUs"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sum the values of all processes, element by element."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def on_first_rank(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the first process and return its result on all of them, however long it takes.

        If it raises a UserError, the first process raises it and the others exit.
        """
        if self.world_size == 1:
            return work()
        answer: list[Any] = [None]
        if self.rank == 0:
            with _heartbeat():
                try:
                    answer = [(work(), None)]
                except UserError as error:
                    answer = [(None, error)]
            _broadcast(answer)
        while answer[0] is None:  # a heartbeat
            _broadcast(answer)
        result, failure = answer[0]
        if failure is not None:
            raise failure if self.rank == 0 else SystemExit(2)
        return result

    @contextmanager
    def report_lost_process(self, message: Callable[[], str]) -> Iterator[None]:
        """Turn errors about an unreachable process into a UserError with this message."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not _is_connection_error(error):
                raise
            raise UserError(message()) from error


def accumulate_for_processes(config: Config, processes: ProcessGroup) -> tuple[Config, list[str]]:
    """Raise the batches per step of a new run to the number of processes; return the changes as text."""
    if config.training.gradient_accumulation >= processes.world_size:
        return config, []
    training = replace(config.training, gradient_accumulation=processes.world_size)
    change = f"training.gradient_accumulation={processes.world_size}  (batches per step: one for each process)"
    return replace(config, training=training), [change]


def _broadcast(answer: list[Any]) -> None:
    dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))


@contextmanager
def _heartbeat() -> Iterator[None]:
    """Send messages to the waiting processes, so that their timeout does not limit the work."""
    done = Event()

    def beat() -> None:
        with suppress(RuntimeError):  # the main thread will get the same error
            while not done.wait(HEARTBEAT_SECONDS):
                _broadcast([None])

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether another process cannot be reached; gloo has no error class of its own."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "onnection", "NCCL"))
