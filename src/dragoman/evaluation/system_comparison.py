"""The results of a comparison of systems: scores with their deviation, significance tests, and what they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

from dragoman.evaluation.error_rates import exact_match
from dragoman.evaluation.paired_comparison import score_by_length
from dragoman.evaluation.significance import (
    NUM_RESAMPLES,
    BootstrapScores,
    bootstrap_scores,
    contrast_test,
    format_p_value,
    holm_correction,
)
from dragoman.evaluation.table import MeanStd
from dragoman.evaluation.translation_metrics import bleu, chrf

MIN_LONG_SENTENCE_WORDS = 13  # words of the source from which a sentence counts as long
LENGTH_BUCKET_EDGES = (4, 8, 12, 16, 20)  # words of the source
SIGNIFICANCE_LEVEL = 0.05  # significance level, after Holm's correction
MIN_LONG_SENTENCE_COUNT = 30  # fewer do not support a claim about long sentences
MIN_RATIO_TO_SHUFFLED_BLEU = 2.0  # a system that translates scores this much higher than its shuffled outputs


@dataclass(frozen=True)
class RunResult:
    """One system trained with one seed: its translations of the test set and what its training cost."""

    system: str
    seed: int
    year: int
    attention: bool  # whether the model attends to tokens, rather than to one state of fixed size
    parameters: int
    steps: int
    target_tokens: int  # of training
    flops: float  # of training, counted from the specification, without padding
    seconds: float  # of training, measured
    perplexity: float  # of the test references
    texts: list[str] = field(repr=False)

    @property
    def tokens_per_second(self) -> float:
        return self.target_tokens / max(1e-9, self.seconds)


class SystemResult:
    """One system over all its seeds."""

    def __init__(self, runs: Sequence[RunResult], sources: Sequence[str], references: Sequence[str]) -> None:
        self.runs, self.sources, self.references = list(runs), sources, references
        self.name, self.year, self.attention = runs[0].system, runs[0].year, runs[0].attention
        self.long = [number for number, source in enumerate(sources) if len(source.split()) >= MIN_LONG_SENTENCE_WORDS]

    @cached_property
    def bleu(self) -> list[float]:
        return [bleu(run.texts, self.references).value for run in self.runs]

    @cached_property
    def exact(self) -> list[float]:
        return [exact_match(run.texts, self.references).value for run in self.runs]

    @cached_property
    def learned(self) -> list[bool]:
        """For each seed, whether its translations depend on their sources."""
        return [
            score >= 1 and score >= MIN_RATIO_TO_SHUFFLED_BLEU * shuffled_bleu(run.texts, self.references)
            for run, score in zip(self.runs, self.bleu)
        ]

    def long_texts(self) -> tuple[list[list[str]], list[str]]:
        """The translations of long sentences, a list for each seed, and their references."""
        return [[run.texts[i] for i in self.long] for run in self.runs], [self.references[i] for i in self.long]

    def quality(self) -> dict[str, object]:
        """A row of the table: how good its translations are."""
        texts, references = self.long_texts()
        long = MeanStd.of([bleu(one, references).value for one in texts]) if self.long else None
        return {
            "system": self.name,
            "year": str(self.year),
            "attention": "yes" if self.attention else "no",
            "BLEU": MeanStd.of(self.bleu),
            f"BLEU, {MIN_LONG_SENTENCE_WORDS}+ words": long,
            "chrF": MeanStd.of([chrf(run.texts, self.references).value for run in self.runs]),
            "exact %": MeanStd.of(self.exact),
            "perplexity": MeanStd.of([run.perplexity for run in self.runs]),
        }

    def cost(self) -> dict[str, object]:
        """A row of the table: what its training cost, as a mean over seeds."""
        return {
            "system": self.name,
            "parameters": self.runs[0].parameters,
            "steps": round(self._mean(lambda run: run.steps)),
            "target tokens": round(self._mean(lambda run: run.target_tokens)),
            "training FLOPs": float(self._mean(lambda run: run.flops)),
            "tokens/s": round(self._mean(lambda run: run.tokens_per_second)),
            "seconds": float(round(self._mean(lambda run: run.seconds), 1)),
        }

    def exact_by_length(self) -> list[tuple[str, float]]:
        """Exact match by source length, as a mean over seeds."""
        seeds = [
            score_by_length(self.sources, run.texts, self.references, edges=LENGTH_BUCKET_EDGES) for run in self.runs
        ]
        return [(bands[0].words, sum(band.exact_match for band in bands) / len(bands)) for bands in zip(*seeds)]

    def _mean(self, value: Callable[[RunResult], float]) -> float:
        return sum(map(value, self.runs)) / len(self.runs)


@dataclass(frozen=True)
class TestedDifference:
    """A tested difference between two systems or groups of systems; the better one is named first."""

    better: str
    worse: str
    metric: str
    difference: float
    p_value: float
    adjusted_p_value: float  # corrected for the number of tests

    @property
    def significant(self) -> bool:
        return self.adjusted_p_value < SIGNIFICANCE_LEVEL

    def row(self) -> dict[str, object]:
        return {
            "better": self.better,
            "worse": self.worse,
            "metric": self.metric,
            "difference": f"{self.difference:+.2f}",
            "p": f"{self.p_value:.4f}",
            "p, Holm": f"{self.adjusted_p_value:.4f}",
            "verdict": "significant" if self.significant else "no significant difference",
        }


class SystemComparison:
    """All systems of a comparison, tested against each other.

    Args:
        results: one result for each system and seed, in the order of the table.
        sources, references: the test set.
        budget: what each system was given, in words.
        machine_dependent: whether the budget was time, so that results depend on the machine and its load.
        samples: number of bootstrap resamples.
    """

    def __init__(
        self,
        results: Sequence[RunResult],
        sources: Sequence[str],
        references: Sequence[str],
        budget: str,
        machine_dependent: bool = False,
        samples: int = NUM_RESAMPLES,
    ) -> None:
        names = list(dict.fromkeys(one.system for one in results))
        self.systems = [
            SystemResult([one for one in results if one.system == name], sources, references) for name in names
        ]
        self.sentences, self.budget, self.machine_dependent = len(sources), budget, machine_dependent
        self.samples = samples
        self.seeds = [run.seed for run in self.systems[0].runs]
        self.references = references

    @cached_property
    def learned(self) -> list[SystemResult]:
        """The systems that have learned to translate with at least one seed."""
        return [one for one in self.systems if any(one.learned)]

    @cached_property
    def differences(self) -> list[TestedDifference]:
        """Every pair of systems that have learned, and attention against no attention on long sentences."""
        resampled = {one.name: self._resample([run.texts for run in one.runs], self.references) for one in self.learned}
        tests: list[tuple[str, str, str, float, float]] = []
        for first, second in combinations(self.learned, 2):
            value, p = contrast_test([resampled[first.name], resampled[second.name]], [1.0, -1.0])
            tests.append((first.name, second.name, "BLEU", value, p))
        if attention := self._attention():
            tests.append(("attention", "no attention", f"BLEU, {MIN_LONG_SENTENCE_WORDS}+ words", *attention))
        adjusted = holm_correction([test[-1] for test in tests])
        return [
            TestedDifference(*((first, second) if value >= 0 else (second, first)), measure, abs(value), p, corrected)
            for (first, second, measure, value, p), corrected in zip(tests, adjusted)
        ]

    def _attention(self) -> tuple[float, float] | None:
        """The mean of the systems with attention minus that of the others, on long sentences."""
        attending = [one.attention for one in self.learned]
        if len(set(attending)) < 2 or len(self.learned[0].long) < MIN_LONG_SENTENCE_COUNT:
            return None
        counts = {kind: attending.count(kind) for kind in (True, False)}
        weights = [1 / counts[True] if yes else -1 / counts[False] for yes in attending]
        return contrast_test([self._resample(*one.long_texts()) for one in self.learned], weights)

    def _resample(self, outputs: Sequence[Sequence[str]], references: Sequence[str]) -> BootstrapScores:
        return bootstrap_scores(outputs, references, metric="bleu", samples=self.samples)

    @property
    def method(self) -> str:
        """How differences were tested, in one sentence."""
        seeds = len(self.seeds)
        test = (
            f"paired bootstrap resampling ({self.samples:,} resamples)"
            if seeds == 1
            else f"t-test with the variance between {seeds} seeds and over {self.samples:,} bootstrap resamples"
        )
        tests = f"{len(self.differences)} comparison{'' if len(self.differences) == 1 else 's'}"
        return f"{test}, n = {self.sentences:,} sentences, two-sided, Holm correction for {tests}, level {SIGNIFICANCE_LEVEL:g}"

    @property
    def signature(self) -> str:
        """sacreBLEU's signature."""
        return bleu(self.references, self.references).signature

    def findings(self) -> list[str]:
        """What the comparison shows, and what it does not show."""
        found = []
        if self.machine_dependent:
            found.append(f"The budget is time ({self.budget}): results depend on this machine and on its load.")
        found += _not_learned(self.systems)
        if len(self.learned) > 1:
            found.append(self._against_best())
        if any(one.metric != "BLEU" for one in self.differences):
            found.append(self._about_attention())
        elif len({one.attention for one in self.systems}) == 2 and len({one.attention for one in self.learned}) == 1:
            found.append("Attention is not compared: only systems of one kind have learned to translate.")
        if self.differences and len(self.seeds) == 1:
            found.append(
                "One seed: the tests compare these trained models; another seed may change the order. To compare "
                "systems, train several seeds (--seeds 1,2,3)."
            )
        return found

    def _against_best(self) -> str:
        best = max(self.learned, key=lambda one: MeanStd.of(one.bleu).mean)
        pairs = [one for one in self.differences if one.metric == "BLEU" and best.name in (one.better, one.worse)]
        better = [
            f"{one.worse} (+{one.difference:.2f}, {format_p_value(one.adjusted_p_value)})"
            for one in pairs
            if one.significant
        ]
        others = [
            f"{one.worse if one.better == best.name else one.better} ({format_p_value(one.adjusted_p_value)})"
            for one in pairs
            if not one.significant
        ]
        told = [f"Highest BLEU: {best.name}, {MeanStd.of(best.bleu).formatted}."]
        told += [f"Significantly better than {', '.join(better)}."] if better else []
        told += [f"No significant difference from {', '.join(others)}."] if others else []
        return " ".join(told)

    def _about_attention(self) -> str:
        (one,) = (one for one in self.differences if one.metric != "BLEU")
        where = f"on the {len(self.learned[0].long):,} sentences of {MIN_LONG_SENTENCE_WORDS} or more words"
        among = "in the mean over the systems that have learned"
        p = format_p_value(one.adjusted_p_value)
        if not one.significant:
            return f"Attention: no significant difference {where}, {among} ({p})."
        return (
            f"Attention: systems with {one.better} score {one.difference:.2f} BLEU higher than those with {one.worse} "
            f"{where}, {among} ({p})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the translations, for JSON."""
        return {
            "budget": self.budget,
            "machine_dependent": self.machine_dependent,
            "seeds": self.seeds,
            "sentences": self.sentences,
            "signature": self.signature,
            "method": self.method,
            "systems": [
                {name: _plain(value) for name, value in (one.quality() | one.cost()).items()}
                | {"learned": one.learned, "runs": [_without_texts(run) for run in one.runs]}
                for one in self.systems
            ],
            "differences": [asdict(one) | {"significant": one.significant} for one in self.differences],
            "findings": self.findings(),
        }


def shuffled_bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """BLEU against the references of other sentences: what outputs score that do not depend on their sources."""
    shifts = sorted({max(1, len(texts) * part // 4) for part in (1, 2, 3)}) if len(texts) > 1 else [0]
    scores = [bleu([*texts[shift:], *texts[:shift]], references).value for shift in shifts]
    return sum(scores) / len(scores)


def _not_learned(systems: Sequence[SystemResult]) -> list[str]:
    told = []
    lost = [one for one in systems if not any(one.learned)]
    if lost:
        scores = ", ".join(f"{one.name} (BLEU {MeanStd.of(one.bleu).formatted})" for one in lost)
        they, have, its = ("It is", "has", "its") if len(lost) == 1 else ("They are", "have", "their")
        told.append(
            f"Not learned: {scores} {have} not learned to translate: {its} outputs score hardly more than against the "
            f"references of other sentences. {they} left out of the tests; a larger budget is needed."
        )
    for one in systems:
        failed = [run.seed for run, learned in zip(one.runs, one.learned) if not learned]
        if failed and one not in lost:
            seeds = ", ".join(map(str, failed))
            told.append(f"{one.name} has not learned to translate with seed {seeds}; a larger budget is needed.")
    return told


def _without_texts(run: RunResult) -> dict[str, Any]:
    values = asdict(run) | {"tokens_per_second": run.tokens_per_second}
    del values["texts"]
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: object) -> object:
    if isinstance(value, MeanStd):
        return {"mean": _plain(value.mean), "std": _plain(value.std)}
    return None if isinstance(value, float) and not math.isfinite(value) else value
