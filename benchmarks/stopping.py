"""Compare the stopping rules of beam search: speed, decode steps and quality.

    PYTHONPATH=src python benchmarks/stopping.py runs/en-de                          # sentences of the phrasebook
    PYTHONPATH=src python benchmarks/stopping.py runs/en-de runs/de-en --source test.en --target test.de --beam 5

The rules alternate, round by round, so that other load on the machine affects all of them. Ratios are medians over the
rounds of sentences per second relative to `early_stopping=True`. Steps are the decode steps in which a sentence is in
the batch.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import dragoman
from dragoman.data import phrasebook
from dragoman.evaluation import bleu, exact_match, format_table
from dragoman.run import Run
from dragoman.search.engine import SearchEngine
from dragoman.search.search_state import EMPTY_SLOT

RULES: dict[str, Any] = {"true": True, "false": False, "never": "never", "steps": "steps"}


def read_lines(path: Path) -> list[str]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


@contextmanager
def count_steps() -> Iterator[list[int]]:
    """Count the decode steps of all sources."""
    count, step = [0], SearchEngine._step

    def counting(self: SearchEngine, state: Any, progress: Any) -> Any:
        count[0] += sum(number != EMPTY_SLOT for number in progress.sources)
        return step(self, state, progress)

    SearchEngine._step = counting  # type: ignore[method-assign]
    try:
        yield count
    finally:
        SearchEngine._step = step  # type: ignore[method-assign]


def measure(run: Run, sources: list[str], targets: list[str], options: argparse.Namespace) -> list[dict[str, object]]:
    own = replace(run.beam_config(options.beam), num_finished=None, n_best=options.best)
    searches = {name: replace(own, early_stopping=rule) for name, rule in RULES.items()}
    rates: dict[str, list[float]] = {name: [] for name in RULES}
    steps: dict[str, float] = {}
    texts: dict[str, list[str]] = {}
    for number in range(options.rounds + 1):  # the first round warms up
        for name, search in searches.items():
            with count_steps() as count:
                start = time.perf_counter()
                translations = run.translate(sources, search=search, alignment=False)
                if number:
                    rates[name].append(len(sources) / (time.perf_counter() - start))
            steps[name], texts[name] = count[0] / len(sources), [translation.text for translation in translations]
    rows: list[dict[str, object]] = []
    for name in RULES:
        row: dict[str, object] = {"early_stopping": name, "sentences/s": f"{median(rates[name]):.1f}"}
        row["ratio"] = f"{median(own / other for own, other in zip(rates[name], rates['true'])):.2f}"
        row["steps"] = f"{steps[name]:.1f}"
        if targets:
            row["BLEU"] = f"{bleu(texts[name], targets).value:.2f}"
            row["exact match"] = f"{exact_match(texts[name], targets).value:.1f}"
        row["as steps"] = f"{sum(a == b for a, b in zip(texts[name], texts['steps'])) / len(sources):.1%}"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--source", type=Path, help="file of sources (default: sentences of the phrasebook)")
    parser.add_argument("--target", type=Path, help="file of references")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--best", type=int, default=1, help="size of the n-best list")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.source is not None:
        sources = read_lines(options.source)[: options.sentences]
        targets = read_lines(options.target)[: options.sentences] if options.target else []
    else:
        pairs = list(itertools.islice(phrasebook.sentences(seed=12345), options.sentences))
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for folder in options.runs:
        run = dragoman.load(folder, device=options.device)
        length = run.length_limit
        print(
            f"{folder} on {run.device}, {torch.get_num_threads()} threads, beam {options.beam}, {len(sources)} "
            f"sentences, at most {length.ratio:g}·source + {length.offset} tokens"
        )
        print(format_table(measure(run, sources, targets, options)))


if __name__ == "__main__":
    main()
