"""Positions: how attention layers, which are blind to order, know where each token stands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.flops import Workload
from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


class Position(nn.Module):
    """Base class: all the ways in which positions can enter, each without effect; subclasses override some."""

    max_length: int | None = None  # longest sequence that it supports
    supports_packing = True  # works in packed rows without explicit attention weights
    has_score_bias = has_value_bias = rotates = False  # set for subclasses that override the method

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.has_score_bias = cls.score_bias is not Position.score_bias
        cls.has_value_bias = cls.value_bias is not Position.value_bias
        cls.rotates = cls.rotate is not Position.rotate

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        """Add positions to embeddings, B T D."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys, B H T E, by their positions, B T."""
        return x

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return the bias of the attention scores, broadcastable to B H T S; the query is already scaled by 1/√E."""
        return None

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor | None:
        """Return `score_bias` of a head at distance j − i, elementwise, if it depends on these alone."""
        return None

    def value_bias(self, weights: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return what is added to the attention output, B H T E, given the attention weights, B H T S."""
        return None

    def distance_vectors(self) -> Tensor | None:
        """Return the vectors that are added to keys at distances from −clip to clip, 2·clip + 1 E, if there are any."""
        return None

    def flops(self, work: Workload) -> int:
        return 0


@dataclass(frozen=True)
class NoPosition(Spec):
    """No positions: for recurrent and convolutional layers, which depend on order by themselves."""

    def build(self, dim: int) -> Position:
        return Position()


def _frequencies(dim: int, base: float) -> Tensor:
    """1 / base^{2i/d} for i < d/2."""
    # From a Python list, so that the values exist even if the model is built on the meta device.
    return torch.tensor([base ** (-2 * i / dim) for i in range((dim + 1) // 2)])


def _interleave(parts: tuple[Tensor, ...], dim: int) -> Tensor:
    """a_1 b_1 a_2 b_2 …"""
    return torch.stack(parts, dim=dim).flatten(dim - 1)


@dataclass(frozen=True)
class Sinusoidal(Spec):
    """PE(pos, 2i) = sin(pos / base^{2i/d}), PE(pos, 2i+1) = cos(pos / base^{2i/d}) (Vaswani et al. 2017, §3.5).

    Computed, not looked up, so that it extends beyond the lengths seen in training. `sines_first`: all sines, then all
    cosines, as in Marian (Junczys-Dowmunt et al. 2018), instead of alternating.
    """

    base: float = 10000.0
    sines_first: bool = False

    def build(self, dim: int) -> SinusoidalPosition:
        return SinusoidalPosition(dim, self.base, self.sines_first)


class SinusoidalPosition(Position):
    frequency: Tensor

    def __init__(self, dim: int, base: float, sines_first: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.join = torch.cat if sines_first else _interleave
        self.register_buffer("frequency", _frequencies(dim, base), persistent=False)

    def encoding(self, positions: Tensor) -> Tensor:
        """positions … → … D."""
        angle = positions[..., None].float() * self.frequency
        return self.join((angle.sin(), angle.cos()), -1)[..., : self.dim]

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.max_length is None or layout.positions.numel() < layout.max_length:
            return x + self.encoding(layout.positions).to(x.dtype)
        table = self.encoding(torch.arange(layout.max_length, device=x.device))  # each position once, not each token
        return x + nn.functional.embedding(layout.positions, table.to(x.dtype))


class SinusoidalTable(SinusoidalPosition):
    """Sinusoidal positions looked up in a table of `length` positions, for inference."""

    table: Tensor

    def __init__(self, position: SinusoidalPosition, length: int, dtype: torch.dtype | None = None) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(position.__dict__)
        positions = torch.arange(length, device=position.frequency.device)
        self.register_buffer("table", position.encoding(positions).to(dtype), persistent=False)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.max_length is None or layout.max_length > len(self.table):
            return super().embed(x, layout)
        return x + nn.functional.embedding(layout.positions, self.table)


@dataclass(frozen=True)
class Learned(Spec):
    """A learned vector for each of `max_length` positions (Gehring et al. 2017); longer sequences are an error."""

    max_length: int = 1024

    def build(self, dim: int) -> LearnedPosition:
        return LearnedPosition(dim, self.max_length)


class LearnedPosition(Position):
    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Embedding(max_length, dim)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.max_length is not None and layout.max_length > self.table.num_embeddings:
            raise UserError(
                f"this model has learned positions for {self.table.num_embeddings} tokens, but a sequence has "
                f"{layout.max_length}: shorten it, or train with more positions or with sinusoidal ones"
            )
        return x + self.table(layout.positions).to(x.dtype)


@dataclass(frozen=True)
class Rotary(Spec):
    """Rotation of queries and keys by angles proportional to their positions, so that q·k depends on their distance.

    Rotates the pairs (x_i, x_{i+E/2}) by pos / base^{2i/E}; Su et al. (2021, §3.2) pair neighbours instead, which is
    the same up to the order of the weights.
    """

    base: float = 10000.0

    def build(self, dim: int) -> RotaryPosition:
        return RotaryPosition(dim, _frequencies(dim, self.base))


@dataclass(frozen=True)
class InterpolatedRotary(Spec):
    """Rotary positions divided by `factor`, for texts longer than those in training (Chen et al. 2023)."""

    base: float = 10000.0
    factor: float = 1.0

    def build(self, dim: int) -> RotaryPosition:
        return RotaryPosition(dim, _frequencies(dim, self.base) / self.factor)


@dataclass(frozen=True)
class Llama3Rotary(Spec):
    """Rotary positions whose low frequencies are divided by `factor`, as in Llama 3.1 (2024).

    A pair that rotates w times within `original_max_length` keeps its frequency if w ≥ `high_freq_factor`, is divided
    by `factor` if w ≤ `low_freq_factor`, and interpolated in between: ω·(s + (1 − s)/factor) with
    s = (w − low_freq_factor)/(high_freq_factor − low_freq_factor).
    """

    base: float = 500000.0
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192

    def build(self, dim: int) -> RotaryPosition:
        frequency = _frequencies(dim, self.base)
        rotations = self.original_max_length * frequency / (2 * math.pi)
        s = ((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return RotaryPosition(dim, frequency * (s + (1 - s) / self.factor))


class RotaryPosition(Position):
    frequency: Tensor

    def __init__(self, dim: int, frequency: Tensor) -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"rotary positions need an even head width, but it is {dim}")
        self.register_buffer("frequency", frequency, persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, :, None].float() * self.frequency  # B 1 T E/2
        sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
