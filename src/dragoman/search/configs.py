"""Beam search and sampling as configurations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor

from dragoman.errors import FieldError, UserError, unknown_name
from dragoman.search.beam import BeamSearch, DiverseBeamSearch
from dragoman.search.engine import SpecialTokens, Strategy
from dragoman.search.greedy_and_sampling import Greedy, Sampling
from dragoman.search.required_phrases import ConstrainedBeam
from dragoman.search.search_config import MAX_FLOAT32, MIN_FLOAT32, LengthLimit, TokenSearch, check_ranges

#: `early_stopping` as in Hugging Face's `generate`, and "steps", which always searches up to the length limit
EarlyStopping = Literal[True, False, "never", "steps"]
RUN_LENGTH_LIMIT = LengthLimit()  # that of the run
STOPPING_RULES: tuple[EarlyStopping, ...] = get_args(EarlyStopping)
LengthNormalization = Literal["power", "gnmt"]

#: lp(y) by length and α: |y|^α, or (5 + |y|)^α / (5 + 1)^α (Wu et al. 2016, eq. 14)
LENGTH_NORMALIZATIONS: dict[str, Callable[[Any, float], Any]] = {
    "power": lambda length, alpha: length if alpha == 1 else length**alpha,
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
}


@dataclass(frozen=True)
class Beam(TokenSearch):
    """Beam search: continue the `size` best hypotheses, and rank finished ones by log p(y|x) / lp(y) + cp(x, y).

    lp(y) is the length normalization and cp(x, y) the coverage penalty (Wu et al. 2016, §7). A beam of one hypothesis
    is greedy search, which ends with EOS.

    Args:
        size: K, the number of hypotheses that are continued.
        length_penalty: α of the length normalization; 0: none.
        early_stopping: when the search of a source ends before its length limit. "never": when no hypothesis can become
            one of the `n_best` finished ones, which is exact: the result is that of "steps". False: when `num_finished`
            hypotheses have finished and the best live one, at its present length, is not better than the worst of them,
            a heuristic. True: as soon as `num_finished` hypotheses have finished; a wide beam then prefers short
            hypotheses. "steps": only at the length limit.
        num_finished: for early_stopping True and False; None: `size`.
        n_best: number of hypotheses to return.
        length_limit: the largest length of a target; by default that of the run.
        length_normalization: lp(y) is |y|^α for "power", ((5 + |y|) / 6)^α for "gnmt".
        coverage_penalty: β of the coverage penalty; 0: none.
        rank_unfinished: hypotheses truncated by the length limit come "last", or are ranked "by_score" with the others.
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0 allows repetitions.
        num_groups: number of groups of diverse beam search (Vijayakumar et al. 2018).
        diversity_penalty: λ, subtracted from log p for each earlier group that has chosen the same token.
        prompt_length: first tokens that do not count in |y|; that of the run's special tokens if a strategy is built.

    Examples:
        >>> search = dragoman.Beam(size=4, length_penalty=0.6, n_best=2)
        >>> len(run.translate(["The dog sleeps."], search=search)[0].alternatives)
        1
    """

    size: int = 5
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = "never"
    num_finished: int | None = None
    n_best: int = 1
    length_limit: LengthLimit = RUN_LENGTH_LIMIT
    length_normalization: LengthNormalization = "power"
    coverage_penalty: float = 0.0
    rank_unfinished: Literal["last", "by_score"] = "last"
    no_repeat_ngram_size: int = 0
    num_groups: int = 1
    diversity_penalty: float = 0.5
    prompt_length: int = 0

    def __post_init__(self) -> None:
        """Raise a UserError if a field has an invalid value, or two fields contradict each other."""
        check_ranges(
            self,
            size=(1, math.inf),
            length_penalty=(-10, 10),
            n_best=(1, math.inf),
            coverage_penalty=(0, 10),
            no_repeat_ngram_size=(0, math.inf),
            diversity_penalty=(0, 100),
        )
        if self.length_normalization not in LENGTH_NORMALIZATIONS:
            raise unknown_name("length_normalization", self.length_normalization, LENGTH_NORMALIZATIONS)
        if self.n_best > self.size:
            raise UserError(
                f"a beam of {self.size} hypotheses cannot return the {self.n_best} best hypotheses: raise the beam "
                f"size to {self.n_best}, or lower n_best to {self.size}"
            )
        # types are compared too, because 1 == True
        if not any(rule == self.early_stopping and type(rule) is type(self.early_stopping) for rule in STOPPING_RULES):
            problem = f"must be True, False, 'never' or 'steps', but is {self.early_stopping!r}"
            raise FieldError("Beam", "early_stopping", problem)
        if self.num_finished is not None:
            if not isinstance(self.early_stopping, bool):
                problem = f"must be True or False to stop at {self.num_finished} finished hypotheses, but is "
                raise FieldError("Beam", "early_stopping", problem + repr(self.early_stopping))
            if self.num_finished < self.n_best:
                problem = f"is {self.num_finished}, fewer than the {self.n_best} hypotheses to return: raise it"
                raise FieldError("Beam", "num_finished", problem)
        if self.rank_unfinished not in ("last", "by_score"):
            raise FieldError(
                "Beam", "rank_unfinished", f"must be 'last' or 'by_score', but is {self.rank_unfinished!r}"
            )
        if self.num_groups < 1 or self.size % self.num_groups:
            problem = f"is {self.num_groups}, which does not divide a beam of {self.size}: use a divisor of its size"
            raise FieldError("Beam", "num_groups", problem)
        if self.num_groups > 1 and self.coverage_penalty:
            raise FieldError(
                "Beam", "coverage_penalty", "is not used by diverse beam search: set it to 0, or num_groups to 1"
            )

    @property
    def rows_per_source(self) -> int:
        """The number of rows of the batch (live hypotheses) per source: the beam size."""
        return self.size

    @property
    def label(self) -> str:
        """The name of the search in reports: "beam 5" for a beam of 5 hypotheses, or "greedy"."""
        return "greedy" if self.has_single_row else f"beam {self.size}"

    @property
    def has_single_row(self) -> bool:
        """Whether this is greedy search: one hypothesis per source, to which tokens are appended until EOS.

        A beam of size 1 that goes on after the first EOS, or computes coverage from attention, is `BeamSearch`.
        """
        return self.size == 1 and self.max_finished == 1 and self.coverage_penalty == 0

    @property
    def stopping_rule(self) -> EarlyStopping:
        """The stopping rule that is applied: `early_stopping`, but always True for a beam of size 1.

        Such a beam stops when `max_finished` hypotheses have finished: by default at the first EOS.
        """
        return True if self.size == 1 else self.early_stopping

    @property
    def max_finished(self) -> int:
        """The number of finished hypotheses per source that are stored (the best ones so far); by default the size."""
        return self.num_finished or self.size

    def length_divisor(self, length: Any) -> Any:
        """Return the length normalization lp(y), by which log p(y|x) is divided, for hypotheses of this length.

        `length` is a number of tokens, EOS included, or a tensor of such numbers; the result has its type. The first
        `prompt_length` tokens, which are forced, do not count.
        """
        if self.prompt_length:  # a hypothesis within the prompt has length 1, so that the divisor is not 0
            length = length - self.prompt_length
            length = length.clamp(min=1) if isinstance(length, Tensor) else max(1, length)
        return LENGTH_NORMALIZATIONS[self.length_normalization](length, self.length_penalty)

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        """Return the object that selects the tokens of each step: greedy, beam, diverse or constrained beam search.

        Args:
            special_tokens: EOS, and the tokens that are never generated (`suppressed`).
            vocab_size: That of the model.
            has_required_phrases: Whether targets must contain given phrases, which needs constrained beam search.

        A beam larger than the vocabulary, and required phrases in diverse beam search, are UserErrors.
        """
        # tokens that can continue a hypothesis (not EOS): the first step selects K different ones
        num_tokens = vocab_size - len(special_tokens.suppressed) - 1
        if self.size > num_tokens:
            raise UserError(
                f"a beam of {self.size} hypotheses is larger than the vocabulary of {num_tokens} tokens (special "
                f"tokens not counted): set search.beam_size to {num_tokens} or less"
            )
        # forced tokens that do not count in the length: only known from the run
        eos, config = special_tokens.eos, replace(self, prompt_length=special_tokens.prompt_length)
        if has_required_phrases:
            if self.num_groups > 1:
                raise UserError(
                    "required phrases do not work with diverse beam search (search.num_groups above 1): set "
                    "search.num_groups to 1, or remove the phrases"
                )
            return ConstrainedBeam(config, eos)
        if self.num_groups > 1:
            return DiverseBeamSearch(config, eos)
        if self.has_single_row:
            return Greedy(rows=1, eos=eos, length_divisor=config.length_divisor)
        return BeamSearch(config, eos)


@dataclass(frozen=True)
class Sample(TokenSearch):
    """Sampling from p(y|x), rescaled by `temperature` and truncated.

    Args:
        temperature: logits are divided by it; below 1, probable tokens become more probable.
        top_k: keep the k most probable tokens.
        top_p: keep the most probable tokens with a probability mass of p (nucleus sampling).
        n_best: number of samples per source.
        seed: of the random numbers; equal seeds draw equal samples of equal sources.
        length_limit: the largest length of a target; by default that of the run.
        min_p: keep tokens with at least `min_p` times the probability of the most probable one (Nguyen et al. 2024).
        typical_p: keep tokens whose −log p is closest to the entropy, up to a mass of p (Meister et al. 2023).
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0 allows repetitions.

    Examples:
        >>> search = dragoman.Sample(top_p=0.9, seed=1)
        >>> first, second = (run.translate(["The dog sleeps."], search=search)[0].text for _ in range(2))
        >>> first == second
        True
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    n_best: int = 1
    seed: int = 0
    length_limit: LengthLimit = RUN_LENGTH_LIMIT
    min_p: float | None = None
    typical_p: float | None = None
    no_repeat_ngram_size: int = 0

    label = "sampling"
    is_random = True

    def __post_init__(self) -> None:
        """Raise a UserError if a field has an invalid value."""
        if not MIN_FLOAT32 <= self.temperature <= MAX_FLOAT32:
            problem = f"must be above 0 and at most {MAX_FLOAT32:g}, but is {self.temperature}"
            raise FieldError("Sample", "temperature", f"{problem}: for greedy search use a beam of 1")
        check_ranges(
            self,
            top_k=(1, math.inf),
            top_p=(MIN_FLOAT32, 1),
            n_best=(1, math.inf),
            seed=(0, 2**63 - 1),
            min_p=(0, 1),
            typical_p=(MIN_FLOAT32, 1),
            no_repeat_ngram_size=(0, math.inf),
        )

    @property
    def truncates(self) -> bool:
        """Whether improbable tokens are excluded by top_k, top_p or min_p, for which tokens have to be sorted.

        `typical_p` is applied separately, before these.
        """
        return any(value is not None for value in (self.top_k, self.top_p, self.min_p))

    @property
    def rows_per_source(self) -> int:
        """The number of rows of the batch (hypotheses) per source: one per sample."""
        return self.n_best

    @property
    def has_single_row(self) -> bool:
        """Whether one sample is drawn per source, so that a source has a single hypothesis."""
        return self.n_best == 1

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        """Return the object that draws the tokens of each step, until the token `special_tokens.eos`.

        Required phrases are a UserError. `vocab_size` is unused: any vocabulary can be sampled from.
        """
        if has_required_phrases:
            raise UserError(
                "required phrases need beam search, but the search is sampling: use Beam, or remove the phrases"
            )
        return Sampling(self, special_tokens.eos)
