"""Subword regularization: pairs of a store, segmented anew in every epoch (BPE dropout)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.batch import SubwordSamplers
from dragoman.data.epoch_order import random_keys
from dragoman.data.ragged_array import RaggedArray
from dragoman.data.token_store import TokenStore

Indices = NDArray[np.int64]
Lengths = NDArray[Any]

NOISE_STREAM = 2


class EpochRows:
    """Reads pairs of a store in the segmentation of an epoch.

    A pair keeps its stored tokens if it became longer than the longest stored one, on one side or as a row.
    """

    def __init__(
        self,
        store: TokenStore,
        subword_samplers: SubwordSamplers,
        row_length: Callable[[Lengths, Lengths], Lengths],
        seed: int,
    ) -> None:
        self.store, self.subword_samplers, self.row_length, self.seed = store, subword_samplers, row_length, seed
        self.resegments = subword_samplers != (None, None)
        counts = store.length_counts()
        self.max_lengths = int(counts.source.max()), int(counts.target.max())
        self.max_pair_length = int((counts.source + counts.target).max())
        self.max_row_length = int(row_length(counts.source, counts.target).max())

    def stored_lengths(self, pairs: Indices) -> list[Lengths]:
        """Return the lengths of source and target as they are stored."""
        return [np.asarray(column.lengths[pairs]) for column in self.store.columns]

    def lengths(self, pairs: Indices, epoch: int) -> list[Lengths]:
        """Return the lengths of source and target in the segmentation of an epoch."""
        resegmented, fits = self._resegment(pairs, epoch)
        columns = zip(self.stored_lengths(pairs), resegmented)
        return [stored if new is None else np.where(fits, new.lengths, stored) for stored, new in columns]

    def read(self, pairs: Indices, epoch: int) -> list[RaggedArray]:
        """Return the tokens of source and target in the segmentation of an epoch."""
        resegmented, fits = self._resegment(pairs, epoch)
        columns = zip((column.read(pairs) for column in self.store.columns), resegmented)
        return [stored if new is None else new.where(fits, stored) for stored, new in columns]

    def store_with_rows(self, pairs: Indices, epoch: int) -> TokenStore:
        """Return the store with the segmentation of an epoch in some rows."""
        if not self.resegments:
            return self.store
        pairs = np.unique(pairs)
        changed = copy(self.store)
        source, target = (
            column.with_rows(pairs, rows) for column, rows in zip(self.store.columns, self.read(pairs, epoch))
        )
        changed.columns = source, target
        return changed

    def _resegment(self, pairs: Indices, epoch: int) -> tuple[list[RaggedArray | None], NDArray[np.bool_]]:
        """Return source and target in a new segmentation, and which pairs are short enough to use it."""
        resegmented: list[RaggedArray | None] = [None, None]
        if not self.resegments:
            return resegmented, np.ones(len(pairs), bool)
        for index, (column, segment) in enumerate(zip(self.store.columns, self.subword_samplers)):
            if segment is not None:
                stored = column.read(pairs)
                keys = random_keys(int(random_keys(self.seed, NOISE_STREAM, [epoch])[0]), index, pairs)
                resegmented[index] = RaggedArray(*segment(stored.values, stored.lengths, keys))
        source, target = (
            old if new is None else new.lengths for old, new in zip(self.stored_lengths(pairs), resegmented)
        )
        fits = (source <= self.max_lengths[0]) & (target <= self.max_lengths[1])
        fits &= source + target <= self.max_pair_length  # a decoder-only model reads both as one sequence
        return resegmented, fits & (self.row_length(source, target) <= self.max_row_length)
