"""Likelihood alone against likelihood followed by expected reward (GNMT + RL), with equal total time.

    python benchmarks/reward.py --data FOLDER [--pair en-de --seeds 1,2,3 --minutes 10 --reward-minutes 5
        --system transformer --objective reward --runs RUNS] [-- --set NAME=VALUE …]

FOLDER holds train.en, train.de, val.en …, plain or gzipped, as for `benchmarks/multi30k.py`. For every seed, one run is
trained by likelihood for `--minutes` + `--reward-minutes`, another for `--minutes` only, and a third starts from that
and maximizes the reward for `--reward-minutes`. All are then scored on the test sets with a beam of 5, by BLEU and by
the reward, and the validation rewards of the third are printed. Settings after `--` are passed on to the reward run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import dragoman
from dragoman import evaluation
from dragoman.objectives.reward_objective import REWARD_METRICS
from multi30k import lines, train


def scores(run: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return BLEU and mean reward of the best checkpoint on each test set."""
    source, target = options.pair.split("-")
    loaded, results = dragoman.load(run), {}
    for test in options.tests.split(","):
        references = lines(options.data, test, target)
        translations = loaded.translate(lines(options.data, test, source), beam_size=5, alignment=False)
        texts = [translation.text for translation in translations]
        results[f"{test} BLEU"] = evaluation.bleu(texts, references).value
        results[f"{test} {options.reward}"] = float(REWARD_METRICS[options.reward].paired(texts, references).mean())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--minutes", type=float, default=10.0, help="of likelihood before the reward")
    parser.add_argument("--reward-minutes", type=float, default=5.0)
    parser.add_argument("--system", default="transformer")
    parser.add_argument("--objective", default="reward", help="reward or minimum-risk")
    parser.add_argument("--reward", default="gleu", choices=list(REWARD_METRICS))
    parser.add_argument("--runs", type=Path, default=None, help="folder of the runs (default: temporary)")
    parser.add_argument("--tests", default="val,test_2016_flickr,test_2017_flickr")
    options, more = parser.parse_known_args()
    source, target = options.pair.split("-")
    runs = options.runs or Path(tempfile.mkdtemp())
    table: dict[str, list[dict[str, float]]] = {}
    for seed in map(int, options.seeds.split(",")):
        names = ("likelihood", "likelihood-first", options.objective)
        alone, first, rewarded = (runs / f"{name}-{seed}" for name in names)
        tuning = ["--start-from", str(first), "--objective", options.objective]
        tuning += ["--set", f"objective.settings.reward={options.reward}", *(m for m in more if m != "--")]
        for run, minutes, extra in (
            (alone, options.minutes + options.reward_minutes, []),
            (first, options.minutes, []),
            (rewarded, options.reward_minutes, tuning),
        ):
            arguments = ["--minutes", str(minutes), *extra]
            train(run, options.data, (source, target), seed, options.system, arguments)
            name = run.name.rsplit("-", 1)[0]
            table.setdefault(name, []).append(scores(run, options))
            rounded = {test: round(score, 2) for test, score in table[name][-1].items()}
            print(f"{name}, seed {seed}, {minutes:g} minutes: {rounded}", flush=True)
        records = [json.loads(line) for line in (rewarded / "metrics.jsonl").read_text().splitlines()]
        curve = [(r["step"], round(r["reward"], 2), round(r["bleu"], 2)) for r in records if r["kind"] == "valid"]
        print(f"validations of {rewarded.name} (step, reward, BLEU): {curve}", flush=True)
    for name, results in table.items():
        means = {test: statistics.mean(result[test] for result in results) for test in results[0]}
        print(f"{name}: mean of {len(results)} seeds { ({test: round(mean, 2) for test, mean in means.items()}) }")


if __name__ == "__main__":
    main()
