"""Many processes that train one model: who is there, what they tell each other, and how the weights lie among them.

torchrun starts the processes and tells each its number. The first one (rank 0) prepares, validates, writes and speaks;
the others compute. What they tell each other about the training goes from processor to processor (gloo) and never waits
for a GPU; gradients and weights go from GPU to GPU (NCCL) where there are GPUs.
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

PATIENCE = timedelta(minutes=10)  # for a process that says nothing; one that has ended is noticed at once
PULSE = 20.0  # seconds between signs of life of the first process, while the others wait for it

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a training, as torchrun counts them; one alone where it was not used."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # number of this process on its machine

    @staticmethod
    def join() -> ProcessGroup:
        """Meet the others that torchrun has started."""
        size = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
        if size == 1:
            return ProcessGroup()
        world = ProcessGroup(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", 0)))
        if not dist.is_initialized():
            with world.report_lost_process(
                lambda: "the processes of this training did not find each other: start all of them"
            ):
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group(backend, timeout=PATIENCE)
        return world

    def destroy(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def assign_device(self, device: torch.device) -> torch.device:
        """The device of this process: on a machine with several GPUs, one for each."""
        if self.world_size == 1 or device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"there are {self.local_rank + 1} processes or more on this machine, but {torch.cuda.device_count()} GPUs: "
                "start torchrun with as many processes a machine (--nproc-per-node) as it has GPUs"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """The sums of what each process has, number by number."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def on_first_rank(self, work: Callable[[], Result]) -> Result:
        """What `work` gives, which the first process does; the others wait for it, however long it takes.

        Where it ends in an error of the user, the first process says so, and the others end too.
        """
        if self.world_size == 1:
            return work()
        answer: list[Any] = [None]
        if self.rank == 0:
            with _pulse():
                try:
                    answer = [(work(), None)]
                except UserError as error:
                    answer = [(None, error)]
            _tell(answer)
        while answer[0] is None:  # a sign of life
            _tell(answer)
        result, refused = answer[0]
        if refused is not None:
            raise refused if self.rank == 0 else SystemExit(2)
        return result

    @contextmanager
    def report_lost_process(self, sentence: Callable[[], str]) -> Iterator[None]:
        """Says, with a sentence, that another process was lost."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not _lost(error):
                raise
            raise UserError(sentence()) from error


def accumulate_for_processes(config: Config, world: ProcessGroup) -> tuple[Config, list[str]]:
    """The configuration of a new run with a batch a step for every process, and what was changed for that."""
    if config.training.gradient_accumulation >= world.world_size:
        return config, []
    training = replace(config.training, gradient_accumulation=world.world_size)
    why = "batches a step: one for each process"
    return replace(config, training=training), [f"training.gradient_accumulation={world.world_size}  ({why})"]


def _tell(answer: list[Any]) -> None:
    dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))


@contextmanager
def _pulse() -> Iterator[None]:
    """Signs of life to those who wait, so that they need not guess how long is too long."""
    done = Event()

    def beat() -> None:
        with suppress(RuntimeError):  # whoever speaks next will notice it too
            while not done.wait(PULSE):
                _tell([None])

    thread = Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _lost(error: RuntimeError) -> bool:
    """Is it about a process that cannot be reached? gloo's errors have no class of their own."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "onnection", "NCCL"))
