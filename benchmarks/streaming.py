"""Memory and speed of `dragoman translate --output` on a long file.

    python benchmarks/streaming.py --lines 1000000 --kills 5

Trains a tiny model on the phrasebook, or uses --run, and translates --lines phrasebook sentences greedily in a
subprocess, whose resident memory is read every second. Memory is flat if its maximum in the second half exceeds that of
the first by at most --slack MiB. With --kills the file is translated again by processes that are killed at random
moments and continued, and the output must be the same.
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
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def make_run(folder: Path, steps: int) -> Path:
    """Train a tiny Transformer until its translations end."""
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


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB, mapped files included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def saved_lines(output: Path) -> int:
    """Return the number of lines that are saved on disk."""
    journal = output.with_name(f"{output.name}.part.journal")
    lines = journal.read_text().splitlines()[1:] if journal.exists() else []
    return json.loads(lines[-1])["lines"] if lines else 0


def monitor(process: subprocess.Popen[bytes], output: Path) -> list[tuple[float, float, int]]:
    """Return seconds, MiB and saved lines, once a second while the process runs."""
    start, readings = time.monotonic(), []
    while process.poll() is None:
        if done := saved_lines(output):
            readings.append((time.monotonic() - start, resident_mib(process.pid), done))
        time.sleep(1)
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, help="a run that translates English (default: train a tiny one)")
    parser.add_argument("--steps", type=int, default=300, help="training steps")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--slack", type=float, default=20.0, help="MiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = options.run or make_run(folder, options.steps)
        text, uninterrupted, output = folder / "text", folder / "uninterrupted", folder / "out"
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

        process = subprocess.Popen([*command, str(uninterrupted)])
        readings = monitor(process, uninterrupted)
        assert process.returncode == 0
        assert uninterrupted.read_bytes().count(b"\n") == options.lines
        print(f"{'seconds':>8} {'lines':>10} {'MiB':>8}")
        for seconds, memory, lines in readings[:: max(1, len(readings) // 20)]:
            print(f"{seconds:8.0f} {lines:10,} {memory:8.0f}")
        first, second = (
            max(m for _, m, _ in part) for part in (readings[: len(readings) // 2], readings[len(readings) // 2 :])
        )
        (early, _, before), (late, _, after) = readings[0], readings[-1]
        speed = (after - before) / max(1e-9, late - early)
        print(f"{speed:,.0f} lines/s; at most {first:.0f} MiB in the first half, {second:.0f} in the second")
        print("memory is flat" if second <= first + options.slack else "MEMORY GROWS")

        for generator in (random.Random(number) for number in range(options.kills)):
            process = subprocess.Popen([*command, str(output), "--resume"])
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(early + generator.random() * late / options.kills) == 0
                break  # it ended before it was killed
            process.kill()
            process.wait()
            print(f"killed after {saved_lines(output):,} lines", flush=True)
        if options.kills:
            subprocess.run([*command, str(output), "--resume"], check=True)
            print("same output" if output.read_bytes() == uninterrupted.read_bytes() else "DIFFERENT OUTPUT")


if __name__ == "__main__":
    main()
