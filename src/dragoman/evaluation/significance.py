"""Significance tests: whether scores of systems differ by more than test sentences and random seeds explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.metric_score import References, check_equal_counts
from dragoman.evaluation.text_metrics import Floats, SentenceStatistics, text_metric

NUM_RESAMPLES = 10_000  # enough for p < 0.05 after a Holm correction for hundreds of comparisons
BOOTSTRAP_SEED = 12345  # sacreBLEU's default, so that both draw the same resamples
NUM_PAIRED_SAMPLES = 1000  # of one paired test
MAX_DRAWS_IN_MEMORY = 2**22  # random numbers, one for each sentence of each resample, that are drawn at a time
ROUNDING_ERROR = 1e-9  # of scores between 0 and 100


class PairedTestResult(NamedTuple):
    """A metric of a baseline and of a system on the same test set, and a test of their difference.

    Attributes:
        baseline, system: scores on the whole test set.
        difference: system − baseline.
        p_value: two-sided p-value of the difference.
        baseline_interval, system_interval, difference_interval: bounds of the 95 % bootstrap intervals.
    """

    metric: str
    baseline: float
    baseline_interval: tuple[float, float]
    system: float
    system_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    p_value: float
    signature: str


PAIRED_TESTS = ("bootstrap", "randomization")


def paired_test(
    baseline: Sequence[str],
    system: Sequence[str],
    references: References,
    *,
    sources: Sequence[str] | None = None,
    metrics: Sequence[str] = ("bleu", "chrf"),
    method: str = "bootstrap",
    samples: int = NUM_PAIRED_SAMPLES,
) -> list[PairedTestResult]:
    """Compare a system with a baseline on the same test set, one result for each metric.

    `bootstrap` is paired bootstrap resampling (Koehn 2004): the p-value is the share of resamples of the test set in
    which the difference is at least as far from the observed one as that is from 0. `randomization` is approximate
    randomization (Riezler and Maxwell 2005): the share of trials with at least the observed difference when the two
    outputs of each sentence are swapped at random. Intervals are percentiles of bootstrap resamples in both cases.

    Args:
        baseline, system: the translations of two systems.
        references: one reference, or a list of references, for each sentence.
        sources: source sentences, for COMET.
        metrics: names of metrics of texts, keys of TEXT_METRICS.
        method: bootstrap or randomization.
        samples: number of resamples or trials.

    An unknown method or metric, and different numbers of sentences, are a UserError.
    """
    if method not in PAIRED_TESTS:
        raise unknown_name("paired test", method, PAIRED_TESTS)
    check_equal_counts(len(baseline), "sentences of the baseline", len(system), "sentences of the system")
    results = []
    for name in dict.fromkeys(metrics):
        sentence_statistics = text_metric(name).sentence_statistics
        baseline_statistics = sentence_statistics(baseline, references, sources)
        system_statistics = sentence_statistics(system, references, sources)
        baseline_scores = resample_scores([baseline_statistics], samples)
        system_scores = resample_scores([system_statistics], samples)
        difference, p_value = contrast_test([system_scores, baseline_scores], weights=[1.0, -1.0])
        if method == "randomization" and difference:  # without a difference, p = 1 by both tests
            p_value = _randomization_p_value(baseline_statistics, system_statistics, samples)
        results.append(
            PairedTestResult(
                metric=name,
                baseline=float(baseline_scores.scores[0]),
                baseline_interval=_interval(baseline_scores.samples[0]),
                system=float(system_scores.scores[0]),
                system_interval=_interval(system_scores.samples[0]),
                difference=difference,
                difference_interval=_interval(system_scores.samples[0] - baseline_scores.samples[0]),
                p_value=p_value,
                signature=text_metric(name)(system, references, sources).signature,
            )
        )
    return results


def _interval(scores: Floats) -> tuple[float, float]:
    """Return the bounds of the central 95 % of the scores of bootstrap resamples: a percentile interval."""
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def _randomization_p_value(baseline: SentenceStatistics, system: SentenceStatistics, trials: int) -> float:
    """Return the p-value of approximate randomization, (c + 1) / (trials + 1).

    A trial swaps baseline and system in each sentence with probability ½. In c trials the scores differ by at least as
    much as those of the actual outputs.
    """
    # `table` has a row of statistics for each sentence, whose sum over sentences determines the corpus score
    score, sentences = baseline.corpus_score, len(baseline.table)
    total = baseline.table.sum(0) + system.table.sum(0)
    observed = abs(score(system.table.sum(0)) - score(baseline.table.sum(0)))
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    extreme_trials = 0
    chunk = max(1, MAX_DRAWS_IN_MEMORY // sentences)  # trials at a time
    for start in range(0, trials, chunk):
        # whether each trial swaps each sentence: trials, sentences
        swapped = generator.integers(2, size=(min(chunk, trials - start), sentences), dtype=bool)
        # summed statistics of one of the two shuffled systems: trials, statistics; the other one has the rest
        shuffled = swapped @ baseline.table + ~swapped @ system.table
        extreme_trials += sum(abs(score(sums) - score(total - sums)) >= observed - ROUNDING_ERROR for sums in shuffled)
    return (extreme_trials + 1) / (trials + 1)


@dataclass(frozen=True)
class BootstrapScores:
    """Corpus scores of one system: one row per seed, on the test set and on bootstrap resamples of its sentences.

    Attributes:
        scores: score of each seed on the whole test set, shape (seeds,).
        samples: score of each seed on each resample, shape (seeds, resamples). A resample holds the same sentences for
            all seeds and all systems, which makes comparisons paired.
        sentences: size of the test set.
    """

    scores: Floats
    samples: Floats
    sentences: int


def bootstrap_scores(
    outputs: Sequence[Sequence[str]],
    references: References,
    *,
    metric: str = "bleu",
    samples: int = NUM_RESAMPLES,
    seed: int = BOOTSTRAP_SEED,
) -> BootstrapScores:
    """Score a system on bootstrap resamples of the test set (Koehn 2004).

    Args:
        outputs: the translations of the test set, one list for each seed of the training.
        references: one reference, or a list of references, for each sentence.
        metric: name of a metric of texts that needs no sources, such as bleu or rouge-l.
        samples: number of resamples.
        seed: seed of the resampling.

    Corpus scores are functions of sums over sentences (such as n-gram matches), so a resample only adds up statistics.
    """
    metric_statistics = text_metric(metric).sentence_statistics
    return resample_scores([metric_statistics(texts, references) for texts in outputs], samples, seed)


def resample_scores(outputs: Sequence[SentenceStatistics], samples: int, seed: int = BOOTSTRAP_SEED) -> BootstrapScores:
    """Score bootstrap resamples of a test set, by adding up statistics of its sentences such as n-gram matches.

    Args:
        outputs: statistics of a system's translations, one entry for each seed of its training.
        samples: number of resamples, at least 2; fewer are a UserError, as are no outputs.
        seed: seed of the resampling.
    """
    if not outputs:
        raise UserError(
            "there are no outputs to draw bootstrap resamples of: give the outputs of at least one seed "
            "(training run) for each system"
        )
    if samples < 2:
        raise UserError(f"samples, the number of bootstrap resamples, must be at least 2, but is {samples}: raise it")
    score = outputs[0].corpus_score  # the same function for all seeds
    by_sentence = np.stack([statistics.table for statistics in outputs], 1)  # sentences, seeds, statistics
    count = len(by_sentence)
    generator = np.random.default_rng(seed)
    resampled = np.empty((len(outputs), samples))  # seeds, resamples
    chunk = max(1, MAX_DRAWS_IN_MEMORY // count)  # resamples at a time
    for start in range(0, samples, chunk):
        drawn = generator.choice(count, size=(min(chunk, samples - start), count), replace=True)
        # how often each resample contains each sentence: resamples, sentences. All resamples are counted at once,
        # each with numbers of its own for the sentences
        offsets = count * np.arange(len(drawn))[:, None]
        frequencies = np.bincount((drawn + offsets).ravel(), minlength=drawn.size).reshape(drawn.shape)
        totals = np.tensordot(frequencies.astype(np.float64), by_sentence, axes=1)  # resamples, seeds, statistics
        for number, seed_totals in enumerate(totals):
            resampled[:, start + number] = [score(total) for total in seed_totals]
    full_scores = np.array([score(total) for total in by_sentence.sum(0)])
    return BootstrapScores(scores=full_scores, samples=resampled, sentences=count)


def contrast_test(systems: Sequence[BootstrapScores], weights: Sequence[float]) -> tuple[float, float]:
    """Test a weighted sum of system scores, such as A − B with weights 1 and −1; return its value and p-value.

    With one seed per system this is paired bootstrap resampling: the two-sided p-value is the share of resamples in
    which the contrast differs from the observed one by at least the size of the observed one. The result holds for
    these trained models only.

    With several seeds the test also accounts for the variance between seeds and holds for the systems. The statistic is
    t = Δ / √(V + Σ wᵢ² Sᵢ²/n), with Δ the contrast of the means over seeds, wᵢ the weights, V the bootstrap variance of
    Δ over sentences and Sᵢ² the sample variance between the n seeds of system i; the degrees of freedom are those of
    Welch and Satterthwaite. Resampling two or three seeds instead would underestimate their variance.

    Raise a UserError unless there is a weight for each system, and all have the same numbers of sentences, seeds and
    resamples.
    """
    if len(systems) != len(weights):
        raise UserError(
            f"expected one weight (its factor in the difference of scores) for each of {len(systems)} systems, but got "
            f"{len(weights)} weights: pass one per system"
        )
    seeds = {len(system.scores) for system in systems}
    if len({system.samples.shape for system in systems}) > 1 or len({system.sentences for system in systems}) > 1:
        raise UserError(
            "systems can be compared only on the same test set, with the same number of seeds and of bootstrap "
            "resamples: compute the resamples of all systems again with the same arguments"
        )
    observed = float(sum(weight * system.scores.mean() for weight, system in zip(weights, systems)))
    resampled = sum(weight * system.samples.mean(0) for weight, system in zip(weights, systems))
    assert isinstance(resampled, np.ndarray)
    min_p_value = 1 / (len(resampled) + 1)  # the smallest that this number of resamples can show
    if abs(observed) < ROUNDING_ERROR:  # no difference
        return 0.0, 1.0
    if seeds == {1}:
        extreme = np.abs(resampled - observed) >= abs(observed) - ROUNDING_ERROR
        return observed, float((np.count_nonzero(extreme) + 1) * min_p_value)
    (n,) = seeds
    between_seeds = [weight**2 * float(system.scores.var(ddof=1)) / n for weight, system in zip(weights, systems)]
    over_sentences = float(resampled.var(ddof=1))
    variance = over_sentences + sum(between_seeds)
    if not variance:  # all resamples and seeds agree
        return observed, min_p_value
    # degrees of freedom (Welch–Satterthwaite): V² / Σ Vᵢ²/νᵢ
    denominator = over_sentences**2 / max(1, systems[0].sentences - 1) + sum(v**2 for v in between_seeds) / (n - 1)
    freedom = variance**2 / denominator
    return observed, max(min_p_value, student_t_p_value(observed / math.sqrt(variance), freedom))


def student_t_p_value(t: float, freedom: float) -> float:
    """Return the two-sided p-value of Student's t with `freedom` ν degrees of freedom.

    With t = √ν tan θ the density of t becomes c cosᵛ⁻¹ θ, c = Γ((ν+1)/2) / (√π Γ(ν/2)). The tail is integrated by
    Gauss–Legendre quadrature.
    """
    start = math.atan(abs(t) / math.sqrt(freedom))  # θ of t, where the tail begins
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    # the density falls by exp(−40) within √(80/ν) of θ = 0: the rest is negligible
    end = max(start, min(math.pi / 2, math.sqrt(80 / freedom))) if freedom > 80 else math.pi / 2
    nodes, node_weights = _quadrature()
    theta = start + (end - start) * (nodes + 1) / 2
    with np.errstate(divide="ignore"):
        density = np.exp(log_scale + (freedom - 1) * np.log(np.cos(theta)))
    # 2: both tails; (end − start) / 2: width of the interval, relative to [−1, 1]
    return min(1.0, float(2 * (end - start) / 2 * (node_weights @ density)))


@cache
def _quadrature() -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss–Legendre quadrature on [−1, 1], for numerical integration with 200 points."""
    nodes, node_weights = np.polynomial.legendre.leggauss(200)
    return nodes, node_weights


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons (Holm 1979), which bounds the probability of any false claim.

        adjusted p₍ᵢ₎ = max over j ≤ i of min(1, (m − j + 1) p₍ⱼ₎),   p₍₁₎ ≤ p₍₂₎ ≤ … ≤ p₍ₘ₎

    The adjusted values are returned in the order of `p_values`.
    """
    count = len(p_values)
    adjusted, largest = [1.0] * count, 0.0
    for rank, index in enumerate(sorted(range(count), key=p_values.__getitem__)):  # from the smallest p-value on
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def format_p_value(p: float) -> str:
    """Format a p-value: "p = 0.013", "p < 0.001"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
