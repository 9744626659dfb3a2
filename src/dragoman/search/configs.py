"""Descriptions of searches: small values that say how to look for a translation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from dragoman.errors import UserError, unknown_name
from dragoman.parts.spec import Configurable
from dragoman.search.penalties import LENGTH_NORMALIZATIONS, LengthNormalization
from dragoman.search.stopping import RULES, EarlyStopping

TINY, HUGE = 1.2e-38, 3.4e38  # the smallest and largest normal numbers of float32, in which tokens are drawn


@runtime_checkable
class OtherRun(Protocol):
    """A run that is open, where a description may also name the folder of one."""

    @property
    def folder(self) -> Path: ...


@dataclass(frozen=True)
class LengthLimit(Configurable):
    """How long a target may get: `ratio` times the source plus `extra` tokens, never more than `most`.

    No END comes before `least` tokens, unless the limit does.
    """

    ratio: float = 2.0
    offset: int = 20
    max: int = 512
    min: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max:
            raise UserError(f"a target of at least {self.min} and at most {self.max} tokens cannot be: change one")
        if not 0 <= self.ratio < math.inf or self.offset < 0 or self.max < 1:
            raise UserError("a length limit needs a ratio and an extra of at least 0 and at most of at least 1")

    def max_lengths(self, source_lengths: Tensor, max_target_length: Tensor | None) -> Tensor:
        """B source lengths → B: how long each target may get, END counted in; never longer than there is `room` (B)."""
        wished = ((source_lengths * self.ratio).long() + self.offset).clamp(1, self.max)
        return wished if max_target_length is None else torch.minimum(wished, max_target_length.clamp(min=1))


@dataclass(frozen=True)
class Beam(Configurable):
    """Beam search: keep the `size` best hypotheses, set finished ones aside, choose by log p(y|x) / |y|^α.

    `early_stopping` says when the search of a source ends before its length limit:

    - "never": when no hypothesis can enter the `best` finished ones any more. Exact: the result is that of "steps".
    - False: when `size` hypotheses have finished and the best live one, at its present length, is no better than the
      worst of them. A heuristic.
    - True: as soon as `size` hypotheses have finished. A wide beam then prefers short hypotheses.
    - "steps": only at the length limit.

    `num_finished` replaces `size` in True and False. A beam of one hypothesis is greedy search, which ends with END.

    Hypotheses that the limit truncates are returned where too few have finished, or, with `unfinished` "beside", are
    ranked among them. With `normalisation` "gnmt" and a `coverage` of β the choice is by log p(y|x) / lp(y) + cp(x, y)
    (Wu et al. 2016, §7).
    """

    size: int = 5
    length_penalty: float = 1.0  # α
    early_stopping: EarlyStopping = "never"
    num_finished: int | None = None  # of early_stopping True and False; `size` if not given
    n_best: int = 1  # number of hypotheses to return
    length_limit: LengthLimit = LengthLimit()
    length_normalization: LengthNormalization = "power"  # |y|^α, or GNMT's
    coverage_penalty: float = 0.0  # β
    unfinished: Literal["behind", "beside"] = "behind"  # where they stand to the complete ones
    no_repeat_ngram_size: int = 0  # no n-gram of so many tokens comes twice; 0: any may
    num_groups: int = 1  # of hypotheses that keep away from one another: diverse beam search (Vijayakumar et al. 2018)
    diversity_penalty: float = (
        0.5  # λ: what a word costs a group for each time that groups before it have written it now
    )

    def __post_init__(self) -> None:
        if not -10 <= self.length_penalty <= 10:
            raise UserError(f"a length penalty must lie between -10 and 10, but is {self.length_penalty}")
        if self.length_normalization not in LENGTH_NORMALIZATIONS:
            raise unknown_name("length normalisation", self.length_normalization, LENGTH_NORMALIZATIONS)
        if not 0 <= self.coverage_penalty <= 10:
            raise UserError(f"a coverage penalty must lie between 0 and 10, but is {self.coverage_penalty}")
        if self.size < 1:
            raise UserError(f"a beam must be at least 1 wide, but is {self.size}")
        if self.n_best < 1:
            raise UserError(f"at least 1 hypothesis must be given back, but {self.n_best} were asked for")
        if self.n_best > self.size:
            raise UserError(f"a beam of {self.size} cannot give the {self.n_best} best: widen it, or ask for fewer")
        if not any(rule == self.early_stopping and type(rule) is type(self.early_stopping) for rule in RULES):
            raise UserError(f"early_stopping must be True, False, 'never' or 'steps', but is {self.early_stopping!r}")
        if self.num_finished is not None:
            if not isinstance(self.early_stopping, bool):
                raise UserError(
                    f"num_finished={self.num_finished} needs early_stopping=True or False, but it is "
                    f"{self.early_stopping!r}: change one of them"
                )
            if self.num_finished < self.n_best:
                raise UserError(
                    f"a search that stops at num_finished={self.num_finished} hypotheses cannot return best="
                    f"{self.n_best}: raise num_finished"
                )
        if self.unfinished not in ("behind", "beside"):
            raise UserError(f"unfinished hypotheses stand 'behind' or 'beside' complete ones, not {self.unfinished!r}")
        if self.no_repeat_ngram_size < 0:
            raise UserError(
                f"n-grams that come only once have at least 1 token, not {self.no_repeat_ngram_size}: 0 allows all"
            )
        if self.num_groups < 1 or self.size % self.num_groups:
            raise UserError(
                f"a beam of {self.size} cannot be parted into {self.num_groups} groups: choose a divisor of it"
            )
        if not 0 <= self.diversity_penalty <= 100:
            raise UserError(f"the diversity of groups must lie between 0 and 100, but is {self.diversity_penalty}")
        if self.num_groups > 1 and self.coverage_penalty:
            raise UserError("diverse groups and coverage cannot be had together: leave one of them out")

    @property
    def rows_per_source(self) -> int:
        """How many rows a source takes up in a batch."""
        return self.size

    @property
    def is_greedy(self) -> bool:
        return self.size == 1 and self.max_finished == 1 and self.coverage_penalty == 0

    @property
    def stopping_rule(self) -> EarlyStopping:
        """The stopping rule in effect: a beam of one hypothesis ends with its first END, as greedy search does."""
        return True if self.size == 1 else self.early_stopping

    @property
    def max_finished(self) -> int:
        """The number of finished hypotheses that are kept."""
        return self.num_finished or self.size

    def length_divisor(self, length: Any) -> Any:
        """lp(y) of a length, END included, by which log p(y|x) is divided; a number, or a tensor of them."""
        return LENGTH_NORMALIZATIONS[self.length_normalization](length, self.length_penalty)

    def max_length_divisor(self, length: Tensor, limit: Tensor) -> Tensor:
        """The maximum of lp over the lengths from `length` to `limit`, B each."""
        return self.length_divisor(limit if self.length_penalty > 0 else length)


@dataclass(frozen=True)
class Sample(Configurable):
    """Draw from p(y|x): softened by `temperature`, from the `top_k` likeliest tokens or the `top_p` of the mass.

    `min_p`: from tokens at least so many times as likely as the likeliest (Nguyen et al. 2024). `typical`: from those
    whose surprise is nearest to the expected one, so much of the mass (Meister et al. 2023).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    n_best: int = 1  # how many samples of each source
    seed: int = 0
    length_limit: LengthLimit = LengthLimit()
    min_p: float | None = None
    typical_p: float | None = None
    no_repeat_ngram_size: int = 0  # as with a beam

    def __post_init__(self) -> None:
        if not TINY <= self.temperature <= HUGE:
            raise UserError(
                f"the temperature must be a number from {TINY:.1e} to {HUGE:.1e}, but is {self.temperature}: for the "
                "most likely token use a beam of 1"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k must be at least 1, but is {self.top_k}")
        if self.top_p is not None and not TINY <= self.top_p <= 1:
            raise UserError(f"top-p must be a number from {TINY:.1e} to 1, but is {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise UserError(f"min-p must lie between 0 and 1, but is {self.min_p}")
        if self.typical_p is not None and not TINY <= self.typical_p <= 1:
            raise UserError(f"typical-p must be a number from {TINY:.1e} to 1, but is {self.typical_p}")
        if self.no_repeat_ngram_size < 0:
            raise UserError(
                f"n-grams that come only once have at least 1 token, not {self.no_repeat_ngram_size}: 0 allows all"
            )
        if self.n_best < 1:
            raise UserError(f"at least 1 sample must be drawn, but {self.n_best} were asked for")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"a seed must be at least 0 and below 2^63, but is {self.seed}")

    @property
    def rows_per_source(self) -> int:
        return self.n_best


TokenSearch = Beam | Sample
