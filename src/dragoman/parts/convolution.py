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
from dragoman.parts.mixer import Context, LayerSequence, Layout, Memory, Mixer, MixerOutput, State
from dragoman.parts.norm import LayerNormModule
from dragoman.parts.precision import WITHOUT_FLOAT64
from dragoman.parts.spec import Spec, build_part


class Convolution(nn.Module):
    """y_t = W [x_{t−before}; …; x_{t+after}] + b over `kernel` inputs at distances of `dilation`.

    The last input is x_t if `causal`, otherwise x_t is in the middle. x is zero outside the sequence.
    """

    def __init__(self, linear: nn.Module, width: int, kernel: int, dilation: int, causal: bool) -> None:
        """`linear` maps the concatenated inputs of a window, kernel · width, to one output."""
        super().__init__()
        self.linear, self.width = linear, width
        self.kernel, self.dilation = kernel, dilation
        reach = (kernel - 1) * dilation  # distance of the first and the last input
        self.before = reach if causal else reach // 2
        self.after = reach - self.before

    def init_state(self, batch: int, like: Tensor) -> State:
        """Create the state for decoding: the last `before` inputs of each row, at first zeros, with dtype of `like`."""
        if self.after:
            raise UserError(
                "only causal convolutions can decode step by step: set causal to true in the convolutions of a decoder"
            )
        return {"seen": like.new_zeros(batch, self.before, self.width)}

    def forward(self, x: Tensor, layout: Layout, state: State | None) -> tuple[Tensor, State | None]:
        """x, B T D, and its layout (positions and lengths) → outputs of `linear`, B T …, and the state or None.

        The state holds the last inputs of each row.
        """
        count = x.shape[1]
        if state is not None:
            x = torch.cat((state["seen"], x), 1)  # B before+T D
            state = {"seen": state["seen"].copy_(self.last(x, layout))}
        else:
            if self.after and layout.token_mask is not None:  # causal ones never reach padding, which is on the right
                x = x.masked_fill(~layout.token_mask[..., None], 0.0)
            x = F.pad(x, (0, 0, self.before, self.after))  # B before+T+after D
        starts = range(0, self.kernel * self.dilation, self.dilation)  # offsets of the inputs of a window
        windows = torch.cat([x[:, start : start + count] for start in starts], -1)  # B T kernel·D
        return self.linear(windows), state

    def last(self, x: Tensor, layout: Layout) -> Tensor:
        """Return the last `before` inputs of each row, which the next step reads again: B before+T D → B before D.

        x is `before` earlier inputs, then T new ones; the layout (positions and lengths) says which are padding.
        """
        if layout.token_mask is None:
            return x[:, x.shape[1] - self.before :]
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
        """The convolution maps `kernel` vectors of width `dim` to 2 · dim numbers: values and gates."""
        super().__init__()
        linear = WeightNormLinear(spec.kernel * dim, 2 * dim, gain=2 * math.sqrt(1 - spec.dropout))  # ‖w‖ = 2√p
        self.convolution = Convolution(linear, dim, spec.kernel, dilation=1, causal=spec.causal)
        self.blocks = {"convolution.linear.weight": (dim,) * 2}  # values, gates
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
        """The queries of the attention are W h + b plus the decoder's embeddings; `query` computes W h + b."""
        super().__init__()
        self.query = WeightNormLinear(dim, dim, gain=1.0)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Return the values of the attention, √m (z + e), B S D.

        z are the encoder's outputs, e its inputs (embeddings), and m is the length of the source.
        """
        assert memory.encoder_inputs is not None
        lengths = memory.layout.lengths
        m = memory.states.shape[1] if lengths is None else lengths[:, None, None].to(memory.states.dtype)
        return {"value": (memory.states + memory.encoder_inputs) * m**0.5}  # B S D

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Attend from W x + b + decoder embeddings to the encoder's outputs: R T D → R T D; the state is unchanged.

        R = B·K rows are K hypotheses of each of B sources.
        """
        memory = context.encoded_source
        decoder_embeddings = context.stack_inputs  # R T D
        query = fold_beams(self.query(x) + decoder_embeddings, memory)[:, None]  # B 1 K·T D
        key, value = memory.states[:, None], self.memory_projections(memory)["value"][:, None]  # B 1 S D
        args = AttentionArgs(scale=self.scale, path=self.path)
        if context.is_traced:
            formulas = ("W x + b + e_target", "z", "√m (z + e_source)")
            args = replace(args, quantities=attention_quantities(formulas, scale=self.scale))
        y = attend(query, key, value, context.layout, memory.layout, context, args)
        return MixerOutput(y.reshape(x.shape), state)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: W h per target token, and the attention."""
        return module_flops(self.query, work) + attention_flops(work.tokens, work.source, work.width, work.width)


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
        """Return the layers of f, named "0", "1", …."""
        return [(name, cast(Mixer, part)) for name, part in self.body.named_children()]

    def finish(self, x: Tensor, y: Tensor, layout: Layout) -> Tensor:
        """Return √½ (x + y), x being the input and y = f(x)."""
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
        """x + W₂ f(conv(f(W₁ f(x)))), f(x) = ReLU(norm(x)): `narrow` is W₁, `widen` W₂; inside, D/2 wide."""
        super().__init__()
        if dim % 2:
            raise UserError(
                f"a dilated convolution block needs an even width, but model_dim is {dim}: change model_dim"
            )
        inner = dim // 2
        self.norms = nn.ModuleList(LayerNormModule(width) for width in (dim, inner, inner))
        self.narrow = nn.Linear(dim, inner)
        linear = nn.Linear(spec.kernel * inner, inner)
        self.convolution = Convolution(linear, inner, spec.kernel, spec.dilation, spec.causal)
        self.widen = nn.Linear(inner, dim)
        self.dropout = Dropout(spec.dropout)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state for decoding: the last inputs of the convolution, with dtype and device of `like`."""
        return self.convolution.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x + W₂ f(conv(f(W₁ f(x)))), f(x) = ReLU(norm(x)): B T D → B T D; `state` holds the last inputs of conv."""
        y = self.narrow(F.relu(self.norms[0](x)))
        y, state = self.convolution(F.relu(self.norms[1](y)), context.layout, state)
        y = self.widen(F.relu(self.norms[2](y)))
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

    def length(self, source: int) -> int:
        """Return |t̂| = ⌈ratio · |s| + offset⌉, the length to which a source of |s| = `source` vectors is extended."""
        return math.ceil(self.ratio * source + self.offset - CEIL_TOLERANCE)

    def lengths(self, source: Tensor) -> Tensor:
        """B: |t̂| = ⌈ratio · |s| + offset⌉ of sources of these lengths, in float64, on the CPU if a device has none."""
        exact = source.cpu() if source.device.type in WITHOUT_FLOAT64 else source
        return torch.ceil(self.ratio * exact.double() + self.offset - CEIL_TOLERANCE).long().to(source.device)


CEIL_TOLERANCE = 1e-6  # 1.1 · 10 is 11, although its floating-point number is a little larger


class SourceExtensionModule(nn.Module):
    supports_packing = False

    def __init__(self, spec: SourceExtension, dim: int) -> None:
        """`padding` is the vector after the end of a source, D."""
        super().__init__()
        if spec.ratio < 1 or spec.offset < 0:
            raise UserError(
                "the encoder's output must not be shorter than the source, but system.settings.unfolding_ratio is "
                f"{spec.ratio:g} and unfolding_offset {spec.offset:g}: set them to at least 1 and 0"
            )
        self.spec = spec
        self.padding = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Source vectors, B S D, and their layout (lengths) → B |t̂| D and the layout of these."""
        lengths = layout.lengths
        if lengths is None:
            lengths = torch.full((len(x),), x.shape[1], device=x.device)
        width = self.spec.length(x.shape[1])
        x = F.pad(x, (0, 0, 0, width - x.shape[1]))
        is_source = torch.arange(width, device=x.device) < lengths[:, None]  # B |t̂|
        x = torch.where(is_source[..., None], x, self.padding.to(x.dtype))
        return x, Layout.padded(width, self.spec.lengths(lengths))


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
        """Return W z + b of the encoder's output z at each position, zeros at padding and in column S: B S+1 D."""
        columns = self.project(memory.states)
        if memory.layout.token_mask is not None:
            columns = columns.masked_fill(~memory.layout.token_mask[..., None], 0.0)
        return {"columns": F.pad(columns, (0, 0, 0, 1))}  # B S+1 D, zeros for all positions beyond the end

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Add to x, R T D, at target position t the vector W z_t + b of source position t, or zeros beyond its end.

        R = B·K rows are K hypotheses of each of B sources.
        `columns` (B S+1 D) holds these vectors of the encoder's output z, and zeros as the last one.
        """
        columns = self.memory_projections(context.encoded_source)["columns"]
        index = context.layout.positions.reshape(columns.shape[0], -1, 1).clamp(max=columns.shape[1] - 1)  # B K·T 1
        source = columns.gather(1, index.expand(-1, -1, x.shape[-1]))  # B K·T D
        return MixerOutput(x + source.reshape(x.shape), state)

    def flops(self, work: Workload) -> int:
        """FLOPs: the projection of each of `work.source` source tokens."""
        return module_flops(self.project, work.with_tokens(work.source))
