"""Several processes of a training, as torchrun would start them, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ("training.sharded", "api.train_run", "cli.train", "lens.run_report")
CONTEXT.set_forkserver_preload([*(f"dragoman.{module}" for module in PRELOADED), "torch._dynamo"])


@dataclass(frozen=True)
class Event:
    """What happens to one of the processes after a step."""

    rank: int
    step: int
    signal: int


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    said: str
    seconds: float


def together(size: int, work: Callable[..., None], folder: Path, *arguments: Any) -> list[Ended]:
    """Do `work(*arguments)` in so many processes that know of each other."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [folder / f"{rank}.err" for rank in range(size)]
    began = time.monotonic()
    processes = [
        CONTEXT.Process(target=_one, args=(rank, size, port, str(files[rank]), work, arguments)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    ended = []
    for process, file in zip(processes, files):
        process.join(600)  # an upper bound for a busy machine, not a measure of speed
        late = process.is_alive()
        if late:
            process.kill()
            process.join()
        said = file.read_text() if file.exists() else ""
        assert not late, f"a process hangs; it said: {said}"
        assert process.exitcode is not None
        ended.append(Ended(process.exitcode, said, time.monotonic() - began))
    return ended


def _one(rank: int, size: int, port: int, errors: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"})
    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    torch.set_num_threads(1)
    work(*arguments)


def command(arguments: list[str], event: Event | None = None) -> None:
    """The command line, with something that happens on the way."""
    from dragoman import cli
    from dragoman.training.train_step import TrainStep

    run_step = TrainStep.__call__

    def watched(self: TrainStep, batches: Any, step: int, *arguments: Any) -> None:
        run_step(self, batches, step, *arguments)
        if event is not None and (event.rank, event.step) == (self.strategy.processes.rank, step):
            os.kill(os.getpid(), event.signal)

    TrainStep.__call__ = watched  # type: ignore[method-assign]
    sys.argv = ["dragoman", *arguments]
    sys.stdout = sys.stderr
    cli.main()


KILL, STOP = signal.SIGKILL, signal.SIGTERM
