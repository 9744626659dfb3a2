"""Significance tests: whether scores of systems differ by more than test sentences and random seeds explain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.metric_score import References, check_equal_counts, reference_lists
from dragoman.evaluation.text_metrics import reference_streams

NUM_RESAMPLES = 10_000  # enough for p < 0.05 after a Holm correction for hundreds of comparisons
BOOTSTRAP_SEED = 12345  # sacreBLEU's default, so that both draw the same resamples
MAX_DRAWS_IN_MEMORY = 2**22  # sentence numbers

Floats = NDArray[np.float64]


class PairedBootstrapResult(NamedTuple):
    """Scores of a baseline and a system, half the width of their 95 % intervals, and the p-value of the difference."""

    metric: str
    baseline: float
    baseline_interval: float
    system: float
    system_interval: float
    p_value: float
    signature: str


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    samples: int = 1000,
) -> list[PairedBootstrapResult]:
    """Compare a system with a baseline by paired bootstrap resampling (Koehn 2004), computed by sacreBLEU.

    The test set is resampled with replacement `samples` times. The p-value is the share of resamples in which the
    difference exceeds its mean by more than the observed difference. The seed is fixed, or that of SACREBLEU_SEED. The
    metrics are bleu, chrf and ter.
    """
    from sacrebleu import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    supported: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
    for name in metrics:
        if name not in supported:
            raise unknown_name("metric for a paired test", name, supported)
    if samples < 1:
        raise UserError(f"samples, the number of bootstrap resamples, must be at least 1, but is {samples}")
    check_equal_counts(len(baseline), "sentences of the baseline", len(system), "sentences of the system")
    streams: list[Any] = reference_streams(baseline, references)
    scorers = {name: supported[name]() for name in dict.fromkeys(metrics)}
    systems = [("baseline", baseline), ("system", system)]
    test: Any = PairedTest(systems, scorers, streams, test_type="bs", n_samples=samples)
    signatures, results = test()  # by sacreBLEU's names of metrics, such as chrF2
    rows = []
    for name, (sacrebleu_name, signature) in zip(scorers, signatures.items()):
        of_baseline, of_system = results[sacrebleu_name]
        # sacreBLEU gives equal systems the smallest possible p-value, but equal scores are no evidence
        p_value = 1.0 if of_baseline.score == of_system.score else of_system.p_value
        rows.append(
            PairedBootstrapResult(
                metric=name,
                baseline=of_baseline.score,
                baseline_interval=float(of_baseline.ci),
                system=of_system.score,
                system_interval=float(of_system.ci),
                p_value=p_value,
                signature=str(signature),
            )
        )
    return rows


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
        metric: bleu, chrf or exact. BLEU and chrF are computed by sacreBLEU.
        samples: number of resamples.
        seed: seed of the resampling.
    """
    statistics = [_sufficient_statistics(output, references, metric) for output in outputs]
    if not statistics:
        raise UserError("there are no outputs to resample: give the outputs of at least one seed per system")
    if samples < 2:
        raise UserError(f"samples, the number of bootstrap resamples, must be at least 2, but is {samples}")
    _, score = statistics[0]  # the function from summed statistics to a corpus score is the same for all seeds
    of_sentences = np.stack([table for table, _ in statistics], 1)  # sentences, seeds, statistics
    count = len(of_sentences)
    generator = np.random.default_rng(seed)
    resampled = np.empty((len(outputs), samples))
    chunk = max(1, MAX_DRAWS_IN_MEMORY // count)
    for start in range(0, samples, chunk):
        drawn = generator.choice(count, size=(min(chunk, samples - start), count), replace=True)
        offsets = count * np.arange(len(drawn))[:, None]
        # how often each resample contains each sentence: resamples, sentences
        times = np.bincount((drawn + offsets).ravel(), minlength=drawn.size).reshape(drawn.shape)
        totals = np.tensordot(times.astype(np.float64), of_sentences, 1)  # resamples, seeds, statistics
        for number, of_seeds in enumerate(totals):
            resampled[:, start + number] = [score(total) for total in of_seeds]
    return BootstrapScores(np.array([score(total) for total in of_sentences.sum(0)]), resampled, count)


def _sufficient_statistics(
    output: Sequence[str], references: References, metric: str
) -> tuple[Floats, Callable[[Floats], float]]:
    """Return the sufficient statistics of each sentence, and the function from their sum to the corpus score."""
    lists = reference_lists(output, references)
    if metric == "exact":
        right = [float(text in of_text) for text, of_text in zip(output, lists)]
        return np.array([[match, 1.0] for match in right]), lambda sums: 100 * float(sums[0] / sums[1])
    from sacrebleu import BLEU, CHRF

    scorers: dict[str, Callable[[], Any]] = {"bleu": lambda: BLEU(force=True), "chrf": CHRF}
    if metric not in scorers:
        raise unknown_name("metric for a bootstrap", metric, [*scorers, "exact"])
    scorer = scorers[metric]()
    table = scorer._extract_corpus_statistics(output, reference_streams(output, references))
    return np.array(table, np.float64), lambda sums: float(scorer._compute_score_from_stats(sums).score)


def contrast_test(systems: Sequence[BootstrapScores], weights: Sequence[float]) -> tuple[float, float]:
    """Test a weighted sum of system scores, such as A − B with weights 1 and −1; return its value and p-value.

    With one seed per system this is paired bootstrap resampling: the two-sided p-value is the share of resamples in
    which the contrast differs from the observed one by at least the size of the observed one. The result holds for
    these trained models only.

    With several seeds the test also accounts for the variance between seeds and holds for the systems. The statistic
    is t = Δ / √(V + Σ wᵢ² Sᵢ²/n), with Δ the contrast of the means over seeds, V the bootstrap variance of Δ over
    sentences and Sᵢ² the sample variance between the n seeds of system i; the degrees of freedom are those of Welch
    and Satterthwaite. Resampling two or three seeds instead would underestimate their variance.
    """
    if len(systems) != len(weights):
        raise UserError(f"expected one weight for each of {len(systems)} systems, but got {len(weights)}")
    seeds = {len(system.scores) for system in systems}
    if len({system.samples.shape for system in systems}) > 1 or len({system.sentences for system in systems}) > 1:
        raise UserError(
            "systems can be compared only on the same test set, with the same number of seeds and of "
            "bootstrap resamples: resample them again together"
        )
    observed = float(sum(w * system.scores.mean() for w, system in zip(weights, systems)))
    resampled = sum(w * system.samples.mean(0) for w, system in zip(weights, systems))
    assert isinstance(resampled, np.ndarray)
    min_p_value = 1 / (len(resampled) + 1)
    rounding_error = 1e-9
    if abs(observed) < rounding_error:
        return 0.0, 1.0
    if seeds == {1}:
        extreme = np.abs(resampled - observed) >= abs(observed) - rounding_error
        return observed, float((np.count_nonzero(extreme) + 1) * min_p_value)
    (n,) = seeds
    between_seeds = [w * w * float(system.scores.var(ddof=1)) / n for w, system in zip(weights, systems)]
    over_sentences = float(resampled.var(ddof=1))
    variance = over_sentences + sum(between_seeds)
    if not variance:
        return observed, min_p_value
    inverse = over_sentences**2 / max(1, systems[0].sentences - 1) + sum(v**2 for v in between_seeds) / (n - 1)
    freedom = variance**2 / inverse
    return observed, max(min_p_value, student_t_p_value(observed / math.sqrt(variance), freedom))


def student_t_p_value(t: float, freedom: float) -> float:
    """Return the two-sided p-value of Student's t.

    With t = √ν tan θ the density of t becomes c cosᵛ⁻¹ θ, c = Γ((ν+1)/2) / (√π Γ(ν/2)). The tail is integrated by
    Gauss–Legendre quadrature.
    """
    start = math.atan(abs(t) / math.sqrt(freedom))
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    # the density falls by exp(−40) within √(80/ν) of θ = 0: the rest is negligible
    end = max(start, min(math.pi / 2, math.sqrt(80 / freedom))) if freedom > 80 else math.pi / 2
    nodes, node_weights = _quadrature()
    theta = start + (end - start) * (nodes + 1) / 2
    with np.errstate(divide="ignore"):
        density = np.exp(log_scale + (freedom - 1) * np.log(np.cos(theta)))
    return min(1.0, float(2 * (end - start) / 2 * (node_weights @ density)))


@cache
def _quadrature() -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss–Legendre quadrature on [−1, 1]."""
    nodes, node_weights = np.polynomial.legendre.leggauss(200)
    return nodes, node_weights


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons (Holm 1979), which bounds the probability of any false claim.

    adjusted p₍ᵢ₎ = max over j ≤ i of min(1, (m − j + 1) p₍ⱼ₎),   p₍₁₎ ≤ p₍₂₎ ≤ … ≤ p₍ₘ₎
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, number in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted


def format_p_value(p: float) -> str:
    """Format a p-value: "p = 0.013", "p < 0.001"."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
