"""Train every translation system on the phrasebook on a CPU with default settings.

    python benchmarks/phrasebook_systems.py --output FOLDER [--systems luong,bahdanau --minutes 2 --parallel 8]

Trains every system that can learn from sentence pairs, `--parallel` at a time with `--threads` threads each, and
evaluates it on the 500 held-out test sentences. A training is `dragoman train` (or `dragoman quickstart` with
`--quickstart`) in its own process with `--device cpu`; it ends after `--minutes`, and is killed two minutes later.
`NAME@SETTING=VALUE@…` in `--systems` trains a variant: `luong@system.settings.encoder_direction=both`. Settings after
`--` are passed on to every training.

FOLDER receives one JSON file for each system, the logs, and `results.json` with all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dragoman import config as configuration
from dragoman.data import phrasebook
from dragoman.evaluation import format_table
from dragoman.models import count_parameters, meta_model
from dragoman.run import read_spec
from dragoman.run_files import read_metrics
from dragoman.systems import SYSTEMS, VocabularySizes

EXTRA_SECONDS = 120  # seconds for preparation, the last validation and the report, beyond the minutes of training
SHOWN_SETTINGS = (
    "recipe", "optimizer", "schedule", "learning_rate", "warmup_steps", "batch_tokens", "steps", "clip_norm",
    "label_smoothing"
)  # fmt: skip


def translation_systems() -> list[str]:
    """Return the names of the systems that translate text."""
    models = {name: meta_model(one.spec(VocabularySizes(100, 100, True), "tiny")) for name, one in SYSTEMS.items()}
    return [name for name, model in models.items() if model.can_generate and model.source_features is None]


def command(name: str, run: Path, corpus: Path, options: argparse.Namespace, more: list[str]) -> list[str]:
    system, *settings = name.split("@")
    program = [sys.executable, "-m", "dragoman"]
    if options.quickstart:
        return [*program, "quickstart", str(run), "--system", system]
    words = [*program, "train", str(run), "--system", system, "--device", "cpu", "--minutes", str(options.minutes)]
    for option, file in {"source": "train.en", "target": "train.de"}.items():
        words += [f"--{option}", str(corpus / file), f"--valid-{option}", str(corpus / file.replace("train", "valid"))]
    return [*words, *(word for setting in settings for word in ("--set", setting)), *more]


def train_and_evaluate(
    name: str, corpus: Path, options: argparse.Namespace, more: list[str], deadline: float
) -> dict[str, Any]:
    """Train one system and return its scores, or the reason of its failure."""
    folder = options.output / name.replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run"
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "CUDA_VISIBLE_DEVICES": ""}
    result: dict[str, Any] = {"system": name}
    start = time.monotonic()

    def call(words: list[str], log: str, seconds: float) -> str:
        limit = max(1.0, min(seconds, deadline - time.monotonic()))
        with (folder / log).open("w") as file:
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=file, env=environment, timeout=limit, check=True, text=True
            )
        return done.stdout

    try:
        call(command(name, run, corpus, options, more), "train.log", 60 * options.minutes + EXTRA_SECONDS)
        result["wall"] = round(time.monotonic() - start, 1)
        test = ["--source", str(corpus / "test.en"), "--reference", str(corpus / "test.de")]
        words = [sys.executable, "-m", "dragoman", "evaluate", str(run), *test, "--device", "cpu", "--json"]
        scores = json.loads(call([*words, "--metrics", "bleu,exact"], "evaluate.log", EXTRA_SECONDS))["scores"]
        result |= {score["name"].lower(): score["value"] for score in scores}
    except subprocess.TimeoutExpired:
        result["failure"] = f"killed after {time.monotonic() - start:.0f} s"
    except subprocess.CalledProcessError as error:
        result["failure"] = f"exit status {error.returncode}: see {folder}"
    if (run / "config.yaml").exists():
        result |= _run_results(run)
    (folder / "result.json").write_text(json.dumps(result, indent=1, default=str) + "\n")
    row = {key: value for key, value in result.items() if key not in ("curve", "settings")}
    print(f"{row}", file=sys.stderr, flush=True)
    return result


def _run_results(run: Path) -> dict[str, Any]:
    """Size, settings and validation curve of a run."""
    config, records = configuration.from_yaml(run / "config.yaml"), read_metrics(run)
    valid = [record for record in records if record["kind"] == "valid"]
    bleu = [record["bleu"] for record in records if record["kind"] in ("valid", "averaged") and "bleu" in record]
    return {
        "parameters": count_parameters(read_spec(run)),
        "steps": max((record["step"] for record in records), default=0),
        "seconds": max((record.get("seconds", 0.0) for record in records), default=0.0),
        "validation_bleu": max(bleu, default=0.0),
        "settings": {name: getattr(config.training, name, None) for name in SHOWN_SETTINGS}
        | {"system": config.system.settings, "size": config.system.size, "bpe_dropout": config.text.bpe_dropout},
        "curve": [
            {key: record.get(key) for key in ("step", "loss", "bleu", "exact_match", "seconds")} for record in valid
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="Folder for results, logs and runs.")
    parser.add_argument("--systems", default=None, help="Comma-separated; every translation system by default.")
    parser.add_argument("--quickstart", action="store_true", help="Run `dragoman quickstart` instead of `train`.")
    parser.add_argument("--minutes", type=float, default=2.0, help="Training time of a system.")
    parser.add_argument("--limit", type=float, default=9.5, help="Minutes after which everything is stopped.")
    parser.add_argument("--parallel", type=int, default=8, help="Systems trained at the same time.")
    parser.add_argument("--threads", type=int, default=2, help="Threads of a training.")
    parser.add_argument("--pairs", type=int, default=20_000, help="Training pairs of the phrasebook.")
    options, more = parser.parse_known_args()
    deadline = time.monotonic() + 60 * options.limit
    names = options.systems.split(",") if options.systems else translation_systems()
    corpus = options.output / "phrasebook"
    if not corpus.exists():
        options.output.mkdir(parents=True, exist_ok=True)
        phrasebook.write(corpus, pairs=options.pairs)
    passed = [word for word in more if word != "--"]
    with ThreadPoolExecutor(options.parallel) as pool:
        results = list(pool.map(lambda name: train_and_evaluate(name, corpus, options, passed, deadline), names))
    (options.output / "results.json").write_text(json.dumps(results, indent=1, default=str) + "\n")
    rows = [
        {
            "system": result["system"],
            "parameters": f"{result.get('parameters', 0):,}",
            "steps": f"{result.get('steps', 0):,}",
            "seconds": f"{result.get('seconds', 0):.0f}",
            "validation BLEU": f"{result.get('validation_bleu', 0):.1f}",
            "exact match": result.get("failure") or f"{result.get('exact match', 0):.1f} %",
        }
        for result in results
    ]
    print(format_table(rows))


if __name__ == "__main__":
    main()
