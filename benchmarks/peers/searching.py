"""One system in a process of its own, which translates whenever it is asked to and says what came and how long it took.

It is told what to do in JSON as its argument, then reads a number of sentences and the width of the beam a line from
stdin, as JSON, and answers every one with a line of JSON on stdout.
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

Translate = Callable[[list[list[int]], int], list[list[int]]]  # sources x END and the beam's width → targets y

# the module with its `translator`, and what it is told besides
SYSTEMS = {
    "ours": ("ours_searching", "float32"),
    "ours-int8": ("ours_searching", "int8"),
    "ours-plain": ("ours_searching", ""),
    "ours-compiled": ("ours_searching", "compiled"),
    "generate": ("generate", "float32"),
    "ctranslate2": ("ctranslate", "float32"),
    "ctranslate2-int8": ("ctranslate", "int8"),
}


@dataclass(frozen=True)
class Asked:
    """What all systems are told."""

    system: str
    folder: Path  # with the checkpoint
    device: str
    threads: int
    tokens: int  # that every target is long

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    sources = told.pop("sources")
    asked = Asked(**told | {"folder": Path(told["folder"])})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a system prints is no answer
    module, kind = SYSTEMS[asked.system]
    found: Translate = importlib.import_module(f"peers.{module}").translator(asked, kind)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        batch, beam = json.loads(line)
        began, worked = time.perf_counter(), time.process_time()
        targets = found(sources[:batch], beam)  # lists of numbers: a GPU has been waited for
        times = {"wall": time.perf_counter() - began, "processor": time.process_time() - worked}
        print(json.dumps(times | {"targets": targets}), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
