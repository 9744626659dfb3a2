"""What all search configurations have in common: they are plain values that know how to decode sources with a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

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

MAX_CACHED_ENGINES = 4  # search engines, with captured CUDA graphs, that a run stores
MIN_FLOAT32, MAX_FLOAT32 = 1.2e-38, 3.4e38  # the smallest and largest normal numbers; tokens are drawn in float32


class EngineArguments(NamedTuple):
    """The arguments of the methods `search` and `steps` of an engine, for N sources."""

    source: Tensor  # N S, or N S F, padded
    lengths: Tensor  # N, of the sources
    max_lengths: Tensor  # N, of the targets, EOS included
    keys: Tensor  # N: numbers of the sources, which seed random samples
    constraints: ConstraintTensors
    max_sources: int | None  # number of sources that are searched at a time; None: all


def check_ranges(config: Configurable, **ranges: tuple[float, float]) -> None:
    """Raise a FieldError if a field of a configuration is outside its range; None is always allowed.

    `ranges` are the smallest and the largest allowed value of each field; a maximum of ∞ is no limit, a minimum of
    MIN_FLOAT32 means above 0.
    """
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
        """The folder of the run, which names it in JSON."""


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
        """The length limit of targets, for the fields that the limit of a search leaves None."""

    @property
    def inference_weights(self) -> Callable[[Model], Model]:
        """The function that converts a model to the weights with which the run decodes, such as int8."""

    @property
    def inference_models(self) -> list[Model]:
        """The models of the run, converted to the weights with which it decodes, such as int8."""

    def open_run(self, other: str | OtherRun, reverse: bool = False) -> Any:
        """Open the run that a search configuration names (a folder, or an open run), on this run's device.

        A multilingual one translates between the same languages; with `reverse`, in the other direction.
        """

    def check_same_vocabulary(self, other: Any, reason: str) -> None:
        """Raise a UserError if the vocabulary of another run differs; `reason` says why it must be the same."""


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
        """Return the run's special tokens; if the request has first tokens (one per source), these replace BOS."""
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
        """Return this limit with the values of `default`, such as a run's limit, where ratio, offset or max is None."""
        missing = [name for name in ("ratio", "offset", "max") if getattr(self, name) is None]
        return replace(self, **{name: getattr(default, name) for name in missing})

    def max_lengths(self, source_lengths: Tensor, models: Sequence[Model]) -> Tensor:
        """Return the largest length (B) of each target in tokens, EOS included: ratio · source length + offset.

        It is at least 1, at most `max`, and at most what the positions of each model allow. `source_lengths` are B.
        Where `ratio`, `offset` or `max` is None, it is 2, 20 or 512 (or `min`, if larger).
        """
        ratio = DEFAULT_RATIO if self.ratio is None else self.ratio
        offset = DEFAULT_OFFSET if self.offset is None else self.offset
        # without a maximum, the default one must not contradict the minimum
        largest = max(DEFAULT_MAX_LENGTH, self.min) if self.max is None else self.max
        lengths = ((source_lengths * ratio).long() + offset).clamp(1, largest)
        for model in models:
            supported = model.max_target_length(source_lengths)  # B, or None if any length is possible
            lengths = lengths if supported is None else torch.minimum(lengths, supported.clamp(min=1))
        return lengths


# of the length limit, where neither search nor run has one
DEFAULT_RATIO, DEFAULT_OFFSET, DEFAULT_MAX_LENGTH = 2.0, 20, 512
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
        """The number of rows of the batch (hypotheses) per source.

        It is the most that one of the beam searches and samplings in this search (`token_searches`) needs.
        """
        return max(search.rows_per_source for search in self.token_searches)

    @property
    def label(self) -> str:
        """The name of the search in reports and messages, such as "beam 5"."""
        raise NotImplementedError

    @property
    def token_searches(self) -> list[TokenSearch]:
        """The beam searches and samplings among the fields of this search, such as the one that finds candidates."""
        return [value for value in vars(self).values() if isinstance(value, TokenSearch)]

    @property
    def other_runs(self) -> list[str | OtherRun]:
        """Open runs (or folders of runs) needed besides the one that decodes, such as a language model."""
        return []

    @property
    def is_random(self) -> bool:
        """Whether the result depends on random numbers.

        It does if one of the beam searches and samplings in this search (`token_searches`) draws samples.
        """
        return any(search.is_random for search in self.token_searches)

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Decode the sources of the request with the run's models; return the hypotheses of each source, best first."""
        raise NotImplementedError


class StepwiseSearch(SearchConfig):
    """A search that generates token by token, so that it can be streamed."""

    @property
    def length_limit(self) -> LengthLimit:
        """The smallest and largest numbers of tokens of a target."""
        raise NotImplementedError

    def length_divisor(self, length: Any) -> Any:
        """Return the length normalization lp(y), by which log p(y|x) is divided, for hypotheses of this length.

        `length` is a number of tokens, EOS included, or a tensor of such numbers. By default lp is 1: scores are not
        normalized.
        """
        return 1.0

    def engine(self, run: DecodingRun, request: SearchRequest) -> SearchEngine:
        """Return the engine that decodes the request with the run's models; it may be one that the run has cached."""
        raise NotImplementedError

    def prepare(self, run: DecodingRun, request: SearchRequest) -> tuple[SearchEngine, EngineArguments]:
        """Return the engine that decodes the request, and the arguments for its methods `search` and `steps`."""
        engine = self.engine(run, request)
        # values that the limit of the search leaves open are those of the run
        max_lengths = self.length_limit.or_else(run.length_limit).max_lengths(request.lengths, run.models)
        num_forced = len(run.special_tokens.forced_bos)  # tokens, such as a language token, that begin each target
        return engine, EngineArguments(
            source=request.source,
            lengths=request.lengths,
            max_lengths=max_lengths,
            keys=request.keys,
            constraints=request.constraints.to_tensors(run.target_tokenizer, max_lengths, num_forced),
            max_sources=request.max_batch_size,
        )

    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Decode the sources of the request with the run's models; return the hypotheses of each source, best first."""
        engine, arguments = self.prepare(run, request)
        return engine.search(*arguments)


class TokenSearch(StepwiseSearch):
    """Beam search or sampling."""

    no_repeat_ngram_size: int
    is_random = False

    @property
    def has_single_row(self) -> bool:
        """Whether a source has a single hypothesis, to which tokens are appended: greedy search, or one sample."""
        raise NotImplementedError

    @property
    def token_searches(self) -> list[TokenSearch]:
        """The beam searches and samplings that this search consists of: only itself."""
        return [self]

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        """Return the object that selects the tokens of each step, such as `BeamSearch`.

        Args:
            special_tokens: EOS, and the tokens that are never generated.
            vocab_size: That of the model.
            has_required_phrases: Whether targets must contain given phrases.
        """
        raise NotImplementedError

    def engine(self, run: DecodingRun, request: SearchRequest) -> SearchEngine:
        """Return the engine that decodes the request with the run's models.

        A request with constraints or first tokens, which differ between requests, gets a new engine. Otherwise the run
        caches the engine, by search, special tokens (which differ between language pairs) and weights (by their
        addresses); of more than MAX_CACHED_ENGINES engines the oldest one is dropped. Without an `engine_cache`
        (None), nothing is cached.
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
        """Decode the sources of the request with the run's models; return the hypotheses of each source, best first.

        If the run has a shortlist, the models compute logits only for a subset of the vocabulary: the probable
        translations of the source tokens. Token ids of the search are then indices in this subset (local ids); required
        or forbidden phrases are a UserError.
        """
        engine, arguments = self.prepare(run, request)
        if run.shortlist is None:
            return engine.search(*arguments)
        if request.constraints.include is not None or request.constraints.exclude is not None:
            raise UserError(
                "a vocabulary shortlist does not work with required or forbidden phrases: translate without the "
                "shortlist, or without the phrases"
            )
        constraints = arguments.constraints
        prefixes = [] if constraints.prefix is None else [constraints.prefix]
        # target tokens as which a model may copy source tokens
        copyable = [model.copyable_tokens(request.source, request.lengths) for model in engine.models]
        subset = run.shortlist.select(request.source, engine.special_tokens, [*prefixes, *copyable])
        models = [model.restrict_vocabulary(subset.token_ids) for model in engine.models]
        special_tokens = subset.local_special_tokens(engine.special_tokens)
        shortlist_engine = build_engine(models, special_tokens, self, request.constraints.logits_processors)
        local_arguments = arguments._replace(constraints=subset.local_constraints(constraints))
        return subset.to_global(shortlist_engine.search(*local_arguments))


def build_engine(
    models: Sequence[Model],
    special_tokens: SpecialTokens,
    config: TokenSearch,
    logits_processors: Sequence[LogitsProcessor] = (),
    has_required_phrases: bool = False,
    compile: bool = False,
) -> SearchEngine:
    """Return the engine that performs the search `config` with one model, or with an ensemble.

    Args:
        special_tokens: Ids of BOS and EOS, and of tokens that are forced or never generated.
        logits_processors: Set logits of tokens that must not be generated to −∞; applied after that of
            `config.no_repeat_ngram_size`.
        has_required_phrases: Whether targets must contain given phrases.
        compile: Whether to compile the decoding step with torch.compile.
    """
    strategy = config.strategy(special_tokens, models[0].vocab_size, has_required_phrases)
    own_processors = [NoRepeatNGram(config.no_repeat_ngram_size)] if config.no_repeat_ngram_size else []
    special_tokens = replace(special_tokens, min_length=config.length_limit.min)
    return SearchEngine(models, special_tokens, strategy, [*own_processors, *logits_processors], compile=compile)


def check_n_best(config: SearchConfig, candidates: SearchConfig) -> None:
    """Raise a UserError if the search `config` returns more hypotheses than the search `candidates` finds for it.

    `config` selects the best of the candidates: fewer than 2 candidates, or `config.n_best` below 1, are errors, too.
    """
    check_ranges(config, n_best=(1, math.inf))
    if candidates.n_best < 2:
        raise UserError(
            f"{config.label} selects the best of several hypotheses (candidates), but the search for candidates "
            "returns only 1: set candidates.n_best, the number that it returns, to 2 or more"
        )
    if config.n_best > candidates.n_best:
        raise UserError(
            f"{config.label} cannot return the {config.n_best} best of {candidates.n_best} candidates: raise "
            "candidates.n_best, or lower n_best"
        )
