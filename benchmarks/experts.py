"""Compare mixtures of experts with dense models at equal FLOPs per token.

    python benchmarks/experts.py --data FOLDER --output RUNS [--pair en-de --system moe-2017 --size tiny --experts 8,32
        --seeds 1,2,3 --target-tokens 20M] [--set NAME=VALUE …]

FOLDER holds train.en, train.de, val.en …, plain or gzipped; without it, the phrasebook is used. The dense models are
those of Shazeer et al. (2017, §C.1): all experts are always used (experts = experts per token), or there is one, as
wide as the selected ones together, where this costs the same. All are trained by `dragoman compare` on the same
batches; arguments that are not listed above are passed on to it.

Prints parameters, counted FLOPs per target token, perplexity of the validation set at the best checkpoint, and the
balance of the experts: the coefficients of variation of load and importance in the least balanced layer, 0 if all
experts get the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from dragoman.evaluation import MeanStd, format_table
from dragoman.models import count_parameters, training_flops
from dragoman.run import read_spec
from dragoman.run_files import read_metrics
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training.comparison_training import run_folder

TOKENS = 25  # of the source and the target for which FLOPs are counted
SAME_COST = 0.02  # largest relative difference of FLOPs between models that are compared


def label(system: str, **settings: int) -> str:
    """Return the label of a system with settings of its own, as `dragoman compare` reads it."""
    return "@".join([system, *(f"{name}={value}" for name, value in settings.items())])


def flops_per_token(system: str, size: str, **settings: int) -> float:
    """Count the training FLOPs of a model per target token."""
    spec = SYSTEMS[system].spec(VocabularySizes(8000, 8000, joint=True), size, **settings)
    return training_flops(spec, TOKENS, TOKENS) / TOKENS


def labels(system: str, size: str, experts: list[int]) -> list[str]:
    """Return the dense models and the mixtures of experts to compare."""
    defaults = {name: parameter.default for name, parameter in SYSTEMS[system].settings().items()}
    settings = defaults | dict(SYSTEMS[system].sizes[size])
    per_token, inner = settings["experts_per_token"], settings["ffn_dim"] or 4 * settings["model_dim"]
    wide = {"experts": 1, "experts_per_token": 1, "ffn_dim": per_token * inner}
    cost = flops_per_token(system, size, experts=per_token)
    dense = [{"experts": per_token}]
    if abs(flops_per_token(system, size, **wide) / cost - 1) < SAME_COST:
        dense.insert(0, wide)
    return [label(system, **one) for one in dense] + [label(system, experts=count) for count in experts]


def compare(names: list[str], options: argparse.Namespace, more: list[str]) -> None:
    """Train all models with `dragoman compare`."""
    command = [sys.executable, "-m", "dragoman", "compare", str(options.output), "--systems", ",".join(names)]
    command += ["--size", options.size, "--seeds", options.seeds]
    if options.target_tokens:
        command += ["--target-tokens", options.target_tokens]
    if options.data is not None:
        languages = options.pair.split("-")
        for option, name in (("", "train"), ("valid-", options.valid), ("test-", options.test)):
            for side, language in zip(("source", "target"), languages):
                plain = options.data / f"{name}.{language}"
                command += [f"--{option}{side}", str(plain if plain.exists() else f"{plain}.gz")]
    subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)


def result(folder: Path, name: str, seeds: list[int], size: str) -> dict[str, Any]:
    """Return a row of the table: means over seeds of what the best validation of a model has measured."""
    runs = [run_folder(folder, name, seed) for seed in seeds]
    valid = [[record for record in read_metrics(run) if record["kind"] == "valid"] for run in runs]
    best = [min(records, key=lambda record: record["loss"]) for records in valid]
    system, *settings = name.split("@")
    chosen = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
    return {
        "model": name,
        "parameters": count_parameters(read_spec(runs[0])),
        "FLOPs per token": flops_per_token(system, size, **chosen),
        "validation perplexity": MeanStd.of([record["perplexity"] for record in best]),
        "load CV": round(fmean(record["expert_load_cv"] for record in best), 3),
        "importance CV": round(fmean(record["expert_importance_cv"] for record in best), 3),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the comparison")
    parser.add_argument("--data", type=Path, default=None, help="folder of the corpus (default: the phrasebook)")
    parser.add_argument("--pair", default="en-de", help="extensions of source and target files, such as en-de")
    parser.add_argument("--valid", default="val", help="name of the validation files")
    parser.add_argument("--test", default="test_2016_flickr", help="name of the test files")
    parser.add_argument("--system", default="moe-2017", help="moe-2017, moe or transformer-dmca-moe")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--experts", default="8,32", help="numbers of experts, comma-separated")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--target-tokens", default=None, help="budget of each model, such as 20M")
    options, more = parser.parse_known_args(arguments)
    names = labels(options.system, options.size, [int(count) for count in options.experts.split(",")])
    compare(names, options, more)
    rows = [
        result(options.output, name, [int(seed) for seed in options.seeds.split(",")], options.size) for name in names
    ]
    (options.output / "experts.json").write_text(json.dumps(rows, indent=1, default=str) + "\n")
    print(format_table(rows))


if __name__ == "__main__":
    main()
