"""Batches that fit: where memory runs out, a batch is computed in parts, which gives the same gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dragoman.data import Batch
from dragoman.data.batch_arrays import halve_batch
from dragoman.errors import UserError

#: what libraries say that do not raise torch's own error, and the CPU's allocator
SIGNS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "can't allocate memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Is this, or what it came of, that there is no more memory?"""
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in SIGNS):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


class InsufficientMemoryError(UserError):
    """What is to be computed cannot be made smaller, and does not fit the memory."""


class BatchSplitter:
    """How batches are cut: not at all, until one did not fit, and those as large from then on into halves of halves.

    Whatever is computed over the whole batch (batch norm, the balance of experts) is computed over each part, as it is
    where several batches make up a step.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.say = say
        self.max_positions = math.inf  # places that may still fit
        self.max_parts = 1  # parts, so far

    def split(self, batch: Batch) -> list[Batch]:
        if batch.num_positions <= self.max_positions or len(batch) < 2:
            return [batch]
        return [part for half in halve_batch(batch) for part in self.split(half)]

    def split_further(self, part: Batch, whole: Batch) -> None:
        """Take note that a part of a batch did not fit."""
        tokens = max(whole.source.shape[0] * whole.source.shape[1], whole.target.numel())
        if len(part) < 2:
            raise InsufficientMemoryError(
                f"memory ran out over a single pair of {max(part.source_tokens, part.target_tokens):,} tokens: lower "
                "data.max_length, set training.gradient_checkpointing=true, or choose a smaller system"
            )
        self.max_positions = part.num_positions - 1
        parts = len(self.split(whole))
        if parts > self.max_parts:
            self.max_parts = parts
            self.say(
                f"a batch of {tokens:,} tokens did not fit the memory: it is computed in {parts} parts from now on, "
                f"with the same result; training.batch_tokens={tokens // parts} would avoid this"
            )
