"""Images and sound as sequences of vectors: what stands in the place of the table of embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.embedding import SourceEmbedding
from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


def check_features(source: Tensor, features: int) -> None:
    """Refuse anything but B S F."""
    if source.dim() != 3 or source.shape[-1] != features:
        raise UserError(
            f"this model reads sequences of vectors of {features} numbers, batch × length × {features}, but was given "
            f"{' × '.join(map(str, source.shape))}"
        )


@dataclass(frozen=True)
class Patches(Spec):
    """W x + b for every patch of an image, its `features` pixels in a row (Dosovitskiy et al. 2021, §3.1, eq. 1).

    There is no vector for the image as a whole before them: a decoder looks at all of them.
    """

    features: int

    def build(self, dim: int) -> PatchEmbedding:
        return PatchEmbedding(self, dim)


class PatchEmbedding(SourceEmbedding):
    def __init__(self, spec: Patches, dim: int) -> None:
        super().__init__()
        self.features = spec.features
        self.project = nn.Linear(spec.features, dim)

    def forward(self, source: Tensor) -> Tensor:
        """B S F → B S D."""
        check_features(source, self.features)
        return self.project(source)


@dataclass(frozen=True)
class Frames(Spec):
    """Acoustic frames made fewer: each layer halves them, y_t = ReLU(W [x_{2t−1}; x_{2t}; x_{2t+1}] + b).

    A `stride` of 4 is two layers (Dong et al. 2018, §3), which convolve over time alone here, not over frequencies as
    well. Then they are projected. Before the first frame and after the last x is zero.
    """

    features: int
    stride: int = 4

    def build(self, dim: int) -> FrameEmbedding:
        return FrameEmbedding(self, dim)


class FrameEmbedding(SourceEmbedding):
    supports_packing = False

    def __init__(self, spec: Frames, dim: int) -> None:
        super().__init__()
        halvings = spec.stride.bit_length() - 1
        if spec.stride != 2**halvings:
            raise UserError(f"frames are halved once or more, so a stride is 1, 2, 4, 8 …, but it is {spec.stride}")
        self.features, self.stride = spec.features, spec.stride
        widths = [spec.features, *[dim] * halvings]
        self.halve = nn.ModuleList(nn.Linear(3 * width, dim) for width in widths[:-1])
        self.project = nn.Linear(widths[-1], dim)

    def embed_source(self, source: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """B S F → B ⌈S/stride⌉ D."""
        check_features(source, self.features)
        if layout.lengths is None:
            raise UserError("frames of several recordings cannot be packed into one row: give each a row of its own")
        x = source
        for layer in self.halve:
            assert layout.lengths is not None
            x = x.masked_fill(~cast(Tensor, layout.token_mask)[..., None], 0.0)
            x = F.relu(layer(windows(x)))
            layout = Layout.padded(x.shape[1], (layout.lengths + 1) // 2)
        return self.project(x), layout


def windows(x: Tensor) -> Tensor:
    """B S F → B ⌈S/2⌉ 3F: every other vector between its neighbours."""
    count = (x.shape[1] + 1) // 2
    x = F.pad(x, (0, 0, 1, 1 + x.shape[1] % 2))  # B 2·count+2 F
    return torch.cat([x[:, start : start + 2 * count : 2] for start in range(3)], -1)  # B ⌈S/2⌉ 3F
