"""A model that reads its conditional probabilities off a table, so that every search over it can be done by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.models import DecodingStart
from dragoman.models.model import first_tokens
from dragoman.parts.mixer import Context, State, map_state
from dragoman.search import Beam, Hypothesis, SpecialTokens
from dragoman.search.beam import BeamSearch
from dragoman.search.engine import SearchEngine

FILLERS = 2000  # words that nobody wants: what the table leaves of the probability is spread over them
Prefix = tuple[str, ...]


class TableModel:
    """log p(next | prefix) from a table of hypotheses with their total scores, as the textbook draws its trees.

    The table names hypotheses by their words, "</s>" for END, and gives log p of the whole hypothesis; what a row of
    the search has written lies in its state, so that a hypothesis with another's state shows at once.
    """

    limits = (None, None)

    def __init__(self, totals: dict[str, float]) -> None:
        table = {tuple(hypothesis.split()): total for hypothesis, total in totals.items()}
        self.words = ["<s>", "</s>", *sorted({word for prefix in table for word in prefix} - {"</s>"})]
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.vocab_size = len(self.words) + FILLERS
        self.symbols = SpecialTokens(bos=0, eos=1, suppressed=(0,))
        self.steps: list[list[Prefix]] = []  # what was fed at each step, row by row
        self.nothing = self._row({})
        self.conditional: dict[Prefix, Tensor] = {}
        for parent in {prefix[:-1] for prefix in table}:
            before = table.get(parent, 0.0)
            children = {prefix[-1]: total - before for prefix, total in table.items() if prefix[:-1] == parent}
            self.conditional[parent] = self._row(children)

    def _row(self, children: dict[str, float]) -> Tensor:
        left = 1 - sum(math.exp(log_p) for log_p in children.values())
        assert left >= -1e-9, f"the continuations {children} have more than all of the probability"
        row = torch.full((self.vocab_size,), -torch.inf)
        row[len(self.words) :] = math.log(max(left, 1e-30) / FILLERS)
        for word, log_p in children.items():
            row[self.ids[word]] = log_p
        return row

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        rows = source.shape[0] * beam
        state: State = {"written": torch.full((rows, max_length + 1), -1)}
        tokens = first_tokens(first, len(source), source.device).repeat_interleave(beam)
        return DecodingStart(None, state, tokens, torch.zeros_like(tokens), max_length + 1)

    def decode(self, tokens: Tensor, ctx: Context, state: State) -> tuple[Tensor, State]:
        written = state["written"].scatter(1, ctx.layout.positions, tokens)
        fed = [self.text([token for token in row[1:].tolist() if token >= 0]) for row in written]
        self.steps.append(fed)
        return torch.stack([self.after(prefix) for prefix in fed])[:, None], {"written": written}

    def grow_state(self, state: State, rows: int, places: int) -> tuple[State, int]:
        written = state["written"]
        return {"written": torch.nn.functional.pad(written, (0, places - written.shape[1]), value=-1)}, places

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return map_state(lambda leaf: leaf.index_select(0, rows), state)

    def __call__(self, source: Tensor, lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Teacher forcing: every prefix of every row."""
        rows = [[self.after(self.text(row[1 : t + 1])) for t in range(len(row))] for row in target.tolist()]
        return torch.stack([torch.stack(row) for row in rows])

    def after(self, prefix: Prefix) -> Tensor:
        """V: log p of every next token."""
        return self.conditional.get(prefix, self.nothing)

    def text(self, tokens: list[int]) -> Prefix:
        return tuple(self.words[token] if token < len(self.words) else "…" for token in tokens)

    def sentence(self, tokens: list[int]) -> str:
        return " ".join(self.text(tokens))


def beam_search(
    model: Any, source: Tensor, lengths: Tensor, symbols: SpecialTokens, limits: Tensor, settings: Beam
) -> list[list[Hypothesis]]:
    """A beam, even if it is one hypothesis wide."""
    engine = SearchEngine([model], symbols, BeamSearch(settings, symbols.eos))
    return engine.search(source, lengths, limits, torch.arange(len(source)))


class RandomTable:
    """log p(next | source, prefix) drawn at random for every source and prefix, the same each time it is needed.

    Tokens: 0 is START, 1 is END, the others are words. `draw` makes the V logits of a prefix from a generator.
    """

    symbols = SpecialTokens(bos=0, eos=1, suppressed=(0,))
    max_source_length = None

    def __init__(self, seed: int, vocabulary: int = 6, draw: Callable[[torch.Generator, int], Tensor] | None = None):
        self.seed, self.vocab_size = seed, vocabulary
        self.draw = draw or (lambda chance, size: 2.5 * torch.randn(size, generator=chance))
        self.rows: dict[tuple[int, ...], Tensor] = {}
        self.steps = 0

    def after(self, source: int, prefix: Sequence[int]) -> Tensor:
        """V: the logits of every next token."""
        key = (source, *prefix)
        if key not in self.rows:
            number = 0
            for token in (self.seed, *key):
                number = (number * 1_000_003 + token + 1) % 2**61
            self.rows[key] = self.draw(torch.Generator().manual_seed(number), self.vocab_size)
        return self.rows[key]

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, max_length: int, first: int | Tensor
    ) -> DecodingStart:
        tokens = first_tokens(first, len(source), source.device).repeat_interleave(beam)
        written = torch.full((len(tokens), max_length + 1), -1)
        state: State = {"source": source[:, 0].repeat_interleave(beam), "written": written}
        return DecodingStart(None, state, tokens, torch.zeros_like(tokens), max_length + 1)

    def decode(self, tokens: Tensor, ctx: Context, state: State) -> tuple[Tensor, State]:
        self.steps += 1
        written = state["written"].scatter(1, ctx.layout.positions, tokens)
        rows = zip(state["source"].tolist(), written.tolist(), ctx.layout.positions[:, 0].tolist())
        logits = [self.after(source, row[1 : place + 1]) for source, row, place in rows]
        return torch.stack(logits)[:, None], {"source": state["source"], "written": written}

    def grow_state(self, state: State, rows: int, places: int) -> tuple[State, int]:
        more = (0, places - state["written"].shape[1])
        return {"source": state["source"], "written": torch.nn.functional.pad(state["written"], more, value=-1)}, places

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return map_state(lambda leaf: leaf.index_select(0, rows), state)

    def every_target(self, source: int, limit: int) -> list[tuple[tuple[int, ...], float, int]]:
        """All targets that END within `limit` tokens: their words, log p in float64 and number of tokens."""
        found, prefixes = [], [((), 0.0)]
        for length in range(1, limit + 1):
            longer = []
            for prefix, score in prefixes:
                log_p = self.after(source, prefix).double().log_softmax(-1).tolist()
                found.append((prefix, score + log_p[1], length))
                longer += [((*prefix, word), score + log_p[word]) for word in range(2, self.vocab_size)]
            prefixes = longer
        return found
