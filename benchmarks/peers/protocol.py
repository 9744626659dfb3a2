"""Model sizes, batches and constants that all benchmarked toolkits share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

PAD, BOS, EOS = 0, 2, 3
NUM_SPECIAL_TOKENS = 7
Kind = Literal["transformer", "luong", "bahdanau"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model; encoder and decoder have the same number of layers, and all embeddings are shared."""

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


class PaddedBatch(NamedTuple):
    """A padded batch: sources with EOS, targets with BOS and EOS."""

    source: Tensor  # B S
    source_lengths: Tensor  # B
    target: Tensor  # B T
    tokens: int  # predicted target tokens without padding

    def to(self, device: str) -> PaddedBatch:
        tensors = (tensor.to(device, non_blocking=True) for tensor in self[:3])
        return PaddedBatch(*tensors, self.tokens)


class Pairs(NamedTuple):
    """A corpus of token ids without BOS and EOS; the ids of all rows are concatenated."""

    source: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    target: NDArray[np.int64]
    target_lengths: NDArray[np.int64]


Step = Callable[[PaddedBatch], None]  # one full training step: forward, loss, backward, clipping, optimizer
