"""Child processes of a sweep, whose events are collected in one queue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, Protocol

import dragoman
from dragoman.processes import OWN_GROUP, THREAD_VARIABLES

Event = dict[str, Any]
EventQueue = Queue[tuple[str, Event]]  # name of the job, event


class Worker(Protocol):
    """A process that carries out a job. Its last event is "exit"."""

    def stop(self) -> None:
        """Ask it to save its work and end."""

    def kill(self) -> None:
        """End it at once."""


#: starts a job with its name, its description, its log file and a number of CPU threads; events go to the queue
StartWorker = Callable[[str, dict[str, Any], Path, int, EventQueue], Worker]


class WorkerProcess:
    """A process that runs `dragoman.api.sweep_worker`. It stops when this process ends, even if that is killed.

    It is in a session of its own, so that Ctrl-C on the terminal reaches only the sweep, which then stops its workers.
    """

    def __init__(self, name: str, job: dict[str, Any], log_file: Path, threads: int, events: EventQueue) -> None:
        """Start the process with a number of CPU threads; it gets the description of its `job` as JSON.

        `name` is that of a run, or of the preparation of all runs. What the process prints is appended to `log_file`;
        the events that it reports are put into the queue `events`, each as (name, event).
        """
        self.name, self.events = name, events
        # the process imports the same Dragoman as this one, even if it is not installed
        package_folder = str(Path(dragoman.__file__).parents[1])
        python_path = os.pathsep.join(filter(None, [package_folder, os.environ.get("PYTHONPATH")]))
        thread_variables = (*THREAD_VARIABLES, "TORCHINDUCTOR_COMPILE_THREADS")
        environment = os.environ | dict.fromkeys(thread_variables, str(threads)) | {"PYTHONPATH": python_path}
        with log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dragoman.api.sweep_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                encoding="utf-8",
                **OWN_GROUP,  # a process group of its own: Ctrl-C reaches only the sweep
            )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already: `_read_events` reports its exit code
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        Thread(target=self._read_events, daemon=True).start()

    def _read_events(self) -> None:
        """Put the events that the process prints (lines of JSON) into the queue, and at its end its exit code."""
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.events.put((self.name, json.loads(line)))
        code = self.process.wait()
        self.stop()  # closes the pipe to its standard input, which would stay open in this process
        self.events.put((self.name, {"event": "exit", "code": code}))

    def stop(self) -> None:
        """Close the input of the process, at which it saves a checkpoint and ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
