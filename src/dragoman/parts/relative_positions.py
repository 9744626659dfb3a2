"""Relative positions: the distance of two tokens, in the attention scores and in the attention output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.flops import Workload
from dragoman.parts.positions import Position
from dragoman.parts.spec import Spec


def distances(positions: Tensor, key_positions: Tensor) -> Tensor:
    """j − i of queries i (B T) and keys j (B S) → B T S, or 1 T S if all rows have the same positions."""
    if positions.stride(0) == key_positions.stride(0) == 0:
        positions, key_positions = positions[:1], key_positions[:1]
    return key_positions[:, None, :] - positions[:, :, None]


def _check_heads(part: str, heads: int, query: Tensor) -> None:
    """Raise an error instead of silently broadcasting a single head."""
    if query.shape[1] != heads:
        raise UserError(f"{part} has {heads} heads, but the attention has {query.shape[1]}: set both to the same")


@dataclass(frozen=True)
class RelativeBias(Spec):
    """A learned bias of the scores for each head and bucket of distances (Raffel et al. 2020, §2.1).

    Half of the buckets of a direction hold one distance each; the others grow logarithmically up to `max_distance`, and
    the last one includes all larger distances. `bidirectional`: half of the buckets are for later positions; otherwise
    later positions have distance 0. As the position of a stack, all its layers share one table.
    """

    heads: int
    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def build(self, dim: int) -> BucketedBias:
        return BucketedBias(self)


class BucketedBias(Position):
    def __init__(self, spec: RelativeBias) -> None:
        super().__init__()
        self.heads, self.max_distance, self.bidirectional = spec.heads, spec.max_distance, spec.bidirectional
        self.buckets = spec.buckets // 2 if spec.bidirectional else spec.buckets  # per direction
        if self.buckets < 2 or spec.max_distance <= self.buckets // 2:
            raise UserError(
                f"relative bias needs at least 2 buckets per direction and a max_distance above half of them, but has "
                f"{self.buckets} buckets per direction and max_distance {spec.max_distance}"
            )
        self.table = nn.Embedding(spec.buckets, spec.heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Map j − i to a bucket."""
        size = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        exact, logarithmic = self.buckets // 2, self.buckets - self.buckets // 2
        fraction = torch.log(size.clamp(min=exact).float() / exact) / math.log(self.max_distance / exact)
        bucket = torch.where(size < exact, size, (exact + (fraction * logarithmic).long()).clamp(max=self.buckets - 1))
        return bucket + self.buckets * (distance > 0) if self.bidirectional else bucket

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor:
        return self.table.weight[self.bucket(distance), head]

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        _check_heads("RelativeBias", self.heads, query)
        bias = self.table(self.bucket(distances(positions, key_positions)))  # B T S H
        return bias.permute(0, 3, 1, 2).contiguous().to(query.dtype)  # B H T S; kernels need it contiguous


@dataclass(frozen=True)
class Shaw(Spec):
    """Learned vectors for distances, added to keys and values (Shaw et al. 2018, §3.2).

    Scores q_i·(k_j + a_K)/√E and outputs Σ_j α_ij (v_j + a_V), where a = a[clip(j − i, −clip, clip)], shared by all
    heads. Both sums run over the 2·clip + 1 distances, so that no vector is computed per pair (§3.3). `values` False
    omits a_V, which did not hurt in the paper (§4.3).
    """

    clip: int = 16
    values: bool = True

    def build(self, dim: int) -> ShawKeys:
        return ShawKeysAndValues(dim, self.clip) if self.values else ShawKeys(dim, self.clip)


class ShawKeys(Position):
    supports_packing = False

    def __init__(self, dim: int, clip: int) -> None:
        super().__init__()
        self.dim, self.clip = dim, clip
        self.keys = nn.Embedding(2 * clip + 1, dim)

    def distance_vectors(self) -> Tensor:
        return self.keys.weight

    def index(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """B 1 T S: clipped distance, counted from 0."""
        return distances(positions, key_positions).clamp(-self.clip, self.clip)[:, None] + self.clip

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        if query.shape[-1] != self.dim:
            raise UserError(
                f"Shaw positions have width {self.dim}, but the heads have {query.shape[-1]}: set them as the position "
                "of the attention, not of the stack"
            )
        scores = query @ self.keys.weight.to(query.dtype).T  # B H T distances
        index = self.index(positions, key_positions)
        return scores.gather(-1, index.expand(*scores.shape[:-1], index.shape[-1]))  # B H T S

    def flops(self, work: Workload) -> int:
        """Product of each query, and each row of weights, with all distance vectors."""
        return 2 * work.tokens * sum(table.numel() for table in self.parameters())


class ShawKeysAndValues(ShawKeys):
    def __init__(self, dim: int, clip: int) -> None:
        super().__init__(dim, clip)
        self.values = nn.Embedding(2 * clip + 1, dim)

    def value_bias(self, weights: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        table = self.values.weight.to(weights.dtype)
        index = self.index(positions, key_positions).expand_as(weights)
        by_distance = weights.new_zeros(*weights.shape[:-1], len(table)).scatter_add(-1, index, weights)
        return by_distance @ table  # B H T E


@dataclass(frozen=True)
class ALiBi(Spec):
    """Bias −m_h·|i − j| of the scores with a fixed slope m_h for each head (Press et al. 2022, §3).

    The slopes of H heads are 2^(−8/H), 2^(−16/H), …; if H is not a power of two, those of the power below H, then every
    second one of the power above H, as in the authors' code. |i − j| extends it to bidirectional attention.
    """

    heads: int

    def build(self, dim: int) -> LinearBias:
        return LinearBias(self.heads)


def slopes(heads: int) -> list[float]:
    power = 2 ** (heads.bit_length() - 1)
    below, above = ([2.0 ** (-8 * h / n) for h in range(1, n + 1)] for n in (power, 2 * power))
    return below + above[::2][: heads - power]


class LinearBias(Position):
    slope: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("slope", torch.tensor(slopes(heads)), persistent=False)

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor:
        return -self.slope[head] * distance.abs()

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        _check_heads("ALiBi", self.heads, query)
        distance = distances(positions, key_positions).abs()[:, None]  # B 1 T S
        return (-self.slope[:, None, None] * distance).to(query.dtype)  # B H T S
