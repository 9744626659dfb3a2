"""Measure how long `dragoman translate RUN` takes for one sentence, next to the import of torch alone.

    python benchmarks/start_up.py RUN --sentence 'The old man reads the book.'

The commands run in turns, each in a new process. The shortest time of a command is what it needs on an idle machine;
the median says how busy this machine was. Most of the time is the import of torch, which depends on the disk cache: the
first round is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median


def measure(command: list[str], text: str) -> tuple[float, float]:
    """Run a command with `text` as standard input; return its wall time and its processor time in seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--sentence", default="The old man reads the book.", help="sentence to translate")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of every command")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "dragoman translate": [sys.executable, "-m", "dragoman", "translate", str(options.run)],
        "dragoman --help": [sys.executable, "-m", "dragoman", "--help"],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(options.rounds + 1):
        for name, command in commands.items():
            measured = measure(command, options.sentence + "\n")
            if number > 0:
                times[name].append(measured)
    print(f"{'seconds':20}{'shortest':>10}{'median':>10}{'processor':>11}")
    for name, pairs in times.items():
        walls = [wall for wall, _ in pairs]
        print(f"{name:20}{min(walls):>10.2f}{median(walls):>10.2f}{min(cpu for _, cpu in pairs):>11.2f}")


if __name__ == "__main__":
    main()
