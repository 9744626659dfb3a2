"""Results of a comparison of systems: scores over seeds, significance tests and findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any

from dragoman.evaluation.significance import (
    NUM_RESAMPLES,
    BootstrapScores,
    bootstrap_scores,
    contrast_test,
    format_p_value,
    holm_correction,
)
from dragoman.evaluation.table import MeanStd
from dragoman.evaluation.text_metrics import bleu, score_by_length, text_metric

MIN_LONG_SENTENCE_WORDS = 13  # of the source
LENGTH_BUCKET_EDGES = (4, 8, 12, 16, 20)  # largest number of source words of each group, but for the last
SIGNIFICANCE_LEVEL = 0.05  # after Holm's correction
MIN_LONG_SENTENCE_COUNT = 30  # fewer do not support a claim about long sentences
MIN_RATIO_TO_SHUFFLED_BLEU = 2.0  # of a system that has learned to translate


@dataclass(frozen=True)
class RunResult:
    """One system trained with one seed: its translations of the test set and the cost of its training."""

    system: str
    seed: int
    year: int  # in which the system was published
    attention: bool  # whether the model attends to tokens, rather than to one state of fixed size
    parameters: int
    steps: int
    target_tokens: int  # of training
    flops: float  # of training, counted from the spec, without padding
    seconds: float  # of training, measured
    perplexity: float | None  # of the test references; None for an ensemble
    texts: list[str] = field(repr=False)
    device_flops: float | None = None  # training time times the speed of a large matrix product on the same device

    @property
    def tokens_per_second(self) -> float:
        """Target tokens per second of training."""
        return self.target_tokens / max(1e-9, self.seconds)

    def to_dict(self) -> dict[str, object]:
        """Return everything but the translations, as JSON values."""
        values = _json_values(asdict(self) | {"tokens_per_second": self.tokens_per_second})
        del values["texts"]
        return values


class SystemResult:
    """The runs of one system, one per seed."""

    def __init__(
        self, runs: Sequence[RunResult], sources: Sequence[str], references: Sequence[str], metrics: Sequence[str]
    ) -> None:
        """Collect the runs of a system.

        Args:
            runs: one for each seed.
            sources, references: the test set.
            metrics: names of metrics in the table; the first one is that of the significance tests.
        """
        self.runs, self.sources, self.references = list(runs), sources, references
        self.metrics = {name: text_metric(name) for name in metrics}
        self.name, self.year, self.attention = runs[0].system, runs[0].year, runs[0].attention
        # sentences whose source has at least MIN_LONG_SENTENCE_WORDS words
        self.long_indices = [i for i, source in enumerate(sources) if len(source.split()) >= MIN_LONG_SENTENCE_WORDS]

    @cached_property
    def bleu(self) -> list[float]:
        """BLEU on the test set, for each seed; of characters if no reference has four words."""
        return [bleu(run.texts, self.references, tokenize="auto").value for run in self.runs]

    @cached_property
    def scores(self) -> list[float]:
        """Score of each seed on the test set, by the first metric, which is that of the significance tests."""
        return self._score(next(iter(self.metrics)))

    def _score(self, metric: str, indices: Sequence[int] | None = None) -> list[float]:
        """Compute a metric on the test set, or on the sentences with these indices, for each seed."""
        chosen = range(len(self.references)) if indices is None else indices
        references, sources = [self.references[i] for i in chosen], [self.sources[i] for i in chosen]
        score = self.metrics[metric]
        return [score([run.texts[i] for i in chosen], references, sources).value for run in self.runs]

    @cached_property
    def learned(self) -> list[bool]:
        """For each seed, whether the system has learned to translate.

        Its BLEU must be at least 1, and MIN_RATIO_TO_SHUFFLED_BLEU times that against the references of other
        sentences, which translations that do not depend on their sources reach, too.
        """
        return [
            score >= 1 and score >= MIN_RATIO_TO_SHUFFLED_BLEU * shuffled_bleu(run.texts, self.references)
            for run, score in zip(self.runs, self.bleu)
        ]

    def long_texts(self) -> tuple[list[list[str]], list[str]]:
        """Return the translations of long sentences, a list for each seed, and the references of these sentences.

        A sentence is long if its source has at least MIN_LONG_SENTENCE_WORDS words.
        """
        texts = [[run.texts[i] for i in self.long_indices] for run in self.runs]
        return texts, [self.references[i] for i in self.long_indices]

    def quality(self) -> dict[str, object]:
        """Return a row of the table of quality: by column name, the mean and standard deviation over seeds.

        The first metric has another column for long sentences.
        """
        first = next(iter(self.metrics))
        columns: dict[str, object] = {}
        for name in self.metrics:
            columns[metric_label(name)] = MeanStd.of(self.scores if name == first else self._score(name))
            if name == first:
                long_column = f"{metric_label(name)}, {MIN_LONG_SENTENCE_WORDS}+ words"
                long_scores = self._score(name, self.long_indices) if self.long_indices else None
                columns[long_column] = MeanStd.of(long_scores) if long_scores else None
        perplexities = [run.perplexity for run in self.runs if run.perplexity is not None]
        return {
            "system": self.name,
            "year": str(self.year),
            "attention": "yes" if self.attention else "no",
            **columns,
            "perplexity": MeanStd.of(perplexities) if perplexities else None,
        }

    def cost(self) -> dict[str, object]:
        """Return a row of the table of training costs: means over seeds.

        "training FLOPs" counts the operations of the model. "device FLOPs" is what the device could have done in the
        time of the training: seconds times the speed of a large matrix product, as papers estimate the cost.
        """
        device_flops = [run.device_flops for run in self.runs if run.device_flops is not None]
        return {
            "system": self.name,
            "parameters": self.runs[0].parameters,
            "steps": round(fmean(run.steps for run in self.runs)),
            "target tokens": round(fmean(run.target_tokens for run in self.runs)),
            "training FLOPs": fmean(run.flops for run in self.runs),
            "device FLOPs": fmean(device_flops) if device_flops else None,
            "tokens/s": round(fmean(run.tokens_per_second for run in self.runs)),
            "seconds": round(fmean(run.seconds for run in self.runs), 1),
        }

    def exact_match_by_length(self) -> list[tuple[str, float]]:
        """Return pairs of a range of source lengths in words ("5 to 8") and the exact match of these sentences in %.

        Exact match is the mean over seeds.
        """
        buckets_by_seed = [
            score_by_length(self.sources, run.texts, self.references, edges=LENGTH_BUCKET_EDGES) for run in self.runs
        ]
        return [
            (buckets[0].words, fmean(bucket.exact_match for bucket in buckets)) for buckets in zip(*buckets_by_seed)
        ]


@dataclass(frozen=True)
class TestedDifference:
    """A tested difference between two systems or groups of systems."""

    better: str
    worse: str
    metric: str
    difference: float
    p_value: float
    adjusted_p_value: float  # corrected for the number of tests

    @property
    def significant(self) -> bool:
        """Whether the difference is significant after the correction for the number of tests."""
        return self.adjusted_p_value < SIGNIFICANCE_LEVEL

    def row(self) -> dict[str, object]:
        """Return a row of the table of differences."""
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
        budget: the training budget of each system, as text.
        machine_dependent: whether the budget is time, so that results depend on the machine and its load.
        metrics: names of the metrics in the table; differences are tested by the first one.
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
        metrics: Sequence[str] = ("bleu", "chrf", "exact-match"),
    ) -> None:
        """Group the results, one for each system and seed, by system.

        `sources` and `references` are the test set. `budget` describes the training budget; `machine_dependent`: it is
        time, so that results depend on the machine. `samples` is the number of bootstrap resamples of the significance
        tests, which use the first of the `metrics`.
        """
        names = dict.fromkeys(run.system for run in results)
        self.metric, self.metric_name = metrics[0], metric_label(metrics[0])  # key such as "bleu", title such as "BLEU"
        self.systems = [
            SystemResult([run for run in results if run.system == name], sources, references, metrics) for name in names
        ]
        self.sentences, self.budget, self.machine_dependent = len(sources), budget, machine_dependent
        self.samples, self.references = samples, references
        self.seeds = [run.seed for run in self.systems[0].runs]  # the same for all systems but ensembles

    @cached_property
    def learned(self) -> list[SystemResult]:
        """The systems that have learned to translate with at least one seed, without ensembles of seeds."""
        # an ensemble has one run in place of one for each seed
        return [system for system in self.systems if any(system.learned) and len(system.runs) == len(self.seeds)]

    @cached_property
    def differences(self) -> list[TestedDifference]:
        """Significance tests of all pairs of systems that have learned to translate, by the first metric.

        If there are systems with and without attention, both groups are also compared on long sentences.
        p-values are corrected for their number (Holm).
        """
        bootstrap = {
            system.name: self._bootstrap([run.texts for run in system.runs], self.references) for system in self.learned
        }
        tests: list[tuple[str, str, str, float, float]] = []  # names of two systems, metric, difference, p-value
        for first, second in combinations(self.learned, 2):
            difference, p = contrast_test([bootstrap[first.name], bootstrap[second.name]], weights=[1.0, -1.0])
            tests.append((first.name, second.name, self.metric_name, difference, p))
        if attention_contrast := self._attention_contrast():
            long_metric = f"{self.metric_name}, {MIN_LONG_SENTENCE_WORDS}+ words"
            tests.append(("attention", "no attention", long_metric, *attention_contrast))
        adjusted = holm_correction([p for *_, p in tests])
        differences = []
        for (first_name, second_name, metric, difference, p), adjusted_p in zip(tests, adjusted):
            first_is_better = (difference >= 0) == self.higher_is_better  # difference: first − second
            differences.append(
                TestedDifference(
                    better=first_name if first_is_better else second_name,
                    worse=second_name if first_is_better else first_name,
                    metric=metric,
                    difference=abs(difference),
                    p_value=p,
                    adjusted_p_value=adjusted_p,
                )
            )
        return differences

    def _attention_contrast(self) -> tuple[float, float] | None:
        """Test the mean score of the systems with attention minus that of the others on long sentences.

        Return the difference and its p-value; None if all systems are of one kind, or fewer than
        MIN_LONG_SENTENCE_COUNT sentences are long.
        """
        attention = [system.attention for system in self.learned]
        if len(set(attention)) < 2 or len(self.learned[0].long_indices) < MIN_LONG_SENTENCE_COUNT:
            return None
        # the weights of each group add up to 1 or −1: a difference of two means
        weights = [1 / attention.count(True) if attends else -1 / attention.count(False) for attends in attention]
        return contrast_test([self._bootstrap(*system.long_texts()) for system in self.learned], weights)

    def _bootstrap(self, outputs: Sequence[Sequence[str]], references: Sequence[str]) -> BootstrapScores:
        """Return scores of a system on resamples of the test set; `outputs` are its translations by each seed."""
        return bootstrap_scores(outputs, references, metric=self.metric, samples=self.samples)

    @property
    def method(self) -> str:
        """A description of the significance test: its kind, the number of sentences, and the correction."""
        seeds, count = len(self.seeds), len(self.differences)
        test = (
            f"paired bootstrap resampling ({self.samples:,} resamples)"
            if seeds == 1
            else f"t-test with the variance between {seeds} seeds and over {self.samples:,} bootstrap resamples"
        )
        return (
            f"{test}, n = {self.sentences:,} sentences, two-sided, Holm correction for {count} "
            f"comparison{'' if count == 1 else 's'}, level {SIGNIFICANCE_LEVEL:g}"
        )

    @property
    def signature(self) -> str:
        """The signature of the first metric."""
        # it does not depend on the hypotheses, for which the references stand in
        return text_metric(self.metric)(self.references, self.references).signature

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the first metric is better."""
        return text_metric(self.metric).better == "higher"

    def findings(self) -> list[str]:
        """Sentences about what the comparison shows and does not show: best system, attention, and caveats."""
        findings = []
        if self.machine_dependent:
            findings.append(f"The budget is time ({self.budget}): results depend on this machine and on its load.")
        findings += self._about_not_learned()
        if len(self.learned) > 1:  # systems that have learned to translate
            findings.append(self._about_best())
        kinds = {system.attention for system in self.systems}  # True: with attention, False: without
        learned_kinds = {system.attention for system in self.learned}
        # only the test of attention has another metric than the others: that on long sentences
        if any(test.metric != self.metric_name for test in self.differences):
            findings.append(self._about_attention())
        elif len(kinds) == 2 and len(learned_kinds) == 1:
            findings.append("Attention is not compared: only systems of one kind have learned to translate.")
        if self.differences and len(self.seeds) == 1:
            findings.append(
                "One seed: the tests compare these trained models; another seed may change the order. To compare "
                "systems, train several seeds (--seeds 1,2,3)."
            )
        return findings

    def _about_not_learned(self) -> list[str]:
        """Sentences about systems and seeds that have not learned to translate."""
        findings = []
        failed = [system for system in self.systems if not any(system.learned)]
        if failed:
            scores = ", ".join(f"{system.name} (BLEU {MeanStd.of(system.bleu).formatted})" for system in failed)
            have, their, they = ("has", "its", "It is") if len(failed) == 1 else ("have", "their", "They are")
            findings.append(
                f"Not learned: {scores} {have} not learned to translate: {their} outputs score hardly more than "
                f"against the references of other sentences. {they} left out of the tests; a larger budget is needed."
            )
        for system in self.systems:
            seeds = [str(run.seed) for run, learned in zip(system.runs, system.learned) if not learned]
            if seeds and system not in failed:
                findings.append(
                    f"{system.name} has not learned to translate with seed {', '.join(seeds)}; a larger budget is "
                    "needed."
                )
        return findings

    def _about_best(self) -> str:
        """Name the best system, those it beats, and those that are not significantly different."""
        sign = 1 if self.higher_is_better else -1  # negative differences in error rates are improvements
        best = max(self.learned, key=lambda system: sign * fmean(system.scores))
        worse, similar = [], []  # names of systems, with difference and p-value
        for test in self.differences:
            if test.metric == self.metric_name and best.name in (test.better, test.worse):
                p = format_p_value(test.adjusted_p_value)
                if test.significant:
                    worse.append(f"{test.worse} ({sign * test.difference:+.2f}, {p})")
                else:
                    similar.append(f"{test.worse if test.better == best.name else test.better} ({p})")
        extreme = "Highest" if self.higher_is_better else "Lowest"
        sentences = [f"{extreme} {self.metric_name}: {best.name}, {MeanStd.of(best.scores).formatted}."]
        sentences += [f"Significantly better than {', '.join(worse)}."] if worse else []
        sentences += [f"No significant difference from {', '.join(similar)}."] if similar else []
        return " ".join(sentences)

    def _about_attention(self) -> str:
        """Report the test of systems with attention against those without, on long sentences, as a sentence."""
        (test,) = (test for test in self.differences if test.metric != self.metric_name)
        where = f"on the {len(self.learned[0].long_indices):,} sentences of {MIN_LONG_SENTENCE_WORDS} or more words"
        among = "in the mean over the systems that have learned"
        p = format_p_value(test.adjusted_p_value)
        if not test.significant:
            return f"Attention: no significant difference {where}, {among} ({p})."
        return (
            f"Attention: systems with {test.better} score {test.difference:.2f} {self.metric_name} better than those "
            f"with {test.worse} {where}, {among} ({p})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the translations, as JSON values."""
        return {
            "budget": self.budget,
            "machine_dependent": self.machine_dependent,
            "seeds": self.seeds,
            "sentences": self.sentences,
            "signature": self.signature,
            "method": self.method,
            "systems": [
                _json_values(system.quality() | system.cost())
                | {"learned": system.learned, "runs": [run.to_dict() for run in system.runs]}
                for system in self.systems
            ],
            "differences": [asdict(test) | {"significant": test.significant} for test in self.differences],
            "findings": self.findings(),
        }


def metric_label(name: str) -> str:
    """Return the title of a metric in tables: "BLEU", "BLEU (char)" for bleu=char, "exact match %" for rates."""
    metric, variant = text_metric(name), name.partition("=")[2]  # "char" of "bleu=char", else empty
    return " ".join(filter(None, [metric.title, f"({variant})" if variant else "", metric.unit]))


def shuffled_bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU against the references of other sentences: that of outputs that do not depend on their sources.

    It is the mean over three rotations of the outputs, by a quarter, a half and three quarters of their number.
    """
    # sentences by which the outputs are rotated; a single sentence stays in place
    shifts = sorted({max(1, len(texts) * quarters // 4) for quarters in (1, 2, 3)}) if len(texts) > 1 else [0]
    return fmean(bleu([*texts[shift:], *texts[:shift]], references, tokenize="auto").value for shift in shifts)


def _json_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return values by name as JSON has them: {"mean": …, "std": …} for a MeanStd, None for infinity and NaN."""
    converted: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, MeanStd):
            converted[name] = _json_values({"mean": value.mean, "std": value.std})
        else:
            converted[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return converted
