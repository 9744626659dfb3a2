"""Compare a system with and without copying (pointer–generator) on a corpus.

    python benchmarks/copying.py runs/copying --train train.text train.synopsis --valid val.text val.synopsis \
        --test test.text test.synopsis [--metrics rouge-1,rouge-2,rouge-l --seeds 1 2 3 --coverage-loss 1] \
        [-- --size small --steps 4000]

Trains one run for each seed without copying, with copying and, if `--coverage-loss` is given, with its coverage loss;
evaluates them on the test set, and prints the mean and the deviation over seeds. The last options are those of
`dragoman train`. A run that exists already is only evaluated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

DRAGOMAN = [sys.executable, "-m", "dragoman"]


def variants(coverage_loss: float | None) -> dict[str, list[str]]:
    """Return the compared variants by name, each with its options of `dragoman train`."""
    copying = ["--set", "system.settings.copying=true"]
    named = {"without": ["--set", "system.settings.copying=false"], "copying": copying}
    if coverage_loss is not None:
        named["coverage"] = [*copying, "--set", f"system.settings.coverage_loss={coverage_loss}"]
    return named


def evaluate(run: Path, test: list[str], metrics: str) -> dict[str, float]:
    """Return the scores of a run on a test set (source and reference file) by metric."""
    command = [*DRAGOMAN, "evaluate", str(run), "--source", test[0], "--reference", test[1], "--metrics", metrics]
    output = subprocess.run([*command, "--json", "-q"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {score["name"]: score["value"] for score in json.loads(output)["scores"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--metrics", default="rouge-1,rouge-2,rouge-l")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--coverage-loss", type=float)
    options, more = parser.parse_known_args()
    files = ["--source", options.train[0], "--target", options.train[1]]
    files += ["--valid-source", options.valid[0], "--valid-target", options.valid[1]]
    for name, settings in variants(options.coverage_loss).items():
        scores: dict[str, list[float]] = {}
        for seed in options.seeds:
            run = options.folder / f"{name}-{seed}"
            if not run.exists():
                command = [*DRAGOMAN, "train", str(run), *files, *settings, "--seed", str(seed)]
                subprocess.run([*command, "-q", *(word for word in more if word != "--")], check=True)
            for metric, value in evaluate(run, options.test, options.metrics).items():
                scores.setdefault(metric, []).append(value)
        summaries = (
            f"{metric} {statistics.mean(values):.2f} ± {statistics.pstdev(values):.2f}"
            for metric, values in scores.items()
        )
        print(f"{name:8}  {'  '.join(summaries)}", flush=True)


if __name__ == "__main__":
    main()
