"""Reranking: order the n best hypotheses of a search by a noisy channel model, a language model and their length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product

import numpy as np

from dragoman.errors import UserError, unknown_name
from dragoman.parts.spec import Configurable
from dragoman.search.configs import Beam, Sample
from dragoman.search.ngram_metrics import Array
from dragoman.search.search_config import DecodingRun, OtherRun, SearchConfig, SearchRequest, check_n_best
from dragoman.search.search_state import Hypothesis

TUNING_METRICS = ("bleu", "chrf", "chrf++")
MODEL_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)  # the grid of weights that is tried first
LENGTH_WEIGHTS = (0.0, -1.0, -0.5, 0.5, 1.0, 2.0)
INITIAL_STEP, MIN_STEP = 0.25, 1 / 64  # by which weights are raised and lowered after the grid
MIN_SCORE = -1e9  # in place of −∞, so that a weight of 0 gives 0


@dataclass(frozen=True)
class Candidate:
    """A translation with the features by which it is reranked."""

    text: str
    direct: float  # log p(y|x)
    length: float = 0.0  # |y|, in tokens
    channel: float = 0.0  # log p(x|y)
    language: float = 0.0  # log p(y)


@dataclass(frozen=True)
class RerankWeights(Configurable):
    """Weights of reranking by log p(y|x) + λ₁ log p(x|y) + λ₂ log p(y) + λ₃ |y|.

    With the channel model this is noisy channel reranking: p(y|x) ∝ p(x|y) p(y) (Yu et al. 2017, Yee et al. 2019).

    Args:
        channel: λ₁, of the channel model.
        language: λ₂, of the language model.
        length: λ₃, for each token of the target.

    Examples:
        >>> dragoman.RerankWeights(channel=1.0, length=0.5)
        RerankWeights(channel=1.0, language=0.0, length=0.5)
    """

    channel: float = 0.0
    language: float = 0.0
    length: float = 0.0

    def __post_init__(self) -> None:
        """Raise a UserError if a weight is not a finite number."""
        if not all(np.isfinite(weight) for weight in astuple(self)):
            raise UserError(
                "the weights of reranking (channel, language, length) must be finite numbers, but are "
                f"{astuple(self)}: change them"
            )

    @property
    def vector(self) -> Array:
        """The weights of a candidate's four features: 1 for log p(y|x), then channel, language model and length."""
        return np.array((1.0, *astuple(self)))

    def scores(self, candidates: Sequence[Candidate]) -> Array:
        """Return the weighted sum of the features of each candidate, by which candidates are ranked."""
        return _features(candidates) @ self.vector

    def rank(self, candidates: Sequence[Candidate]) -> list[int]:
        """Return the indices of candidates in the order of their weighted scores, best first; ties keep their order."""
        return np.argsort(-self.scores(candidates), kind="stable").tolist() if candidates else []


@dataclass(frozen=True)
class Rerank(SearchConfig):
    """Select among the hypotheses of a search by `RerankWeights`.

    Args:
        candidates: the search that finds hypotheses.
        weights: of the models and of the length; `dragoman tune` finds them.
        channel_model: a run from target to source, open or by its folder.
        language_model: a language model of the target language, open or by its folder.
        n_best: number of candidates to return.

    Examples:
        >>> candidates, weights = dragoman.Beam(4, n_best=4), dragoman.RerankWeights(length=0.5)
        >>> len(run.translate(["The dog sleeps."], search=dragoman.Rerank(candidates, weights)))
        1
    """

    candidates: Beam | Sample
    weights: RerankWeights
    channel_model: str | OtherRun | None = None
    language_model: str | OtherRun | None = None
    n_best: int = 1

    label = "reranking"

    def __post_init__(self) -> None:
        """Raise a UserError if a weight has no model, a model no weight, or all weights are 0."""
        models = ((self.weights.channel, self.channel_model), (self.weights.language, self.language_model))
        for name, (weight, model) in zip(("channel", "language"), models):
            if weight and model is None:
                raise UserError(
                    f"reranking has weights.{name} = {weight}, but no {name} model: set {name}_model to a run folder, "
                    f"or weights.{name} to 0"
                )
            if model is not None and not weight:
                raise UserError(
                    f"reranking has a {name} model, but its weight is 0: set weights.{name} to another number, or "
                    f"remove {name}_model"
                )
        if self.weights == RerankWeights():
            raise UserError(
                "all weights of reranking are 0, so that it changes nothing: set weights.channel, weights.language or "
                "weights.length to another number"
            )
        check_n_best(self, self.candidates)

    @property
    def other_runs(self) -> list[str | OtherRun]:
        """The channel model and the language model, if there are any; each is an open run or a run's folder."""
        return [model for model in (self.channel_model, self.language_model) if model is not None]

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Return the `n_best` candidates of each source with the highest weighted scores, best first.

        Candidates are the hypotheses that `self.candidates` finds. Their scores are weighted sums of log p(y|x), log
        p(x|y) of a channel model, log p(y) of a language model, and their length. A request without source texts, and a
        channel model for sources that are feature vectors, are UserErrors.
        """
        if not request.texts:
            raise UserError(
                "reranking works for translations of source texts only, but there are no sources: use Beam or Sample "
                "to continue a text"
            )
        if self.channel_model is not None and not all(isinstance(text, str) for text in request.texts):
            raise UserError(
                "a channel model scores the source text given the translation, but the sources of this run are "
                "feature vectors, not texts: remove channel_model, and set weights.channel to 0"
            )
        nbest = self.candidates.decode(run, request)
        decode = run.target_tokenizer.decode
        candidates = [
            [
                Candidate(decode(hypothesis.tokens), direct=hypothesis.score, length=len(hypothesis.tokens))
                for hypothesis in hypotheses
            ]
            for hypotheses in nbest
        ]
        sources = [str(text) for text in request.texts]
        scored = score_candidates(run, sources, candidates, self.channel_model, self.language_model)
        orders = [self.weights.rank(candidates) for candidates in scored]  # indices, best first
        return [[hypotheses[i] for i in order[: self.n_best]] for hypotheses, order in zip(nbest, orders)]


def score_candidates(
    run: DecodingRun,
    sources: Sequence[str],
    nbest: Sequence[Sequence[Candidate]],
    channel_model: str | OtherRun | None,
    language_model: str | OtherRun | None,
) -> list[list[Candidate]]:
    """Return the candidates of each source with their features `channel`, log p(x|y), and `language`, log p(y).

    Args:
        run: Opens the other models.
        sources: The source texts x.
        nbest: The candidates y of each source.
        channel_model: The run, or its folder, that computes log p(x|y); None: the feature is 0.
        language_model: The run, or its folder, that computes log p(y); None: the feature is 0.

    Equal pairs of source and candidate, and equal candidates, are scored once.
    """
    pairs = list(
        dict.fromkeys((x, candidate.text) for x, candidates in zip(sources, nbest) for candidate in candidates)
    )
    texts = list(dict.fromkeys(text for _, text in pairs))
    channel, language = dict.fromkeys(pairs, 0.0), dict.fromkeys(texts, 0.0)
    if channel_model is not None and pairs:
        # the channel model translates in the other direction
        sources_of_channel, targets_of_channel = [text for _, text in pairs], [x for x, _ in pairs]
        scored = run.open_run(channel_model, reverse=True).score(sources_of_channel, targets_of_channel)
        channel = {pair: score.score for pair, score in zip(pairs, scored)}
    if language_model is not None and texts:
        scored = run.open_run(language_model).score(sources=None, targets=texts)
        language = {text: score.score for text, score in zip(texts, scored)}
    return [
        [
            replace(candidate, channel=channel[x, candidate.text], language=language[candidate.text])
            for candidate in candidates
        ]
        for x, candidates in zip(sources, nbest)
    ]


@dataclass(frozen=True)
class TuningResult:
    """The best weights and their corpus score."""

    weights: RerankWeights
    score: float  # BLEU or chrF with these weights
    baseline_score: float  # BLEU or chrF of ranking by log p(y|x) alone


def tune_rerank_weights(
    nbest: Sequence[Sequence[Candidate]], references: Sequence[str], metric: str = "bleu"
) -> TuningResult:
    """Find the reranking weights with which the best candidates (one per source) have the highest corpus score.

    A grid of weights is tried first, including weights of 0. Then each weight is raised and lowered by a step, which is
    halved when nothing improves, until it is below MIN_STEP. Invalid arguments are a UserError.

    Args:
        nbest: The candidates of each source, at least one.
        references: The reference translation of each source.
        metric: The corpus score: "bleu", "chrf" or "chrf++".
    """
    if metric not in TUNING_METRICS:
        raise unknown_name("metric", metric, TUNING_METRICS)
    if len(nbest) != len(references):
        raise UserError(
            f"tuning needs one reference translation per source, but got {len(references)} for {len(nbest)} sources: "
            "check that both files have the same number of lines"
        )
    if not nbest or not all(nbest):
        raise UserError(
            "tuning reranking weights needs candidate translations of every source, but a source has none: use "
            "another search for candidates"
        )
    score = _corpus_score(nbest, references, metric)
    features = np.concatenate([_features(candidates) for candidates in nbest])
    all_grids = (MODEL_WEIGHTS, MODEL_WEIGHTS, LENGTH_WEIGHTS)
    # a feature that is always 0 (no such model) has the weight 0; column 0 is log p(y|x), with weight 1
    grids = [grid if features[:, column].any() else (0.0,) for column, grid in enumerate(all_grids, 1)]
    baseline = score(RerankWeights())
    best = TuningResult(RerankWeights(), score=baseline, baseline_score=baseline)
    for weights in product(*grids):
        best = _better(best, RerankWeights(*weights), score)
    step = INITIAL_STEP
    while step >= MIN_STEP:
        last = best
        for column, grid in enumerate(grids):
            for change in (-step, step) if len(grid) > 1 else ():  # a feature that is always 0 keeps its weight of 0
                changed = list(astuple(best.weights))
                changed[column] += change
                best = _better(best, RerankWeights(*changed), score)
        if best is last:
            step /= 2
    return best


def _better(best: TuningResult, weights: RerankWeights, score: Callable[[RerankWeights], float]) -> TuningResult:
    """Return the tuning result with these weights if their score is higher than that of `best`, or else `best`.

    `score` computes the corpus score of reranking with some weights.
    """
    new_score = score(weights)
    improves = new_score > best.score + 1e-9  # more than a rounding error
    return replace(best, weights=weights, score=new_score) if improves else best


def _features(candidates: Sequence[Candidate]) -> Array:
    """Return the features of N candidates: log p(y|x), log p(x|y) (channel), log p(y) (language model) and |y|, N 4.

    −∞ is replaced by MIN_SCORE, because −∞ times a weight of 0 would be NaN.
    """
    features = [(candidate.direct, candidate.channel, candidate.language, candidate.length) for candidate in candidates]
    return np.maximum(np.array(features, float), MIN_SCORE)


def _corpus_score(
    nbest: Sequence[Sequence[Candidate]], references: Sequence[str], metric: str
) -> Callable[[RerankWeights], float]:
    """Return a function from weights to the corpus score of the candidates, one per source, that the weights select.

    The score is the `metric` "bleu", "chrf" or "chrf++". The function adds up sufficient statistics (such as n-gram
    matches) of the selected candidates, which are computed for all candidates only once, here.
    """
    from sacrebleu import BLEU, CHRF  # imported late, because it takes 0.2 s

    # force=True: no warning about texts that look tokenized
    scorer = BLEU(force=True) if metric == "bleu" else CHRF(word_order=2 if metric == "chrf++" else 0)
    # of each candidate: the index of its source, and its index among the candidates of this source
    source = np.repeat(np.arange(len(nbest)), [len(candidates) for candidates in nbest])
    rank = np.concatenate([np.arange(len(candidates)) for candidates in nbest])
    all_candidates = [candidate for candidates in nbest for candidate in candidates]
    texts = [candidate.text for candidate in all_candidates]
    text_references = [reference for candidates, reference in zip(nbest, references) for _ in candidates]
    features = np.full((len(nbest), int(rank.max()) + 1, 4), (-np.inf, 0, 0, 0))  # B N 4; padding has −∞
    features[source, rank] = _features(all_candidates)
    # one row of counts (n-gram matches and totals) per candidate
    statistics = np.array(scorer._extract_corpus_statistics(texts, [text_references]))
    first = np.flatnonzero(rank == 0)  # B: index of the first candidate of each source

    def score(weights: RerankWeights) -> float:
        """Return the corpus score if each source's best candidate by these weights is selected."""
        chosen = first + (features @ weights.vector).argmax(1)
        return float(scorer._compute_score_from_stats(statistics[chosen].sum(0)).score)

    return score
