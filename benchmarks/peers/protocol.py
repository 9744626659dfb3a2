"""What a system that is timed is told, and what it must do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

PAD, START, END = 0, 2, 3
SYMBOLS = 7  # words begin after them
Kind = Literal["transformer", "luong", "bahdanau"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Sizes:
    """The model; encoder and decoder have as many layers, and one table of embeddings serves all that can share it."""

    kind: Kind
    layers: int
    width: int
    heads: int = 0
    inner: int = 0
    vocabulary: int = 32_000
    dropout: float = 0.1


PRESETS = {
    "small": Sizes("transformer", 3, 256, 4, 1024, 8_000),
    "base": Sizes("transformer", 6, 512, 8, 2048),
    "big": Sizes("transformer", 6, 1024, 16, 4096),
    "luong": Sizes("luong", 1, 512, vocabulary=8_000),
    "bahdanau": Sizes("bahdanau", 1, 512, vocabulary=8_000),
}

LABEL_SMOOTHING, CLIP, RATE = 0.1, 1.0, 3e-4


class Padded(NamedTuple):
    """Sentence pairs as ids: sources x END, targets START y END, PAD behind them."""

    source: Tensor  # B S
    source_lengths: Tensor  # B
    target: Tensor  # B T
    tokens: int  # real target tokens that are predicted: y END

    def to(self, device: str) -> Padded:
        tensors = (tensor.to(device, non_blocking=True) for tensor in self[:3])
        return Padded(*tensors, self.tokens)


class Pairs(NamedTuple):
    """A corpus of ids without the symbols around them: row i of a side is its next `lengths[i]` ids."""

    source: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    target: NDArray[np.int64]
    target_lengths: NDArray[np.int64]


Step = Callable[[Padded], None]  # one full training step: forward, loss, backward, clipping, optimiser
