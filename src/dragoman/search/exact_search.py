"""Exact search: find the most probable target of a model, and prove that it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import DecodingStart, Model
from dragoman.models.model import first_tokens
from dragoman.parts.mixer import Context, SequenceLayout, State
from dragoman.parts.precision import accumulator_dtype, at_least_float32
from dragoman.search.configs import LENGTH_NORMALIZATIONS, Beam
from dragoman.search.engine import SpecialTokens
from dragoman.search.search_config import DecodingRun, LengthLimit, SearchConfig, SearchRequest, check_ranges
from dragoman.search.search_state import Hypothesis, map_tensors

INITIAL_BEAM_SIZE = 5  # of the beam search that gives the first lower bound


@dataclass(frozen=True)
class ExactSearch(SearchConfig):
    """Find argmax_y log p(y|x) / |y|^α over all y that end within the length limit (Stahlberg & Byrne 2019).

    Args:
        max_expansions: number of prefixes of a source that are expanded at most; a result that was found by then is not
            proven optimal.
        length_penalty: α; other than 0 it makes the bound loose, and far more prefixes have to be expanded.
        length_limit: the largest length of a target; by default that of the run.
        batch_size: number of prefixes that are expanded at a time.

    Examples:
        >>> search = dragoman.ExactSearch(max_expansions=20, length_limit=dragoman.LengthLimit(max=8))
        >>> translation = run.translate(["The dog sleeps."], search=search)[0]
        >>> translation.proven_optimal in (True, False)
        True
    """

    max_expansions: int = 100_000
    length_penalty: float = 0.0
    length_limit: LengthLimit = field(default_factory=LengthLimit)
    batch_size: int = 16

    label = "exact search"
    n_best = 1
    is_bounded = False

    def __post_init__(self) -> None:
        """Raise a UserError if a field has an invalid value."""
        check_ranges(self, max_expansions=(1, np.inf), length_penalty=(-10, 10), batch_size=(1, np.inf))

    @property
    def rows_per_source(self) -> int:
        """The number of rows of the batch per source: the prefixes that are expanded at a time."""
        return self.batch_size

    def length_divisor(self, length: int) -> float:
        """Return |y|^α, by which log p(y|x) is divided, for a target of `length` tokens, EOS included."""
        return LENGTH_NORMALIZATIONS["power"](length, self.length_penalty)

    @torch.inference_mode()
    def decode(self, run: DecodingRun, request: SearchRequest) -> list[list[Hypothesis]]:
        """Return the best target that was found for each source, as a list with one hypothesis.

        Sources are searched one after the other, by branch and bound that begins with the result of a beam search.
        Several models (an ensemble), and constraints on the targets, are UserErrors.
        """
        if len(run.models) > 1:
            raise UserError(
                "exact search works with a single model, but this is an ensemble: use the search Beam, or one run of "
                "the ensemble"
            )
        if request.constraints:
            raise UserError(
                "exact search does not support prefixes, required or forbidden phrases: leave them out, or use the "
                "search Beam"
            )
        # tokens that can continue a prefix (not EOS), which a beam must not outnumber
        num_tokens = run.models[0].vocab_size - len(run.special_tokens.suppressed) - 1
        beam = Beam(
            size=min(INITIAL_BEAM_SIZE, num_tokens), length_penalty=self.length_penalty, length_limit=self.length_limit
        )
        initial = [hypotheses[0] for hypotheses in beam.decode(run, request)]
        max_lengths = self.length_limit.or_else(run.length_limit).max_lengths(request.lengths, run.models).tolist()
        model, special_tokens = run.inference_models[0], request.special_tokens(run)
        first = first_tokens(special_tokens.bos, len(initial), request.source.device)
        results = []
        for i, (length, max_length) in enumerate(zip(request.lengths.tolist(), max_lengths)):
            row = slice(i, i + 1)
            source, source_length = request.source[row, :length], request.lengths[row]
            start = model.start_decoding(source, source_length, beam=1, max_length=max_length, first=first[row])
            search = BranchAndBound(model, start, special_tokens, max_length, config=self, initial=initial[i])
            results.append([search.search()])
        return results


@dataclass
class Branch:
    """An expanded prefix, and its N continuations (prefix and one more token) that are not expanded yet, best last."""

    prefix: list[int]  # token ids
    cache: State  # of the model after the prefix, with 1 row
    tokens: NDArray[np.int64]  # N: last tokens of the continuations
    scores: NDArray[np.float64]  # N: log p of the continuations, ascending

    def prune(self, lower_bound: float) -> None:
        """Remove continuations of the prefix whose score (log p) is not above the bound; scores are ascending."""
        first = int(np.searchsorted(self.scores, lower_bound, side="right"))
        self.tokens, self.scores = self.tokens[first:], self.scores[first:]

    def pop_best(self, count: int) -> tuple[list[int], list[float]]:
        """Remove the `count` best continuations, which are last; return their last tokens and log p, best first."""
        best = self.tokens[-count:][::-1].tolist(), self.scores[-count:][::-1].tolist()
        self.tokens, self.scores = self.tokens[:-count], self.scores[:-count]
        return best


@dataclass
class BranchAndBound:
    """The search tree of one source.

    Depth-first search, the most probable continuation first. A prefix that cannot become better than the best target so
    far is pruned, since log p(y|x) only falls as y grows.
    """

    model: Model
    start: DecodingStart  # of one row
    special_tokens: SpecialTokens
    max_length: int  # of the target, EOS included
    config: ExactSearch
    initial: Hypothesis | None  # a target to improve on, such as the result of a beam search
    best: Hypothesis | None = None  # the best target so far
    branches: list[Branch] = field(default_factory=list)  # the stack of the depth-first search
    expansions: int = 0  # number of prefixes that were expanded
    upper_bound: float = np.inf  # no target has a higher normalized score; known after the search

    def search(self) -> Hypothesis:
        """Return the best target; `proven_optimal` says whether every better one was ruled out.

        Prefixes are expanded until none is left that could become better than the best target, or until
        `max_expansions` prefixes were expanded. If no target was completed by then, the initial one (`self.initial`) is
        returned, or a UserError raised if there is none. `self.upper_bound` is set.
        """
        # `tokens` has no EOS, which must not exceed the length limit either
        if self.initial is not None and self.initial.finished and len(self.initial.tokens) < self.max_length:
            self._propose(self.initial.tokens, self.initial.score)
        self._expand(prefixes=[[]], scores=[0.0], cache=self.start.state, tokens=self.start.tokens)
        while self.branches and self.expansions < self.config.max_expansions:
            self._expand_best()
        for branch in self.branches:
            branch.prune(self._lower_bound(len(branch.prefix) + 1))  # continuations have one token more
        bounds = [  # the best normalized scores that prefixes not expanded yet could reach
            float(branch.scores[-1]) / self._max_divisor(len(branch.prefix) + 1)
            for branch in self.branches
            if len(branch.tokens)
        ]
        result = self.best or self.initial
        if result is None and bounds:
            raise UserError(
                f"exact search found no target that ends with EOS within the maximum of {self.expansions:,} expanded "
                "prefixes (ExactSearch.max_expansions): raise this maximum"
            )
        if result is None:
            raise UserError(
                f"exact search found no target that ends within {self.max_length} tokens, EOS included: raise "
                "ExactSearch.length_limit.max (by default search.max_target_length)"
            )
        self.upper_bound = max([-np.inf if self.best is None else self.best.normalized_score, *bounds])
        return result._replace(proven_optimal=self.best is not None and not bounds)

    def _max_divisor(self, length: int) -> float:
        """Return the largest length divisor |y|^α of all targets that begin with a prefix of `length` tokens.

        |y|^α is monotonic in |y|, so it is largest for the shortest target (the prefix and EOS) or for the longest.
        """
        return max(self.config.length_divisor(length + 1), self.config.length_divisor(self.max_length))

    def _lower_bound(self, length: int) -> float:
        """Return the log p that a prefix of `length` tokens must exceed to become better than the best target so far.

        It is −∞ if there is no target yet. log p is at most 0, so the largest divisor gives the best normalized score.
        """
        return -np.inf if self.best is None else self.best.normalized_score * self._max_divisor(length)

    def _expand_best(self) -> None:
        """Expand up to `batch_size` of the best continuations in one call of the model, one row each.

        They are taken from the top of the stack `self.branches`. A branch is a prefix with its continuations (one more
        token) that are not expanded yet; it is removed when it has none left.
        """
        count = min(self.config.batch_size, self.config.max_expansions - self.expansions)
        prefixes: list[list[int]] = []
        scores: list[float] = []
        caches: list[State] = []
        while self.branches and len(prefixes) < count:
            branch = self.branches[-1]
            branch.prune(self._lower_bound(len(branch.prefix) + 1))
            tokens, token_scores = branch.pop_best(count - len(prefixes))
            prefixes += [[*branch.prefix, token] for token in tokens]
            scores += token_scores
            caches += [branch.cache] * len(tokens)
            if not len(branch.tokens):
                self.branches.pop()
        if prefixes:
            cache = map_tensors(lambda *leaves: torch.cat(leaves), *caches)
            last = torch.tensor([prefix[-1] for prefix in prefixes], device=self.start.tokens.device)
            self._expand(prefixes, scores, cache, last)

    def _expand(self, prefixes: list[list[int]], scores: list[float], cache: State, tokens: Tensor) -> None:
        """Compute log p of all continuations (one more token) of R prefixes.

        Continuations by EOS are targets, of which the best one is kept. Those that could become better than the best
        target are pushed on the stack of branches, one branch per prefix.

        Args:
            scores: R, log p of the prefixes.
            cache: The model's state before the last token of each prefix.
            tokens: R, these last tokens, or BOS for an empty prefix.
        """
        lengths = torch.tensor([len(prefix) for prefix in prefixes], device=tokens.device)
        positions = (self.start.positions + lengths).clamp(max=self.start.max_length - 1)
        context = Context(SequenceLayout.continuation(positions), self.start.memory)
        logits, cache_after = self.model.decode(tokens[:, None], context, cache)
        assert cache_after is not None
        self.expansions += len(prefixes)
        dtype = accumulator_dtype(tokens.device)
        log_p = self._restrict(at_least_float32(logits[:, 0]).log_softmax(-1).to(dtype), prefixes)
        total = torch.tensor(scores, device=tokens.device, dtype=dtype)[:, None] + log_p  # R V
        eos = self.special_tokens.eos
        for prefix, score in zip(prefixes, total[:, eos].tolist()):
            self._propose(prefix, score)
        total[:, eos] = -torch.inf
        total[lengths + 1 >= self.max_length] = -torch.inf  # no position for EOS after one more token
        bounds = total.new_tensor([self._lower_bound(len(prefix) + 1) for prefix in prefixes])
        # continuations that may become better, sorted by prefix: index of the prefix, last token and log p of each
        kept = (total > bounds[:, None]).nonzero(as_tuple=True)
        rows, last_tokens, total_log_p = (column.cpu().numpy() for column in (*kept, total[kept]))
        starts = np.searchsorted(rows, np.arange(len(prefixes) + 1))  # where the continuations of each prefix begin
        for i in reversed(range(len(prefixes))):  # the best branch is pushed last, and so expanded first
            continuations = slice(starts[i], starts[i + 1])
            order = total_log_p[continuations].argsort(kind="stable")  # best last
            if len(order):
                row_cache = map_tensors(lambda leaf, row=i: leaf[row : row + 1], cache_after)
                branch_tokens, branch_scores = last_tokens[continuations][order], total_log_p[continuations][order]
                self.branches.append(Branch(prefixes[i], row_cache, tokens=branch_tokens, scores=branch_scores))

    def _propose(self, tokens: list[int], score: float) -> None:
        """Set `self.best` to this target (tokens without EOS, log p `score`) if it is better than the best so far."""
        normalized_score = score / self.config.length_divisor(len(tokens) + 1)  # with EOS
        if score > -np.inf and (self.best is None or normalized_score > self.best.normalized_score):
            self.best = Hypothesis(tokens, score, normalized_score, finished=True)

    def _restrict(self, log_p: Tensor, prefixes: list[list[int]]) -> Tensor:
        """Set log p (R V) of tokens that must not follow R prefixes to −∞, and of forced tokens to 0; in place.

        Excluded are the tokens `suppressed`, EOS below the minimum length, and `suppressed_first` right after those of
        `forced_bos`. Forced are `forced_bos` at the beginning, and EOS at the length limit if `force_eos_at_limit`.
        """
        special = self.special_tokens
        log_p[:, list(special.suppressed)] = -torch.inf
        for row, prefix in zip(log_p, prefixes):
            length = len(prefix)
            if length < self.config.length_limit.min:
                row[special.eos] = -torch.inf
            if length == len(special.forced_bos):
                row[list(special.suppressed_first)] = -torch.inf
            if length < len(special.forced_bos):
                row.fill_(-torch.inf)[special.forced_bos[length]] = 0.0
            if special.force_eos_at_limit and length + 1 == self.max_length:
                row.fill_(-torch.inf)[special.eos] = 0.0
        return log_p
