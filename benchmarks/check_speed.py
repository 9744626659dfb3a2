"""Check that training and decoding on this CPU are as fast, relative to plain PyTorch, as they were recorded.

    python benchmarks/check_speed.py            # compare with the recorded ratios; exit code 1 if a cell is slower
    python benchmarks/check_speed.py --record   # record the ratios of this machine

Every cell is the speed of Dragoman divided by that of the same Transformer in plain PyTorch (`peers/plain.py`),
measured in turns, as the median over rounds. Its noise is the median absolute deviation of the rounds, but at least
2 % of the ratio. A cell is too slow if its ratio is below the recorded one by more than three times the noise of both
measurements. If cells are too slow, all are measured once more, and the higher ratio of each cell counts: other
programs may have run the first time.

Ratios are recorded in `recorded_ratios.json` by processor, its vector instructions, number of threads and version of
PyTorch: a ratio of one machine says nothing about another. Where nothing is recorded, the ratios are only printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from device_info import device_name

HERE = Path(__file__).parent
RECORDED = HERE / "recorded_ratios.json"
NOISE_FACTOR = 3.0  # allowed distance, in median absolute deviations
MIN_NOISE = 0.02  # of a ratio; a few rounds may agree by chance
Cells = dict[str, dict[str, float]]  # name of the cell → ratio, noise


def run_script(name: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark of this folder, and return what it writes to its --json file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        subprocess.run([sys.executable, str(HERE / name), *arguments, "--json", str(path)], check=True)
        return json.loads(path.read_text())


def cell(own_rates: list[float], plain_rates: list[float]) -> dict[str, float]:
    """Return the median ratio of the rounds, and its noise (median absolute deviation, at least `MIN_NOISE`)."""
    ratios = [own / plain for own, plain in zip(own_rates, plain_rates)]
    center = median(ratios)
    noise = max(MIN_NOISE * center, median(abs(ratio - center) for ratio in ratios))
    return {"ratio": round(center, 3), "noise": round(noise, 3)}


def machine_name() -> str:
    """Return what the ratios depend on besides this code: processor, instructions, threads and version of PyTorch."""
    version = ".".join(torch.__version__.split(".")[:2])
    return f"{device_name(torch.device('cpu'))}, {torch.backends.cpu.get_cpu_capability()}, PyTorch {version}"


def measure(preset: str, threads: int, rounds: int) -> Cells:
    """Measure all cells: decoding by precision, batch and beam, and training."""
    common = ["--preset", preset, "--threads", str(threads), "--rounds", str(rounds), "--device", "cpu"]
    cells: Cells = {}
    decoding = run_script("decoding.py", *common, "--batches", "1,32", "--systems", "ours,ours-int8,plain")
    for result in decoding["cells"]:
        systems = result["systems"]
        for system, precision in (("ours", "float32"), ("ours-int8", "int8")):
            name = f"decoding {preset} {precision}, batch {result['batch']}, beam {result['beam']}"
            cells[name] = cell(systems[system]["rounds"], systems["plain"]["rounds"])
    training = run_script("training.py", *common, "--synthetic", "--pairs", "20000", "--systems", "ours,plain")
    systems = training["systems"]
    cells[f"training {preset}"] = cell(systems["ours"]["rounds"], systems["plain"]["rounds"])
    return cells


def report(cells: Cells, recorded: Cells) -> list[str]:
    """Print a table of the cells, and return the names of those that are slower than recorded."""
    slow = []
    print(f"{'times as fast as plain PyTorch':44}{'now':>8}{'±':>7}{'recorded':>10}{'±':>7}")
    for name, now in cells.items():
        before = recorded.get(name)
        line = f"{name:44}{now['ratio']:>8.2f}{now['noise']:>7.2f}"
        if before is not None:
            line += f"{before['ratio']:>10.2f}{before['noise']:>7.2f}"
            if now["ratio"] < before["ratio"] - NOISE_FACTOR * (now["noise"] + before["noise"]):
                slow.append(name)
                line += "  too slow"
        print(line)
    return slow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=("small", "base"), default="small", help="size of the model")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads of every process")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of every cell")
    parser.add_argument("--record", action="store_true", help="record the ratios of this machine")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    machine = machine_name()
    recorded: dict[str, Cells] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    cells = measure(options.preset, options.threads, options.rounds)
    print(machine)
    slow = report(cells, recorded.get(machine, {}))
    if slow and not options.record:
        print("measured once more:")
        again = measure(options.preset, options.threads, options.rounds)
        cells = {name: max(one, again[name], key=lambda measured: measured["ratio"]) for name, one in cells.items()}
        slow = report(cells, recorded[machine])
    if options.record:
        recorded[machine] = recorded.get(machine, {}) | cells
        RECORDED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
        print(f"recorded in {RECORDED.name}")
    elif machine not in recorded:
        print("nothing is recorded for this machine: record its ratios with --record before a change")
    elif slow:
        sys.exit(f"slower than recorded: {', '.join(slow)}")


if __name__ == "__main__":
    main()
