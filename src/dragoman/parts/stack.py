"""Wiring: residual connections around a part, and parts on top of one another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.errors import UserError
from dragoman.parts.dropout import Dropout
from dragoman.parts.mixer import Context, Mixer, State
from dragoman.parts.norm import Identity, LayerNorm, add_and_norm
from dragoman.parts.positions import NoPosition, Position
from dragoman.parts.spec import Spec, build_part


@dataclass(frozen=True)
class Residual(Spec):
    """x + f(x) (He et al. 2016)."""

    body: Spec
    dropout: float = 0.0

    def build(self, dim: int) -> Mixer:
        return ResidualMixer(build_part(self.body, dim, Mixer), Identity(), Identity(), self.dropout)


@dataclass(frozen=True)
class PreNorm(Spec):
    """x + f(norm(x)): normalisation inside the branch, the residual path left free (Xiong et al. 2020)."""

    body: Spec
    norm: Spec = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def build(self, dim: int) -> Mixer:
        return ResidualMixer(build_part(self.body, dim, Mixer), self.norm.build(dim), Identity(), self.dropout)


@dataclass(frozen=True)
class PostNorm(Spec):
    """norm(x + f(x)), as in the first Transformer (Vaswani et al. 2017, §3.1)."""

    body: Spec
    norm: Spec = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def build(self, dim: int) -> Mixer:
        return ResidualMixer(build_part(self.body, dim, Mixer), Identity(), self.norm.build(dim), self.dropout)


class ResidualMixer(Mixer):
    def __init__(self, body: Mixer, before: nn.Module, after: nn.Module, dropout: float) -> None:
        super().__init__()
        self.body = body
        self.before = before
        self.after = after
        self.dropout = Dropout(dropout)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return self.body.init_state(batch, longest, like)

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return self.body.reorder_state(state, rows)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        y, state = self.body(self.before(x, context.layout), context, state)
        return add_and_norm(x, self.dropout(y), self.after, context.layout), state


@dataclass(frozen=True)
class Parallel(Spec):
    """x + Σ_k f_k(norm(x)): parts side by side behind one norm (Wang & Komatsuzaki 2021; Chowdhery et al. 2022, §2)."""

    bodies: tuple[Spec, ...]
    norm: Spec = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def build(self, dim: int) -> ParallelMixer:
        return ParallelMixer([build_part(body, dim, Mixer) for body in self.bodies], self.norm.build(dim), self.dropout)


class ParallelMixer(Mixer):
    def __init__(self, bodies: list[Mixer], norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)
        self.norm = norm
        self.dropout = Dropout(dropout)

    def parts(self) -> list[tuple[str, Mixer]]:
        return [(name, cast(Mixer, body)) for name, body in self.bodies.named_children()]

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        return {name: body.init_state(batch, longest, like) for name, body in self.parts()}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return {name: body.reorder_state(state[name], rows) for name, body in self.parts()}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        same, after = self.norm(x, context.layout), {}
        for name, body in self.parts():
            y, after[name] = body(same, context, None if state is None else state[name])
            x = x + self.dropout(y)
        return x, None if state is None else after


@dataclass(frozen=True)
class Stack(Spec):
    """A block of parts, `depth` times on top of itself, positions put in at the bottom.

    `position` is also shared by the layers through context, for position parts that enter at every layer. What comes in is
    normalised by `input_norm` (Devlin et al. 2019) and, where it has another width than the model, `input_width`,
    projected after that (Lan et al. 2020). `recomputed`: nothing that a block computes is kept for the backward pass,
    which computes it once more (Chen et al. 2016), or part by part where the block is alone; the result is the same.
    """

    block: tuple[Spec, ...]
    depth: int = 1
    position: Spec = field(default_factory=NoPosition)
    dropout: float = 0.0
    norm: Spec | None = None
    input_norm: Spec | None = None
    input_dim: int | None = None
    gradient_checkpointing: bool = False

    def build(self, dim: int) -> StackMixer:
        return StackMixer(self, dim)


class StackMixer(Mixer):
    def __init__(self, spec: Stack, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(build_part(part, dim, Mixer) for part in spec.block) for _ in range(spec.depth)
        )
        width = spec.input_dim or dim
        self.position = build_part(spec.position, width, Position)
        self.supports_packing = self.position.supports_packing
        self.input_norm = spec.input_norm.build(width) if spec.input_norm else Identity()
        self.dropout = Dropout(spec.dropout)
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim)
        self.norm = spec.norm.build(dim) if spec.norm else Identity()
        self.recomputed = spec.gradient_checkpointing
        if spec.gradient_checkpointing and not all(
            getattr(part, "supports_recomputation", True) for part in self.layers.modules()
        ):
            raise UserError(
                "layers cannot be computed twice where they keep running statistics, which would follow a batch twice: "
                "leave training.gradient_checkpointing out, or choose another norm"
            )

    def parts(self) -> list[tuple[str, Mixer]]:
        blocks = enumerate(self.layers.children())
        return [(f"{i}.{j}", cast(Mixer, part)) for i, block in blocks for j, part in enumerate(block.children())]

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        limit = self.position.max_length
        if limit is not None and longest > limit:
            raise UserError(
                f"{longest} tokens were asked for, but this model has {limit} learned positions: ask for less"
            )
        return {name: part.init_state(batch, longest, like) for name, part in self.parts()}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return {name: part.reorder_state(state[name], rows) for name, part in self.parts()}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        context.shared_position = self.position
        x = self.input_norm(self.position.embed(x, context.layout), context.layout)
        x = context.stack_inputs = self.project(self.dropout(x))
        if self.recomputed and state is None and context.recorder is None and torch.is_grad_enabled():
            parts = [part for _, part in self.parts()]
            size = len(parts) // len(self.layers) if len(self.layers) > 1 else 1
            for start in range(0, len(parts), size):
                x = recomputed(parts[start : start + size], x, context)
            return self.norm(x, context.layout), None
        after: State = {}
        for name, part in self.parts():
            x, after[name] = part(x, context, None if state is None else state[name])
        return self.norm(x, context.layout), None if state is None else after


def recomputed(parts: list[Mixer], x: Tensor, context: Context) -> Tensor:
    """x through all parts; what they leave in context is left there once, though they are computed twice."""

    def layer(x: Tensor, attended: Tensor | None) -> tuple[Tensor, Tensor | None, State | None, list[Tensor]]:
        own = replace(context, source_context=attended, auxiliary_losses=[], masks=dict(context.masks))
        for part in parts:
            x, _ = part(x, own)
        return x, own.source_context, own.final_state, own.auxiliary_losses

    x, context.source_context, context.final_state, losses = checkpoint(
        layer, x, context.source_context, use_reentrant=False
    )
    context.auxiliary_losses.extend(losses)
    return x
