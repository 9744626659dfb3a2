"""Training of several runs at a time, each by `dragoman train RUN --resume` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.processes import OWN_GROUP, interrupt_process

Record = Callable[[Path, dict[str, Any]], None]  # gets the folder and the best validation of a finished run


class RunProcesses:
    """Trains runs in processes, and passes interruptions on to them."""

    def __init__(self, num_threads: int, log: Callable[[str], None]) -> None:
        """Use `num_threads` CPU threads in each process; `log` receives the messages of all processes."""
        self.num_threads, self.log = num_threads, log
        self.processes: list[subprocess.Popen[str]] = []
        self.interrupted = False
        self.lock = threading.Lock()  # of `processes` and `interrupted`: `train` is called in several threads

    def train(self, run: Path) -> dict[str, Any] | None:
        """Train the run in a folder to its end, by `dragoman train RUN --resume` in a process.

        Return the outcome that the command prints as JSON; None if it was interrupted before it printed any. If the
        command fails without an interruption, a UserError quotes its last message.
        """
        command = [sys.executable, "-m", "dragoman", "train", str(run), "--resume", "--json"]
        last_message = ""
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            with self.lock:
                if self.interrupted:
                    return None
                process = subprocess.Popen(
                    [*command, "--threads", str(self.num_threads)],
                    stdout=output,
                    stderr=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    **OWN_GROUP,  # Ctrl-C reaches it through `interrupt` only
                )
                self.processes.append(process)
            with process:  # closes the pipe and waits
                assert process.stderr is not None
                for line in process.stderr:
                    last_message = line.strip() or last_message  # for an error: the last line that is not empty
                    self.log(f"{run.name}: {line.rstrip()}")
            if process.returncode != 0 and not self.interrupted:
                raise UserError(
                    f"the training of the run {run} failed ({last_message}): solve this, and continue with 'dragoman "
                    f"train {run.parent} --resume'"
                )
            output.seek(0)
            with suppress(ValueError):  # no JSON: interrupted before training began
                outcome: dict[str, Any] = json.load(output)
                return outcome
        return None

    def interrupt(self) -> None:
        """Let all processes save a checkpoint and end, and start no more."""
        with self.lock:
            self.interrupted = True
            for process in self.processes:
                if process.poll() is None:
                    interrupt_process(process)


def train_in_processes(runs: Sequence[Path], parallel: int, record: Record, log: Callable[[str], None]) -> bool:
    """Train runs in processes of their own; return whether the user has interrupted them.

    `parallel` of the prepared run folders are trained at a time. `record` is called with folder and best validation of
    each run whose training is finished; `log` receives the messages of all processes. After an interruption, or if one
    run fails, all processes save a checkpoint and end. Each process gets an equal part of the CPU threads.
    """
    processes = RunProcesses(num_threads=max(1, (os.cpu_count() or 1) // parallel), log=log)
    with _terminated_as_interrupted(), ThreadPoolExecutor(parallel) as pool:
        unfinished = {pool.submit(processes.train, run): run for run in runs}
        while unfinished:
            try:
                done, _ = wait(unfinished, return_when=FIRST_COMPLETED)
                for future in done:
                    run, outcome = unfinished.pop(future), future.result()
                    if outcome is not None and not outcome["interrupted"]:
                        record(run, outcome["best"])
            except KeyboardInterrupt:
                log("stopping all runs after their present steps")
                processes.interrupt()  # the loop goes on until all have saved a checkpoint
            except BaseException:  # such as the failure of one run
                processes.interrupt()
                raise
    return processes.interrupted


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Inside the context, SIGTERM raises a KeyboardInterrupt, so that the processes started there can be stopped."""
    previous = None
    with suppress(ValueError):  # only the main thread can set signal handlers
        previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
