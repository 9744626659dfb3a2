"""Two systems side by side, and one system on short and long sentences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.error_rates import exact_match
from dragoman.evaluation.metric_score import References, check_equal_counts, reference_lists
from dragoman.evaluation.translation_metrics import bleu, reference_streams


class PairedBootstrapResult(NamedTuple):
    """A measure of two systems, with half the width of the 95 % interval of each and the chance of so much by luck."""

    metric: str
    baseline: float
    baseline_interval: float
    system: float
    system_interval: float
    p_value: float
    signature: str


class LengthBucket(NamedTuple):
    """The sentences of similar length and how well they were translated."""

    words: str
    sentences: int
    exact_match: float
    bleu: float


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: References,
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    samples: int = 1000,
) -> list[PairedBootstrapResult]:
    """Whether a system differs from a baseline by more than the luck of the test set: paired bootstrap resampling.

    The test set is drawn anew, with replacement, `samples` times. The p-value is the share of draws in which the
    difference exceeds its mean by more than the difference observed: Koehn (2004), computed by sacreBLEU. Its
    random seed is fixed, or taken from SACREBLEU_SEED. The measures are bleu, chrf and ter.
    """
    from sacrebleu import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    kinds: dict[str, Any] = {"bleu": BLEU, "chrf": CHRF, "ter": TER}
    for name in metrics:
        if name not in kinds:
            raise unknown_name("metric for a paired test", name, kinds)
    if samples < 1:
        raise UserError(f"a paired test needs at least one sample, but {samples} were asked for")
    check_equal_counts(len(baseline), "sentences of the baseline", len(system), "sentences of the system")
    streams: list[Any] = reference_streams(baseline, references)
    scorers = {name: kinds[name]() for name in dict.fromkeys(metrics)}
    systems = [("baseline", baseline), ("system", system)]
    test: Any = PairedTest(systems, scorers, streams, test_type="bs", n_samples=samples)
    signatures, results = test()  # by sacreBLEU's own names, which say more than ours: chrF2
    rows = []
    for name, (their_name, signature) in zip(metrics, signatures.items()):
        first, second = results[their_name]
        # sacreBLEU gives two equal systems the smallest p-value there is; no difference is no evidence for one.
        p_value = 1.0 if first.score == second.score else second.p_value
        scores = first.score, float(first.ci), second.score, float(second.ci)
        rows.append(PairedBootstrapResult(name, *scores, p_value, str(signature)))
    return rows


def score_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    *,
    edges: Sequence[int] = (5, 10, 15, 20, 30, 40, 50),
) -> list[LengthBucket]:
    """Quality by the number of words in the source, which shows the bottleneck of one fixed vector for a sentence.

    Bahdanau et al. (2015), figure 2. Each edge is the longest of its band; a last band takes what is longer, and bands
    without a sentence are left out.
    """
    if not edges or any(low >= high for low, high in pairwise(edges)):
        raise UserError(f"edges of length bands must increase, but these are {', '.join(map(str, edges)) or 'none'}")
    lists = reference_lists(hypotheses, references)
    check_equal_counts(len(sources), "sources", len(hypotheses), "hypotheses")
    members: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for index, source in enumerate(sources):
        members[bisect_left(edges, len(source.split()))].append(index)
    bands = []
    for label, indices in zip(_labels(edges), members):
        if indices:
            pairs = [hypotheses[i] for i in indices], [lists[i] for i in indices]
            quality = bleu(*pairs, effective_order=True)  # a band may be too short to have any four words in a row
            bands.append(LengthBucket(label, len(indices), exact_match(*pairs).value, quality.value))
    return bands


def _labels(edges: Sequence[int]) -> list[str]:
    between = [str(high) if low + 1 == high else f"{low + 1} to {high}" for low, high in pairwise(edges)]
    return [f"up to {edges[0]}", *between, f"over {edges[-1]}"]
