"""Measure the quality and speed of int8 weights and of a shortlist on the CPU.

    python benchmarks/int8_quality.py RUN --source test.en --reference test.de --beam 5
    python benchmarks/int8_quality.py RUN --source test.en --reference test.de --lines 1000 --rounds 3 --json out.json

Float32 and int8 weights, and both with the run's shortlist if it has one (`dragoman shortlist RUN` learns it),
translate in turns, round after round, so that other load on the machine affects all of them. BLEU and chrF are
sacreBLEU's; differences of BLEU have the p-value of a paired bootstrap (Koehn 2004). `same` is the share of lines that
equal the translations with float32 weights and the whole vocabulary.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

import dragoman
from dragoman.run import Run
from dragoman.search.shortlist import SHORTLIST_FILE

RESAMPLES = 1000


def load_variants(folder: Path) -> dict[str, Run]:
    """Load the run in all variants; the first is the baseline."""
    loaded = {"float32": dragoman.load(folder, device="cpu")}
    loaded["int8"] = dragoman.load(folder, device="cpu", weights="int8")
    if (folder / SHORTLIST_FILE).exists():
        loaded |= {f"{name}, shortlist": run.with_shortlist() for name, run in list(loaded.items())}
    return loaded


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sources, references = (
        path.read_text(encoding="utf-8").splitlines()[: options.lines] for path in (options.source, options.reference)
    )
    runs = load_variants(options.run)
    texts: dict[str, list[str]] = {}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):  # the first round warms up, with a few lines
        lines = sources if number else sources[:20]
        for name, run in runs.items():
            start = time.perf_counter()
            loaded = run.translate(lines, options.beam, alignment=False)
            tokens = sum(len(row.tokens) for row in loaded)
            if number:
                rates[name].append(tokens / (time.perf_counter() - start))
                texts[name] = [row.text for row in loaded]
    return {name: scores(name, texts, references) | speed(name, rates) for name in runs}


def scores(name: str, texts: dict[str, list[str]], references: list[str]) -> dict[str, Any]:
    first = next(iter(texts))
    same = sum(row == other for row, other in zip(texts[name], texts[first])) / len(references)
    bleu, chrf = (measure.corpus_score(texts[name], [references]).score for measure in (BLEU(), CHRF()))
    result: dict[str, Any] = {"BLEU": round(bleu, 2), "chrF": round(chrf, 2), "same": round(same, 4), "p": None}
    if name != first:
        systems = [(first, texts[first]), (name, texts[name])]
        test = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", RESAMPLES)
        result["p"] = test()[1]["BLEU"][1].p_value
    return result


def speed(name: str, rates: dict[str, list[float]]) -> dict[str, float]:
    first = next(iter(rates))
    times = median(row / other for row, other in zip(rates[name], rates[first]))
    return {"tokens_per_second": round(median(rates[name]), 1), "times_as_fast": round(times, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--beam", type=int, help="beam size (default: that of the run)")
    parser.add_argument("--lines", type=int, help="lines of the test set (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = measure(options)
    print(f"{'':<22}{'BLEU':>8}{'p':>8}{'chrF':>8}{'same':>8}{'tokens/s':>12}{'times':>8}")
    for name, row in results.items():
        p = "" if row["p"] is None else f"{row['p']:.3f}"
        print(
            f"{name:<22}{row['BLEU']:>8.2f}{p:>8}{row['chrF']:>8.2f}{row['same']:>8.1%}"
            f"{row['tokens_per_second']:>12,.0f}{row['times_as_fast']:>8.2f}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
