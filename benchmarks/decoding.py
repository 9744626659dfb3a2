"""Compare the decoding speed of Dragoman, Hugging Face's `generate` and CTranslate2 with the same weights and sources.

    python benchmarks/decoding.py --preset small --threads 2 --peers-python peers/bin/python
    python benchmarks/decoding.py --preset base --batches 1,64,512 --beams 1,4 --device cuda

transformers writes a Marian model with random weights, which we import and CTranslate2 converts. Every system runs in
its own process. The systems translate the same sources in turns, round after round, so that other load on the machine
affects all of them. All targets have the same number of tokens. Times are from lists of token ids to lists of token
ids, including the encoder. Ratios are medians over the rounds.

`ours` uses packed float32 weights, `ours-int8` int8 weights, `ours-plain` torch's own matrix products; on a GPU all
are the same, with bfloat16 weights. Outputs are compared with those of `generate`: greedy outputs in float32 should be
equal token for token, and so should those of a beam, except for ties; int8 weights round.

`--peers-python` names the interpreter with the other libraries. On a CPU with other load, `--clock processor` uses
processor time instead of wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from peers.protocol import PRESETS, Sizes
from peers.searching import SYSTEMS

HERE = Path(__file__).parent
EOS = 0  # in the checkpoint
FIRST_TOKEN = 2
COMPARED_WITH = {"ours": "ctranslate2", "ours-int8": "ctranslate2-int8", "ours-plain": "generate"}
Cell = tuple[int, int]  # sentences, beam


class Worker:
    """The process of one system."""

    def __init__(self, request: dict[str, Any], python: str, log: Path) -> None:
        self.name, self.log = request["system"], log
        path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
        threads = {name: str(request["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [python, "-m", "peers.searching", json.dumps(request)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | threads | {"PYTHONPATH": path},
            )
        self.ready = bool(self.reply())
        self.rates: dict[Cell, list[float]] = {}  # tokens a second, round by round
        self.targets: dict[Cell, list[list[int]]] = {}

    def reply(self) -> dict[str, Any]:
        """Return the next reply; {} when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def translate(self, cell: Cell, clock: str, counts: bool = True) -> None:
        assert self.process.stdin is not None
        print(json.dumps(cell), file=self.process.stdin, flush=True)
        reply = self.reply()
        if not reply:
            sys.exit(f"{self.name} ended in the middle of a round:\n{self.log.read_text()[-2000:]}")
        self.targets[cell] = reply["targets"]
        if counts:
            tokens = sum(len(target) for target in reply["targets"])
            self.rates.setdefault(cell, []).append(tokens / reply[clock])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def start(options: argparse.Namespace, sizes: Sizes, folder: Path) -> list[Worker]:
    """Start the systems; print why a system cannot be started."""
    numbers = [sizes.vocabulary, sizes.width, sizes.inner, sizes.heads, sizes.layers]
    command = [options.peers_python, "-m", "peers.generate", str(folder), *(str(number) for number in numbers)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(HERE)})
    words = np.random.default_rng(1).integers(
        FIRST_TOKEN, sizes.vocabulary - 1, (max(options.batches), options.source_tokens - 1)
    )
    request = {"folder": str(folder), "device": options.device, "threads": options.threads, "tokens": options.tokens}
    request |= {"sources": [[*row, EOS] for row in words.tolist()]}
    workers = []
    for name in options.systems:
        python = sys.executable if name.startswith("ours") else options.peers_python
        worker = Worker(request | {"system": name}, python, folder / f"{name}.log")
        if worker.ready:
            workers.append(worker)
        else:
            lines = worker.log.read_text().strip().splitlines() or ["no error message"]
            print(f"{name} cannot be started: {lines[-1]}", file=sys.stderr)
    return workers


def measure(options: argparse.Namespace, sizes: Sizes, folder: Path) -> dict[str, Any]:
    workers = start(options, sizes, folder)
    cells = [(batch, beam) for batch in options.batches for beam in options.beams]
    for cell in cells:
        for number in range(options.rounds + 1):  # the first round warms up
            for worker in workers:
                worker.translate(cell, options.clock, number > 0)
    for worker in workers:
        worker.end()
    by_name = {worker.name: worker for worker in workers}
    return {
        "preset": options.preset,
        "machine": machine(options),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "source_tokens": options.source_tokens,
        "tokens": options.tokens,
        "clock": options.clock,
        "cells": [cell_results(cell, by_name) for cell in cells],
    }


def cell_results(cell: Cell, workers: dict[str, Worker]) -> dict[str, Any]:
    reference = next(
        (name for name in ("generate", "ctranslate2", "plain", "ours") if name in workers), next(iter(workers))
    )
    model = workers[reference].targets[cell]
    systems = {}
    for name, worker in workers.items():
        other = workers.get(COMPARED_WITH.get(name, ""))
        rates = worker.rates[cell]
        same = sum(a == b for a, b in zip(worker.targets[cell], model))
        systems[name] = {
            "tokens_per_second": round(median(rates), 1),
            "rounds": [round(rate, 1) for rate in rates],
            "times_as_fast_as": {other.name: round(median(a / b for a, b in zip(rates, other.rates[cell])), 3)}
            if other
            else {},
            f"as_{reference}": same / len(model),  # share of equal outputs
        }
    return {"batch": cell[0], "beam": cell[1], "systems": systems}


def machine(options: argparse.Namespace) -> str:
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{models[0].split(':', 1)[1].strip() if models else platform.machine()}, {options.threads} threads"


def table(results: dict[str, Any]) -> str:
    names = list(results["cells"][0]["systems"])
    compared = [name for name in names if results["cells"][0]["systems"][name]["times_as_fast_as"]]
    head = "".join(f"{name:>18}" for name in names) + "".join(
        f"{f'{name} / {COMPARED_WITH[name]}':>30}" for name in compared
    )
    lines = [f"{'batch':>5}{'beam':>5}{head}"]
    for cell in results["cells"]:
        systems = cell["systems"]
        rates = "".join(f"{systems[name]['tokens_per_second']:>18,.0f}" for name in names)
        ratios = "".join(f"{systems[name]['times_as_fast_as'][COMPARED_WITH[name]]:>29.2f}×" for name in compared)
        lines.append(f"{cell['batch']:>5}{cell['beam']:>5}{rates}{ratios}")
    return "\n".join(lines)


def equal_outputs(results: dict[str, Any]) -> str:
    """Format the shares of equal outputs."""
    lines = []
    for cell in results["cells"]:
        shares = {}
        for name, one in cell["systems"].items():
            (reference, share), *_ = [(key[3:], value) for key, value in one.items() if key.startswith("as_")]
            if name != reference:
                shares[name] = share
        shown = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        lines.append(f"batch {cell['batch']}, beam {cell['beam']}: outputs equal to those of {reference}: {shown}")
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def systems(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in SYSTEMS]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(SYSTEMS)}")
        return names

    known = [name for name, sizes in PRESETS.items() if sizes.kind == "transformer"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=known, default="small")
    parser.add_argument("--batches", type=numbers, default=[1, 32, 64], help="sentences at a time")
    parser.add_argument("--beams", type=numbers, default=[1, 5])
    parser.add_argument("--source-tokens", type=int, default=28, help="tokens of a source, EOS included")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a target")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--systems", type=systems, default=list(SYSTEMS), help=f"from {', '.join(SYSTEMS)}")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter with the other libraries")
    parser.add_argument("--json", type=Path, help="a file for the results")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, PRESETS[options.preset], Path(folder))
    print(
        f"{results['machine']}, PyTorch {torch.__version__}: {options.preset}, {options.source_tokens} source and "
        f"{options.tokens} target tokens; target tokens per second of {options.clock} time"
    )
    print(table(results))
    print(equal_outputs(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
