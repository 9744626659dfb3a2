"""Minimum Bayes risk decoding: select the candidate with the highest expected utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.errors import UserError
from dragoman.search.configs import Beam, Sample
from dragoman.search.ngram_metrics import Array, get_metric
from dragoman.search.search_config import DecodingRun, SearchConfig, SearchRequest, TokenSearch, check_n_best
from dragoman.search.search_state import Hypothesis
from dragoman.text import Tokenizer


@dataclass(frozen=True)
class MinimumBayesRisk(SearchConfig):
    """Minimum Bayes risk decoding: ŷ = argmax_h Σ_r w_r u(h, r), with candidates h and references r.

    Samples have equal weights (Eikema & Aziz 2020), the n best of a beam weights proportional to p(r|x)^α (Kumar &
    Byrne 2004). With `aggregate_references`, n-gram counts of references are averaged instead of utilities, which makes
    the cost linear in their number (Vamvas & Sennrich 2024).
    """

    candidates: Beam | Sample
    references: Beam | Sample | None = None  # None: the candidates
    utility: str = "chrf"  # or chrf++, bleu
    posterior_scale: float = 1.0  # α
    aggregate_references: bool = False
    n_best: int = 1  # number of candidates to return

    def __post_init__(self) -> None:
        get_metric(self.utility)
        if not 0 <= self.posterior_scale < float("inf"):
            raise UserError(f"posterior_scale must be at least 0 and finite, but is {self.posterior_scale}")
        check_n_best(self, self.candidates)

    @property
    def rows_per_source(self) -> int:
        return max(search.rows_per_source for search in self.token_searches)

    @property
    def label(self) -> str:
        return "minimum Bayes risk"

    @property
    def token_searches(self) -> list[TokenSearch]:
        return [self.candidates, *([self.references] if self.references else [])]

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        all_candidates = self.candidates.decode(run, request)
        all_references = self.references.decode(run, request) if self.references else [None] * len(all_candidates)
        results = []
        for candidates, references in zip(all_candidates, all_references):
            texts, scores = _texts_and_scores(run.target_tokenizer, candidates)
            others = None if references is None else _texts_and_scores(run.target_tokenizer, references)
            chosen = self.choose(texts, scores, *(others or (None, None)))
            results.append([candidates[number] for number, _ in chosen])
        return results

    def reference_weights(self, scores: Sequence[float]) -> Array:
        """Return the weights, with sum 1, of references with log p(y|x) `scores`."""
        if not len(scores):
            return np.zeros(0)
        is_random = (self.references or self.candidates).is_random
        scaled = np.zeros(len(scores)) if is_random else self.posterior_scale * np.asarray(scores, float)
        weights = np.exp(scaled - scaled.max())
        return weights / weights.sum()

    def choose(
        self,
        candidates: Sequence[str],
        scores: Sequence[float],
        references: Sequence[str] | None = None,
        reference_scores: Sequence[float] | None = None,
    ) -> list[tuple[int, float]]:
        """Return the index and the expected utility of the `n_best` different candidates of a source, best first.

        `scores` are log p(y|x). Without references, the candidates are the references.
        """
        if references is None or reference_scores is None:
            references, reference_scores = candidates, scores
        weights = self.reference_weights(reference_scores)
        expected = expected_utilities(candidates, references, weights, self.utility, self.aggregate_references)
        first = {text: index for index, text in reversed(list(enumerate(candidates)))}
        ranked = sorted(sorted(first.values()), key=lambda index: -round(float(expected[index]), 9))
        return [(index, float(expected[index])) for index in ranked[: self.n_best]]


def expected_utilities(
    candidates: Sequence[str],
    references: Sequence[str],
    weights: Sequence[float] | Array | None = None,
    utility: str = "chrf",
    aggregate_references: bool = False,
) -> Array:
    """Return Σ_r w_r u(h, r) of every candidate h, from 0 to 100.

    Weights are normalized to sum 1; None: they are equal. Equal texts are evaluated once.
    """
    metric = get_metric(utility)
    if not candidates or not references:
        raise UserError("minimum Bayes risk needs at least one candidate and one reference")
    weight = np.ones(len(references)) if weights is None else np.asarray(weights, float)
    if len(weight) != len(references):
        raise UserError(f"expected one weight per reference, got {len(weight)} for {len(references)} references")
    if not (weight >= 0).all() or not 0 < weight.sum() < np.inf:
        raise UserError("the weights of references must be finite numbers >= 0 with a positive sum")
    unique_candidates, candidate_index = _unique(candidates)
    unique_references, reference_index = _unique(references)
    weight = np.bincount(reference_index, weight / weight.sum())
    if aggregate_references:
        return metric.aggregated(unique_candidates, unique_references, weight)[candidate_index]
    return (metric.pairwise(unique_candidates, unique_references) @ weight)[candidate_index]


def _texts_and_scores(tokenizer: Tokenizer, hypotheses: Sequence[Hypothesis]) -> tuple[list[str], list[float]]:
    return [tokenizer.decode(h.tokens) for h in hypotheses], [h.score for h in hypotheses]


def _unique(texts: Sequence[str]) -> tuple[list[str], Array]:
    """Return the different texts, and the index among them of each text."""
    indices = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    return list(indices), np.array([indices[text] for text in texts])
