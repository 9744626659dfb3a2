"""Worker process of benchmarks/decoding.py: translates on request and reports outputs and times.

Its argument is a JSON object. Every line of stdin is a JSON list of batch size and beam size; the reply is one line of
JSON on stdout.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_TURN_SECONDS = 0.25  # of one reply: a shorter turn would mostly measure how a process continues after another one
Translate = Callable[[list[list[int]], int], list[list[int]]]  # sources with EOS, beam size → targets

# module with the function `translator`, and its second argument
SYSTEMS = {
    "ours": ("ours_searching", "float32"),
    "ours-int8": ("ours_searching", "int8"),
    "ours-plain": ("ours_searching", ""),
    "ours-compiled": ("ours_searching", "compiled"),
    "plain": ("plain", ""),
    "generate": ("generate", "float32"),
    "ctranslate2": ("ctranslate", "float32"),
    "ctranslate2-int8": ("ctranslate", "int8"),
}


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker."""

    system: str
    folder: Path  # of the checkpoint
    device: str
    threads: int
    tokens: int  # tokens of every target

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    sources = arguments.pop("sources")
    settings = WorkerSettings(**arguments | {"folder": Path(arguments["folder"])})
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of a toolkit must not mix with the replies
    module, variant = SYSTEMS[settings.system]
    translate: Translate = importlib.import_module(f"peers.{module}").translator(settings, variant)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        batch, beam = json.loads(line)
        start, processor_start, repetitions = time.perf_counter(), time.process_time(), 0
        while not repetitions or time.perf_counter() < start + MIN_TURN_SECONDS:
            targets = translate(sources[:batch], beam)  # lists of numbers, so the GPU has finished
            repetitions += 1
        times = {"wall": time.perf_counter() - start, "processor": time.process_time() - processor_start}
        times = {clock: seconds / repetitions for clock, seconds in times.items()}
        print(json.dumps(times | {"targets": targets}), file=replies, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
