"""Whether systems differ by more than the choice of test sentences and random seeds explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.metric_score import References, reference_lists
from dragoman.evaluation.translation_metrics import reference_streams

NUM_RESAMPLES = 10_000  # enough for p < 0.05 after a Holm correction for hundreds of comparisons
BOOTSTRAP_SEED = 12345  # sacreBLEU's default, so that both draw the same resamples
MAX_DRAWS_IN_MEMORY = 2**22  # sentence numbers drawn at a time, which bounds memory

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BootstrapScores:
    """Corpus scores of one system: one row per seed, on the test set and on bootstrap resamples of its sentences.

    Attributes:
        scores: score of each seed on the whole test set, shape (seeds,).
        samples: score of each seed on each resample, shape (seeds, resamples). Resample b holds the same sentences for
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
        outputs: the translations of the test set, one list for each seed that the system was trained with.
        references: one reference, or a list of references, for each sentence.
        measure: bleu, chrf or exact. BLEU and chrF are computed by sacreBLEU.
        samples: number of resamples.
        seed: seed of the resampling, not of the training.
    """
    statistics = [_statistics(output, references, metric) for output in outputs]
    if not statistics:
        raise UserError("there is nothing to resample: give the outputs of at least one seed")
    if samples < 2:
        raise UserError(f"a bootstrap needs at least 2 resamples, but got {samples}")
    score = statistics[0][1]
    sums = np.stack([table for table, _ in statistics], 1)  # sentences, seeds, sufficient statistics
    count = len(sums)
    generator = np.random.default_rng(seed)
    resampled = np.empty((len(outputs), samples))
    rows = max(1, MAX_DRAWS_IN_MEMORY // count)
    for start in range(0, samples, rows):
        drawn = generator.choice(count, size=(min(rows, samples - start), count), replace=True)
        offsets = count * np.arange(len(drawn))[:, None]
        times = np.bincount((drawn + offsets).ravel(), minlength=drawn.size).reshape(drawn.shape)
        totals = np.tensordot(times.astype(np.float64), sums, 1)  # resamples, seeds, sufficient statistics
        for number, row in enumerate(totals):
            resampled[:, start + number] = [score(one) for one in row]
    return BootstrapScores(np.array([score(one) for one in sums.sum(0)]), resampled, count)


def contrast_test(systems: Sequence[BootstrapScores], weights: Sequence[float]) -> tuple[float, float]:
    """Test a weighted sum of system scores, such as A − B with the weights 1 and −1: its value and two-sided p-value.

    With one seed for each system this is paired bootstrap resampling: the p-value is the share of resamples in which
    the contrast differs from the observed one by at least the observed one's size. It speaks of these trained models
    only.

    With several seeds it also accounts for the variance between seeds and speaks of the systems. The statistic is
    t = Δ / √(V + Σ wᵢ² Sᵢ²/n), with Δ the contrast of the means over seeds, V the bootstrap variance of Δ over
    sentences and Sᵢ² the sample variance between the n seeds of system i; the degrees of freedom are those of Welch
    and Satterthwaite. Resampling two or three seeds instead would underestimate their variance and find too many
    differences.
    """
    if len(systems) != len(weights):
        raise UserError(f"{len(systems)} systems need as many weights, but got {len(weights)}")
    seeds = {len(one.scores) for one in systems}
    if len({one.samples.shape for one in systems}) > 1 or len({one.sentences for one in systems}) > 1:
        raise UserError("systems can be compared only on the same test set, with the same seeds and resamples")
    observed = float(sum(w * one.scores.mean() for w, one in zip(weights, systems)))
    resampled = sum(w * one.samples.mean(0) for w, one in zip(weights, systems))
    assert isinstance(resampled, np.ndarray)
    count = len(resampled)
    least = 1 / (count + 1)  # no resampling can show less
    if abs(observed) < 1e-9:
        return 0.0, 1.0
    if seeds == {1}:
        extreme = np.abs(resampled - observed) >= abs(observed) - 1e-9
        return observed, float((np.count_nonzero(extreme) + 1) * least)
    (n,) = seeds
    parts = [w * w * float(one.scores.var(ddof=1)) / n for w, one in zip(weights, systems)]
    sentences = float(resampled.var(ddof=1))
    variance = sentences + sum(parts)
    if not variance:
        return observed, least
    inverse = sentences**2 / max(1, systems[0].sentences - 1) + sum(part**2 for part in parts) / (n - 1)
    freedom = variance**2 / inverse
    return observed, max(least, student_t_p_value(observed / math.sqrt(variance), freedom))


def student_t_p_value(t: float, freedom: float) -> float:
    """Two-sided p-value of Student's t.

    With t = √ν tan θ the density of t becomes c cosᵛ⁻¹ θ, c = Γ((ν+1)/2) / (√π Γ(ν/2)). The tail is integrated
    numerically by Gauss–Legendre quadrature.
    """
    start = math.atan(abs(t) / math.sqrt(freedom))
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    # the density falls by exp(−40) within √(80/ν) of θ = 0: nothing behind that matters
    end = max(start, min(math.pi / 2, math.sqrt(80 / freedom))) if freedom > 80 else math.pi / 2
    nodes, node_weights = _quadrature()
    theta = start + (end - start) * (nodes + 1) / 2
    with np.errstate(divide="ignore"):
        density = np.exp(log_scale + (freedom - 1) * np.log(np.cos(theta)))
    return min(1.0, float(2 * (end - start) / 2 * (node_weights @ density)))


@cache
def _quadrature() -> tuple[Floats, Floats]:
    nodes, node_weights = np.polynomial.legendre.leggauss(200)
    return nodes, node_weights


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons (Holm 1979), which bounds the chance of any false claim.

    adjusted p₍ᵢ₎ = max over j ≤ i of min(1, (m − j + 1) p₍ⱼ₎),   p₍₁₎ ≤ p₍₂₎ ≤ … ≤ p₍ₘ₎
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted


def format_p_value(p: float) -> str:
    """As it is quoted: "p = 0.013", "p < 0.001"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def _statistics(
    output: Sequence[str], references: References, measure: str
) -> tuple[Floats, Callable[[Floats], float]]:
    """Sufficient statistics of each sentence, and the corpus score from their sum."""
    lists = reference_lists(output, references)
    if measure == "exact":
        right = [float(text in among) for text, among in zip(output, lists)]
        return np.array([[one, 1.0] for one in right]), lambda sums: 100 * float(sums[0] / sums[1])
    from sacrebleu import BLEU, CHRF

    metrics: dict[str, Callable[[], Any]] = {"bleu": lambda: BLEU(force=True), "chrf": CHRF}
    if measure not in metrics:
        raise unknown_name("metric for a bootstrap", measure, [*metrics, "exact"])
    metric = metrics[measure]()
    table = metric._extract_corpus_statistics(output, reference_streams(output, references))
    return np.array(table, np.float64), lambda sums: float(metric._compute_score_from_stats(sums).score)
