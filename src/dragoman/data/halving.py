"""A batch in two halves: some of its pairs and the others, so that each takes about half of the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.batch import NOTHING, Batch, Contents, Sequences
from dragoman.data.batching import MULTIPLE
from dragoman.text.framing import ENCODER_DECODER


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Two batches that together are this one: what is lost over both, summed up, is what is lost over it.

    Rows of a padded batch stay as wide as they are; a packed row becomes two of about half its width.
    """
    if len(batch) < 2:
        raise ValueError("a single pair cannot be halved")
    return (_padded if batch.longest is None else _packed)(batch)


def _padded(batch: Batch) -> tuple[Batch, Batch]:
    """By rows; those that fill up a shape go with the second half."""
    import torch

    middle, rows, copies = len(batch) // 2, len(batch.source), 2 if batch.twins else 1
    once = rows // copies
    made = []
    for first, last in ((0, middle), (middle, once)):
        which = torch.cat([torch.arange(first, last) + copy * once for copy in range(copies)])
        some = {name: tensor[which] for name, tensor in batch.tensors().items() if name not in ("asked", "answers")}
        if batch.asked is None:
            some["answers"] = batch.answers[which]
        else:
            width = batch.source.shape[1]
            here = (batch.asked >= first * width) & (batch.asked < last * width)
            some |= {"asked": batch.asked[here] - first * width, "answers": batch.answers[here]}
        made.append(_counted(batch, some, slice(first, last)))
    return made[0], made[1]


def _counted(batch: Batch, tensors: dict[str, Any], pairs: slice) -> Batch:
    """A part of a padded batch, its tokens counted."""
    indices = batch.indices[pairs]
    copies = 2 if batch.twins else 1
    source_tokens = copies * int(tensors["source_lengths"][: len(indices)].sum())
    target_tokens = int((tensors["answers"] != NOTHING).sum())
    return replace(batch, **tensors, indices=indices, source_tokens=source_tokens, target_tokens=target_tokens)


def _packed(batch: Batch) -> tuple[Batch, Batch]:
    """By sequences, cut where half of all tokens are over."""
    assert batch.longest is not None
    contents, widths = _unpacked(batch)
    taken = np.cumsum(contents.source.lengths + contents.target.lengths)
    middle = min(max(1, int(np.searchsorted(taken, taken[-1] / 2))), len(batch) - 1)
    # as wide for all batches of a shape, so that halves have one shape too: half, and the sequence that is cut there
    half = [min(width, -(-(width // 2 + most) // MULTIPLE) * MULTIPLE) for width, most in zip(widths, batch.longest)]
    framing = replace(ENCODER_DECODER, pad=_left_over(batch))
    count = len(batch.source_lengths) // (2 if batch.twins else 1)
    made = []
    for part in (slice(0, middle), slice(middle, None)):
        indices, some = batch.indices[part], _some(contents, part)
        packed = some.packed(indices, framing, (half[0], half[1]), count, batch.longest)
        made.append(packed.twice() if batch.twins else packed)
    return made[0], made[1]


def _left_over(batch: Batch) -> int:
    """The symbol for padding: the last place of a packed row is always left over."""
    side = batch.source if batch.source.shape[1] and batch.source.dim() == 2 else batch.target
    return int(side[0, -1])


def _unpacked(batch: Batch) -> tuple[Contents, tuple[int, int]]:
    """What was packed, each pair once, and the widths that it was packed into."""
    copies, pairs = 2 if batch.twins else 1, len(batch)
    widths = (batch.source.shape[1] // copies, batch.target.shape[1] // copies)
    lengths = [side[:pairs].numpy() for side in (batch.source_lengths, batch.target_lengths)]
    source, target = (
        Sequences(ids[0, : int(each.sum())].numpy(), each) for ids, each in zip((batch.source, batch.target), lengths)
    )
    aligned = batch.asked is not None
    if batch.asked is not None:
        dense: NDArray[Any] = np.full(len(source.flat), NOTHING, np.int64)
        right = batch.answers.numpy()
        dense[batch.asked.numpy()[right != NOTHING]] = right[right != NOTHING]
        answers = Sequences(dense, lengths[0])
    else:
        answers = Sequences(batch.answers[0, : len(target.flat)].numpy(), lengths[1])
    types = None if batch.types is None else Sequences(batch.types[0, : len(source.flat)].numpy(), lengths[0])
    return Contents(source, target, answers, aligned, types), widths


def _some(contents: Contents, part: slice) -> Contents:
    def cut(side: Sequences) -> Sequences:
        ends = np.concatenate(([0], np.cumsum(side.lengths)))
        first, last, _ = part.indices(len(side.lengths))
        return Sequences(side.flat[ends[first] : ends[last]], side.lengths[part])

    types = None if contents.types is None else cut(contents.types)
    return Contents(cut(contents.source), cut(contents.target), cut(contents.answers), contents.aligned, types)
