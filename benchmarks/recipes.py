"""How much work the modern recipe needs to reach the textbook recipe's best validation loss on the same data.

    python benchmarks/recipes.py --source train.en --target train.de --valid-source val.en --valid-target val.de \
        [--size small --textbook-steps 8000 --every 100]

Trains the same system in the same size twice, by the textbook and by the modern recipe, and compares operations by
formula (models/flops.py): how many the textbook recipe had done at its best validation loss, and how many the modern
one when its loss was first as low. Settings after `--` are passed on to both.
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
    """Operations done, validation loss and seconds, validation by validation."""
    store = TokenStore(run / "data" / "train")
    words = [max(1, round(side.tokens / len(store))) for side in store.columns]
    a_pair = training_flops(read_spec(run), words[0] + 1, words[1] + 1)
    config = from_yaml(run / "config.yaml")
    tokens, found = 0.0, []
    for record in map(json.loads, (run / "metrics.jsonl").open()):
        if record["kind"] == "train":
            places = (config.training.batch_tokens or 0) * (1 - record["padding"])
            tokens = record["step"] * places * config.training.gradient_accumulation
        elif record["kind"] == "valid":
            found.append((tokens / (words[1] + 1) * a_pair, record["loss"], record["seconds"]))
    return found


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
    work, best, seconds = min(curves["textbook"], key=lambda point: point[1])
    print(f"textbook: best validation loss {best:.4f} after {work:.3e} operations, {seconds:.0f} s")
    reached = [point for point in curves["modern"] if point[1] <= best]
    if reached:
        done, loss, seconds = reached[0]
        print(f"modern: loss {loss:.4f} after {done:.3e} operations, {seconds:.0f} s: {done / work:.2f} of the work")
    least = min(curves["modern"], key=lambda point: point[1])
    print(f"modern: best validation loss {least[1]:.4f} after {least[0]:.3e} operations, {least[2]:.0f} s")


if __name__ == "__main__":
    main()
