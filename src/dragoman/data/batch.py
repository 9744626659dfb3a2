"""Batches: rows of a store as tensors, padded, or packed into one long row of fixed length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.token_store import TokenStore

if TYPE_CHECKING:
    import torch
    from torch import Tensor

IGNORE_INDEX = -100  # label that the loss ignores


class BatchRow(NamedTuple):
    """One row of a batch, with its special tokens.

    The target is either BOS y EOS, or one label per token of the source (`pad` where there is none).
    """

    source: NDArray[Any]
    target: NDArray[Any]
    token_type_ids: NDArray[Any] | None = None  # of the source tokens, as in BERT
    sentence_label: int = 0


#: builds the row of a pair of a store, with a random generator for noise
RowBuilder = Callable[[TokenStore, int, np.random.Generator], BatchRow]

#: segments rows anew: (concatenated ids, row lengths, a random key per row) → (concatenated ids, row lengths)
SubwordSampler = Callable[[NDArray[Any], NDArray[Any], NDArray[np.uint64]], tuple[NDArray[Any], NDArray[Any]]]
SubwordSamplers = tuple[SubwordSampler | None, SubwordSampler | None]  # of source and target


@dataclass(frozen=True)
class Batch:
    """Token ids of sentence pairs: the input of a model, and the labels that it has to predict.

    A padded batch has a row per pair. A packed batch has one row with all sources and one with all targets; the rest of
    these rows is divided into further sequences, so that all batches have the same shape. Lengths include special
    tokens.

    The model is fed the target BOS y and has to predict the labels y EOS. Or there is no target (T = 0), and the labels
    are for some tokens of the source.

    Shapes: B rows (1 if packed), S and T row lengths of source and target, N sequences (B if padded), F features.
    """

    source: Tensor  # B S, or B S F float32 features
    source_lengths: Tensor  # N
    target: Tensor  # B T
    target_lengths: Tensor  # N
    labels: Tensor  # B T, or L if there are label positions; IGNORE_INDEX where there is nothing to predict
    indices: NDArray[np.int64]  # of the pairs in the store
    source_tokens: int  # without padding
    target_tokens: int  # number of labels that are not ignored
    label_positions: Tensor | None = None  # L: indices into the flattened source
    token_type_ids: Tensor | None = None  # B S
    sentence_labels: Tensor | None = None  # B
    max_lengths: tuple[int, int] | None = None  # upper bounds of the sequence lengths if packed; None if padded
    doubled: bool = False  # whether all pairs are in the batch twice, first all of them and then all again

    def __len__(self) -> int:
        """Return the number of different sentence pairs; second copies in a doubled batch do not count."""
        return len(self.indices)

    @property
    def copies(self) -> int:
        """How often each pair is in the batch: twice if it is doubled."""
        return 2 if self.doubled else 1

    @property
    def is_packed(self) -> bool:
        """Whether several pairs share a row; otherwise every pair has a padded row of its own."""
        return self.max_lengths is not None  # only packed batches have these bounds

    @property
    def num_sentences(self) -> int:
        """Number of sequences over which losses are summed; pairs of a doubled batch count twice."""
        return len(self) * self.copies

    @property
    def padding_ratio(self) -> float:
        """Share of the positions that hold padding."""
        # with `label_positions`, labels are for source tokens and there is no target: they add no tokens
        target_tokens = self.target_tokens if self.label_positions is None else 0
        return 1 - (self.source_tokens + target_tokens) / max(1, self.num_positions)

    @property
    def num_positions(self) -> int:
        """Number of positions of source and target, padding included."""
        rows, width = self.source.shape[:2]  # without the third dimension of feature vectors
        return rows * width + self.target.numel()

    def tensors(self) -> dict[str, Tensor]:
        """Return all fields that are tensors, by name."""
        from torch import Tensor

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def pin_memory(self) -> Batch:
        """Return the batch in pinned memory, from which a GPU copies asynchronously."""
        pinned: dict[str, Any] = {name: tensor.pin_memory() for name, tensor in self.tensors().items()}
        return replace(self, **pinned)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors().items()}
        return replace(self, **moved)

    def duplicate_rows(self) -> Batch:
        """Append all sequences again, as R-Drop needs it: as further rows, or to the end of the row of a packed batch.

        A batch with `label_positions` (labels for some source tokens) cannot be doubled.
        """
        from torch import cat

        assert self.label_positions is None  # those of the copies would have to be shifted
        packed_rows = ("source", "target", "labels") if self.is_packed else ()  # 1 S and 1 T, which grow in length
        changed: dict[str, Any] = {"source_tokens": 2 * self.source_tokens, "target_tokens": 2 * self.target_tokens}
        for name, tensor in self.tensors().items():
            changed[name] = cat((tensor, tensor), dim=1 if name in packed_rows else 0)
        return replace(self, **changed, doubled=True)
