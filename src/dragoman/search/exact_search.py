"""Exact search: the mode of the model, proved, and with it how far a beam is from what it looks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import DecodingStart, Model
from dragoman.parts.mixer import Context, Layout, State, map_state
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Configurable
from dragoman.search.configs import LengthLimit
from dragoman.search.engine import Hypothesis, SpecialTokens
from dragoman.search.penalties import LENGTH_NORMALIZATIONS
from dragoman.search.slots import map_tree


@dataclass(frozen=True)
class ExactSearch(Configurable):
    """Look until nothing better can be left: argmax_y log p(y|x) / |y|^α over all y that END within the length limit.

    `most` prefixes of each source are gone on from, `width` at a time; what was found by then is not proved. With a
    `length_penalty` the bound is loose, and far more must be looked at.
    """

    max_expansions: int = 100_000
    length_penalty: float = 0.0  # α
    length_limit: LengthLimit = field(default_factory=LengthLimit)
    batch_size: int = 16

    def __post_init__(self) -> None:
        if self.max_expansions < 1 or self.batch_size < 1:
            raise UserError(
                f"exact search needs at least 1 prefix and a width of 1, not {self.max_expansions} and {self.batch_size}"
            )
        if not -10 <= self.length_penalty <= 10:
            raise UserError(f"a length penalty must lie between -10 and 10, but is {self.length_penalty}")

    @property
    def rows_per_source(self) -> int:
        """How many rows a source takes up in a batch."""
        return self.batch_size

    @property
    def n_best(self) -> int:
        return 1

    def length_divisor(self, length: int) -> float:
        """What log p(y|x) of so many tokens, END counted in, is divided by."""
        return LENGTH_NORMALIZATIONS["power"](length, self.length_penalty)


@dataclass(frozen=True)
class ExactResult:
    """The best target that was found, and whether it is proved that there is no better one."""

    hypothesis: Hypothesis
    proven_optimal: bool
    upper_bound: float  # no target is better than this by its normalised score; where proved that of the hypothesis
    expansions: int  # how many prefixes were gone on from


@torch.inference_mode()
def exact_search(
    model: Model,
    source: Tensor,
    lengths: Tensor,
    special_tokens: SpecialTokens,
    max_lengths: Tensor,
    config: ExactSearch,
    initial_hypotheses: Sequence[Hypothesis | None] | None = None,
) -> list[ExactResult]:
    """B S → the mode of each source among the targets that END within `limits` (B) tokens.

    Depth first, the likeliest continuation first, and never on from a prefix that cannot become better than the best
    target so far, because log p(y|x) only falls as y grows (Stahlberg & Byrne 2019). What was `begun` with,
    say the result of a beam, is the first target to be better than, and what is given back, unproved, where nothing
    ENDs. Prefixes are read `settings.width` at a time.
    """
    modes = []
    for i, (length, limit) in enumerate(zip(lengths.tolist(), max_lengths.tolist())):
        start = special_tokens.bos[i : i + 1] if isinstance(special_tokens.bos, Tensor) else special_tokens.bos
        begin = model.start_decoding(source[i : i + 1, :length], lengths[i : i + 1], 1, limit, start)
        walk = Walk(model, begin, special_tokens, limit, config, initial_hypotheses[i] if initial_hypotheses else None)
        modes.append(walk.mode())
    return modes


@dataclass
class Branch:
    """A prefix that was read, and the continuations of it that are still to be looked at, best last."""

    prefix: list[int]
    state: State  # of 1 row
    tokens: NDArray[np.int64]
    scores: NDArray[np.float64]

    @property
    def over(self) -> bool:
        return not len(self.tokens)

    def prune(self, lowest: float) -> None:
        """Forget what is not above `lowest`."""
        first = int(np.searchsorted(self.scores, lowest, side="right"))
        self.tokens, self.scores = self.tokens[first:], self.scores[first:]

    def take(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The best continuations, best first."""
        taken = self.tokens[-count:][::-1], self.scores[-count:][::-1]
        self.tokens, self.scores = self.tokens[:-count], self.scores[:-count]
        return taken


class Walk:
    """The walk through the prefixes of one source; its path is a stack of branches."""

    def __init__(
        self,
        model: Model,
        begin: DecodingStart,
        symbols: SpecialTokens,
        limit: int,
        settings: ExactSearch,
        best: Hypothesis | None,
    ) -> None:
        self.model, self.begin, self.symbols, self.limit, self.settings = model, begin, symbols, limit, settings
        self.begun = best
        self.best = best if best is not None and best.finished and len(best.tokens) < limit else None
        if self.best is not None:
            normalized = self.best.score / settings.length_divisor(len(self.best.tokens) + 1)
            self.best = Hypothesis(self.best.tokens, self.best.score, normalized, True)
        self.branches: list[Branch] = []
        self.expanded = 0

    def mode(self) -> ExactResult:
        self.read([[]], [0.0], self.begin.state, self.begin.tokens)
        while self.branches and self.expanded < self.settings.max_expansions:
            self.go_on()
        for branch in self.branches:
            branch.prune(self.lowest(len(branch.prefix) + 1))
        left = [self.bound(branch) for branch in self.branches if not branch.over]
        if self.best is not None:
            return ExactResult(self.best, not left, max([self.best.normalized_score, *left]), self.expanded)
        if self.begun is not None:
            return ExactResult(self.begun, False, max([-np.inf, *left]), self.expanded)
        if left:
            raise UserError(f"no target was found among {self.expanded:,} prefixes: look at more of them")
        raise UserError(f"no target ends within {self.limit} tokens: raise the length limit")

    def steepest(self, written: int) -> float:
        """The penalty at which so many tokens, END still to come, may be worth most: it only rises or only falls."""
        return max(self.settings.length_divisor(written + 1), self.settings.length_divisor(self.limit))

    def lowest(self, written: int) -> float:
        """log p that a prefix of so many tokens must be above for anything better to come of it."""
        return -np.inf if self.best is None else self.best.normalized_score * self.steepest(written)

    def bound(self, branch: Branch) -> float:
        return float(branch.scores[-1]) / self.steepest(len(branch.prefix) + 1)

    def go_on(self) -> None:
        """Read the best continuations of the last branches, one row each."""
        room = min(self.settings.batch_size, self.settings.max_expansions - self.expanded)
        prefixes: list[list[int]] = []
        scores: list[float] = []
        states: list[tuple[State, int]] = []
        while self.branches and len(prefixes) < room:
            branch = self.branches[-1]
            branch.prune(self.lowest(len(branch.prefix) + 1))
            tokens, values = branch.take(room - len(prefixes))
            if len(tokens):
                prefixes += [[*branch.prefix, token] for token in tokens.tolist()]
                scores += values.tolist()
                states.append((branch.state, len(tokens)))
            if branch.over:
                self.branches.pop()
        if prefixes:
            last = torch.tensor([prefix[-1] for prefix in prefixes], device=self.begin.tokens.device)
            self.read(prefixes, scores, _rows(states), last)

    def read(self, prefixes: list[list[int]], scores: list[float], state: State, tokens: Tensor) -> None:
        """Feed the last `tokens` (R) of some prefixes: take what ENDs, and keep what may become better than it."""
        written = torch.tensor([len(prefix) for prefix in prefixes], device=tokens.device)
        positions = (self.begin.positions + written).clamp(max=self.begin.max_length - 1)
        logits, after = self.model.decode(
            tokens[:, None], Context(Layout.continuation(positions), self.begin.memory), state
        )
        assert after is not None
        self.expanded += len(prefixes)
        log_p = at_least_float32(logits[:, 0]).log_softmax(-1).double()
        total = torch.tensor(scores, device=tokens.device, dtype=torch.double)[:, None] + self.allowed(log_p, prefixes)
        for prefix, score in zip(prefixes, total[:, self.symbols.eos].tolist()):
            self.take(prefix, score)
        total[:, self.symbols.eos] = -torch.inf
        total[written + 1 >= self.limit] = -torch.inf  # no room for END after one more
        lowest = total.new_tensor([self.lowest(len(prefix) + 1) for prefix in prefixes])
        rows, words = (total > lowest[:, None]).nonzero(as_tuple=True)
        row, word, value = (column.cpu().numpy() for column in (rows, words, total[rows, words]))
        bounds = np.searchsorted(row, np.arange(len(prefixes) + 1))
        for i in reversed(range(len(prefixes))):  # the best branch is gone on with first
            some = slice(bounds[i], bounds[i + 1])
            order = value[some].argsort(kind="stable")
            if len(order):
                own = map_state(_row(i), after)
                self.branches.append(Branch(prefixes[i], own, word[some][order], value[some][order]))

    def take(self, prefix: list[int], score: float) -> None:
        """A target that ENDs: the best so far?"""
        normalized = score / self.settings.length_divisor(len(prefix) + 1)
        if score > -np.inf and (self.best is None or normalized > self.best.normalized_score):
            self.best = Hypothesis(prefix, score, normalized, True)

    def allowed(self, log_p: Tensor, prefixes: list[list[int]]) -> Tensor:
        """R V: log p with −∞ for what may not be written, and 0 for what must be."""
        log_p[:, list(self.symbols.suppressed)] = -torch.inf
        for row, prefix in zip(log_p, prefixes):
            written = len(prefix)
            if written < self.settings.length_limit.min:
                row[self.symbols.eos] = -torch.inf
            if written < len(self.symbols.forced_bos):
                row.fill_(-torch.inf)[self.symbols.forced_bos[written]] = 0.0
            if self.symbols.force_eos_at_limit and written + 1 == self.limit:
                row.fill_(-torch.inf)[self.symbols.eos] = 0.0
        return log_p


def _row(i: int) -> Callable[[Tensor], Tensor]:
    return lambda leaf: leaf[i : i + 1]


def _rows(states: list[tuple[State, int]]) -> State:
    """States of 1 row each, so many times each, as the rows of one."""
    counts = [count for _, count in states]
    return map_tree(
        lambda *leaves: torch.cat([leaf.expand(count, *leaf.shape[1:]) for leaf, count in zip(leaves, counts)]),
        *(state for state, _ in states),
    )
