"""Relative positions: how far apart two tokens stand, in the scores and in what is attended to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.positions import Position
from dragoman.parts.spec import Spec


def distance(positions: Tensor, key_positions: Tensor) -> Tensor:
    """j − i of queries i (B T) and keys j (B S) → B T S, or 1 T S where all rows lie the same, as padded ones do."""
    if positions.stride(0) == key_positions.stride(0) == 0:
        positions, key_positions = positions[:1], key_positions[:1]
    return key_positions[:, None, :] - positions[:, :, None]


def _same_heads(part: str, heads: int, query: Tensor) -> None:
    """One head would be broadcast to all of them without a word."""
    if query.shape[1] != heads:
        raise UserError(
            f"{part} was made for {heads} heads, but the attention has {query.shape[1]}: give both the same number"
        )


@dataclass(frozen=True)
class RelativeBias(Spec):
    """A learned number for each head and bucket of distances, added to the scores (Raffel et al. 2020, §2.1).

    Of the buckets of a direction the first half hold one distance each, the others ever more, logarithmically up to
    `longest`, and the last all beyond. `both_ways`: half of the buckets for what comes after; otherwise all of it is at
    distance 0. As a stack's position its layers share one table.
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
        self.heads, self.longest, self.both_ways = spec.heads, spec.max_distance, spec.bidirectional
        self.each_way = spec.buckets // 2 if spec.bidirectional else spec.buckets
        if self.each_way < 2 or spec.max_distance <= self.each_way // 2:
            raise UserError(
                f"{spec.buckets} buckets of distances up to {spec.max_distance} are {self.each_way} a direction: at least 2 "
                "are needed, and a longest distance above half of them"
            )
        self.table = nn.Embedding(spec.buckets, spec.heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """j − i → its bucket."""
        far = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        exact, wide = self.each_way // 2, self.each_way - self.each_way // 2
        fraction = torch.log(far.clamp(min=exact).float() / exact) / math.log(self.longest / exact)  # of the wide ones
        bucket = torch.where(far < exact, far, (exact + (fraction * wide).long()).clamp(max=self.each_way - 1))
        return bucket + self.each_way * (distance > 0) if self.both_ways else bucket

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor:
        return self.table.weight[self.bucket(distance), head]

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        _same_heads("RelativeBias", self.heads, query)
        bias = self.table(self.bucket(distance(positions, key_positions)))  # B T S H
        return bias.permute(0, 3, 1, 2).contiguous().to(query.dtype)  # B H T S, as kernels want it


@dataclass(frozen=True)
class Shaw(Spec):
    """A learned vector for each distance, added to keys and values (Shaw et al. 2018, §3.2).

    Scores q_i·(k_j + a_K)/√E and outputs Σ_j α_ij (v_j + a_V), where a = a[clip(j − i, −clip, clip)], shared by the
    heads. Both sums are taken over the 2·clip + 1 distances, so that no vector is made for every pair (§3.3).
    `values` False leaves a_V out, which did no harm in the paper (§4.3).
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

    def index(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """B 1 T S: the clipped distance, counted from 0."""
        return distance(positions, key_positions).clamp(-self.clip, self.clip)[:, None] + self.clip

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        if query.shape[-1] != self.dim:
            raise UserError(
                f"Shaw's positions are {self.dim} wide, but the heads {query.shape[-1]}: make them the position of the "
                "attention, not of the stack"
            )
        scores = query @ self.keys.weight.to(query.dtype).T  # B H T distances
        index = self.index(positions, key_positions)
        return scores.gather(-1, index.expand(*scores.shape[:-1], index.shape[-1]))  # B H T S


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
    """−m_h·|i − j| added to the scores, a slope m_h for each head and nothing to learn (Press et al. 2022, §3).

    The slopes of H heads are 2^(−8/H), 2^(−16/H), …; where H is no power of two, those of the power below it and then
    every second one of the power above it, as in the paper's code. |i − j| for attention that also looks ahead.
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
        _same_heads("ALiBi", self.heads, query)
        far = distance(positions, key_positions).abs()[:, None]  # B 1 T S
        return (-self.slope[:, None, None] * far).to(query.dtype)  # B H T S
