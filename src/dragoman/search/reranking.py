"""Reranking: the n best of a search in a new order, by what other models say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product
from typing import Protocol

import numpy as np

from dragoman.errors import UserError, unknown_name
from dragoman.parts.spec import Configurable
from dragoman.search.configs import OtherRun, TokenSearch
from dragoman.search.utilities import Array, Bleu, ChrF, Overlap, Utility, paired


class Scorer(Protocol):
    """log p(target|source) of pairs of texts, or log p(target) where there are no sources: what a run can say."""

    def __call__(self, sources: Sequence[str] | None, targets: Sequence[str]) -> Sequence[float]: ...


@dataclass(frozen=True)
class Candidate:
    """A translation that was found, and what is known of it."""

    text: str
    direct: float  # log p(y|x), by which it was found
    length: float = 0.0  # |y|: its tokens
    channel: float = 0.0  # log p(x|y)
    language: float = 0.0  # log p(y)


@dataclass(frozen=True)
class RerankWeights(Configurable):
    """The noisy channel: by Bayes' rule p(y|x) ∝ p(x|y) p(y), here beside the direct model and with a word on length.

        log p(y|x) + λ₁ log p(x|y) + λ₂ log p(y) + λ₃ |y|

    Yu et al. (2017), Yee et al. (2019); with λ₁ = 0 it is reranking by a language model alone. The models
    read texts, so each may cut them into tokens of its own.
    """

    channel: float = 0.0  # λ₁
    language: float = 0.0  # λ₂
    length: float = 0.0  # λ₃

    def __post_init__(self) -> None:
        if not all(np.isfinite(weight) for weight in astuple(self)):
            raise UserError(f"the weights of a reranking must be finite numbers, but are {astuple(self)}")

    def score(self, candidate: Candidate) -> float:
        return float(_features([candidate])[0] @ _weights(self))

    def rank(self, candidates: Sequence[Candidate]) -> list[int]:
        """The numbers of the candidates, best first; equals stay in order."""
        if not candidates:
            return []
        return np.argsort(-(_features(candidates) @ _weights(self)), kind="stable").tolist()


@dataclass(frozen=True)
class Rerank(Configurable):
    """Of what a search has found take what other runs, and its length, speak for as well; see `Weights`.

    `channel` is a run from target to source, `language` one of a decoder alone: open, or the folder of one.
    """

    candidates: TokenSearch
    weights: RerankWeights
    channel_model: str | OtherRun | None = None
    language_model: str | OtherRun | None = None
    n_best: int = 1  # how many of the candidates to give back

    def __post_init__(self) -> None:
        for name in ("channel", "language"):
            weight, judge = getattr(self.weights, name), getattr(self, f"{name}_model")
            if weight and judge is None:
                raise UserError(f"a weight of {weight} for the {name} model was given, but no {name} model: name a run")
            if judge is not None and not weight:
                raise UserError(f"the {name} model weighs 0, so it would be asked in vain: weigh it, or leave it out")
        if self.weights == RerankWeights():
            raise UserError("reranking needs a channel model, a language model or a weight of lengths: give one")
        if self.n_best < 1:
            raise UserError(f"at least 1 hypothesis must be given back, but {self.n_best} were asked for")
        if self.n_best > self.candidates.n_best:
            raise UserError(
                f"{self.candidates.n_best} candidates cannot give the {self.n_best} best: search for more, or ask for fewer"
            )
        if self.candidates.n_best == 1:
            raise UserError(
                "reranking chooses among candidates, but its search gives only 1: ask it for the best 2 or more"
            )

    @property
    def rows_per_source(self) -> int:
        """How many rows a source takes up in a batch."""
        return self.candidates.rows_per_source


class Reranker:
    """Asks other runs about candidates, and sorts them anew."""

    def __init__(self, weights: RerankWeights, channel: Scorer | None = None, language: Scorer | None = None) -> None:
        """`channel` is a model from target to source, `language` one of targets."""
        given = (("channel", weights.channel, channel), ("language", weights.language, language))
        for name, weight, scorer in given:
            if weight and scorer is None:
                raise UserError(f"a weight of {weight} for the {name} model was given, but no {name} model")
        self.weights, self.channel, self.language = weights, channel, language

    def score(self, sources: Sequence[str], nbest: Sequence[Sequence[Candidate]]) -> list[list[Candidate]]:
        """The candidates of each source with what every model there is says of them; each pair is scored once."""
        if len(sources) != len(nbest):
            raise UserError(
                f"{len(sources)} sources cannot go with {len(nbest)} lists of candidates: one each is needed"
            )
        pairs = list(dict.fromkeys((x, one.text) for x, some in zip(sources, nbest) for one in some))
        texts = list(dict.fromkeys(text for _, text in pairs))
        channel = dict.fromkeys(pairs, 0.0)
        language = dict.fromkeys(texts, 0.0)
        if self.channel is not None and pairs:
            channel = dict(zip(pairs, self.channel([text for _, text in pairs], [x for x, _ in pairs])))
        if self.language is not None and texts:
            language = dict(zip(texts, self.language(None, texts)))
        return [
            [replace(one, channel=channel[x, one.text], language=language[one.text]) for one in some]
            for x, some in zip(sources, nbest)
        ]

    def __call__(self, sources: Sequence[str], nbest: Sequence[Sequence[Candidate]]) -> list[list[int]]:
        """Of each source the numbers of its candidates, best first."""
        return [self.weights.rank(some) for some in self.score(sources, nbest)]


METRICS: dict[str, Utility] = {"bleu": Bleu(effective=False), "chrf": ChrF(), "chrf++": ChrF(words=2)}
COARSE = (0.0, 0.25, 0.5, 1.0, 2.0)
LENGTHS = (0.0, -1.0, -0.5, 0.5, 1.0, 2.0)
FINE = 1 / 64
IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class TuningResult:
    """The weights that did best, their corpus score, and that of choosing by log p(y|x) alone."""

    weights: RerankWeights
    score: float
    baseline_score: float


def tune_rerank_weights(
    nbest: Sequence[Sequence[Candidate]], references: Sequence[str], metric: str = "bleu"
) -> TuningResult:
    """The weights whose first choices have the highest corpus BLEU or chrF: a coarse grid, then finer and finer steps.

    Of each candidate it is counted once what it shares with its reference; a corpus score is then a sum of counts. No
    weights do worse on these references than none, because none are in the grid. Feature by feature a step is tried
    in either direction; when none helps, steps are halved.
    """
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    if len(nbest) != len(references):
        raise UserError(
            f"{len(nbest)} lists of candidates cannot go with {len(references)} references: one each is needed"
        )
    if not nbest or not all(nbest):
        raise UserError("weights are tuned on candidates of every source, but there is a source that has none")
    score = _corpus(nbest, references, METRICS[metric])
    features = np.concatenate([_features(some) for some in nbest])
    grids = [grid if features[:, i].any() else (0.0,) for i, grid in enumerate((COARSE, COARSE, LENGTHS), 1)]
    alone = score(RerankWeights())
    best = TuningResult(RerankWeights(), alone, alone)
    for weights in product(*grids):
        best = _better(best, RerankWeights(*weights), score)
    step = 0.25
    while step >= FINE:
        last = best
        for i, grid in enumerate(grids):
            for move in (-step, step) if len(grid) > 1 else ():
                moved = list(astuple(best.weights))
                moved[i] += move
                best = _better(best, RerankWeights(*moved), score)
        if best is last:
            step /= 2
    return best


def _better(best: TuningResult, weights: RerankWeights, score: Callable[[RerankWeights], float]) -> TuningResult:
    found = score(weights)
    return TuningResult(weights, found, best.baseline_score) if found > best.score + 1e-9 else best


def _features(candidates: Sequence[Candidate]) -> Array:
    """N 4; what is impossible is very bad, so that it stays a number when it is not asked for."""
    rows = [(one.direct, one.channel, one.language, one.length) for one in candidates]
    return np.maximum(np.array(rows, float), IMPOSSIBLE)


def _weights(weights: RerankWeights) -> Array:
    return np.array((1.0, *astuple(weights)))


def _corpus(
    nbest: Sequence[Sequence[Candidate]], references: Sequence[str], measure: Utility
) -> Callable[[RerankWeights], float]:
    """Gives the corpus score of what some weights choose."""
    texts = [one.text for some in nbest for one in some]
    source = np.repeat(np.arange(len(nbest)), [len(some) for some in nbest])
    place = np.concatenate([np.arange(len(some)) for some in nbest])  # of a candidate in its list
    width = int(place.max()) + 1
    partner = np.append(len(texts) + source, len(texts) + np.arange(len(references)))
    features = np.full((len(nbest), width, 4), (-np.inf, 0, 0, 0))  # S N 4; what is not there is never chosen
    features[source, place] = _features([one for some in nbest for one in some])
    orders = measure.orders([*texts, *references])
    counts = np.zeros((len(nbest), width, 3, len(orders)))  # n-grams of the candidate, of the reference, and shared
    for n, order in enumerate(orders):
        own, other = order.totals[: len(texts)], order.totals[len(texts) + source]
        both = paired(order, partner)[: len(texts)]
        counts[source, place, :, n] = np.stack((measure.counted(own, other), other, both), 1)

    def score(weights: RerankWeights) -> float:
        chosen = (features @ _weights(weights)).argmax(1)
        own, other, both = counts[np.arange(len(chosen)), chosen].sum(0)
        return float(measure.score(Overlap(list(own), list(other), list(both))))

    return score
