"""A batch: rows of a store as tensors, padded, or packed into one row of a fixed width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store_columns import StoreColumn
from dragoman.data.token_store import TokenStore
from dragoman.text.framing import Framing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Indices = NDArray[np.int64]
Ids = NDArray[Any]
Keys = NDArray[np.uint64]

IGNORE_INDEX = -100  # the answer where there is no question
TENSORS = (
    "source",
    "source_lengths",
    "target",
    "target_lengths",
    "labels",
    "label_positions",
    "token_type_ids",
    "sentence_labels",
)


class BatchRow(NamedTuple):
    """One row of a batch, symbols around it and all; `types` are the segments of its source, `label` its own label."""

    source: NDArray[Any]
    target: NDArray[Any]
    token_type_ids: NDArray[Any] | None = None
    sentence_label: int = 0


RowBuilder = Callable[[TokenStore, int, np.random.Generator], BatchRow]

#: rows one after the other, their lengths and a random number for each → the same in other tokens
SubwordSampler = Callable[[NDArray[Any], NDArray[Any], Keys], tuple[NDArray[Any], NDArray[Any]]]
SubwordSamplers = tuple[SubwordSampler | None, SubwordSampler | None]  # of source and target


@dataclass(frozen=True)
class Batch:
    """Sentence pairs as ids; the lengths count the framing, `indices` are the pairs' numbers in the store.

    Padded, a row is a pair. Packed, one row holds all sources and another all targets, one after the other, and what is
    left of it counts as further sequences, so that all batches have the same shape; `longest` bounds their lengths.
    A source that is no text is padded vectors, float32, without framing.

    The target is what a decoder is fed, START y, and the answers are y END. Or there is none, and the answers are to
    the `asked` tokens of the source.
    """

    source: Tensor  # B S, or B S F
    source_lengths: Tensor  # B, or N sequences of a packed row
    target: Tensor  # B T
    target_lengths: Tensor
    labels: Tensor  # B T, or as many as are asked; IGNORE_INDEX where there is no question
    indices: Indices
    source_tokens: int  # the symbols around them counted in
    target_tokens: int  # the tokens that are predicted: with END and without START
    label_positions: Tensor | None = None  # places in the flattened source
    token_type_ids: Tensor | None = None  # B S: segments of the source
    sentence_labels: Tensor | None = None  # B: a label a row
    max_lengths: tuple[int, int] | None = None  # of a source and a target where they are packed; None where padded
    doubled: bool = False  # does every pair stand in it twice, all of them once and then once more?

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def num_sentences(self) -> int:
        """Rows whose losses are summed; each pair counts twice in a doubled batch."""
        return len(self) * (2 if self.doubled else 1)

    @property
    def padding_ratio(self) -> float:
        """The share of the batch that is padding."""
        real = self.source_tokens + (self.target_tokens if self.label_positions is None else 0)
        return 1 - real / max(1, self.num_positions)

    @property
    def num_positions(self) -> int:
        """Tokens and padding of both sides."""
        return self.source.shape[0] * self.source.shape[1] + self.target.numel()

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for name in TENSORS if (tensor := getattr(self, name)) is not None}

    def pin_memory(self) -> Batch:
        """In memory that a GPU can read beside what it computes."""
        return self._with({name: tensor.pin_memory() for name, tensor in self.tensors().items()})

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device."""
        return self._with({name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors().items()})

    def duplicate_rows(self) -> Batch:
        """Every row once more, after all of them; a packed row is made twice as long."""
        assert self.label_positions is None
        along = dict.fromkeys(self.tensors(), 0)
        if self.max_lengths is not None:
            along |= {"source": 1, "target": 1, "labels": 1}
        doubled: dict[str, Any] = {name: _twice(tensor, along[name]) for name, tensor in self.tensors().items()}
        doubled |= {"source_tokens": 2 * self.source_tokens, "target_tokens": 2 * self.target_tokens}
        return replace(self._with(doubled), doubled=True)

    def _with(self, tensors: dict[str, Any]) -> Batch:
        return replace(self, **tensors)


@dataclass(frozen=True)
class RaggedArray:
    """Ids of many sequences one after the other, and their lengths."""

    values: Ids
    lengths: NDArray[np.int64]

    def padded(self, pad: int, multiples: tuple[int, int] = (1, 1)) -> Ids:
        """B S ids, or B S F vectors with zeros after them; B and S are multiples of these."""
        count, longest = (
            -(-number // multiple) * multiple
            for number, multiple in zip((len(self.lengths), int(self.lengths.max())), multiples)
        )
        shape = (count, longest, *self.values.shape[1:])
        rows = np.zeros(shape, np.float32) if len(shape) > 2 else np.full(shape, pad, np.int64)
        rows[: len(self.lengths)][np.arange(longest) < self.lengths[:, None]] = self.values
        return rows

    def packed(self, pad: int, width: int) -> Ids:
        """1 S ids, or 1 S F vectors."""
        shape = (1, width, *self.values.shape[1:])
        row = np.zeros(shape, np.float32) if len(shape) > 2 else np.full(shape, pad, np.int64)
        row[0, : len(self.values)] = self.values
        return row

    def packed_lengths(self, width: int, count: int, longest: int) -> NDArray[np.int64]:
        """The lengths in `count` places, and after them what they leave of a width, in pieces that are no longer."""
        lengths = np.zeros(count + -(-width // longest), np.int64)
        lengths[: len(self.lengths)] = self.lengths
        left = width - len(self.values)
        pieces = np.minimum(longest, left - longest * np.arange(-(-left // longest)))
        lengths[count : count + len(pieces)] = pieces
        return lengths

    def repeated(self) -> RaggedArray:
        return RaggedArray(np.concatenate((self.values, self.values)), np.tile(self.lengths, 2))

    def where(self, kept: NDArray[np.bool_], others: RaggedArray) -> RaggedArray:
        """These sequences where `kept` is true, the others elsewhere."""
        if kept.all():
            return self
        starts = np.where(kept, _starts(self.lengths), len(self.values) + _starts(others.lengths))
        lengths = np.where(kept, self.lengths, others.lengths)
        places = np.repeat(starts - _starts(lengths), lengths) + np.arange(int(lengths.sum()))
        return RaggedArray(np.concatenate((self.values, others.values))[places], lengths)


def read_rows(side: StoreColumn, indices: Indices) -> RaggedArray:
    """Rows of a store as they are."""
    if side.features:
        return concatenate_rows([side.row(index) for index in indices.tolist()])
    return RaggedArray(side.rows(indices), side.lengths[indices].astype(np.int64))


def add_framing(inner: RaggedArray, before: Sequence[int], after: Sequence[int]) -> RaggedArray:
    """Sequences with symbols around them, all at once: no loop over sentences."""
    lengths = inner.lengths
    around = lengths + len(before) + len(after)
    starts = _starts(around)
    flat = np.empty(int(around.sum()), np.int64)
    inside = np.arange(int(lengths.sum())) + np.repeat(starts + len(before) - _starts(lengths), lengths)
    flat[inside] = inner.values
    for place, symbol in enumerate(before):
        flat[starts + place] = symbol
    for place, symbol in enumerate(after):
        flat[starts + len(before) + lengths + place] = symbol
    return RaggedArray(flat, around)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.cumsum(lengths) - lengths


def concatenate_rows(rows: Sequence[Ids]) -> RaggedArray:
    return RaggedArray(np.concatenate(rows), np.array([len(row) for row in rows], np.int64))


@dataclass(frozen=True)
class BatchArrays:
    """What goes into a batch, before it is laid out; `answers` are to the source's tokens where `aligned`."""

    source: RaggedArray
    target: RaggedArray
    labels: RaggedArray
    aligned: bool = False
    token_type_ids: RaggedArray | None = None
    sentence_labels: NDArray[np.int64] | None = None

    @staticmethod
    def from_pairs(source: RaggedArray, target: RaggedArray, framing: Framing) -> BatchArrays:
        """Pairs with their framing; there is none around vectors."""
        if source.values.ndim == 1:
            source = add_framing(source, framing.source_prefix, framing.source_suffix)
        return BatchArrays(source, add_framing(target, (framing.bos,), ()), add_framing(target, (), (framing.eos,)))

    @staticmethod
    def from_rows(made: Sequence[BatchRow], aligned: bool, pad: int) -> BatchArrays:
        """Rows that an objective has made."""
        source = concatenate_rows([row.source for row in made])
        types = (
            None
            if made[0].token_type_ids is None
            else concatenate_rows([row.token_type_ids for row in made if row.token_type_ids is not None])
        )
        labels = np.array([row.sentence_label for row in made])
        if not aligned:
            fed, answers = (
                concatenate_rows([row.target[:-1] for row in made]),
                concatenate_rows([row.target[1:] for row in made]),
            )
            return BatchArrays(source, fed, answers, False, types, labels)
        answers = concatenate_rows([row.target for row in made])
        ids = answers.values.astype(np.int64)  # as they come from a store, they may know no number below 0
        asked = RaggedArray(np.where(ids == pad, IGNORE_INDEX, ids), answers.lengths)
        return BatchArrays(source, RaggedArray(np.empty(0, np.int64), 0 * source.lengths), asked, True, types, labels)

    def to_padded_batch(self, indices: Indices, framing: Framing, multiples: tuple[int, int] = (1, 1)) -> Batch:
        """Rows and widths up to the next multiple; a row that is there for this alone has one token and no answer."""
        source, target = (side.padded(framing.pad, multiples) for side in (self.source, self.target))
        answers, asked = self.labels.padded(IGNORE_INDEX, multiples), None
        if self.aligned:
            asked = np.flatnonzero(answers != IGNORE_INDEX)
            answers = answers.reshape(-1)[asked]
        types = None if self.token_type_ids is None else self.token_type_ids.padded(0, multiples)
        more = np.ones(len(source) - len(indices), np.int64)
        lengths = [
            np.concatenate((side.lengths, more * min(1, ids.shape[1])))
            for side, ids in ((self.source, source), (self.target, target))
        ]
        labels = None if self.sentence_labels is None else np.concatenate((self.sentence_labels, more * IGNORE_INDEX))
        return self._batch(indices, source, target, (lengths[0], lengths[1]), answers, asked, types, labels)

    def to_packed_batch(
        self, indices: Indices, framing: Framing, widths: tuple[int, int], count: int, longest: tuple[int, int]
    ) -> Batch:
        """One row of a width, or the next larger one that its sequences fit, where they turned out longer."""
        sides = (self.source, self.target)
        source_width, target_width = (_wide_enough(width, len(side.values)) for width, side in zip(widths, sides))
        source_longest, target_longest = (
            _wide_enough(most, int(side.lengths.max()) - 1) for most, side in zip(longest, sides)
        )
        longest = source_longest, target_longest
        source = self.source.packed(framing.pad, source_width)
        target = self.target.packed(framing.pad, target_width)
        answers = self.labels.packed(IGNORE_INDEX, source_width if self.aligned else target_width)
        asked = None
        if self.aligned:
            found = np.flatnonzero(answers[0] != IGNORE_INDEX)
            asked = np.zeros(_wide_enough(max(64, source_width // 16), len(found), step=1.0), np.int64)
            asked[: len(found)] = found
            answers = np.where(np.arange(len(asked)) < len(found), answers[0, asked], IGNORE_INDEX)
        lengths = self._lengths((source_width, target_width), count, longest)
        types = None if self.token_type_ids is None else self.token_type_ids.packed(0, source_width)
        return self._batch(indices, source, target, lengths, answers, asked, types, None, longest)

    def _lengths(self, widths: tuple[int, int], count: int, longest: tuple[int, int]) -> tuple[Ids, Ids]:
        """Of both sides, as many: what is left of either is never looked at from elsewhere."""
        sides = zip((self.source, self.target), widths, longest)
        source, target = (side.packed_lengths(width, count, most) for side, width, most in sides)
        size = max(len(source), len(target))
        return np.pad(source, (0, size - len(source))), np.pad(target, (0, size - len(target)))

    def _batch(
        self,
        indices: Indices,
        source: Ids,
        target: Ids,
        lengths: tuple[Ids, Ids],
        answers: Ids,
        asked: Ids | None,
        types: Ids | None,
        labels: Ids | None = None,
        longest: tuple[int, int] | None = None,
    ) -> Batch:
        from torch import from_numpy

        return Batch(
            from_numpy(source),
            from_numpy(lengths[0]),
            from_numpy(target),
            from_numpy(lengths[1]),
            from_numpy(answers),
            indices,
            source_tokens=len(self.source.values),
            target_tokens=int((self.labels.values != IGNORE_INDEX).sum()),
            label_positions=None if asked is None else from_numpy(asked),
            token_type_ids=None if types is None else from_numpy(types),
            sentence_labels=None if labels is None else from_numpy(labels),
            max_lengths=longest,
        )


def _twice(tensor: Tensor, dim: int) -> Tensor:
    from torch import cat

    return cat((tensor, tensor), dim)


def _wide_enough(width: int, tokens: int, step: float = 1 / 8) -> int:
    """The width, or as many eighths of it more as are needed, so that few shapes come up."""
    more = max(1, int(width * step))
    return width + more * max(0, -(-(tokens + 1 - width) // more)) if width else 0
