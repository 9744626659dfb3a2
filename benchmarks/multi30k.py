"""Train on Multi30k with several seeds and report BLEU and wall time.

    python benchmarks/multi30k.py --data FOLDER [--pair en-de --seeds 1,2,3 --systems transformer,bahdanau,luong]

FOLDER holds train.en, train.de, val.en …, plain or gzipped. Every training is a `dragoman train`
process, timed from its start to its end, with default settings except those after `--`, which are passed on. The best
checkpoint translates the test sets with a beam of 5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dragoman
from dragoman import evaluation
from dragoman.data.text_files import open_file


def lines(folder: Path, name: str, language: str) -> list[str]:
    with open_file(path_of(folder, name, language)) as file:
        return file.read().decode("utf-8").splitlines()


def path_of(folder: Path, name: str, language: str) -> Path:
    plain = folder / f"{name}.{language}"
    return plain if plain.exists() else plain.with_name(plain.name + ".gz")


def train(folder: Path, data: Path, pair: tuple[str, str], seed: int, system: str, more: list[str]) -> float:
    """Train a run and return the seconds from the start of the process to its end."""
    files = {"source": ("train", 0), "target": ("train", 1), "valid-source": ("val", 0), "valid-target": ("val", 1)}
    command = [sys.executable, "-m", "dragoman", "train", str(folder), "--seed", str(seed), "--system", system, *more]
    for option, (name, side) in files.items():
        command += [f"--{option}", str(path_of(data, name, pair[side]))]
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--systems", default="transformer")
    parser.add_argument("--runs", type=Path, default=None, help="folder of the runs (default: temporary)")
    parser.add_argument("--tests", default="val,test_2016_flickr,test_2017_flickr")
    options, more = parser.parse_known_args()
    pair = tuple(options.pair.split("-"))
    runs = options.runs or Path(tempfile.mkdtemp())
    for system in options.systems.split(","):
        scores: dict[str, list[float]] = {}
        for seed in options.seeds.split(","):
            folder = runs / f"{options.pair}-{system}-{seed}"
            wall = train(folder, options.data, (pair[0], pair[1]), int(seed), system, [m for m in more if m != "--"])
            run = dragoman.load(folder)
            results = {}
            for test in options.tests.split(","):
                texts = [
                    t.text for t in run.translate(lines(options.data, test, pair[0]), beam_size=5, alignment=False)
                ]
                score = evaluation.bleu(texts, lines(options.data, test, pair[1]))
                results[test] = round(score.value, 2)
                scores.setdefault(test, []).append(score.value)
            valid = [r for r in map(json.loads, (folder / "metrics.jsonl").open()) if r["kind"] == "valid"]
            curve = [(round(r["seconds"]), round(r["bleu"], 1)) for r in valid]
            print(
                f"{system} seed {seed}: {wall:.1f} s from start to end, {results}, validations (s, BLEU) {curve}",
                flush=True,
            )
        means = {test: f"{statistics.mean(s):.2f} (minimum {min(s):.2f})" for test, s in scores.items()}
        print(f"{system}: {means}  {score.signature}", flush=True)


if __name__ == "__main__":
    main()
