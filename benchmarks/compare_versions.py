"""Compare the speed of two versions of Dragoman: training, decoding and `--help`, in turns on one machine.

    git archive --prefix=old/ v1.0 src benchmarks | tar x -C build
    python benchmarks/compare_versions.py build/old . --device cuda --systems ours-plain
    python benchmarks/compare_versions.py build/old . --preset small --threads 2 --batches 1,32 --beams 1,5

Each version is a folder with `src` and `benchmarks`. Its own benchmarks/training.py and benchmarks/decoding.py run with
the same options, the versions in turns, so that other load on the machine affects both. A ratio above 1 means that the
second version is faster; it is the median over the turns, followed by the smallest and the largest ratio. Two processes
of the same version may differ by 10 % in decoding on a GPU: six turns (`--turns 6`) tell versions apart.
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
from statistics import median

Rates = dict[str, float]  # cell → tokens per second


def run_script(version: Path, script: str, arguments: list[str]) -> dict:
    """Run a benchmark of `version` and return its JSON results."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, str(version / "benchmarks" / script), *arguments, "--json", str(results)]
        path = os.pathsep.join([str(version / "src"), str(version / "benchmarks")])
        finished = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
        if finished.returncode or not results.exists():
            sys.exit(f"{' '.join(command)} failed:\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}")
        return json.loads(results.read_text())


def training_rates(version: Path, options: argparse.Namespace) -> Rates:
    arguments = ["--preset", options.preset, "--synthetic", "--pairs", str(options.pairs), "--device", options.device]
    arguments += ["--threads", str(options.threads), "--systems", "matmul,ours", "--rounds", str(options.rounds)]
    ours = run_script(version, "training.py", arguments)["systems"]["ours"]
    return {f"training {options.preset}": ours["tokens_per_second"]}


def decoding_rates(version: Path, options: argparse.Namespace) -> Rates:
    arguments = ["--preset", options.preset, "--device", options.device, "--threads", str(options.threads)]
    arguments += ["--batches", options.batches, "--beams", options.beams, "--systems", options.systems]
    results = run_script(version, "decoding.py", [*arguments, "--rounds", str(options.rounds)])
    return {
        f"decoding {options.preset}, {name}, batch {cell['batch']}, beam {cell['beam']}": system["tokens_per_second"]
        for cell in results["cells"]
        for name, system in cell["systems"].items()
    }


def help_rate(version: Path, _: argparse.Namespace) -> Rates:
    command = [sys.executable, "-m", "dragoman", "--help"]
    environment = os.environ | {"PYTHONPATH": str(version / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    times = []
    for _ in range(6):
        start = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return {"--help (calls per second)": 1 / median(times[1:])}  # the first call compiles the modules


PARTS = {"training": training_rates, "decoding": decoding_rates, "help": help_rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=100_000, help="pairs of synthetic training data")
    parser.add_argument("--batches", default="1,64,512", help="sentences at a time in decoding")
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--systems", default="ours", help="of benchmarks/decoding.py: ours, ours-int8, ours-plain")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each benchmark")
    parser.add_argument("--turns", type=int, default=3, help="how often each version runs")
    options = parser.parse_args()
    for part in options.parts.split(","):
        turns: list[tuple[Rates, Rates]] = []
        for turn in range(options.turns):
            order = [options.old, options.new] if turn % 2 == 0 else [options.new, options.old]
            rates = {version: PARTS[part](version.resolve(), options) for version in order}
            turns.append((rates[options.old], rates[options.new]))
        for cell in turns[0][0]:
            ratios = sorted(new[cell] / old[cell] for old, new in turns)
            old_rate, new_rate = (median(turn[i][cell] for turn in turns) for i in (0, 1))
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            print(f"{cell:45}{old_rate:>14,.1f}{new_rate:>14,.1f}{median(ratios):>8.3f}×  ({spread})", flush=True)


if __name__ == "__main__":
    main()
