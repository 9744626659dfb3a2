"""A batch in two halves: some of its pairs and the others, so that each takes about half of the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.batch import IGNORE_INDEX, Batch, BatchArrays, RaggedArray
from dragoman.data.batching import PACKED_ROW_MULTIPLE
from dragoman.text.framing import ENCODER_DECODER_FRAMING


def halve_batch(batch: Batch) -> tuple[Batch, Batch]:
    """Two batches that together are this one: what is lost over both, summed up, is what is lost over it.

    Rows of a padded batch stay as wide as they are; a packed row becomes two of about half its width.
    """
    if len(batch) < 2:
        raise ValueError("a single pair cannot be halved")
    return (_padded if batch.max_lengths is None else _packed)(batch)


def _padded(batch: Batch) -> tuple[Batch, Batch]:
    """By rows; those that fill up a shape go with the second half."""
    import torch

    middle, rows, copies = len(batch) // 2, len(batch.source), 2 if batch.doubled else 1
    once = rows // copies
    made = []
    for first, last in ((0, middle), (middle, once)):
        which = torch.cat([torch.arange(first, last) + copy * once for copy in range(copies)])
        some = {
            name: tensor[which] for name, tensor in batch.tensors().items() if name not in ("label_positions", "labels")
        }
        if batch.label_positions is None:
            some["labels"] = batch.labels[which]
        else:
            width = batch.source.shape[1]
            here = (batch.label_positions >= first * width) & (batch.label_positions < last * width)
            some |= {"label_positions": batch.label_positions[here] - first * width, "labels": batch.labels[here]}
        made.append(_counted(batch, some, slice(first, last)))
    return made[0], made[1]


def _counted(batch: Batch, tensors: dict[str, Any], pairs: slice) -> Batch:
    """A part of a padded batch, its tokens counted."""
    indices = batch.indices[pairs]
    copies = 2 if batch.doubled else 1
    source_tokens = copies * int(tensors["source_lengths"][: len(indices)].sum())
    target_tokens = int((tensors["labels"] != IGNORE_INDEX).sum())
    return replace(batch, **tensors, indices=indices, source_tokens=source_tokens, target_tokens=target_tokens)


def _packed(batch: Batch) -> tuple[Batch, Batch]:
    """By sequences, cut where half of all tokens are over."""
    assert batch.max_lengths is not None
    contents, widths = _unpacked(batch)
    taken = np.cumsum(contents.source.lengths + contents.target.lengths)
    middle = min(max(1, int(np.searchsorted(taken, taken[-1] / 2))), len(batch) - 1)
    # as wide for all batches of a shape, so that halves have one shape too: half, and the sequence that is cut there
    half = [
        min(width, -(-(width // 2 + most) // PACKED_ROW_MULTIPLE) * PACKED_ROW_MULTIPLE)
        for width, most in zip(widths, batch.max_lengths)
    ]
    framing = replace(ENCODER_DECODER_FRAMING, pad=_left_over(batch))
    count = len(batch.source_lengths) // (2 if batch.doubled else 1)
    made = []
    for part in (slice(0, middle), slice(middle, None)):
        indices, some = batch.indices[part], _some(contents, part)
        packed = some.to_packed_batch(indices, framing, (half[0], half[1]), count, batch.max_lengths)
        made.append(packed.duplicate_rows() if batch.doubled else packed)
    return made[0], made[1]


def _left_over(batch: Batch) -> int:
    """The symbol for padding: the last place of a packed row is always left over."""
    side = batch.source if batch.source.shape[1] and batch.source.dim() == 2 else batch.target
    return int(side[0, -1])


def _unpacked(batch: Batch) -> tuple[BatchArrays, tuple[int, int]]:
    """What was packed, each pair once, and the widths that it was packed into."""
    copies, pairs = 2 if batch.doubled else 1, len(batch)
    widths = (batch.source.shape[1] // copies, batch.target.shape[1] // copies)
    lengths = [side[:pairs].numpy() for side in (batch.source_lengths, batch.target_lengths)]
    source, target = (
        RaggedArray(ids[0, : int(each.sum())].numpy(), each) for ids, each in zip((batch.source, batch.target), lengths)
    )
    aligned = batch.label_positions is not None
    if batch.label_positions is not None:
        dense: NDArray[Any] = np.full(len(source.values), IGNORE_INDEX, np.int64)
        right = batch.labels.numpy()
        dense[batch.label_positions.numpy()[right != IGNORE_INDEX]] = right[right != IGNORE_INDEX]
        answers = RaggedArray(dense, lengths[0])
    else:
        answers = RaggedArray(batch.labels[0, : len(target.values)].numpy(), lengths[1])
    types = (
        None
        if batch.token_type_ids is None
        else RaggedArray(batch.token_type_ids[0, : len(source.values)].numpy(), lengths[0])
    )
    return BatchArrays(source, target, answers, aligned, types), widths


def _some(contents: BatchArrays, part: slice) -> BatchArrays:
    def cut(side: RaggedArray) -> RaggedArray:
        ends = np.concatenate(([0], np.cumsum(side.lengths)))
        first, last, _ = part.indices(len(side.lengths))
        return RaggedArray(side.values[ends[first] : ends[last]], side.lengths[part])

    types = None if contents.token_type_ids is None else cut(contents.token_type_ids)
    return BatchArrays(cut(contents.source), cut(contents.target), cut(contents.labels), contents.aligned, types)
