"""Beam search and sampling as configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from dragoman.errors import UserError, unknown_name
from dragoman.search.beam import BeamSearch
from dragoman.search.diverse_beam import DiverseBeamSearch
from dragoman.search.engine import SpecialTokens, Strategy
from dragoman.search.greedy import Greedy
from dragoman.search.required_phrases import ConstrainedBeam
from dragoman.search.sampling import Sampling
from dragoman.search.search_config import LengthLimit, TokenSearch

MIN_FLOAT32, MAX_FLOAT32 = 1.2e-38, 3.4e38  # the smallest and largest normal numbers; tokens are drawn in float32

#: `early_stopping` as in Hugging Face's `generate`, and "steps", which always searches up to the length limit
EarlyStopping = Literal[True, False, "never", "steps"]
DEFAULT_LENGTH_LIMIT = LengthLimit()
STOPPING_RULES: tuple[EarlyStopping, ...] = get_args(EarlyStopping)
LengthNormalization = Literal["power", "gnmt"]

#: lp(y) by length and α: |y|^α, or (5 + |y|)^α / (5 + 1)^α (Wu et al. 2016, eq. 14)
LENGTH_NORMALIZATIONS: dict[str, Callable[[Any, float], Any]] = {
    "power": lambda length, alpha: length**alpha,
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
}


def check_length_penalty(alpha: float) -> None:
    if not -10 <= alpha <= 10:
        raise UserError(f"length_penalty must be between -10 and 10, but is {alpha}")


def check_ngram_size(size: int) -> None:
    if size < 0:
        raise UserError(f"no_repeat_ngram_size must be at least 1, or 0 to allow repetitions, but is {size}")


@dataclass(frozen=True)
class Beam(TokenSearch):
    """Beam search: continue the `size` best hypotheses, and rank finished ones by log p(y|x) / lp(y) + cp(x, y).

    lp(y) is the length normalization and cp(x, y) the coverage penalty (Wu et al. 2016, §7). `early_stopping` says when
    the search of a source ends before its length limit:

    - "never": when no hypothesis can become one of the `n_best` finished ones. Exact: the result is that of "steps".
    - False: when `size` hypotheses have finished and the best live one, at its present length, is not better than the
      worst of them. A heuristic.
    - True: as soon as `size` hypotheses have finished. A wide beam then prefers short hypotheses.
    - "steps": only at the length limit.

    `num_finished` replaces `size` in True and False. A beam of one hypothesis is greedy search, which ends with EOS.
    """

    size: int = 5
    length_penalty: float = 1.0  # α
    early_stopping: EarlyStopping = "never"
    num_finished: int | None = None  # for early_stopping True and False; `size` if None
    n_best: int = 1  # number of hypotheses to return
    length_limit: LengthLimit = DEFAULT_LENGTH_LIMIT
    length_normalization: LengthNormalization = "power"
    coverage_penalty: float = 0.0  # β
    rank_unfinished: Literal["last", "by_score"] = "last"  # rank of hypotheses truncated by the length limit
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice; 0 allows repetitions
    num_groups: int = 1  # groups of diverse beam search (Vijayakumar et al. 2018)
    diversity_penalty: float = 0.5  # λ: subtracted from log p for each earlier group that has chosen the same token

    def __post_init__(self) -> None:
        check_length_penalty(self.length_penalty)
        check_ngram_size(self.no_repeat_ngram_size)
        if self.length_normalization not in LENGTH_NORMALIZATIONS:
            raise unknown_name("length_normalization", self.length_normalization, LENGTH_NORMALIZATIONS)
        if not 0 <= self.coverage_penalty <= 10:
            raise UserError(f"coverage_penalty must be between 0 and 10, but is {self.coverage_penalty}")
        if self.size < 1:
            raise UserError(f"the size of a beam must be at least 1, but is {self.size}")
        if self.n_best < 1:
            raise UserError(f"n_best must be at least 1, but is {self.n_best}")
        if self.n_best > self.size:
            raise UserError(f"a beam of {self.size} cannot give the {self.n_best} best: raise size, or lower n_best")
        if not any(rule == self.early_stopping and type(rule) is type(self.early_stopping) for rule in STOPPING_RULES):
            raise UserError(f"early_stopping must be True, False, 'never' or 'steps', but is {self.early_stopping!r}")
        if self.num_finished is not None:
            if not isinstance(self.early_stopping, bool):
                raise UserError(
                    f"num_finished={self.num_finished} needs early_stopping=True or False, but it is "
                    f"{self.early_stopping!r}: change one of them"
                )
            if self.num_finished < self.n_best:
                raise UserError(
                    f"a search that stops at num_finished={self.num_finished} hypotheses cannot return n_best="
                    f"{self.n_best}: raise num_finished"
                )
        if self.rank_unfinished not in ("last", "by_score"):
            raise UserError(f"rank_unfinished must be 'last' or 'by_score', but is {self.rank_unfinished!r}")
        if self.num_groups < 1 or self.size % self.num_groups:
            raise UserError(
                f"a beam of {self.size} cannot be divided into num_groups={self.num_groups}: choose a divisor"
            )
        if not 0 <= self.diversity_penalty <= 100:
            raise UserError(f"diversity_penalty must be between 0 and 100, but is {self.diversity_penalty}")
        if self.num_groups > 1 and self.coverage_penalty:
            raise UserError("diverse beam search has no coverage penalty: set num_groups to 1 or coverage_penalty to 0")

    @property
    def as_beam(self) -> Beam:
        return self

    @property
    def rows_per_source(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return "greedy" if self.is_greedy else f"beam {self.size}"

    @property
    def is_greedy(self) -> bool:
        return self.size == 1 and self.max_finished == 1 and self.coverage_penalty == 0

    @property
    def has_single_row(self) -> bool:
        return self.is_greedy

    def with_single_row(self) -> Beam:
        """Return greedy search with the other settings of this beam."""
        return replace(self, size=1, n_best=1)

    @property
    def stopping_rule(self) -> EarlyStopping:
        """The stopping rule in effect: a beam of one hypothesis ends with its first EOS, as greedy search does."""
        return True if self.size == 1 else self.early_stopping

    @property
    def max_finished(self) -> int:
        """The number of finished hypotheses that are kept."""
        return self.num_finished or self.size

    def length_divisor(self, length: Any) -> Any:
        return LENGTH_NORMALIZATIONS[self.length_normalization](length, self.length_penalty)

    def max_length_divisor(self, length: Tensor, max_length: Tensor) -> Tensor:
        """Return the maximum of lp over the lengths from `length` to `max_length`, B each."""
        return self.length_divisor(max_length if self.length_penalty > 0 else length)

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        num_tokens = vocab_size - len(special_tokens.suppressed) - 1
        if self.size > num_tokens:
            raise UserError(f"a beam of {self.size} is larger than the vocabulary of {num_tokens} tokens: lower size")
        eos = special_tokens.eos
        if has_required_phrases:
            if self.num_groups > 1:
                raise UserError("required phrases do not work with diverse beam search: set num_groups to 1")
            return ConstrainedBeam(self, eos)
        if self.num_groups > 1:
            return DiverseBeamSearch(self, eos)
        return Greedy(1, eos, self.length_divisor) if self.is_greedy else BeamSearch(self, eos)


@dataclass(frozen=True)
class Sample(TokenSearch):
    """Sampling from p(y|x), rescaled by `temperature` and truncated.

    `top_k` keeps the k most probable tokens, `top_p` the most probable ones with a probability mass of p (nucleus
    sampling), `min_p` those with at least `min_p` times the probability of the most probable one (Nguyen et al. 2024),
    and `typical_p` those whose −log p is closest to the entropy, up to a mass of p (Meister et al. 2023).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    n_best: int = 1  # number of samples per source
    seed: int = 0
    length_limit: LengthLimit = DEFAULT_LENGTH_LIMIT
    min_p: float | None = None
    typical_p: float | None = None
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice; 0 allows repetitions

    def __post_init__(self) -> None:
        check_ngram_size(self.no_repeat_ngram_size)
        if not MIN_FLOAT32 <= self.temperature <= MAX_FLOAT32:
            raise UserError(
                f"temperature must be from {MIN_FLOAT32:.1e} to {MAX_FLOAT32:.1e}, but is {self.temperature}: for the "
                "most probable token use a beam of 1"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, but is {self.top_k}")
        for name, mass in (("top_p", self.top_p), ("typical_p", self.typical_p)):
            if mass is not None and not MIN_FLOAT32 <= mass <= 1:
                raise UserError(f"{name} must be from {MIN_FLOAT32:.1e} to 1, but is {mass}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise UserError(f"min_p must be between 0 and 1, but is {self.min_p}")
        if self.n_best < 1:
            raise UserError(f"n_best, the number of samples, must be at least 1, but is {self.n_best}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed must be at least 0 and below 2^63, but is {self.seed}")

    @property
    def rows_per_source(self) -> int:
        return self.n_best

    @property
    def label(self) -> str:
        return "sampling"

    @property
    def has_single_row(self) -> bool:
        return self.n_best == 1

    def with_single_row(self) -> Sample:
        """Return the search with one sample."""
        return replace(self, n_best=1)

    @property
    def is_random(self) -> bool:
        return True

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        if has_required_phrases:
            raise UserError("required phrases need beam search, but the search is sampling: use Beam")
        return Sampling(self, special_tokens.eos)
