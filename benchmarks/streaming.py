"""What a long file costs: memory over time and lines a second of `dragoman translate --output`.

    python benchmarks/streaming.py --lines 1000000 --kills 5

Trains a tiny greedy translator on the phrasebook, or takes a --run, and translates so many phrasebook sentences with it
in a process of its own, whose resident memory is looked at every second. Flat memory is that of the second half of the
time no larger than that of the first, but for --slack MiB. With --kills the file is translated once more by processes
that are killed at random moments and gone on with, and must come out the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

from dragoman.data import phrasebook

DRAGOMAN = [sys.executable, "-m", "dragoman"]
PAGE = os.sysconf("SC_PAGE_SIZE")


def make_run(folder: Path, steps: int) -> Path:
    """A tiny transformer, trained a little, so that its translations end."""
    phrasebook.write(folder / "corpus", pairs=5000, valid=50, test=50)
    files = ["--source", folder / "corpus" / "train.en", "--target", folder / "corpus" / "train.de"]
    settings = [
        "system.settings.model_dim=32",
        "system.settings.layers=1",
        "system.settings.heads=2",
        "text.vocab_size=500",
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    command = [*DRAGOMAN, "train", folder / "run", *files, "--steps", steps, "--device", "cpu", *options]
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL)
    return folder / "run"


def resident(pid: int) -> float:
    """MiB of memory that a process has, the files that it has mapped counted in."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20


def written(output: Path) -> int:
    """Lines that are safe on the disk."""
    journal = output.with_name(f"{output.name}.part.journal")
    lines = journal.read_text().splitlines()[1:] if journal.exists() else []
    return json.loads(lines[-1])["lines"] if lines else 0


def watch(process: subprocess.Popen[bytes], output: Path) -> list[tuple[float, float, int]]:
    """Seconds, MiB and lines, once a second while the process runs."""
    began, seen = time.monotonic(), []
    while process.poll() is None:
        if done := written(output):
            seen.append((time.monotonic() - began, resident(process.pid), done))
        time.sleep(1)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, help="a run that translates English; a tiny one is trained if not given")
    parser.add_argument("--steps", type=int, default=300, help="of the training")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--slack", type=float, default=20.0, help="MiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = options.run or make_run(folder, options.steps)
        text, whole, output = folder / "text", folder / "whole", folder / "out"
        with text.open("w", encoding="utf-8") as file:
            file.writelines(f"{pair.source}\n" for pair in islice(phrasebook.sentences(1), options.lines))
        command = [
            *DRAGOMAN,
            "translate",
            str(run),
            str(text),
            "--beam-size",
            "1",
            "--device",
            options.device,
            "--output",
        ]

        process = subprocess.Popen([*command, str(whole)])
        seen = watch(process, whole)
        assert process.returncode == 0
        assert whole.read_bytes().count(b"\n") == options.lines
        print(f"{'seconds':>8} {'lines':>10} {'MiB':>8}")
        for seconds, memory, lines in seen[:: max(1, len(seen) // 20)]:
            print(f"{seconds:8.0f} {lines:10,} {memory:8.0f}")
        first, second = (max(m for _, m, _ in part) for part in (seen[: len(seen) // 2], seen[len(seen) // 2 :]))
        (early, _, before), (late, _, after) = seen[0], seen[-1]
        speed = (after - before) / max(1e-9, late - early)
        print(f"{speed:,.0f} lines/s; at most {first:.0f} MiB in the first half, {second:.0f} in the second")
        print("memory is flat" if second <= first + options.slack else "MEMORY GROWS")

        for chance in (random.Random(number) for number in range(options.kills)):
            process = subprocess.Popen([*command, str(output), "--resume"])
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(early + chance.random() * late / options.kills) == 0
                break  # before it could be killed
            process.kill()
            process.wait()
            print(f"killed after {written(output):,} lines", flush=True)
        if options.kills:
            subprocess.run([*command, str(output), "--resume"], check=True)
            print("the same file" if output.read_bytes() == whole.read_bytes() else "ANOTHER FILE")


if __name__ == "__main__":
    main()
