"""Minimum Bayes risk: of what a search has found take not the likeliest, but what is best on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.errors import UserError
from dragoman.parts.spec import Configurable
from dragoman.search.configs import Sample, TokenSearch
from dragoman.search.utilities import Array, utility_of


@dataclass(frozen=True)
class MinimumBayesRisk(Configurable):
    """Minimum Bayes risk decoding: the candidate that is worth most where any of the references may be right.

        ŷ = argmax_h Σ_r w_r u(h, r)

    `candidates` and `references` say which searches find them; unless told both are the same list. Samples all weigh
    the same (Eikema & Aziz 2020), the n best of a beam p(r|x)^α over the sum of that (Kumar & Byrne 2004). With
    `aggregated` the n-grams of the references are averaged, and not the utilities: linear in their number.
    """

    candidates: TokenSearch
    references: TokenSearch | None = None
    utility: str = "chrf"  # or chrf++, bleu
    posterior_scale: float = 1.0  # α
    aggregate_references: bool = False
    n_best: int = 1  # how many of the candidates to give back

    def __post_init__(self) -> None:
        utility_of(self.utility)
        if not 0 <= self.posterior_scale < float("inf"):
            raise UserError(f"the sharpness of weights must be at least 0 and finite, but is {self.posterior_scale}")
        if self.n_best < 1:
            raise UserError(f"at least 1 hypothesis must be given back, but {self.n_best} were asked for")
        if self.n_best > self.candidates.n_best:
            raise UserError(
                f"{self.candidates.n_best} candidates cannot give the {self.n_best} best: search for more, or ask for fewer"
            )
        if self.candidates.n_best == 1:
            raise UserError(
                "minimum risk chooses among candidates, but its search gives only 1: ask it for the best 2 or more"
            )

    @property
    def rows_per_source(self) -> int:
        """How many rows a source takes up in a batch."""
        return max(self.candidates.rows_per_source, self.references.rows_per_source if self.references else 0)

    def weights(self, scores: Sequence[float]) -> Array:
        """What references with log p(y|x) of `scores` weigh: all the same if they were drawn, else p^α; sum 1."""
        if not len(scores):
            return np.zeros(0)
        drawn = isinstance(self.references or self.candidates, Sample)
        scaled = np.zeros(len(scores)) if drawn else self.posterior_scale * np.asarray(scores, float)
        weights = np.exp(scaled - scaled.max())
        return weights / weights.sum()

    def choose(
        self,
        candidates: Sequence[str],
        scores: Sequence[float],
        references: Sequence[str] | None = None,
        reference_scores: Sequence[float] | None = None,
    ) -> list[tuple[int, float]]:
        """The `best` candidates of a source, each text once, by number and expected utility.

        Candidates and references come with their log p(y|x); without references the candidates are their own.
        """
        if references is None or reference_scores is None:
            references, reference_scores = candidates, scores
        weights = self.weights(reference_scores)
        expected = expected_utilities(candidates, references, weights, self.utility, self.aggregate_references)
        return [(i, float(expected[i])) for i in _ranked(candidates, expected)[: self.n_best]]


def expected_utilities(
    candidates: Sequence[str],
    references: Sequence[str],
    weights: Sequence[float] | Array | None = None,
    utility: str = "chrf",
    aggregate_references: bool = False,
) -> Array:
    """C: Σ_r w_r u(h, r) of every candidate, from 0 to 100; weights are uniform unless told, and made to sum to 1.

    A text that stands there twice is looked at once; as a reference it weighs twice.
    """
    measure = utility_of(utility)
    if not candidates or not references:
        raise UserError(f"{'references' if candidates else 'candidates'} are needed to choose by risk: there are none")
    weighed = np.ones(len(references)) if weights is None else np.asarray(weights, float)
    if len(weighed) != len(references):
        raise UserError(f"{len(weighed)} weights cannot go with {len(references)} references: one each is needed")
    if not (weighed >= 0).all() or not 0 < weighed.sum() < np.inf:
        raise UserError("the weights of references must be finite numbers of at least 0, and not all of them 0")
    own, mine = _once(candidates)
    other, theirs = _once(references)
    weighed = np.bincount(theirs, weighed / weighed.sum())
    if aggregate_references:
        return measure.aggregated(own, other, weighed)[mine]
    return (measure.pairwise(own, other) @ weighed)[mine]


def choose_candidate(
    candidates: Sequence[str],
    references: Sequence[str] | None = None,
    weights: Sequence[float] | Array | None = None,
    utility: str = "chrf",
    aggregate_references: bool = False,
) -> int:
    """The number of the candidate with the highest expected utility; of equals the first."""
    references = candidates if references is None else references
    return int(expected_utilities(candidates, references, weights, utility, aggregate_references).round(9).argmax())


def _ranked(texts: Sequence[str], expected: Array) -> list[int]:
    """Best first, each text where it first stands; of equals, but for rounding, the first."""
    first = {text: i for i, text in reversed(list(enumerate(texts)))}
    return sorted(sorted(first.values()), key=lambda i: -round(float(expected[i]), 9))


def _once(texts: Sequence[str]) -> tuple[list[str], Array]:
    """The texts without those that stood there before, and where among them each of the texts is."""
    numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(numbers), np.array([numbers[text] for text in texts])
