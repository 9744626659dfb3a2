"""Preparation and training of a large corpus: time and peak resident memory.

    python benchmarks/scale.py --pairs 5000000 --steps 30 --folder /somewhere/with/space

Writes random sentences of Zipf-distributed words (about 12 a side), then runs `dragoman train` on them in a process of
its own and reports what that process used. Memory is the peak of the resident set, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORDS = 50_000
CHUNK = 100_000


def write_corpus(folder: Path, pairs: int) -> None:
    """Two files of sentences whose words follow Zipf's law."""
    random = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(random.choice(letters, random.integers(2, 10))) for _ in range(WORDS)])
    shares = 1 / np.arange(1, WORDS + 1)
    cumulated = np.cumsum(shares / shares.sum())
    with (folder / "train.en").open("w") as source, (folder / "train.de").open("w") as target:
        for start in range(0, pairs, CHUNK):
            lengths = random.poisson(11, min(CHUNK, pairs - start)) + 1
            numbers = np.searchsorted(cumulated, random.random(int(lengths.sum())))
            ends = np.cumsum(lengths)
            sentence, mirrored = words[numbers].tolist(), words[(numbers + 7) % WORDS].tolist()
            for first, end in zip(ends - lengths, ends):
                source.write(" ".join(sentence[first:end]) + ".\n")
                target.write(" ".join(mirrored[first:end][::-1]) + ".\n")


def measure(command: list[str]) -> tuple[float, float]:
    """Seconds and peak resident GiB of a command, as the kernel counted them."""
    began = time.monotonic()
    process = subprocess.Popen(command, stderr=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"failed: {' '.join(command)}")
    return time.monotonic() - began, usage.ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=None, help="where to work; a temporary folder if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write_corpus(folder, options.pairs)
        size = sum((folder / f"train.{side}").stat().st_size for side in ("en", "de"))
        run = folder / "run"
        files = ["--source", str(folder / "train.en"), "--target", str(folder / "train.de")]
        settings = ["--system", "transformer", "--size", "tiny", "--set", "training.validate_sentences=0"]
        command = [sys.executable, "-m", "dragoman", "train", str(run), *files, *settings]
        seconds, memory = measure([*command, "--steps", str(options.steps)])
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        training = max(record["seconds"] for record in records)
        store = sum(file.stat().st_size for file in (run / "data" / "train").iterdir())
    sizes = f"{size / 2**20:,.0f} MiB of text, {store / 2**20:,.0f} MiB of tokens"
    print(f"{options.pairs:,} pairs, {sizes}")
    print(f"prepared in {seconds - training:.0f} s, then {options.steps} steps; peak resident memory {memory:.2f} GiB")


if __name__ == "__main__":
    main()
