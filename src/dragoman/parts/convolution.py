"""Convolutional layers, gated or dilated, causal or centered, over whole sequences or step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention_function import AttentionArgs, attend, fold_beams
from dragoman.parts.attention_quantities import attention_quantities
from dragoman.parts.dropout import Dropout
from dragoman.parts.flops import Workload, attention_flops, module_flops
from dragoman.parts.mixer import Context, LayerSequence, Memory, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.norm import LayerNormModule
from dragoman.parts.precision import WITHOUT_FLOAT64
from dragoman.parts.spec import Spec, build_part


class Convolution(nn.Module):
    """y_t = W [x_{t−before}; …; x_{t+after}] + b over `kernel` inputs at distances of `dilation`.

    The last input is x_t if `causal`, otherwise x_t is in the middle. x is zero outside the sequence.
    """

    def __init__(self, linear: nn.Module, width: int, kernel: int, dilation: int, causal: bool) -> None:
        """`linear` maps the `kernel` concatenated inputs of a window, each `width` wide, to one output.

        `dilation` is the distance between neighbouring inputs of a window, which extends `before` positions to the left
        of its output and `after` positions to the right: none if `causal`.
        """
        super().__init__()
        self.linear, self.width = linear, width
        self.kernel, self.dilation = kernel, dilation
        span = (kernel - 1) * dilation  # distance of the first and the last input
        self.before = span if causal else span // 2
        self.after = span - self.before

    def init_state(self, batch: int, like: Tensor) -> State:
        """Create the state for decoding: the last `before` inputs of `batch` rows, at first zeros.

        An output depends on `before` earlier inputs and `after` later ones; if there are later ones, a UserError is
        raised. The state has dtype and device of `like`.
        """
        if self.after:  # not causal: later inputs are needed
            raise UserError(
                "a decoder generates token by token, which only causal convolutions can do: set causal to true in its "
                "convolutions"
            )
        return {"last_inputs": like.new_zeros(batch, self.before, self.width)}

    def forward(self, x: Tensor, layout: SequenceLayout, state: State | None) -> tuple[Tensor, State | None]:
        """Convolve rows with the lengths of `layout`: x, B T D → outputs of `linear`, B T …, and the new state.

        An output depends on `kernel` inputs, at most `before` positions earlier and `after` later. With a state, which
        holds the last `before` inputs of each row and is updated in place, x continues these rows. Without one, x holds
        whole sequences, and the new state is None.
        """
        count = x.shape[1]
        if state is not None:
            x = torch.cat((state["last_inputs"], x), 1)  # B before+T D
            state = {"last_inputs": state["last_inputs"].copy_(self.last_inputs(x, layout))}  # for the next call
        else:
            if self.after and layout.token_mask is not None:  # causal ones never reach padding, which is on the right
                x = x.masked_fill(~layout.token_mask[..., None], 0.0)
            x = F.pad(x, (0, 0, self.before, self.after))  # B before+T+after D
        starts = range(0, self.kernel * self.dilation, self.dilation)  # offsets of the inputs of a window
        windows = torch.cat([x[:, start : start + count] for start in starts], -1)  # B T kernel·D
        return self.linear(windows), state

    def last_inputs(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Return the last `before` inputs of each row, which the next step reads again: B before+T D → B before D.

        x is `before` earlier inputs, then T new ones, of which the layout says how many are tokens; padding follows.
        """
        if layout.token_mask is None:
            return x[:, x.shape[1] - self.before :]
        # in x, the new tokens of a row end at column before + number of tokens
        index = layout.token_mask.sum(1, keepdim=True) + torch.arange(self.before, device=x.device)  # B before
        return x.gather(1, index[..., None].expand(-1, -1, self.width))


# ---- gated convolutions with attention in every layer (ConvS2S)


class WeightNormLinear(nn.Module):
    """y = g · (v·x) / ‖v‖ + b for each output: weight normalization (Salimans & Kingma 2016, eq. 2).

    `growth` is the difference of g from its initial value `gain`, so that it is initialized with zeros like a bias.
    """

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        """y = g · (v·x) / ‖v‖ + b: `weight` holds v of each output, `gain` is the initial g, `growth` its change."""
        super().__init__()
        self.gain = gain
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.growth = nn.Parameter(torch.zeros(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """y = g · (v·x) / ‖v‖ + b, with g = gain (fixed) + growth (learned, from 0): … inputs → … outputs."""
        y = F.linear(x, self.weight)
        scale = (self.gain + self.growth) / torch.linalg.vector_norm(self.weight, dim=1)
        return y * scale.to(y.dtype) + self.bias.to(y.dtype)


@dataclass(frozen=True)
class GatedConvolution(Spec):
    """A ⊙ σ(B) with [A; B] = W [x_{t−before}; …; x_{t+after}] + b (Gehring et al. 2017, §3.2; Dauphin et al. 2016).

    Weights are normalized. With n inputs and dropout 1 − p they start with standard deviation √(4p/n), because a gate
    divides the variance by four (§3.5): ‖w‖ = 2√p.
    """

    kernel: int = 3
    causal: bool = True
    dropout: float = 0.0  # of the inputs

    def build(self, dim: int) -> GatedConvolutionMixer:
        """Create the layer for vectors of width `dim`."""
        return GatedConvolutionMixer(self, dim)


class GatedConvolutionMixer(Mixer):
    title = "gated convolution"
    supports_packing = False

    def __init__(self, spec: GatedConvolution, dim: int) -> None:
        """Create the convolution from `kernel` vectors of width `dim` to 2 · dim numbers, values and gates.

        Its weights are normalized: g · v / ‖v‖, with g = 2√p at first, p being 1 − dropout. The factor is 2
        because a gate divides the variance by four (Gehring et al. 2017, §3.5).
        """
        super().__init__()
        linear = WeightNormLinear(spec.kernel * dim, 2 * dim, gain=2 * math.sqrt(1 - spec.dropout))  # ‖w‖ = 2√p
        self.convolution = Convolution(linear, width=dim, kernel=spec.kernel, dilation=1, causal=spec.causal)
        self.blocks = {"convolution.linear.weight": (dim, dim)}  # rows of the matrices stacked in it: values, gates
        self.dropout = Dropout(spec.dropout)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state for decoding: the last inputs of the convolution, with dtype and device of `like`."""
        return self.convolution.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, B T D → B T D: convolution to values and gates, then values ⊙ σ(gates); `state` holds the last inputs."""
        values_and_gates, state = self.convolution(self.dropout(x), context.layout, state)  # B T 2D
        return MixerOutput(F.glu(values_and_gates), state)


@dataclass(frozen=True)
class MultiStepAttention(Spec):
    """c_i = √m Σ_j a_ij (z_j + e_j), a_i = softmax_j(d_i·z_j), d_i = W h_i + b + g_i (Gehring et al. 2017, §3.3).

    z and e are outputs and inputs of the encoder, g inputs of the decoder; m is the length of the source, and
    m√(1/m) = √m preserves the variance of the sum (§3.4).
    """

    def build(self, dim: int) -> MultiStepAttentionMixer:
        """Create the layer for vectors of width `dim`."""
        return MultiStepAttentionMixer(dim)


class MultiStepAttentionMixer(Mixer):
    title = "attention to the source"
    scale = 1.0
    supports_packing = False

    def __init__(self, dim: int) -> None:
        """The queries of the attention are W x + b plus the decoder's embeddings; `query` computes W x + b.

        x is the input of the layer, `dim` wide.
        """
        super().__init__()
        self.query = WeightNormLinear(dim, dim, gain=1.0)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return the values of the attention, √m (z + e), B S D, which are the same in all decoding steps.

        z are the encoder's outputs, e its inputs (embeddings), and m is the length of the source: √m preserves the
        variance of a sum that is weighted by attention (Gehring et al. 2017, §3.4).
        """
        assert memory.encoder_inputs is not None
        lengths = memory.layout.lengths  # B; None: no padding
        m = memory.states.shape[1] if lengths is None else lengths[:, None, None].to(memory.states.dtype)
        return {"value": (memory.states + memory.encoder_inputs) * m**0.5}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Attend from W x + b + decoder embeddings to the encoder's outputs: x, R T D → R T D.

        R = B·K rows are K hypotheses of each of B sources, which `fold_beams` puts side by side: they share its keys.
        The state, if any, is returned unchanged.
        """
        memory = context.encoded_source
        decoder_embeddings = context.stack_inputs  # R T D
        query = fold_beams(self.query(x) + decoder_embeddings, memory)[:, None]  # B 1 K·T D
        key, value = memory.states[:, None], self.memory_projections(memory)["value"][:, None]  # B 1 S D
        args = AttentionArgs(scale=self.scale, path=self.path)
        if context.is_traced:  # intermediate results are recorded, with formulas that explain them
            formulas = ("W x + b + e_target", "z", "√m (z + e_source)")
            args = replace(args, quantities=attention_quantities(formulas, scale=self.scale))
        y = attend(query, key, value, query_layout=context.layout, key_layout=memory.layout, context=context, args=args)
        return MixerOutput(y.reshape(x.shape), state)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: W x per target token, and the attention.

        Its keys and values have the width of the model, `work.width`.
        """
        return module_flops(self.query, work) + attention_flops(
            work.tokens, work.source, key_width=work.width, value_width=work.width
        )


@dataclass(frozen=True)
class ScaledResidual(Spec):
    """√½ (x + f(x)), f being a sequence of parts; √½ preserves the variance (Gehring et al. 2017, §3.4)."""

    body: tuple[Spec, ...]

    def build(self, dim: int) -> ScaledResidualMixer:
        """Create the residual connection around the parts of `body`, all of width `dim`."""
        return ScaledResidualMixer([build_part(part, dim, Mixer) for part in self.body])


class ScaledResidualMixer(LayerSequence):
    title = "scaled residual"

    def __init__(self, body: list[Mixer]) -> None:
        """√½ (x + f(x)): `body` are the layers of f, which run one after the other."""
        super().__init__()
        self.body = nn.ModuleList(body)

    def named_layers(self) -> list[tuple[str, Mixer]]:
        """Return the layers of f in √½ (x + f(x)) as (name, layer), named "0", "1", …."""
        return [(name, cast(Mixer, part)) for name, part in self.body.named_children()]

    def finish(self, x: Tensor, y: Tensor, layout: SequenceLayout) -> Tensor:
        """Return √½ (x + y), x being the input and y = f(x) the output of the last layer.

        √½ preserves the variance of the sum. The layout is not used.
        """
        return (x + y) * math.sqrt(0.5)


# ---- dilated convolutions, the decoder on top of the encoder (ByteNet)


@dataclass(frozen=True)
class DilatedBlock(Spec):
    """x + W₂ f(conv(f(W₁ f(x)))), f(x) = ReLU(LayerNorm(x)), half as wide inside (Kalchbrenner et al. 2016, §3.6)."""

    kernel: int = 3
    dilation: int = 1
    causal: bool = True
    dropout: float = 0.0  # of the residual branch

    def build(self, dim: int) -> DilatedBlockMixer:
        """Create the layer for vectors of width `dim`, which must be even: inside it is half as wide."""
        return DilatedBlockMixer(self, dim)


class DilatedBlockMixer(Mixer):
    title = "dilated convolution"
    supports_packing = False

    def __init__(self, spec: DilatedBlock, dim: int) -> None:
        """Create the parts of x + W₂ f(conv(f(W₁ f(x)))), f(x) = ReLU(norm(x)), for x of width `dim`.

        `narrow` is W₁ and `widen` W₂: inside, vectors are half as wide, so that an odd `dim` raises a UserError. Each
        of the three f has its own norm.
        """
        super().__init__()
        if dim % 2:
            raise UserError(
                f"a dilated convolution block needs an even width, but model_dim is {dim}: change model_dim"
            )
        inner = dim // 2
        self.norms = nn.ModuleList(LayerNormModule(width) for width in (dim, inner, inner))
        self.narrow = nn.Linear(dim, inner)
        linear = nn.Linear(spec.kernel * inner, inner)
        self.convolution = Convolution(
            linear, width=inner, kernel=spec.kernel, dilation=spec.dilation, causal=spec.causal
        )
        self.widen = nn.Linear(inner, dim)
        self.dropout = Dropout(spec.dropout)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state for decoding: the last inputs of the convolution, with dtype and device of `like`."""
        return self.convolution.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x + W₂ f(conv(f(W₁ f(x)))), f(x) = ReLU(norm(x)): B T D → B T D; `state` holds the last inputs of conv."""
        y = self.narrow(F.relu(self.norms[0](x)))  # B T D/2
        y, state = self.convolution(F.relu(self.norms[1](y)), context.layout, state)
        y = self.widen(F.relu(self.norms[2](y)))  # B T D
        return MixerOutput(x + self.dropout(y), state)


@dataclass(frozen=True)
class SourceExtension(Spec):
    """Lengthens a source of |s| vectors to |t̂| = ⌈ratio · |s| + offset⌉ (Kalchbrenner et al. 2016, §3.2, eq. 2).

    The vectors after the source are a learned one, so that the encoder computes as many columns as the target is
    expected to have tokens at most.
    """

    ratio: float = 1.2
    offset: float = 0.0

    def build(self, dim: int) -> SourceExtensionModule:
        """Create the extension for vectors of width `dim`."""
        return SourceExtensionModule(self, dim)

    def extended_length(self, length: int) -> int:
        """Return |t̂| = ⌈ratio · |s| + offset⌉, the length to which a source of |s| = `length` vectors is extended.

        The tolerance keeps a rounding error, such as that of 1.1 · 10, from adding one.
        """
        return math.ceil(self.ratio * length + self.offset - CEIL_TOLERANCE)

    def extended_lengths(self, lengths: Tensor) -> Tensor:
        """Return |t̂| = ⌈ratio · |s| + offset⌉ of sources of these lengths (B): B.

        Computed in float64, on the CPU if the device does not have it. The tolerance keeps a rounding error from adding
        one.
        """
        exact = lengths.cpu() if lengths.device.type in WITHOUT_FLOAT64 else lengths
        return torch.ceil(self.ratio * exact.double() + self.offset - CEIL_TOLERANCE).long().to(lengths.device)


CEIL_TOLERANCE = 1e-6  # 1.1 · 10 is 11, although its floating-point number is a little larger


class SourceExtensionModule(nn.Module):
    supports_packing = False

    def __init__(self, spec: SourceExtension, dim: int) -> None:
        """`padding` (D) is the learned vector that fills the positions after the end of a source.

        A spec that shortens sources, with a ratio below 1 or a negative offset, raises a UserError.
        """
        super().__init__()
        if spec.ratio < 1 or spec.offset < 0:
            raise UserError(
                "the encoder's output must not be shorter than the source, but system.settings.unfolding_ratio "
                f"is {spec.ratio:g} and unfolding_offset is {spec.offset:g}: set unfolding_ratio to at least 1 "
                "and unfolding_offset to at least 0"
            )
        self.spec = spec
        self.padding = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, layout: SequenceLayout) -> tuple[Tensor, SequenceLayout]:
        """Extend sources, B S D, by the vector `padding` to the length |t̂| that the spec computes: B |t̂| D.

        `layout` has the lengths of the sources; the returned one has the extended lengths.
        """
        lengths = layout.lengths
        if lengths is None:  # no source is padded
            lengths = torch.full((len(x),), x.shape[1], device=x.device)
        width = self.spec.extended_length(x.shape[1])  # |t̂| of the longest source
        x = F.pad(x, (0, 0, 0, width - x.shape[1]))
        is_source = torch.arange(width, device=x.device) < lengths[:, None]  # B |t̂|
        x = torch.where(is_source[..., None], x, self.padding.to(x.dtype))
        return x, SequenceLayout.padded(width, self.spec.extended_lengths(lengths))


@dataclass(frozen=True)
class Unfolding(Spec):
    """x_t + W z_t + b: the encoder's output z is added position by position (Kalchbrenner et al. 2016, §3.1–3.2).

    The decoder unfolds until it predicts EOS. Beyond the encoder's output, whose length is that of the source or of its
    `SourceExtension`, nothing is added.
    """

    def build(self, dim: int) -> UnfoldingMixer:
        """Create the layer for vectors of width `dim`."""
        return UnfoldingMixer(dim)


class UnfoldingMixer(Mixer):
    title = "unfolding"
    supports_packing = False

    def __init__(self, dim: int) -> None:
        """x_t + W z_t + b, z being the encoder's output: `project` computes W z + b."""
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return W z + b of the encoder's output z at each position, and zeros at padding: B S+1 D.

        The additional last column is zeros: it stands for all positions beyond the end of the source.
        """
        columns = self.project(memory.states)
        if memory.layout.token_mask is not None:
            columns = columns.masked_fill(~memory.layout.token_mask[..., None], 0.0)
        return {"columns": F.pad(columns, (0, 0, 0, 1))}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Add to x, R T D, at target position t the vector W z_t + b of source position t, or zeros beyond its end.

        z is the encoder's output; `columns` (B S+1 D) holds W z + b, and zeros as the last column. R = B·K rows are K
        hypotheses of each of B sources. The state, if any, is returned unchanged.
        """
        columns = self.memory_projections(context.encoded_source)["columns"]
        # B K·T 1: source position of each target token; those beyond the end have the last column
        index = context.layout.positions.reshape(columns.shape[0], -1, 1).clamp(max=columns.shape[1] - 1)
        source = columns.gather(1, index.expand(-1, -1, x.shape[-1]))  # B K·T D
        return MixerOutput(x + source.reshape(x.shape), state)

    def flops(self, work: Workload) -> int:
        """FLOPs: the projection of each of `work.source` source tokens."""
        return module_flops(self.project, work.with_tokens(work.source))
