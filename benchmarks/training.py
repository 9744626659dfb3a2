"""Compare the training speed of Dragoman, Hugging Face's Marian, eole and JoeyNMT on the same model and data.

    python benchmarks/training.py --preset small --source train.en.gz --target train.de.gz --threads 2
    python benchmarks/training.py --preset base --synthetic --device cuda

Every system runs in its own process. The systems run a few steps in turns, round after round, so that other load on the
machine affects all of them. A step is forward, loss (label smoothing 0.1), backward, clipping and Adam. Target tokens
per second do not include padding. The other toolkits get precomputed batches in their own manner: sorted by length in
windows, except for JoeyNMT, which does not sort. Ours includes its data pipeline.

`--peers-python` names the interpreter with the other toolkits, `--peers-path` a folder of their packages. On a CPU with
other load, `--clock processor` uses processor time instead of wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from dragoman.data import EncodedPair, SentencePair, write_store
from dragoman.models import count_parameters, training_flops
from peers import corpus, ours
from peers.protocol import PRESETS, Pairs, Sizes
from peers.worker import SYSTEMS

HERE = Path(__file__).parent


class Worker:
    """The process of one system."""

    def __init__(self, request: dict[str, Any], python: str, path: str, log: Path) -> None:
        self.name, self.log, self.clock = request["system"], log, request["clock"]
        own = [str(HERE), str(HERE.parent / "src")]
        peer_paths = [path] if path and self.name not in ("ours", "matmul") else []
        threads = {name: str(request["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        before = [part for part in [os.environ.get("PYTHONPATH", "")] if part]
        environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join([*own, *peer_paths, *before])}
        command = [python, "-m", "peers.worker", json.dumps(request | {"began": time.time()})]
        with log.open("w") as errors:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment)
        self.about = self.reply()
        self.rounds: list[float] = []  # target tokens a second
        self.memory = 0

    def reply(self) -> dict[str, Any]:
        """Return the next reply; {} when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def round(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        reply = self.reply()
        if not reply:
            sys.exit(f"{self.name} ended in the middle of a round:\n{self.log.read_text()[-2000:]}")
        self.rounds.append(reply["done"] / reply[self.clock])
        self.memory = reply["memory"]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def read_data(options: argparse.Namespace, sizes: Sizes, folder: Path) -> Pairs:
    """Write the corpus for the other toolkits and, as a token store, for ours."""
    if options.source:
        pairs = corpus.from_texts(options.source, options.target, sizes.vocabulary)
    else:
        pairs = corpus.synthetic(options.pairs, sizes.vocabulary)
    np.savez(folder / "pairs.npz", **pairs._asdict())
    sources = np.split(pairs.source, np.cumsum(pairs.source_lengths)[:-1])
    targets = np.split(pairs.target, np.cumsum(pairs.target_lengths)[:-1])
    nothing = SentencePair("", "", "", 0)  # the ids are all that a store keeps
    examples = [EncodedPair(nothing, a.tolist(), b.tolist()) for a, b in zip(sources, targets)]
    write_store(folder / "store", [examples], sizes.vocabulary)
    return pairs


def flops_per_token(sizes: Sizes, pairs: Pairs, sample: int = 32) -> float:
    """Return the FLOPs per target token, estimated from a sample of pairs."""
    drawn = np.random.default_rng(0).integers(0, len(pairs.source_lengths), sample)
    lengths = [(int(pairs.source_lengths[i]) + 1, int(pairs.target_lengths[i]) + 1) for i in drawn]
    spec = ours.spec(sizes)
    return sum(training_flops(spec, *pair) for pair in lengths) / sum(target for _, target in lengths)


def start(options: argparse.Namespace, sizes: Sizes, folder: Path) -> list[Worker]:
    """Start the systems; print why a system cannot be started."""
    workers = []
    for name in options.systems.split(","):
        request = {"system": name, "device": options.device, "precision": options.precision, "sizes": asdict(sizes)}
        request |= {"folder": str(folder), "tokens": options.tokens, "threads": options.threads}
        request |= {
            "sort_all": options.sort_all,
            "batches": options.batches,
            "warm_up": options.warm_up,
            "clock": options.clock,
        }
        python = sys.executable if name in ("ours", "matmul") else options.peers_python
        worker = Worker(request, python, options.peers_path, folder / f"{name}.log")
        if worker.about:
            workers.append(worker)
        else:
            lines = worker.log.read_text().strip().splitlines() or ["no error message"]
            print(f"{name} cannot be started: {lines[-1]}", file=sys.stderr)
            if options.verbose:
                print("\n".join(lines), file=sys.stderr)
    return workers


def measure(options: argparse.Namespace, sizes: Sizes, folder: Path) -> dict[str, Any]:
    pairs = read_data(options, sizes, folder)
    workers = start(options, sizes, folder)
    for _ in range(options.rounds):
        for worker in workers:
            worker.round(options.steps)
    for worker in workers:
        worker.end()
    by_name = {worker.name: worker for worker in workers}
    peak = median(by_name.pop("matmul").rounds)
    operations = flops_per_token(sizes, pairs)
    own = by_name["ours"].rounds
    systems = {
        name: {
            "tokens_per_second": round(median(worker.rounds), 1),
            "rounds": [round(rate, 1) for rate in worker.rounds],
            "times_as_fast": round(median(a / b for a, b in zip(own, worker.rounds)), 3),
            "memory_gib": round(worker.memory / 2**30, 3),
            "first_step_s": round(worker.about["first_step"], 2),
            "warm_up_s": round(worker.about["warm_up"], 2),
            "warm_up_steps": worker.about["warm_up_steps"],
            "tflops": round(median(worker.rounds) * operations / 1e12, 4),
            "share_of_peak": round(median(worker.rounds) * operations / peak, 4),
            "torch": worker.about["torch"],
        }
        for name, worker in by_name.items()
    }
    lengths = {"source": float(pairs.source_lengths.mean() + 1), "target": float(pairs.target_lengths.mean() + 1)}
    return {
        "preset": options.preset,
        "sizes": asdict(sizes),
        "parameters": count_parameters(ours.spec(sizes)),
        "tokens": options.tokens,
        "precision": options.precision,
        "mean_lengths": lengths,
        "machine": machine(options),
        "python": platform.python_version(),
        "matmul_tflops": round(peak / 1e12, 4),
        "operations_per_token": operations,
        "steps": options.steps,
        "clock": options.clock,
        "sort_all": options.sort_all,
        "systems": systems,
    }


def machine(options: argparse.Namespace) -> str:
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{models[0].split(':', 1)[1].strip() if models else platform.machine()}, {options.threads} threads"


def table(results: dict[str, Any]) -> str:
    columns = (
        f"{'tokens/s':>11}{'ours is':>9}{'memory':>11}{'first step':>12}{'warm-up':>10}{'TFLOP/s':>10}{'of peak':>9}"
    )
    lines = [f"{'':17}{columns}"]
    for name, one in results["systems"].items():
        lines.append(
            f"{name:17}{one['tokens_per_second']:>11,.0f}{one['times_as_fast']:>8.2f}×{one['memory_gib']:>7.2f} GiB"
            f"{one['first_step_s']:>10.1f} s{one['warm_up_s']:>8.1f} s{one['tflops']:>10.3f}"
            f"{one['share_of_peak']:>9.1%}"
        )
    return "\n".join(lines)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--source", type=Path, help="a text file, plain or .gz")
    parser.add_argument("--target", type=Path, help="translations, line by line")
    parser.add_argument("--synthetic", action="store_true", help="random ids in sentence-like lengths")
    parser.add_argument("--pairs", type=int, default=200_000, help="pairs of synthetic data")
    parser.add_argument("--vocabulary", type=int, help="vocabulary size (default: that of the preset)")
    parser.add_argument("--tokens", type=int, help="target tokens per batch (default: 25,000 on a GPU, 4,096 on a CPU)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="bfloat16 on a GPU, float32 elsewhere")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, help="steps per round (default: 20 on a GPU, 2 on a CPU)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--warm-up", type=int, help="steps; on a GPU the other toolkits see all their batches once")
    parser.add_argument("--batches", type=int, default=100, help="batches of the other toolkits, which are repeated")
    parser.add_argument("--sort-all", action="store_true", help="sorted batches for JoeyNMT too")
    parser.add_argument("--systems", help=f"of {', '.join(SYSTEMS)}; default: those that have the model")
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--peers-path", default="")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--verbose", action="store_true", help="print the whole log of a system that cannot be started")
    options = parser.parse_args()
    if bool(options.source) != bool(options.target) or bool(options.source) == options.synthetic:
        parser.error("give --source and --target, or --synthetic")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.clock = {"wall": "seconds", "processor": "worked"}[options.clock]
    gpu, kind = options.device == "cuda", PRESETS[options.preset].kind
    options.precision = options.precision or ("bfloat16" if gpu else "float32")
    options.tokens = options.tokens or (25_000 if gpu else 4_096)
    options.steps = options.steps or (20 if gpu else 2)
    options.warm_up = (30 if gpu else 1) if options.warm_up is None else options.warm_up
    if options.systems is None:
        peers = {"transformer": ["marian", "eole", "joeynmt"], "luong": ["eole", "joeynmt"], "bahdanau": ["joeynmt"]}
        chosen = ["ours", *peers[kind]]
        if gpu and kind == "transformer":
            chosen.insert(2, "marian-compiled")
        options.systems = ",".join(chosen)
    options.systems = ",".join(dict.fromkeys(["ours", *options.systems.split(","), "matmul"]))
    return options


def main() -> None:
    options = read_options()
    sizes = PRESETS[options.preset]
    if options.vocabulary:
        sizes = replace(sizes, vocabulary=options.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options, sizes, Path(folder))
    print(
        f"{results['machine']}, PyTorch {torch.__version__}, {options.precision}: {options.preset}, "
        f"{results['parameters']:,} parameters, about {options.tokens:,} target tokens per batch, sentences of "
        f"{results['mean_lengths']['source']:.1f} and {results['mean_lengths']['target']:.1f} tokens; "
        f"matrix products reach {results['matmul_tflops']:.3g} TFLOP/s"
    )
    print(table(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
