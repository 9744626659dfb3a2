"""Positions: how a part that is blind to order is told where each token stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.mixer import Layout
from dragoman.parts.spec import Spec


class Position(nn.Module):
    """The identity of every way in which a position can enter; a position part overrides those that it uses."""

    max_length: int | None = None  # the longest sequence it can place
    supports_packing = True  # does it enter packed rows without weights that are written out?

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        """Positions added to embeddings, B T D."""
        return x

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Positions turned into queries or keys, B H T E."""
        return x

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Positions added to scores, to be broadcast to B H T S; the query is scaled already (by 1/√E)."""
        return None

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor | None:
        """What `bias` adds to the score of a head at distance j − i, for parts that ask nothing else; elementwise."""
        return None

    def value_bias(self, weights: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Positions added to what was attended to, B H T E."""
        return None


@dataclass(frozen=True)
class NoPosition(Spec):
    """No position at all: for recurrent and convolutional parts, which know order by themselves."""

    def build(self, dim: int) -> Position:
        return Position()


def _frequencies(dim: int, base: float) -> Tensor:
    """1 / base^{2i/d}, D/2 of them."""
    frequencies = [base ** (-2 * i / dim) for i in range((dim + 1) // 2)]
    return torch.tensor(frequencies)  # by no operation, so that a blueprint is drawn at once


def _in_turns(parts: tuple[Tensor, ...], dim: int) -> Tensor:
    """a_1 b_1 a_2 b_2 …"""
    return torch.stack(parts, dim=dim).flatten(dim - 1)


@dataclass(frozen=True)
class Sinusoidal(Spec):
    """PE(pos, 2i) = sin(pos / base^{2i/d}), PE(pos, 2i+1) = cos of the same (Vaswani et al. 2017, §3.5).

    Computed, not looked up, so that it extends past every trained length. `halves`: the sines first and the cosines
    after them, as Marian has it (Junczys-Dowmunt et al. 2018), instead of in turns.
    """

    base: float = 10000.0
    sines_first: bool = False

    def build(self, dim: int) -> SinusoidalPosition:
        return SinusoidalPosition(dim, self.base, self.sines_first)


class SinusoidalPosition(Position):
    frequency: Tensor

    def __init__(self, dim: int, base: float, halves: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.join = torch.cat if halves else _in_turns
        self.register_buffer("frequency", _frequencies(dim, base), persistent=False)

    def encoding(self, positions: Tensor) -> Tensor:
        """positions … → … D."""
        angle = positions[..., None].float() * self.frequency
        return self.join((angle.sin(), angle.cos()), -1)[..., : self.dim]

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.max_length is None or layout.positions.numel() < layout.max_length:
            return x + self.encoding(layout.positions).to(x.dtype)
        table = self.encoding(torch.arange(layout.max_length, device=x.device))  # sines once a place, not once a token
        return x + nn.functional.embedding(layout.positions, table.to(x.dtype))


@dataclass(frozen=True)
class Learned(Spec):
    """A vector for every position up to `longest`, learned like a word's (Gehring et al. 2017); refuses past it."""

    max_length: int = 1024

    def build(self, dim: int) -> LearnedPosition:
        return LearnedPosition(dim, self.max_length)


class LearnedPosition(Position):
    def __init__(self, dim: int, longest: int) -> None:
        super().__init__()
        self.max_length = longest
        self.table = nn.Embedding(longest, dim)

    def embed(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.max_length is not None and layout.max_length > self.table.num_embeddings:
            raise UserError(
                f"a sequence of {layout.max_length} tokens does not fit the {self.table.num_embeddings} learned positions "
                "of this model: shorten it, or train with more positions or with sinusoidal ones"
            )
        return x + self.table(layout.positions).to(x.dtype)


@dataclass(frozen=True)
class Rotary(Spec):
    """Queries and keys turned by angles that grow with their position, so that q·k depends on the distance alone.

    Pairs (x_i, x_{i+E/2}) are turned by pos / base^{2i/E} (Su et al. 2021, §3.2), which pairs neighbours instead; the
    two differ only in the order of the weights.
    """

    base: float = 10000.0

    def build(self, dim: int) -> RotaryPosition:
        return RotaryPosition(dim, _frequencies(dim, self.base))


@dataclass(frozen=True)
class InterpolatedRotary(Spec):
    """Rotary positions for texts `factor` times as long as those of the training: pos / factor (Chen et al. 2023)."""

    base: float = 10000.0
    factor: float = 1.0

    def build(self, dim: int) -> RotaryPosition:
        return RotaryPosition(dim, _frequencies(dim, self.base) / self.factor)


@dataclass(frozen=True)
class Llama3Rotary(Spec):
    """Rotary positions of which only the slow turns are made slower, by `factor`, as in the code of Llama 3.1 (2024).

    A pair that turns w times in the `trained` length is left alone where w ≥ `fast`, slowed down where w ≤ `slow`, and
    in between moved from the one to the other: ω·(s + (1 − s)/factor) with s = (w − slow)/(fast − slow).
    """

    base: float = 500000.0
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192

    def build(self, dim: int) -> RotaryPosition:
        frequency = _frequencies(dim, self.base)
        turns = self.original_max_length * frequency / (2 * math.pi)
        share = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return RotaryPosition(dim, frequency * (share + (1 - share) / self.factor))


class RotaryPosition(Position):
    frequency: Tensor

    def __init__(self, dim: int, frequency: Tensor) -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"rotary positions turn pairs, but a head is {dim} wide: choose an even width")
        self.register_buffer("frequency", frequency, persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, :, None].float() * self.frequency  # B 1 T E/2
        sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)
