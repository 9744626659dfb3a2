"""How fast Dragoman translates beside Hugging Face's `generate` and CTranslate2: same weights and sources, in one run.

    python benchmarks/decoding.py --preset small --threads 2 --peers-python peers/bin/python
    python benchmarks/decoding.py --preset base --batches 1,64,512 --beams 1,4 --device cuda

A Marian model with random weights is written by transformers, imported by us and converted by CTranslate2. Every system
is a process of its own that translates the same sources in turn, round after round, so that whatever else happens on
the machine happens to all of them. Every target has as many tokens, no END before, so that all have the same to do; the
time is that from lists of ids to lists of ids, the encoder counted in. Ratios are medians of those of the rounds.

`ours` multiplies by packed weights, `ours-int8` by bytes, `ours-plain` as torch does. What a system writes is compared
with what `generate` does: greedy outputs in float32 should be the same token for token, and so, but for ties, those of
a beam, as all targets are equally long; bytes round.

`--peers-python` names the interpreter that has the peers. On a CPU that others use too, `--clock processor` divides by
the time that a system was given instead of the time that passed.
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
END = 0  # in the checkpoint
FIRST_WORD = 2
RIVALS = {"ours": "ctranslate2", "ours-int8": "ctranslate2-int8", "ours-plain": "generate"}
Cell = tuple[int, int]  # sentences, beam


class Worker:
    """A system's process."""

    def __init__(self, asked: dict[str, Any], python: str, log: Path) -> None:
        self.name, self.log = asked["system"], log
        path = os.pathsep.join([str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
        threads = {name: str(asked["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [python, "-m", "peers.searching", json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | threads | {"PYTHONPATH": path},
            )
        self.ready = bool(self.answer())
        self.rates: dict[Cell, list[float]] = {}  # tokens a second, round by round
        self.targets: dict[Cell, list[list[int]]] = {}

    def answer(self) -> dict[str, Any]:
        """The next answer; none when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def translate(self, cell: Cell, clock: str, counts: bool = True) -> None:
        assert self.process.stdin is not None
        print(json.dumps(cell), file=self.process.stdin, flush=True)
        answer = self.answer()
        if not answer:
            sys.exit(f"{self.name} ended in the middle of a round:\n{self.log.read_text()[-2000:]}")
        self.targets[cell] = answer["targets"]
        if counts:
            tokens = sum(len(target) for target in answer["targets"])
            self.rates.setdefault(cell, []).append(tokens / answer[clock])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def start(options: argparse.Namespace, sizes: Sizes, folder: Path) -> list[Worker]:
    """The systems that can be started; of the others it is said why not."""
    numbers = [sizes.vocabulary, sizes.width, sizes.inner, sizes.heads, sizes.layers]
    made = [options.peers_python, "-m", "peers.generate", str(folder), *(str(number) for number in numbers)]
    subprocess.run(made, check=True, env=os.environ | {"PYTHONPATH": str(HERE)})
    words = np.random.default_rng(1).integers(
        FIRST_WORD, sizes.vocabulary - 1, (max(options.batches), options.source_tokens - 1)
    )
    asked = {"folder": str(folder), "device": options.device, "threads": options.threads, "tokens": options.tokens}
    asked |= {"sources": [[*row, END] for row in words.tolist()]}
    workers = []
    for name in options.systems:
        python = sys.executable if name.startswith("ours") else options.peers_python
        worker = Worker(asked | {"system": name}, python, folder / f"{name}.log")
        if worker.ready:
            workers.append(worker)
        else:
            lines = worker.log.read_text().strip().splitlines() or ["it said nothing"]
            print(f"{name} is left out: {lines[-1]}", file=sys.stderr)
    return workers


def measure(options: argparse.Namespace, sizes: Sizes, folder: Path) -> dict[str, Any]:
    workers = start(options, sizes, folder)
    cells = [(batch, beam) for batch in options.batches for beam in options.beams]
    for cell in cells:
        for number in range(options.rounds + 1):  # the first is to warm up
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
        "cells": [one_cell(cell, by_name) for cell in cells],
    }


def one_cell(cell: Cell, workers: dict[str, Worker]) -> dict[str, Any]:
    measured = next((name for name in ("generate", "ctranslate2", "ours") if name in workers), next(iter(workers)))
    model = workers[measured].targets[cell]
    systems = {}
    for name, worker in workers.items():
        rival = workers.get(RIVALS.get(name, ""))
        rates = worker.rates[cell]
        same = sum(a == b for a, b in zip(worker.targets[cell], model))
        systems[name] = {
            "tokens_per_second": round(median(rates), 1),
            "rounds": [round(rate, 1) for rate in rates],
            "times_as_fast_as": {rival.name: round(median(a / b for a, b in zip(rates, rival.rates[cell])), 3)}
            if rival
            else {},
            f"as_{measured}": same / len(model),  # the share of sentences that are the same, token for token
        }
    return {"batch": cell[0], "beam": cell[1], "systems": systems}


def machine(options: argparse.Namespace) -> str:
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{models[0].split(':', 1)[1].strip() if models else platform.machine()}, {options.threads} threads"


def table(results: dict[str, Any]) -> str:
    names = list(results["cells"][0]["systems"])
    rivals = [name for name in names if results["cells"][0]["systems"][name]["times_as_fast_as"]]
    head = "".join(f"{name:>18}" for name in names) + "".join(f"{f'{name} / {RIVALS[name]}':>30}" for name in rivals)
    lines = [f"{'batch':>5}{'beam':>5}{head}"]
    for cell in results["cells"]:
        systems = cell["systems"]
        rates = "".join(f"{systems[name]['tokens_per_second']:>18,.0f}" for name in names)
        ratios = "".join(f"{systems[name]['times_as_fast_as'][RIVALS[name]]:>29.2f}×" for name in rivals)
        lines.append(f"{cell['batch']:>5}{cell['beam']:>5}{rates}{ratios}")
    return "\n".join(lines)


def sameness(results: dict[str, Any]) -> str:
    """Which outputs are equal."""
    lines = []
    for cell in results["cells"]:
        shares = {}
        for name, one in cell["systems"].items():
            (measured, share), *_ = [(key[3:], value) for key, value in one.items() if key.startswith("as_")]
            if name != measured:
                shares[name] = share
        said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        lines.append(f"batch {cell['batch']}, beam {cell['beam']}: the same sentences as {measured}: {said}")
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def systems(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in SYSTEMS]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(SYSTEMS)}")
        return names

    known = [name for name, sizes in PRESETS.items() if sizes.kind == "transformer"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=known, default="small")
    parser.add_argument("--batches", type=numbers, default=[1, 32, 64], help="sentences at a time")
    parser.add_argument("--beams", type=numbers, default=[1, 5])
    parser.add_argument("--source-tokens", type=int, default=28, help="END counted in")
    parser.add_argument("--tokens", type=int, default=32, help="that every target is long")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--systems", type=systems, default=list(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--json", type=Path, help="a file for the results")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, PRESETS[options.preset], Path(folder))
    print(
        f"{results['machine']}, PyTorch {torch.__version__}: {options.preset}, {options.source_tokens} source and "
        f"{options.tokens} target tokens; target tokens a second of {options.clock} time"
    )
    print(table(results))
    print(sameness(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
