"""Compare the FLOPs that the modern and the textbook recipe need for the same validation loss.

    python benchmarks/recipes.py --source train.en --target train.de --valid-source val.en --valid-target val.de \
        [--size small --textbook-steps 8000 --every 100]

Trains a system with the textbook and with the modern recipe and compares FLOPs by formula (parts/flops.py): those of
the textbook recipe at its best validation loss, and those of the modern recipe when it first reaches that loss.
Settings after `--` are passed on to both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from dragoman.config import from_yaml
from dragoman.data import TokenStore
from dragoman.models import training_flops
from dragoman.run import read_spec


def curve(run: Path) -> list[tuple[float, float, float]]:
    """Return FLOPs, validation loss and seconds of every validation."""
    store = TokenStore(run / "data" / "train")
    mean_lengths = [max(1, round(side.tokens / len(store))) for side in store.columns]
    flops_per_pair = training_flops(read_spec(run), mean_lengths[0] + 1, mean_lengths[1] + 1)
    config = from_yaml(run / "config.yaml")
    tokens, points = 0.0, []
    for record in map(json.loads, (run / "metrics.jsonl").open()):
        if record["kind"] == "train":
            target_tokens = (config.training.batch_tokens or 0) * (1 - record["padding"])
            tokens = record["step"] * target_tokens * config.training.gradient_accumulation
        elif record["kind"] == "valid":
            points.append((tokens / (mean_lengths[1] + 1) * flops_per_pair, record["loss"], record["seconds"]))
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "target", "valid-source", "valid-target"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--size", default="small")
    parser.add_argument("--textbook-steps", type=int, default=8000)
    parser.add_argument("--modern-steps", type=int, default=None)
    parser.add_argument("--every", type=int, default=100)
    options, more = parser.parse_known_args()
    runs = Path(tempfile.mkdtemp())
    curves = {}
    for recipe, steps in (("textbook", options.textbook_steps), ("modern", options.modern_steps)):
        command = [sys.executable, "-m", "dragoman", "train", str(runs / recipe), "--recipe", recipe]
        for name in ("source", "target", "valid_source", "valid_target"):
            command += [f"--{name.replace('_', '-')}", getattr(options, name)]
        command += ["--size", options.size, "--set", f"training.validation_interval={options.every}"]
        command += ["--set", "training.validation_sentences=0", "--set", "training.patience=30"]
        command += ["--set", "training.selection_metric=loss", *([f"--steps={steps}"] if steps else [])]
        subprocess.run([*command, *(m for m in more if m != "--")], check=True, stderr=subprocess.DEVNULL)
        curves[recipe] = curve(runs / recipe)
    flops, best, seconds = min(curves["textbook"], key=lambda point: point[1])
    print(f"textbook: best validation loss {best:.4f} after {flops:.3e} FLOPs, {seconds:.0f} s")
    reached = [point for point in curves["modern"] if point[1] <= best]
    if reached:
        done, loss, seconds = reached[0]
        print(f"modern: loss {loss:.4f} after {done:.3e} FLOPs, {seconds:.0f} s: {done / flops:.2f} of the FLOPs")
    best_modern = min(curves["modern"], key=lambda point: point[1])
    print(f"modern: best validation loss {best_modern[1]:.4f} after {best_modern[0]:.3e} FLOPs, {best_modern[2]:.0f} s")


if __name__ == "__main__":
    main()
