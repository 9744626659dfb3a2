"""Exact match by beam width and stopping rule: a wider beam must not be worse than greedy search.

    PYTHONPATH=src python benchmarks/beam_width.py \\
        --data scan=scan/simple_train.tsv.gz,scan/simple_test.tsv.gz \\
        --data cogs=cogs/train.tsv.gz,cogs/dev.tsv.gz \\
        --data g2p=g2p/fre_train.tsv.gz,g2p/fre_dev.tsv.gz --steps 3000 --json results.json

Every corpus is two TSV files, source and target, for training and for evaluation. Text is split into words, or into
characters if sources are single words (grapheme-to-phoneme conversion). A run is trained for at most `--steps` and
`--minutes`; an existing run in `--runs` is used again. The table shows the exact match of every beam size and rule, and
which are more than 0.5 points below greedy search.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import dragoman
from dragoman.evaluation import exact_match, format_table
from dragoman.search import Beam

RULES: dict[str, Any] = {"never": "never", "true": True, "false": False, "steps": "steps"}
TOLERANCE = 0.5  # points that a wide beam may be below greedy search


def read_pairs(path: Path) -> list[tuple[str, str]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        columns = [line.rstrip("\n").split("\t") for line in file]
    return [(row[0], row[1]) for row in columns if len(row) > 1 and row[0].strip() and row[1].strip()]


def train(folder: Path, train_file: Path, valid_file: Path, options: argparse.Namespace) -> None:
    pairs = read_pairs(train_file)
    kind = "word" if any(" " in source.strip() for source, _ in pairs[:1000]) else "character"
    # columns are named so that further ones (COGS has three) are left out
    settings = [f"text.tokenizer={options.kind or kind}", "data.source_column=0", "data.target_column=1"]
    settings += [f"training.validation_sentences={options.validate_sentences}", *options.set]
    command: list[object] = [sys.executable, "-m", "dragoman", "train", folder]
    command += ["--source", train_file, "--valid-source", valid_file, "--system", options.system]
    command += ["--device", options.device]
    for name in ("size", "steps", "minutes", "seed"):
        if (value := getattr(options, name)) is not None:
            command += [f"--{name}", value]
    command += [part for setting in settings for part in ("--set", setting)]
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def measure(name: str, folder: Path, valid_file: Path, options: argparse.Namespace) -> dict[str, Any]:
    run = dragoman.load(folder, device=None if options.device == "auto" else options.device)
    pairs = read_pairs(valid_file)[: options.sentences]
    sources, targets = [source for source, _ in pairs], [" ".join(target.split()) for _, target in pairs]

    def score_search(search: Beam) -> tuple[float, float]:
        start = time.perf_counter()
        translations = run.translate(sources, search=search, alignment=False)
        texts = [" ".join(one.text.split()) for one in translations]
        return exact_match(texts, targets).value, len(texts) / (time.perf_counter() - start)

    own = run.beam_config()
    own = replace(own, num_finished=None)
    greedy, speed = score_search(replace(own, size=1, early_stopping="never"))
    rows: list[dict[str, Any]] = [{"beam": "greedy", "rule": "", "exact match": greedy, "sentences/s": speed}]
    for size in options.beams:
        for rule in options.rules:
            score, speed = score_search(replace(own, size=size, early_stopping=RULES[rule]))
            rows.append({"beam": str(size), "rule": rule, "exact match": score, "sentences/s": speed})
    search = run.config.search
    return {
        "corpus": name,
        "pairs": len(pairs),
        "length limit": f"{search.length_ratio:g}·source + {search.length_offset}",
        "rows": rows,
        "below greedy": [
            f"beam {row['beam']}: {row['exact match'] - greedy:+.1f}"
            for row in rows
            if row["rule"] == "never" and row["exact match"] < greedy - TOLERANCE
        ],
    }


def read_options() -> argparse.Namespace:
    def corpus(text: str) -> tuple[str, Path, Path]:
        name, equals, files = text.partition("=")
        if not equals or files.count(",") != 1:
            raise argparse.ArgumentTypeError(f"NAME=TRAIN.tsv,DEV.tsv is expected, but got {text!r}")
        first, second = files.split(",")
        return name, Path(first), Path(second)

    def rules(text: str) -> list[str]:
        if wrong := [name for name in text.split(",") if name not in RULES]:
            raise argparse.ArgumentTypeError(f"{wrong[0]} is not one of {', '.join(RULES)}")
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=corpus, action="append", required=True, metavar="NAME=TRAIN,DEV")
    parser.add_argument("--system", default="bahdanau")
    parser.add_argument("--size", help="size of the system (default: by the amount of data)")
    parser.add_argument("--kind", help="tokenizer: word, character, bpe …")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, help="time limit of each training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the training")
    parser.add_argument("--validate-sentences", type=int, default=200)
    parser.add_argument("--beams", type=lambda text: [int(part) for part in text.split(",")], default=[2, 5, 10])
    parser.add_argument("--rules", type=rules, default=list(RULES), help=f"of {', '.join(RULES)}")
    parser.add_argument("--sentences", type=int, help="evaluate on the first N sentences (default: all)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="folder of the runs; existing ones are not trained again")
    parser.add_argument("--json", type=Path, help="a file for the results")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, train_file, valid_file in options.data:
            folder = (options.runs or Path(scratch)) / name
            start = time.perf_counter()
            if not folder.exists():
                train(folder, train_file, valid_file, options)
            trained = time.perf_counter() - start
            result = {"trained seconds": round(trained)} | measure(name, folder, valid_file, options)
            results.append(result)
            print(
                f"\n{name}: {options.system}, trained in {trained:.0f} s, {result['pairs']} pairs, at most "
                f"{result['length limit']} tokens"
            )
            shown = [
                {**row, "exact match": f"{row['exact match']:.1f}", "sentences/s": f"{row['sentences/s']:.0f}"}
                for row in result["rows"]
            ]
            print(format_table(shown))
            print("; ".join(result["below greedy"]) or f"no exact beam is more than {TOLERANCE} points below greedy")
    if options.json is not None:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        about = {"device": device, "torch": torch.__version__, "results": results}
        options.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
