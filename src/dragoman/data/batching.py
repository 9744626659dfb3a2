"""Batches by token budget, in an order that follows from seed and epoch alone and can be entered at any position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.data.store import Side, TokenStore
from dragoman.errors import UserError
from dragoman.text.framing import ENCODER_DECODER, Framing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Indices = NDArray[np.int64]
Lengths = NDArray[np.int32]


class Row(NamedTuple):
    """One row of a batch, symbols around it and all; `types` are the segments of its source, `label` its own label."""

    source: NDArray[Any]
    target: NDArray[Any]
    types: NDArray[Any] | None = None
    label: int = 0


Rows = Callable[[TokenStore, int, np.random.Generator], Row]

# What a random stream is for: streams of different purposes never meet.
ORDER, SHUFFLE, NOISE = range(3)


@dataclass(frozen=True)
class Position:
    """A place in the data: the next batch to be made."""

    epoch: int = 0
    window: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as padded ids; the lengths count the framing, `indices` are the pairs' numbers in the store.

    A source that is no text is padded vectors, float32, without framing.

    The target is either a sequence to be written, START y END, or `aligned`: the answer to every token of the source,
    PAD where nothing is asked.
    """

    source: Tensor  # B S, or B S F
    source_lengths: Tensor  # B
    target: Tensor  # B T
    target_lengths: Tensor  # B
    indices: Indices
    source_tokens: int  # the symbols around them counted in
    target_tokens: int  # the tokens that are predicted: with END and without START
    types: Tensor | None = None  # B S: segments of the source
    labels: Tensor | None = None  # B: a label a row

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def padding(self) -> float:
        """The share of the batch that is padding."""
        real = self.source_tokens + int(self.target_lengths.sum())
        places = self.source.shape[0] * self.source.shape[1] + self.target.numel()
        return 1 - real / max(1, places)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device; the copy to a GPU runs beside what is computed there."""
        names = ("source", "source_lengths", "target", "target_lengths", "types", "labels")
        tensors = {name: tensor for name in names if (tensor := getattr(self, name)) is not None}
        if str(device).startswith("cuda"):
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return replace(self, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})


class Batches:
    """The batches of a store, epoch after epoch.

    An epoch is a permutation of the pairs, cut into windows of `window` pairs: as many as fill about a hundred batches
    unless told, so that batches are tight and yet hold sentences of some variety. The pairs of a window are sorted by
    the length of their longer side, then by how much longer it is (chance decides between equals), cut where rows ×
    longest side would exceed `tokens`, and the batches of the window are shuffled.

    `rows` makes each row of a batch from the store, afresh in every epoch (or in every one of `copies` epochs, after
    which the same come again); without it a row is a pair with its framing. `width` estimates from the lengths of its
    two sides in the store how wide a row will be.
    """

    def __init__(
        self,
        store: TokenStore,
        tokens: int,
        seed: int,
        window: int | None = None,
        shuffle: bool = True,
        framing: Framing = ENCODER_DECODER,
        rows: Rows | None = None,
        aligned: bool = False,
        width: Callable[[Lengths, Lengths], NDArray[Any]] | None = None,
        copies: int | None = None,
    ) -> None:
        if window is None:
            window = max(1000, min(2**16, 100 * tokens * len(store) // max(1, store.tokens)))
        if window < 1:
            raise UserError(f"the window of pairs that are sorted together must be at least 1, not {window}")
        self.width = width or (lambda source, target: np.maximum(source + 1, target + 2))
        longest = int(self.width(store.source_lengths, store.target_lengths).max())
        if longest > tokens:
            raise UserError(
                f"the longest row has {longest:,} tokens with start and end, but a batch may hold {tokens:,} "
                f"tokens: raise the tokens of a batch or lower the longest sentence that is kept"
            )
        self.store, self.tokens, self.seed, self.window, self.shuffle = store, tokens, seed, window, shuffle
        self.framing, self.rows, self.aligned, self.copies = framing, rows, aligned, copies
        self.windows = -(-len(store) // window)
        self._epoch: tuple[int, Indices] = (-1, np.empty(0, np.int64))

    def start(self, position: Position | None = None) -> Iterator[tuple[Batch, Position]]:
        """The batches from a position on without end, each with the position after it, from where to resume."""
        for indices, epoch, after in self.walk(position):
            yield self.build(indices, epoch), after

    def walk(self, position: Position | None = None) -> Iterator[tuple[Indices, int, Position]]:
        """The same before the tensors are made: pair numbers, epoch and the position after them."""
        here = position or Position()
        while True:
            plan = self.plan(here.epoch, here.window) if here.window < self.windows else []
            if here.batch >= len(plan):
                raise UserError(
                    f"the data has no {here}: go on with the corpus, seed and tokens a batch that it was saved with"
                )
            for number in range(here.batch, len(plan)):
                after = replace(here, batch=number + 1)
                if number + 1 == len(plan):
                    last = here.window + 1 == self.windows
                    after = Position(here.epoch + 1) if last else Position(here.epoch, here.window + 1)
                yield plan[number], here.epoch, after
            here = after

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        for window in range(self.windows):
            for indices in self.plan(number, window):
                yield self.build(indices, number)

    def plan(self, epoch: int, window: int) -> list[Indices]:
        """The pair numbers of every batch of a window, in order."""
        pairs = self._order(epoch)[window * self.window : (window + 1) * self.window]
        source, target = self.store.source_lengths[pairs], self.store.target_lengths[pairs]
        widths, lean = self.width(source, target), source - target
        snake = np.where(widths % 2, lean, -lean)  # there and back again: neighbours stay alike where widths change
        by_length = np.lexsort((snake, widths))  # stable: the permutation has already settled ties by chance
        batches = _cut(pairs[by_length], widths[by_length], self.tokens)
        if not self.shuffle:
            return batches
        return [batches[number] for number in self._shuffled(len(batches), SHUFFLE, epoch, window)]

    def build(self, indices: Indices, epoch: int) -> Batch:
        """The padded tensors of some pairs; the epoch decides the noise."""
        import torch

        types: NDArray[np.int64] | None = None
        labels: NDArray[np.int64] | None = None
        if self.rows is None:
            if self.store.sides[0].features:
                source, source_lengths = self._pad([self.store.source(index) for index in indices.tolist()], 0)
            else:
                around = self.framing.before, self.framing.after
                source, source_lengths = self._frame(self.store.sides[0], indices, *around)
            ends = (self.framing.start,), (self.framing.end,)
            target, target_lengths = self._frame(self.store.sides[1], indices, *ends)
        else:
            number = epoch if self.copies is None else epoch % self.copies
            streams = (np.random.Generator(self._random(NOISE, number, index)) for index in indices.tolist())
            made = [self.rows(self.store, index, stream) for index, stream in zip(indices.tolist(), streams)]
            source, source_lengths = self._pad([row.source for row in made], self.framing.pad)
            target, target_lengths = self._pad([row.target for row in made], self.framing.pad)
            if made[0].types is not None:
                types, _ = self._pad([row.types for row in made if row.types is not None], 0)
            labels = np.array([row.label for row in made])
        predicted = (target != self.framing.pad).sum() if self.aligned else target_lengths.sum() - len(indices)
        return Batch(
            torch.from_numpy(source),
            torch.from_numpy(source_lengths),
            torch.from_numpy(target),
            torch.from_numpy(target_lengths),
            indices,
            source_tokens=int(source_lengths.sum()),
            target_tokens=int(predicted),
            types=None if types is None else torch.from_numpy(types),
            labels=None if labels is None else torch.from_numpy(labels),
        )

    def _pad(self, rows: list[NDArray[Any]], pad: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """B S ids, or B S F vectors with zeros after them."""
        lengths = np.array([len(row) for row in rows], np.int64)
        if rows[0].ndim == 1:
            ids: NDArray[Any] = np.full((len(rows), lengths.max()), pad, np.int64)
        else:
            ids = np.zeros((len(rows), lengths.max(), rows[0].shape[1]), np.float32)
        ids[np.arange(ids.shape[1]) < lengths[:, None]] = np.concatenate(rows)
        return ids, lengths

    def _frame(
        self, side: Side, indices: Indices, before: tuple[int, ...], after: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Plain rows, all at once: no loop over sentences."""
        lengths, first = side.lengths[indices], len(before)
        framed = lengths.astype(np.int64) + first + len(after)
        rows = np.full((len(indices), framed.max()), self.framing.pad, np.int64)
        rows[:, first:][np.arange(rows.shape[1] - first) < lengths[:, None]] = side.rows(indices)
        rows[:, :first] = before
        for place, symbol in enumerate(after):
            rows[np.arange(len(rows)), first + lengths + place] = symbol
        return rows, framed

    def _order(self, epoch: int) -> Indices:
        known, order = self._epoch
        if known != epoch:
            pairs = len(self.store)
            order = self._shuffled(pairs, ORDER, epoch) if self.shuffle else np.arange(pairs)
            self._epoch = epoch, order  # at once: another thread may be planning too
        return order

    def _shuffled(self, count: int, purpose: int, epoch: int, number: int = 0) -> Indices:
        # Sorted raw bits and not Generator.permutation, whose stream another version of numpy may change.
        return np.argsort(self._random(purpose, epoch, number).random_raw(count), kind="stable")

    def _random(self, purpose: int, epoch: int, number: int = 0) -> np.random.Philox:
        """A random stream of its own for each purpose, epoch and number (Philox: Salmon et al. 2011)."""
        return np.random.Philox(key=[self.seed % 2**64, purpose], counter=[0, number, epoch, 0])


def sorted_batches(lengths: ArrayLike, tokens: int) -> list[Indices]:
    """Numbers of sentences in batches of like length, the longest first: rows × longest ≤ tokens, or one row alone.

    Every number stands in exactly one batch, so that results put back under their numbers have the old order.
    """
    widths = np.asarray(lengths)
    order = np.argsort(-widths, kind="stable")
    return _cut(order, widths[order], tokens)


def _cut(indices: Indices, widths: NDArray[Any], tokens: int) -> list[Indices]:
    """Cuts a sequence greedily into runs with rows × widest ≤ tokens, but at least one row."""
    batches, start = [], 0
    while start < len(indices):
        ahead = widths[start : start + max(1, tokens // max(1, int(widths[start])))]
        area = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)  # grows with every row
        end = start + max(1, int(np.searchsorted(area, tokens, side="right")))
        batches.append(indices[start:end])
        start = end
    return batches
