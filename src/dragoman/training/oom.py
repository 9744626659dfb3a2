"""Out of memory: a batch that does not fit is computed in parts, which gives the same gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dragoman.data import Batch
from dragoman.data.batch_arrays import halve_batch
from dragoman.errors import UserError

#: messages of libraries, and of the allocator of the CPU, that raise other errors than torch.OutOfMemoryError
OOM_MESSAGES = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "can't allocate memory")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or its cause, is an out-of-memory error."""
    if error is None:
        return False
    if isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in OOM_MESSAGES):
        return True
    return is_out_of_memory(error.__cause__ or error.__context__)


class InsufficientMemoryError(UserError):
    """The smallest possible computation does not fit into memory."""


class BatchSplitter:
    """Splits batches that are as large as one that did not fit into memory, by halving them repeatedly.

    What is computed over a whole batch (batch norm, the balance of experts) is computed over each part, as it is with
    gradient accumulation.
    """

    def __init__(self, log: Callable[[str], None] = lambda text: None) -> None:
        self.log = log
        self.max_positions = math.inf  # of a batch that may still fit
        self.max_parts = 1

    def split(self, batch: Batch) -> list[Batch]:
        """Split a batch into parts that may fit."""
        if batch.num_positions <= self.max_positions or len(batch) < 2:
            return [batch]
        return [part for half in halve_batch(batch) for part in self.split(half)]

    def split_further(self, part: Batch, batch: Batch) -> None:
        """Record that a part of a batch did not fit."""
        if len(part) < 2:
            raise InsufficientMemoryError(
                f"out of memory with a single pair of {max(part.source_tokens, part.target_tokens):,} tokens: lower "
                "data.max_length, set training.gradient_checkpointing=true, or choose a smaller system"
            )
        self.max_positions = part.num_positions - 1
        parts = len(self.split(batch))
        if parts > self.max_parts:
            self.max_parts = parts
            tokens = max(batch.source.shape[0] * batch.source.shape[1], batch.target.numel())
            self.log(
                f"a batch of {tokens:,} tokens does not fit into memory: it is computed in {parts} parts from now on, "
                f"with the same result; training.batch_tokens={tokens // parts} would avoid this"
            )
