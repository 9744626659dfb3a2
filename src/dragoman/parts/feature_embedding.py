"""Image patches and acoustic frames as encoder inputs, in place of token embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.embedding import SourceEmbedding
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


def check_features(source: Tensor, features: int) -> None:
    """Raise an error unless the source is B S F."""
    if source.dim() != 3 or source.shape[-1] != features:
        raise UserError(
            f"this model expects feature vectors, batch × length × {features}, but got "
            f"{' × '.join(map(str, source.shape))}"
        )


@dataclass(frozen=True)
class Patches(Spec):
    """W x + b for each image patch of `features` pixel values (Dosovitskiy et al. 2021, §3.1, eq. 1).

    There is no class token: the decoder attends to all patches.
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
    """Subsampling of acoustic frames: each layer y_t = ReLU(W [x_{2t−1}; x_{2t}; x_{2t+1}] + b) halves their number.

    `stride` 4 means two layers (Dong et al. 2018, §3), which here convolve over time only, not over frequencies; then a
    projection. x is zero before the first and after the last frame.
    """

    features: int
    stride: int = 4

    def build(self, dim: int) -> FrameEmbedding:
        return FrameEmbedding(self, dim)


class FrameEmbedding(SourceEmbedding):
    supports_packing = False

    def __init__(self, spec: Frames, dim: int) -> None:
        super().__init__()
        layers = spec.stride.bit_length() - 1
        if spec.stride != 2**layers:
            raise UserError(f"the stride of frames must be a power of two, but is {spec.stride}")
        self.features, self.stride = spec.features, spec.stride
        widths = [spec.features, *[dim] * layers]
        self.halve = nn.ModuleList(nn.Linear(3 * width, dim) for width in widths[:-1])
        self.project = nn.Linear(widths[-1], dim)

    def embed_source(self, source: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """B S F → B ⌈S/stride⌉ D."""
        check_features(source, self.features)
        if layout.lengths is None:
            raise UserError("frames of several recordings cannot be packed into one row: pass one recording per row")
        x = source
        for layer in self.halve:
            assert layout.lengths is not None
            x = x.masked_fill(~cast(Tensor, layout.token_mask)[..., None], 0.0)
            x = F.relu(layer(windows(x)))
            layout = Layout.padded(x.shape[1], (layout.lengths + 1) // 2)
        return self.project(x), layout

    def flops(self, work: Workload) -> int:
        total, frames = 0, work.tokens
        for layer in self.halve:
            frames = (frames + 1) // 2
            total += module_flops(layer, work.of(frames))
        return total + module_flops(self.project, work.of(frames))


def windows(x: Tensor) -> Tensor:
    """Concatenate every second vector with its two neighbours: B S F → B ⌈S/2⌉ 3F."""
    count = (x.shape[1] + 1) // 2
    x = F.pad(x, (0, 0, 1, 1 + x.shape[1] % 2))  # B 2·count+2 F
    return torch.cat([x[:, start : start + 2 * count : 2] for start in range(3)], -1)  # B ⌈S/2⌉ 3F
