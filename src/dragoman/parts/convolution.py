"""Convolutions: gated or dilated, looking both ways or only back, over whole sequences or step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention import AttentionArgs, attend, fold_beams
from dragoman.parts.dropout import Dropout
from dragoman.parts.mixer import Context, Layout, Memory, Mixer, State
from dragoman.parts.norm import LayerNormModule
from dragoman.parts.spec import Spec, build_part


class Convolution(nn.Module):
    """y_t = W [x_{t−before}; …; x_{t+after}] + b: a linear layer over `kernel` inputs that stand `dilation` apart.

    Causal, the last of them is x_t; otherwise x_t is in the middle. Outside a sequence x is zero.
    """

    def __init__(self, linear: nn.Module, width: int, kernel: int, dilation: int, causal: bool) -> None:
        """`linear` maps the inputs of a window one after the other, kernel · width, to one output."""
        super().__init__()
        self.linear, self.width = linear, width
        self.kernel, self.dilation = kernel, dilation
        reach = (kernel - 1) * dilation
        self.before = reach if causal else reach // 2
        self.after = reach - self.before

    def init_state(self, batch: int, like: Tensor) -> State:
        if self.after:
            raise UserError("a convolution that looks ahead cannot go on step by step: make those of a decoder causal")
        return {"seen": like.new_zeros(batch, self.before, self.width)}

    def forward(self, x: Tensor, layout: Layout, state: State | None) -> tuple[Tensor, State | None]:
        count = x.shape[1]
        if state is not None:
            x = torch.cat((state["seen"], x), 1)  # B before+T D
            state = {"seen": state["seen"].copy_(self.last(x, layout))}
        else:
            if self.after and layout.token_mask is not None:  # one that looks back never meets padding on the right
                x = x.masked_fill(~layout.token_mask[..., None], 0.0)
            x = F.pad(x, (0, 0, self.before, self.after))  # B before+T+after D
        starts = range(0, self.kernel * self.dilation, self.dilation)
        windows = torch.cat([x[:, start : start + count] for start in starts], -1)  # B T kernel·D
        return self.linear(windows), state

    def last(self, x: Tensor, layout: Layout) -> Tensor:
        """B before D: what each row has seen last, of B before+T D."""
        if layout.token_mask is None:
            return x[:, x.shape[1] - self.before :]
        places = layout.token_mask.sum(1, keepdim=True) + torch.arange(self.before, device=x.device)  # B before
        return x.gather(1, places[..., None].expand(-1, -1, self.width))


# ---- gated convolutions with attention in every layer


class WeightNormLinear(nn.Module):
    """y = g · (v·x) / ‖v‖ + b for every output: weight normalisation (Salimans & Kingma 2016, eq. 2).

    g is kept as its difference from its first value, `gain`, so that it starts from zero like a bias.
    """

    def __init__(self, inputs: int, outputs: int, gain: float) -> None:
        super().__init__()
        self.gain = gain
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.growth = nn.Parameter(torch.zeros(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        scale = (self.gain + self.growth) / torch.linalg.vector_norm(self.weight, dim=1)
        return y * scale.to(y.dtype) + self.bias.to(y.dtype)


@dataclass(frozen=True)
class GatedConvolution(Spec):
    """A ⊙ σ(B) with [A; B] = W [x_{t−before}; …; x_{t+after}] + b (Gehring et al. 2017, §3.2; Dauphin et al. 2016).

    Weights are normalised and start with deviation √(4p/n), p of the n inputs of an output being kept by dropout, since
    a gate leaves a quarter of the variance (§3.5): ‖w‖ = 2√p.
    """

    kernel: int = 3
    causal: bool = True
    dropout: float = 0.0  # of the inputs

    def build(self, dim: int) -> GatedConvolutionMixer:
        return GatedConvolutionMixer(self, dim)


class GatedConvolutionMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: GatedConvolution, dim: int) -> None:
        super().__init__()
        linear = WeightNormLinear(spec.kernel * dim, 2 * dim, 2 * math.sqrt(1 - spec.dropout))
        self.convolution = Convolution(linear, dim, spec.kernel, 1, spec.causal)
        self.blocks = {"convolution.linear.weight": (dim,) * 2}  # what passes, and its gates
        self.dropout = Dropout(spec.dropout)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return self.convolution.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        y, state = self.convolution(self.dropout(x), context.layout, state)
        return F.glu(y), state


@dataclass(frozen=True)
class MultiStepAttention(Spec):
    """c_i = √m Σ_j a_ij (z_j + e_j), a_i = softmax_j(d_i·z_j), d_i = W h_i + b + g_i (Gehring et al. 2017, §3.3).

    z are the encoder's outputs, e its inputs, g the decoder's; m√(1/m) = √m, m the length of the source, keeps the
    variance of the sum (§3.4).
    """

    def build(self, dim: int) -> MultiStepAttentionMixer:
        return MultiStepAttentionMixer(dim)


class MultiStepAttentionMixer(Mixer):
    supports_packing = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = WeightNormLinear(dim, dim, 1.0)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        assert memory.encoder_inputs is not None
        lengths = memory.layout.lengths
        size = memory.states.shape[1] if lengths is None else lengths[:, None, None].to(memory.states.dtype)
        return {"value": (memory.states + memory.encoder_inputs) * size**0.5}  # B S D

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        assert context.memory is not None
        query = fold_beams(self.query(x) + context.stack_inputs, context.memory)[:, None]  # B 1 K·T D
        key, value = context.memory.states[:, None], context.memory.projections[self.path]["value"][:, None]  # B 1 S D
        look = AttentionArgs(scale=1.0, path=self.path)
        return attend(query, key, value, context.layout, context.memory.layout, context, look).reshape(x.shape), state


@dataclass(frozen=True)
class ScaledResidual(Spec):
    """√½ (x + f(x)), f one part after the other: the sum varies as each summand does (Gehring et al. 2017, §3.4)."""

    body: tuple[Spec, ...]

    def build(self, dim: int) -> ScaledResidualMixer:
        return ScaledResidualMixer([build_part(part, dim, Mixer) for part in self.body])


class ScaledResidualMixer(Mixer):
    def __init__(self, body: list[Mixer]) -> None:
        super().__init__()
        self.body = nn.ModuleList(body)

    def parts(self) -> list[tuple[str, Mixer]]:
        return [(name, cast(Mixer, part)) for name, part in self.body.named_children()]

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return {name: part.init_state(batch, longest, like) for name, part in self.parts()}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return {name: part.reorder_state(state[name], rows) for name, part in self.parts()}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        y, after = x, {}
        for name, part in self.parts():
            y, after[name] = part(y, context, None if state is None else state[name])
        return (x + y) * math.sqrt(0.5), None if state is None else after


# ---- dilated convolutions, the decoder unfolded over the encoder


@dataclass(frozen=True)
class DilatedBlock(Spec):
    """x + W₂ f(conv(f(W₁ f(x)))), f(x) = ReLU(LayerNorm(x)), half as wide inside (Kalchbrenner et al. 2016, §3.6)."""

    kernel: int = 3
    dilation: int = 1
    causal: bool = True
    dropout: float = 0.0  # of what is added to x

    def build(self, dim: int) -> DilatedBlockMixer:
        return DilatedBlockMixer(self, dim)


class DilatedBlockMixer(Mixer):
    supports_packing = False

    def __init__(self, spec: DilatedBlock, dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise UserError(f"a width of {dim} cannot be halved inside a block: choose an even one")
        inner = dim // 2
        self.norms = nn.ModuleList(LayerNormModule(width) for width in (dim, inner, inner))
        self.narrow = nn.Linear(dim, inner)
        linear = nn.Linear(spec.kernel * inner, inner)
        self.convolution = Convolution(linear, inner, spec.kernel, spec.dilation, spec.causal)
        self.widen = nn.Linear(inner, dim)
        self.dropout = Dropout(spec.dropout)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return self.convolution.init_state(batch, like)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        y = self.narrow(F.relu(self.norms[0](x)))
        y, state = self.convolution(F.relu(self.norms[1](y)), context.layout, state)
        y = self.widen(F.relu(self.norms[2](y)))
        return x + self.dropout(y), state


@dataclass(frozen=True)
class Unfolding(Spec):
    """x_t + W z_t + b: the decoder stands on the encoder, position on position (Kalchbrenner et al. 2016, §3.1–3.2).

    Past the end of the source nothing is added, where the paper goes on reading a source filled up to a·|s| + b.
    """

    def build(self, dim: int) -> UnfoldingMixer:
        return UnfoldingMixer(dim)


class UnfoldingMixer(Mixer):
    supports_packing = False

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, dim)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        columns = self.project(memory.states)
        if memory.layout.token_mask is not None:
            columns = columns.masked_fill(~memory.layout.token_mask[..., None], 0.0)
        return {"columns": F.pad(columns, (0, 0, 0, 1))}  # B S+1 D, the last for every place past the end

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        assert context.memory is not None
        columns = context.memory.projections[self.path]["columns"]
        places = context.layout.positions.reshape(columns.shape[0], -1, 1).clamp(max=columns.shape[1] - 1)  # B K·T 1
        below = columns.gather(1, places.expand(-1, -1, x.shape[-1]))  # B K·T D
        return x + below.reshape(x.shape), state
