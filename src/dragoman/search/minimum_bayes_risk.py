"""Minimum Bayes risk decoding: select the candidate with the highest expected utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.errors import UserError
from dragoman.search.configs import Beam, Sample
from dragoman.search.ngram_metrics import Array, get_metric
from dragoman.search.search_config import (
    MAX_FLOAT32,
    DecodingRun,
    SearchConfig,
    SearchRequest,
    check_n_best,
    check_ranges,
)
from dragoman.search.search_state import Hypothesis


@dataclass(frozen=True)
class MinimumBayesRisk(SearchConfig):
    """Minimum Bayes risk decoding: ŷ = argmax_h Σ_r w_r u(h, r), with candidates h and references r.

    Samples have equal weights (Eikema & Aziz 2020), the n best of a beam weights proportional to p(r|x)^α (Kumar &
    Byrne 2004).

    Args:
        candidates: the search that finds candidates.
        references: the search that finds references; None: the candidates are the references.
        utility: u, "chrf", "chrf++" or "bleu".
        posterior_scale: α.
        aggregate_references: average n-gram counts of references instead of utilities, which makes the cost linear in
            their number (Vamvas & Sennrich 2024).
        n_best: number of candidates to return.

    Examples:
        >>> search = dragoman.MinimumBayesRisk(dragoman.Sample(n_best=8), utility="chrf")
        >>> len(run.translate(["The dog sleeps."], search=search))
        1
    """

    candidates: Beam | Sample
    references: Beam | Sample | None = None
    utility: str = "chrf"
    posterior_scale: float = 1.0
    aggregate_references: bool = False
    n_best: int = 1

    label = "minimum Bayes risk"

    def __post_init__(self) -> None:
        """Raise a UserError if a field has an invalid value."""
        get_metric(self.utility)
        check_ranges(self, posterior_scale=(0, MAX_FLOAT32))
        check_n_best(self, self.candidates)

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Return the `n_best` candidates of each source with the highest expected utility, best first."""
        all_candidates = self.candidates.decode(run, request)
        all_references = self.references.decode(run, request) if self.references else all_candidates
        results = []
        for candidates, references in zip(all_candidates, all_references):
            candidate_texts, reference_texts = (
                [run.target_tokenizer.decode(hypothesis.tokens) for hypothesis in hypotheses]
                for hypotheses in (candidates, references)
            )
            chosen = self.choose(candidate_texts, reference_texts, [hypothesis.score for hypothesis in references])
            results.append([candidates[index] for index, _ in chosen])
        return results

    def reference_weights(self, scores: Sequence[float]) -> Array:
        """Return the weights, with sum 1, of the references of a source, whose log p(y|x) are `scores`.

        Samples have equal weights, the n best of a beam weights ∝ p(y|x)^α, where α is `posterior_scale`.
        """
        is_random = (self.references or self.candidates).is_random  # samples are as frequent as they are probable
        scaled = np.zeros(len(scores)) if is_random else self.posterior_scale * np.asarray(scores, float)
        weights = np.exp(scaled - scaled.max())  # the maximum is subtracted against underflow
        return weights / weights.sum()

    def choose(
        self, candidates: Sequence[str], references: Sequence[str], reference_scores: Sequence[float]
    ) -> list[tuple[int, float]]:
        """Return (index, expected utility) of the `n_best` best candidates of a source, best first; equal texts once.

        `candidates` and `references` are texts, `reference_scores` are log p(y|x) of the references. No candidates, or
        no references, are a UserError.
        """
        if not candidates or not references:
            missing = "references" if candidates else "candidates"
            raise UserError(
                "minimum Bayes risk needs at least one candidate and one reference for each source, but its search "
                f"for {missing} found none for a source: change this search"
            )
        weights = self.reference_weights(reference_scores)
        expected = expected_utilities(
            candidates, references, weights, utility=self.utility, aggregate_references=self.aggregate_references
        )
        # in reverse order, so that the first of equal texts is kept
        first_index = {text: index for index, text in reversed(list(enumerate(candidates)))}
        # rounded, so that rounding errors do not decide between equal utilities: the first candidate wins
        ranked = sorted(sorted(first_index.values()), key=lambda index: -round(float(expected[index]), 9))
        return [(index, float(expected[index])) for index in ranked[: self.n_best]]


def expected_utilities(
    candidates: Sequence[str],
    references: Sequence[str],
    weights: Array,
    utility: str = "chrf",
    aggregate_references: bool = False,
) -> Array:
    """Return the expected utility Σ_r w_r u(h, r), from 0 to 100, of every candidate h, in their order.

    u is the metric `utility`, "chrf", "chrf++" or "bleu", and w_r the weight of reference r, normalized to sum 1. With
    `aggregate_references`, u compares with the mean n-gram counts of all references. Equal texts are evaluated once.
    """
    metric = get_metric(utility)
    unique_candidates, candidate_index = _unique(candidates)
    unique_references, reference_index = _unique(references)
    weight = np.bincount(reference_index, weights / weights.sum())  # of each unique reference
    if aggregate_references:
        return metric.aggregated(unique_candidates, unique_references, weight)[candidate_index]
    return (metric.pairwise(unique_candidates, unique_references) @ weight)[candidate_index]


def _unique(texts: Sequence[str]) -> tuple[list[str], Array]:
    """Return the texts without repetitions, and for each text of `texts` its index in that list."""
    indices = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    return list(indices), np.array([indices[text] for text in texts])
