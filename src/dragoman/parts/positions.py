"""Positions: how attention layers, which are blind to order, know where each token stands, or how far two are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.flops import Workload
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.spec import Spec, build_part


class Position(nn.Module):
    """Base class: all the ways in which positions can enter, each without effect; subclasses override some."""

    max_length: int | None = None  # longest sequence that it supports
    supports_packing = True  # works in packed rows without explicit attention weights
    has_score_bias = has_value_bias = rotates = False  # set for subclasses that override the method
    value_dim: int | None = None  # width of the values that it adds to; None: it adds nothing to values
    is_concatenated = False  # whether its vectors are concatenated to the embeddings instead of being added

    def __init_subclass__(cls, **options: Any) -> None:
        """Set `has_score_bias`, `has_value_bias` and `rotates` by which methods the subclass overrides.

        Python calls it for every subclass; `options` are keyword arguments of the class definition, here none.
        """
        super().__init_subclass__(**options)
        cls.has_score_bias = cls.score_bias is not Position.score_bias
        cls.has_value_bias = cls.value_bias is not Position.value_bias
        cls.rotates = cls.rotate is not Position.rotate

    def embed(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Add positions to embeddings, B T D; the layout holds the position of each token. Here nothing is added."""
        return x

    def encoding(self, positions: Tensor) -> Tensor | None:
        """Return the vectors that `embed` adds at positions of any shape …, … D; None if it adds nothing."""
        return None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys, B H T E, by their positions, B T; here they stay unchanged."""
        return x

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return the bias of the attention scores, broadcastable to B H T S; here None, no bias.

        Queries, B H T E, are already multiplied by the scale of the scores, such as 1/√E. They stand at `positions`
        (B T), keys at `key_positions` (B S).
        """
        return None

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor | None:
        """Return the bias of attention scores at `distance` j − i of a key at j and a query at i, elementwise.

        `head` holds numbers of heads, with the shape of `distance`. None, as here, means no bias, or one that depends
        on more than head and distance.
        """
        return None

    def value_bias(self, weights: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return what is added to the attention output, B H T E, for attention weights B H T S; here None, nothing.

        Vectors added to the values, by the distance of query and key, are summed with these weights. Queries stand at
        `positions` (B T), keys at `key_positions` (B S).
        """
        return None

    def distance_vectors(self) -> Tensor | None:
        """Return the vectors added to keys by their distance from the query; None, as here, if there are none.

        They form a matrix of 2·clip + 1 rows, for distances from −clip to clip, and E columns, the width of a head.
        Larger distances use the vector of −clip or clip.
        """
        return None

    def value_distance_vectors(self) -> Tensor | None:
        """Return the vectors added to values by their distance from the query; None, as here, if there are none.

        They form a matrix of 2·clip + 1 rows, for distances from −clip to clip, and E columns, the width of a head.
        Larger distances use the vector of −clip or clip.
        """
        return None

    def flops(self, work: Workload) -> int:
        """FLOPs of matrix products for `work.tokens` tokens: none, unless a subclass has some."""
        return 0


@dataclass(frozen=True)
class NoPosition(Spec):
    """No positions: for recurrent and convolutional layers, which depend on order by themselves."""

    def build(self, dim: int) -> Position:
        """Create a position encoding without effect."""
        return Position()


def _frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies of sinusoidal and rotary positions, 1 / base^{2i/d} for i < d/2; d is the width `dim`."""
    # From a Python list, so that the values exist even if the model is built on the meta device.
    return torch.tensor([base ** (-2 * i / dim) for i in range((dim + 1) // 2)])  # one more if the width is odd


def _full_range_frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies of fairseq's sinusoids, base^{−i/(n − 1)} for i < n = ⌊d/2⌋: from 1 to 1/base."""
    count = dim // 2
    return torch.tensor([base ** (-i / max(1, count - 1)) for i in range(count)])  # max: no division by 0 if n = 1


def _interleave(parts: tuple[Tensor, ...], dim: int) -> Tensor:
    """Interleave tensors along their last dimension: a_1 b_1 a_2 b_2 …; `dim` must be −1 (torch.cat takes it too)."""
    return torch.stack(parts, dim=dim).flatten(dim - 1)


@dataclass(frozen=True)
class Sinusoidal(Spec):
    """PE(pos, 2i) = sin(pos / base^{2i/d}), PE(pos, 2i+1) = cos(pos / base^{2i/d}) (Vaswani et al. 2017, §3.5).

    Computed, not looked up, so that it extends beyond the lengths seen in training. `sines_first`: all sines, then all
    cosines, as in Marian (Junczys-Dowmunt et al. 2018), instead of alternating. fairseq (M2M-100, NLLB) differs in two
    more details: its positions begin at `first_position`, PAD + 1, and with `full_range` the last of the d/2
    frequencies is 1/base itself: base^{−i/(d/2 − 1)}.
    """

    base: float = 10000.0
    sines_first: bool = False
    first_position: int = 0
    full_range: bool = False

    def build(self, dim: int) -> SinusoidalPosition:
        """Create the encoding for embeddings of width `dim`."""
        return SinusoidalPosition(dim, self)


class SinusoidalPosition(Position):
    frequency: Tensor

    def __init__(self, dim: int, spec: Sinusoidal) -> None:
        """Compute frequencies for embeddings of width `dim`; `arrange` puts sines and cosines in the spec's order.

        Positions count from `first_position`, 0 but in models of fairseq.
        """
        super().__init__()
        self.dim, self.first_position = dim, spec.first_position
        self.arrange = torch.cat if spec.sines_first else _interleave  # sin, cos, sin, cos, …
        frequencies = _full_range_frequencies if spec.full_range else _frequencies
        self.register_buffer("frequency", frequencies(dim, spec.base), persistent=False)

    def encoding(self, positions: Tensor) -> Tensor:
        """Return the sines and cosines of positions times frequencies: positions of any shape … → vectors … D.

        The first position of a sequence counts as `first_position`: 0, or more in models of fairseq.
        """
        angle = (positions[..., None] + self.first_position).float() * self.frequency  # … D/2
        sinusoids = self.arrange((angle.sin(), angle.cos()), -1)[..., : self.dim]
        # zeros if the width is odd and `frequency` rounds half of it down, as in fairseq
        return nn.functional.pad(sinusoids, (0, self.dim - sinusoids.shape[-1]))

    def embed(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Add the sinusoids of the tokens' positions, which the layout holds, to x, B T D."""
        positions, num_positions = layout.encoded_positions, layout.num_positions
        if num_positions is None or positions.numel() < num_positions:  # a decoding step, or few tokens
            return x + self.encoding(positions).to(x.dtype)
        table = self.encoding(torch.arange(num_positions, device=x.device))  # each position once, not each token
        return x + nn.functional.embedding(positions, table.to(x.dtype))


class SinusoidalTable(SinusoidalPosition):
    """Sinusoidal positions looked up in a table of `length` positions, for inference."""

    table: Tensor

    def __init__(self, position: SinusoidalPosition, length: int, dtype: torch.dtype | None = None) -> None:
        """Precompute the sinusoids of `position` for positions below `length`, in `dtype` (None: float32)."""
        nn.Module.__init__(self)
        self.__dict__.update(position.__dict__)  # shares its frequencies and settings
        positions = torch.arange(length, device=position.frequency.device)
        self.register_buffer("table", position.encoding(positions).to(dtype), persistent=False)

    def embed(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Add the sinusoids of the tokens' positions (in `layout`) to x, B T D: from the table if it is long enough."""
        if layout.num_positions is None or layout.num_positions > len(self.table):  # None: the bound is not known
            return super().embed(x, layout)
        return x + nn.functional.embedding(layout.encoded_positions, self.table)


@dataclass(frozen=True)
class Learned(Spec):
    """A learned vector for each of `max_length` positions (Gehring et al. 2017); longer sequences are an error."""

    max_length: int = 1024

    def build(self, dim: int) -> LearnedPosition:
        """Create the table of vectors of width `dim`, one for each of `max_length` positions."""
        return LearnedPosition(dim, self.max_length)


class LearnedPosition(Position):
    def __init__(self, dim: int, max_length: int) -> None:
        """A table of `max_length` vectors of width `dim`."""
        super().__init__()
        self.max_length = max_length
        self.table = nn.Embedding(max_length, dim)

    def encoding(self, positions: Tensor) -> Tensor:
        """Positions of any shape … → learned vectors … D."""
        return self.table(positions)

    def embed(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Add the learned vectors of the tokens' positions to x, B T D; the layout holds the positions.

        A sequence longer than the table raises a UserError. In decoding steps, where the layout does not know the
        number of positions (None), it is not checked here.
        """
        if layout.num_positions is not None and layout.num_positions > self.table.num_embeddings:
            raise UserError(
                f"this model has learned positions for {self.table.num_embeddings} tokens, but a sequence has "
                f"{layout.num_positions} tokens: shorten it, or train a model with more positions "
                "(system.settings.max_positions) or with sinusoidal ones"
            )
        return x + self.encoding(layout.encoded_positions).to(x.dtype)


@dataclass(frozen=True)
class Concatenated(Spec):
    """[x; p]: the vectors of a position encoding, `dim` wide, follow the embedding instead of being added to it.

    Embeddings have the remaining width of the stack's input. Adding is the special case [x; p] → [I I] [x; p] of a
    projection after the concatenation.
    """

    position: Spec
    dim: int

    def build(self, dim: int) -> ConcatenatedPosition:
        """Create the position encoding for embeddings that are `dim` wide together with their positions.

        The positions' own width, `self.dim`, must be smaller; otherwise a UserError is raised.
        """
        if not 0 < self.dim < dim:
            raise UserError(
                f"position_dim, the number of the {dim} embedding dimensions that hold the position, must be from 1 to "
                f"{dim - 1}, but is {self.dim}: change it"
            )
        return ConcatenatedPosition(build_part(self.position, self.dim, Position), self.dim)


class ConcatenatedPosition(Position):
    def __init__(self, position: Position, dim: int) -> None:
        """Concatenate the vectors of `position`, `dim` wide, to embeddings.

        The vectors are what `position` adds to embeddings; here it adds them to zeros. `is_concatenated` tells others
        that they are not added to the embeddings themselves.
        """
        super().__init__()
        self.position, self.dim = position, dim
        self.position.is_concatenated = True
        self.max_length, self.supports_packing = position.max_length, position.supports_packing

    def embed(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Append the vectors of the layout's positions, P = `dim` wide, to x: B T D−P → B T D."""
        return torch.cat((x, self.position.embed(x.new_zeros(*x.shape[:-1], self.dim), layout)), -1)


@dataclass(frozen=True)
class Rotary(Spec):
    """Rotation of queries and keys by angles proportional to their positions, so that q·k depends on their distance.

    Rotates the pairs (x_i, x_{i+E/2}) by pos / base^{2i/E}; Su et al. (2021, §3.2) pair neighbours instead, which is
    the same up to the order of the weights.
    """

    base: float = 10000.0

    def build(self, dim: int) -> RotaryPosition:
        """Create the rotation of heads of width `dim`."""
        return RotaryPosition(dim, _frequencies(dim, self.base))


@dataclass(frozen=True)
class InterpolatedRotary(Spec):
    """Rotary positions divided by `factor`, for texts longer than those in training (Chen et al. 2023)."""

    base: float = 10000.0
    factor: float = 1.0

    def build(self, dim: int) -> RotaryPosition:
        """Create the rotation of heads of width `dim`."""
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
        """Create the rotation of heads of width `dim`, with low frequencies divided by `factor`.

        High frequencies are kept (s = 1), those in between are interpolated (0 < s < 1).
        """
        frequency = _frequencies(dim, self.base)
        rotations = self.original_max_length * frequency / (2 * math.pi)  # within the original maximum length
        s = ((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return RotaryPosition(dim, frequency * (s + (1 - s) / self.factor))


class RotaryPosition(Position):
    frequency: Tensor

    def __init__(self, dim: int, frequency: Tensor) -> None:
        """`dim` is the width E of a head; `frequency` (E/2) is the angle, in radians per position, of each pair.

        Since elements are rotated in pairs, an odd width raises a UserError.
        """
        super().__init__()
        if dim % 2:
            raise UserError(
                f"rotary positions need an even head width, but head_dim (model_dim / heads) is {dim}: change "
                "model_dim or heads"
            )
        self.register_buffer("frequency", frequency, persistent=False)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate the pairs (x_i, x_{i+E/2}) of queries or keys, B H T E, by angles proportional to positions, B T."""
        angle = positions[:, None, :, None].float() * self.frequency  # B 1 T E/2
        sine, cosine = angle.sin().to(x.dtype), angle.cos().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def distances(positions: Tensor, key_positions: Tensor) -> Tensor:
    """Return j − i for all query positions i (B T) and key positions j (B S): B T S, or 1 T S if all rows are equal."""
    if positions.stride(0) == key_positions.stride(0) == 0:  # expanded from one row
        positions, key_positions = positions[:1], key_positions[:1]
    return key_positions[:, None, :] - positions[:, :, None]


def _check_heads(encoding: str, heads: int, query: Tensor) -> None:
    """Raise an error if a position encoding has another number of heads than the query, B H T E.

    `encoding` is its name for the message.
    """
    if query.shape[1] != heads:  # without this check, the biases of a single head would be broadcast to all
        raise UserError(
            f"the position encoding {encoding} is built for {heads} attention heads, but the attention has "
            f"{query.shape[1]} heads: set both to the same number"
        )


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
        """Create the table of biases; the width `dim` is not needed."""
        return BucketedBias(self)


class BucketedBias(Position):
    def __init__(self, spec: RelativeBias) -> None:
        """Create a table with a learned bias for each bucket (range of distances) and head.

        If `bidirectional`, half of the buckets are for keys after the query. Half of those of a direction hold a single
        distance, so that at least two are needed, and `max_distance` must lie above that half; otherwise a UserError is
        raised.
        """
        super().__init__()
        self.heads, self.max_distance, self.bidirectional = spec.heads, spec.max_distance, spec.bidirectional
        self.buckets = spec.buckets // 2 if spec.bidirectional else spec.buckets  # per direction
        if self.buckets < 2 or spec.max_distance <= self.buckets // 2:
            raise UserError(
                "relative position biases need at least 2 buckets of distances per direction, and a max_distance "
                f"above half of the buckets, but have {self.buckets} buckets per direction and "
                f"max_distance={spec.max_distance}: raise position_buckets or max_distance"
            )
        self.table = nn.Embedding(spec.buckets, spec.heads)

    def bucket(self, distance: Tensor) -> Tensor:
        """Map distances j − i, of any shape, to buckets: one each for small distances, logarithmic ones for larger.

        If `bidirectional`, positive and negative distances have separate buckets; otherwise positive ones count as 0.
        `self.buckets` is the number of buckets per direction.
        """
        size = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        num_exact = self.buckets // 2  # buckets of a single distance; the others are logarithmic
        # where a distance lies in the logarithmic range: 0 at `num_exact`, 1 at `max_distance`, more beyond it
        fraction = torch.log(size.clamp(min=num_exact).float() / num_exact) / math.log(self.max_distance / num_exact)
        logarithmic = num_exact + (fraction * (self.buckets - num_exact)).long()
        bucket = torch.where(size < num_exact, size, logarithmic.clamp(max=self.buckets - 1))
        return bucket + self.buckets * (distance > 0) if self.bidirectional else bucket

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor:
        """Return the learned biases of heads with numbers `head` at `distance` (key − query position), elementwise."""
        return self.table.weight[self.bucket(distance), head]

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the biases B H T S for queries at `positions` (B T) and keys at `key_positions` (B S)."""
        _check_heads("RelativeBias", self.heads, query)  # raises an error if the query has other heads
        bias = self.table(self.bucket(distances(positions, key_positions)))  # B T S H
        return bias.permute(0, 3, 1, 2).contiguous().to(query.dtype)  # B H T S; kernels need it contiguous


@dataclass(frozen=True)
class Shaw(Spec):
    """Learned vectors for distances, added to keys and values (Shaw et al. 2018, §3.2).

    Scores q_i·(k_j + a_K)/√E and outputs Σ_j α_ij (v_j + a_V), where a = a[clip(j − i, −clip, clip)], shared by all
    heads. Both sums run over the 2·clip + 1 distances, so that no vector is computed per pair (§3.3). `values` False
    omits a_V, which did not hurt in the paper (§4.3). `value_dim` is that of the attention layer.
    """

    clip: int = 16
    values: bool = True
    value_dim: int | None = None  # width of values, if it differs from that of keys

    def build(self, dim: int) -> ShawKeys:
        """Create the distance vectors for heads whose keys have width `dim`."""
        if not self.values:
            return ShawKeys(dim, self.clip)
        return ShawKeysAndValues(dim, value_dim=self.value_dim or dim, clip=self.clip)


class ShawKeys(Position):
    supports_packing = False

    def __init__(self, dim: int, clip: int) -> None:
        """Create a learned vector of the heads' width `dim` for each distance from −clip to clip: 2·clip + 1."""
        super().__init__()
        self.dim, self.clip = dim, clip
        self.keys = nn.Embedding(2 * clip + 1, dim)

    def distance_vectors(self) -> Tensor:
        """Return the learned vectors that are added to keys, a matrix of 2·clip + 1 rows and E columns.

        Row r is for the distance r − clip of a key from its query; E is the width of a head.
        """
        return self.keys.weight

    def index(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the row of the vector table for each query and key, B 1 T S: distance + clip, from 0 to 2·clip.

        Distances (key position minus query position) are clipped to ±clip. Queries stand at `positions` (B T), keys at
        `key_positions` (B S).
        """
        return distances(positions, key_positions).clamp(-self.clip, self.clip)[:, None] + self.clip

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the dot products of queries with the vectors of their distances to the keys, B H T S.

        Queries, B H T E, are already multiplied by the scale of the scores, such as 1/√E. They stand at `positions`
        (B T), keys at `key_positions` (B S). A head width E other than that of the vectors raises a UserError.
        """
        if query.shape[-1] != self.dim:
            raise UserError(
                f"the Shaw position vectors have width {self.dim}, but the attention heads have width "
                f"{query.shape[-1]}: set Shaw as the position of attention layers, not of a stack of layers"
            )
        scores = query @ self.keys.weight.to(query.dtype).T  # B H T (2·clip + 1): by distance
        index = self.index(positions, key_positions)
        return scores.gather(-1, index.expand(*scores.shape[:-1], index.shape[-1]))  # B H T S

    def flops(self, work: Workload) -> int:
        """FLOPs: the query of each of `work.tokens` tokens times all distance vectors of keys.

        With vectors for values, also its attention weights, summed by distance, times those. So each number in the
        tables of vectors takes part in a multiplication and an addition per token.
        """
        return 2 * work.tokens * sum(table.numel() for table in self.parameters())


class ShawKeysAndValues(ShawKeys):
    def __init__(self, dim: int, value_dim: int, clip: int) -> None:
        """Create learned vectors of distances −clip to clip, `dim` wide for keys and `value_dim` wide for values."""
        super().__init__(dim, clip)
        self.value_dim = value_dim
        self.values = nn.Embedding(2 * clip + 1, value_dim)

    def value_distance_vectors(self) -> Tensor:
        """Return the learned vectors that are added to values, a matrix of 2·clip + 1 rows and `value_dim` columns.

        Row r is for the distance r − clip of a value from the query.
        """
        return self.values.weight

    def value_bias(self, weights: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the sum of the values' distance vectors, weighted by the attention weights B H T S: B H T E.

        The weights are first summed by distance, so that no vector is computed per pair of query and key.
        """
        table = self.values.weight.to(weights.dtype)
        index = self.index(positions, key_positions).expand_as(weights)
        # B H T (2·clip + 1): sums of the weights of all keys at a distance, from −clip to clip
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
        """Create the biases; the width `dim` is not needed."""
        return LinearBias(self.heads)


def slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes, one per head: 2^(−8/H), 2^(−16/H), …, if the number of heads H is a power of two.

    Otherwise those of the power below H, then every second one of the power above H.
    """
    power = 2 ** (heads.bit_length() - 1)  # the largest power of two up to `heads`
    slopes_below = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    slopes_above = [2.0 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1)]
    return slopes_below + slopes_above[::2][: heads - power]


class LinearBias(Position):
    slope: Tensor

    def __init__(self, heads: int) -> None:
        """Compute the slope m_h of each of `heads` heads, H, for the biases −m_h · |distance| of their scores."""
        super().__init__()
        self.heads = heads
        self.register_buffer("slope", torch.tensor(slopes(heads)), persistent=False)

    def bias_at_distance(self, head: Tensor, distance: Tensor) -> Tensor:
        """Return the bias −slope · |distance| of the scores of heads with the numbers `head`, elementwise."""
        return -self.slope[head] * distance.abs()

    def score_bias(self, query: Tensor, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the biases B H T S for queries at `positions` (B T) and keys at `key_positions` (B S)."""
        _check_heads("ALiBi", self.heads, query)  # raises an error if the query has other heads
        distance = distances(positions, key_positions).abs()[:, None]  # B 1 T S
        return (-self.slope[:, None, None] * distance).to(query.dtype)  # B H T S
