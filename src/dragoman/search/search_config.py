"""What all search configurations have in common: they are plain values that know how to decode sources with a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dragoman.errors import FieldError, UserError
from dragoman.models import Model
from dragoman.parts.spec import Configurable
from dragoman.search.constraints import NO_CONSTRAINTS, Constraints, NoRepeatNGram
from dragoman.search.engine import LogitsProcessor, SearchEngine, SpecialTokens, Strategy
from dragoman.search.search_state import ConstraintTensors, Hypothesis
from dragoman.text import Tokenizer

if TYPE_CHECKING:
    from dragoman.search.shortlist import Shortlist

MAX_CACHED_ENGINES = 4  # of a run
MIN_FLOAT32, MAX_FLOAT32 = 1.2e-38, 3.4e38  # the smallest and largest normal numbers; tokens are drawn in float32

EngineArguments = tuple[Tensor, Tensor, Tensor, Tensor, ConstraintTensors, int | None]


def check_ranges(config: Configurable, **ranges: tuple[float, float]) -> None:
    """Raise an error if a field of a configuration, unless it is None, is not within its range (minimum, maximum)."""
    for field_name, (minimum, maximum) in ranges.items():
        value = getattr(config, field_name)
        if value is not None and not minimum <= value <= maximum:
            expected = f"at least {minimum}" if maximum == math.inf else f"between {minimum} and {maximum}"
            if minimum == MIN_FLOAT32:
                expected = f"above 0 and at most {maximum}"
            raise FieldError(type(config).__name__, field_name, f"must be {expected}, but is {value}")


@runtime_checkable
class OtherRun(Protocol):
    """An open run, in place of the folder of one."""

    @property
    def folder(self) -> Path:
        """The run's folder."""


class DecodingRun(Protocol):
    """What searches need of a run."""

    special_tokens: SpecialTokens
    target_tokenizer: Tokenizer
    shortlist: Shortlist | None
    engine_cache: dict[Any, SearchEngine] | None
    compile_steps: bool

    @property
    def models(self) -> list[Model]:
        """The models of the run, several if it is an ensemble."""

    @property
    def length_limit(self) -> LengthLimit:
        """The length limit of targets, where a search has none of its own."""

    @property
    def inference_weights(self) -> Callable[[Model], Model]:
        """Converts a model to the weights with which the run decodes, such as int8."""

    @property
    def inference_models(self) -> list[Model]:
        """The models with the weights with which the run decodes, such as int8."""

    def open_run(self, other: str | OtherRun, reverse: bool = False) -> Any:
        """Open the run that a search configuration names (a folder, or an open run), on this run's device.

        A multilingual one translates between the same languages; with `reverse`, in the other direction.
        """

    def check_same_vocabulary(self, other: Any, reason: str) -> None:
        """Raise a UserError, with the reason, if another run has another vocabulary."""


@dataclass(frozen=True)
class SearchRequest:
    """Sources for a search, and constraints on their targets."""

    source: Tensor  # B S, or B S F, padded
    lengths: Tensor  # B
    keys: Tensor  # B: numbers of the sources, from which samples are drawn
    texts: Sequence[Any] = ()  # the sources before tokenization, if they are to be translated
    first_token: Tensor | None = None  # B: decoded first in place of BOS
    constraints: Constraints = NO_CONSTRAINTS
    max_batch_size: int | None = None  # sources that are searched at a time

    def special_tokens(self, run: DecodingRun) -> SpecialTokens:
        """Return the run's special tokens, with this request's first token as BOS if it has one."""
        return run.special_tokens if self.first_token is None else replace(run.special_tokens, bos=self.first_token)


@dataclass(frozen=True)
class LengthLimit(Configurable):
    """The largest length of a target: `ratio` · source length + `offset` tokens, at most `max`, EOS included.

    What is None is taken from the run, whose limit is derived from its training pairs.

    Args:
        ratio: tokens of the target per token of the source; 2 if the run has none.
        offset: number of tokens that are added; 20 if the run has none.
        max: largest limit, whatever the length of the source.
        min: EOS is not generated before this number of tokens, unless the limit is lower.

    Examples:
        >>> search = dragoman.Beam(length_limit=dragoman.LengthLimit(ratio=0, offset=3))
        >>> len(run.translate(["The dog sleeps."], search=search)[0].tokens) <= 3
        True
    """

    ratio: float | None = None
    offset: int | None = None
    max: int | None = None
    min: int = 0

    def __post_init__(self) -> None:
        """Raise a UserError if a field has an invalid value."""
        check_ranges(self, ratio=(0, MAX_FLOAT32), offset=(0, math.inf), max=(1, math.inf), min=(0, math.inf))
        if self.max is not None and self.min > self.max:
            raise FieldError(
                "LengthLimit", "min", f"is {self.min}, more than the maximum of {self.max} tokens: lower it"
            )

    def or_else(self, default: LengthLimit) -> LengthLimit:
        """Return this limit with the values of another one, that of a run, in place of None."""
        names = [name for name in ("ratio", "offset", "max") if getattr(self, name) is None]
        return replace(self, **{name: getattr(default, name) for name in names})

    def max_lengths(self, source_lengths: Tensor, models: Sequence[Model]) -> Tensor:
        """Return the largest length of each target (B): ratio · source length + offset, as far as models support it."""
        ratio = DEFAULT_RATIO if self.ratio is None else self.ratio
        offset = DEFAULT_OFFSET if self.offset is None else self.offset
        largest = max(DEFAULT_MAX_LENGTH, self.min) if self.max is None else self.max
        lengths = ((source_lengths * ratio).long() + offset).clamp(1, largest)
        for model in models:
            supported = model.max_target_length(source_lengths)
            lengths = lengths if supported is None else torch.minimum(lengths, supported.clamp(min=1))
        return lengths


DEFAULT_RATIO, DEFAULT_OFFSET, DEFAULT_MAX_LENGTH = 2.0, 20, 512  # of runs that have no limit of their own
DEFAULT_LENGTH_LIMIT = LengthLimit(DEFAULT_RATIO, DEFAULT_OFFSET, DEFAULT_MAX_LENGTH)


class SearchConfig(Configurable):
    """A search: a plain value that can be compared and written as JSON, and that decodes sources with a run.

    Examples:
        >>> isinstance(dragoman.Beam(4), dragoman.SearchConfig), dragoman.Beam(4) == dragoman.Beam(size=4)
        (True, True)
    """

    is_bounded = True  # whether its cost is bounded by `rows_per_source` and the length limits

    @property
    def n_best(self) -> int:
        """The number of hypotheses that are returned for each source."""
        raise NotImplementedError

    @property
    def rows_per_source(self) -> int:
        """The number of rows (hypotheses) of a source in a batch: the most that one of its token searches needs."""
        return max(search.rows_per_source for search in self.token_searches)

    @property
    def label(self) -> str:
        """The search in a few words, such as `beam 5`."""
        raise NotImplementedError

    @property
    def token_searches(self) -> list[TokenSearch]:
        """The beam searches and samplings that this search consists of: those among its fields."""
        return [value for value in vars(self).values() if isinstance(value, TokenSearch)]

    @property
    def other_runs(self) -> list[str | OtherRun]:
        """The runs that this search needs besides the one that decodes, such as a language model: folders or opened."""
        return []

    @property
    def is_random(self) -> bool:
        """Whether the result depends on random numbers, because one of the searches it consists of is a sampling."""
        return any(search.is_random for search in self.token_searches)

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, best first."""
        raise NotImplementedError


class StepwiseSearch(SearchConfig):
    """A search that generates token by token, so that it can be streamed."""

    @property
    def length_limit(self) -> LengthLimit:
        """The limit on the number of generated tokens."""
        raise NotImplementedError

    def length_divisor(self, length: Any) -> Any:
        """Return lp(y) for a length, EOS included, by which log p(y|x) is divided: a number, or a tensor of numbers.

        By default 1: scores are not normalized by length.
        """
        return 1.0

    def engine(self, run: DecodingRun, request: SearchRequest) -> SearchEngine:
        """Return the engine that searches, which may be one that the run has cached."""
        raise NotImplementedError

    def prepare(self, run: DecodingRun, request: SearchRequest) -> tuple[SearchEngine, EngineArguments]:
        """Return the engine that decodes, and the arguments for its methods `search` and `steps`.

        These are padded sources, their lengths, the length limits, keys, encoded constraints and the batch size.
        """
        engine = self.engine(run, request)
        max_lengths = self.length_limit.or_else(run.length_limit).max_lengths(request.lengths, run.models)
        num_forced = len(run.special_tokens.forced_bos)
        constraints = request.constraints.to_tensors(run.target_tokenizer, max_lengths, num_forced)
        sources = request.source, request.lengths, max_lengths, request.keys
        return engine, (*sources, constraints, request.max_batch_size)

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Search all sources and return their hypotheses, best first."""
        engine, arguments = self.prepare(run, request)
        return engine.search(*arguments)


class TokenSearch(StepwiseSearch):
    """Beam search or sampling."""

    no_repeat_ngram_size: int
    is_random = False

    @property
    def has_single_row(self) -> bool:
        """Whether a source has one row (hypothesis), to which tokens are appended: greedy search, or one sample."""
        raise NotImplementedError

    @property
    def token_searches(self) -> list[TokenSearch]:
        """The search itself."""
        return [self]

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        """Return the object that selects the tokens of each step, such as `BeamSearch`.

        `has_required_phrases`: one that generates phrases which targets must contain.
        """
        raise NotImplementedError

    def engine(self, run: DecodingRun, request: SearchRequest) -> SearchEngine:
        """Return an engine that the run has cached, or a new one if the request has constraints or a first token.

        An engine is cached for this search, these weights (by their addresses) and special tokens, which differ between
        language pairs; the oldest one is dropped.
        """
        constraints, special_tokens = request.constraints, request.special_tokens(run)
        models, processors = run.inference_models, constraints.logits_processors
        if run.engine_cache is None or processors or constraints.include is not None or request.first_token is not None:
            has_required_phrases = constraints.include is not None
            return build_engine(models, special_tokens, self, processors, has_required_phrases=has_required_phrases)
        key = (self, special_tokens, *(weight.data_ptr() for model in models for weight in model.parameters()))
        if key not in run.engine_cache:
            while len(run.engine_cache) >= MAX_CACHED_ENGINES:
                run.engine_cache.pop(next(iter(run.engine_cache)))
            run.engine_cache[key] = build_engine(models, special_tokens, self, compile=run.compile_steps)
        return run.engine_cache[key]

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source, best first.

        With a shortlist (probable translations of the source tokens), the models generate only its tokens.
        """
        engine, arguments = self.prepare(run, request)
        if run.shortlist is None:
            return engine.search(*arguments)
        if request.constraints.include is not None or request.constraints.exclude is not None:
            raise UserError(
                "a vocabulary shortlist does not work with required or forbidden phrases: leave out one of the two"
            )
        source, lengths, max_lengths, keys, constraints, max_sources = arguments
        prefixes = [] if constraints.prefix is None else [constraints.prefix]
        copyable = [model.copyable_tokens(source, lengths) for model in engine.models]
        subset = run.shortlist.select(source, engine.special_tokens, [*prefixes, *copyable])
        models = [model.restrict_vocabulary(subset.token_ids) for model in engine.models]
        special_tokens = subset.local_special_tokens(engine.special_tokens)
        shortlist_engine = build_engine(models, special_tokens, self, request.constraints.logits_processors)
        constraints = subset.local_constraints(constraints)  # with the ids of tokens in the subset
        return subset.to_global(shortlist_engine.search(source, lengths, max_lengths, keys, constraints, max_sources))


def build_engine(
    models: Sequence[Model],
    special_tokens: SpecialTokens,
    config: TokenSearch,
    logits_processors: Sequence[LogitsProcessor] = (),
    has_required_phrases: bool = False,
    compile: bool = False,
) -> SearchEngine:
    """Return the engine that searches with some models as the configuration `config` says.

    Args:
        models: One model, or an ensemble.
        logits_processors: Besides those of the configuration.
        has_required_phrases: Whether there are phrases that targets must contain.
        compile: Whether to compile the decoding step.
    """
    strategy = config.strategy(special_tokens, models[0].vocab_size, has_required_phrases)
    own_processors = [NoRepeatNGram(config.no_repeat_ngram_size)] if config.no_repeat_ngram_size else []
    special_tokens = replace(special_tokens, min_length=config.length_limit.min)
    return SearchEngine(models, special_tokens, strategy, [*own_processors, *logits_processors], compile=compile)


def check_n_best(config: SearchConfig, candidates: SearchConfig) -> None:
    """Raise an error if a configuration that selects among candidates gets too few of them."""
    check_ranges(config, n_best=(1, math.inf))
    if candidates.n_best < 2:
        raise UserError(
            f"{config.label} selects among candidates, but its search returns only 1: set n_best of candidates to "
            "2 or more"
        )
    if config.n_best > candidates.n_best:
        raise UserError(
            f"n_best={config.n_best} is more than the {candidates.n_best} candidates that the inner search returns: "
            "raise candidates.n_best, or lower n_best"
        )
