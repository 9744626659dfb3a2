"""Residual connections and stacks of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.errors import UserError
from dragoman.parts.dropout import Dropout
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import (
    STACK_OUTPUT,
    AttentionMasks,
    Context,
    LayerSequence,
    Mixer,
    MixerOutput,
    SequenceLayout,
    State,
)
from dragoman.parts.norm import Identity, LayerNorm, add_and_norm
from dragoman.parts.positions import NoPosition, Position
from dragoman.parts.spec import Spec, build_part
from dragoman.parts.tracing import Quantity

NamedLayers = list[tuple[str, Mixer]]

EMBEDDING = Quantity("embedding", "TE", "E[token]", "The learned vector of the token: the row of its id in a table.")
POSITION_VECTOR = Quantity(
    "position vector", "TE", "PE(position)", "A vector for the position of the token, added to its embedding."
)
STACK_INPUT = Quantity(
    "input of the first layer",
    "TE",
    "x",
    "What the first layer reads: the embedding, with its position if it is added.",
)
NORMALIZED = Quantity(
    "normalized input", "TE", "norm(x)", "The vector, scaled to a standard size, then by a factor for each element."
)
RESIDUAL_SUM = Quantity(
    "residual sum", "TE", "x + f(x)", "The layer only adds to its input, which reaches the next layer as it was."
)
NORMALIZED_SUM = Quantity(
    "normalized sum", "TE", "norm(x + f(x))", "The sum, scaled to a standard size, then by a factor for each element."
)


@dataclass(frozen=True)
class Residual(Spec):
    """x + f(x) (He et al. 2016)."""

    body: Spec
    dropout: float = 0.0

    def build(self, dim: int) -> Mixer:
        """Create x + dropout(f(x)) for vectors of width `dim`, f being the layer `body`."""
        body = build_part(self.body, dim, Mixer)
        return ResidualMixer(body, before=Identity(), after=Identity(), dropout=self.dropout)


@dataclass(frozen=True)
class PreNorm(Spec):
    """x + f(norm(x)): normalization inside the residual branch (Xiong et al. 2020)."""

    body: Spec
    norm: Spec = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def build(self, dim: int) -> Mixer:
        """Create x + dropout(f(norm(x))) for vectors of width `dim`, f being the layer `body`."""
        body = build_part(self.body, dim, Mixer)
        return ResidualMixer(body, before=self.norm.build(dim), after=Identity(), dropout=self.dropout)


@dataclass(frozen=True)
class PostNorm(Spec):
    """norm(x + f(x)), as in the first Transformer (Vaswani et al. 2017, §3.1)."""

    body: Spec
    norm: Spec = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def build(self, dim: int) -> Mixer:
        """Create norm(x + dropout(f(x))) for vectors of width `dim`, f being the layer `body`."""
        body = build_part(self.body, dim, Mixer)
        return ResidualMixer(body, before=Identity(), after=self.norm.build(dim), dropout=self.dropout)


class ResidualMixer(Mixer):
    """after(x + dropout(body(before(x)))); the norms `before` and `after` may be identities."""

    def __init__(self, body: Mixer, before: nn.Module, after: nn.Module, dropout: float) -> None:
        """Create after(x + dropout(body(before(x)))): `body` is a layer, `before` and `after` norms or identities."""
        super().__init__()
        self.body, self.title = body, body.title  # the title names the layer for users
        self.before = before
        self.after = after
        self.dropout = Dropout(dropout)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state of the body, with dtype and device of `like`."""
        return self.body.init_state(batch, max_length, like)

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the state of the layer `body` whose row r (a hypothesis of the beam) continues row `rows[r]`."""
        return self.body.reorder_state(state, rows)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Return after(x + dropout(body(before(x)))), B T D → B T D, with the state and other results of the body."""
        normalized = self.before(x, context.layout)
        if normalized is not x:  # `before` is a norm, not an identity
            context.trace(self.body.path, NORMALIZED, normalized)
        result: MixerOutput = self.body(normalized, context, state)
        output = add_and_norm(x, self.dropout(result.output), norm=self.after, layout=context.layout)
        if context.is_traced:  # intermediate results are recorded, to explain the model
            context.trace(self.body.path, RESIDUAL_SUM, x + result.output)
            if not isinstance(self.after, Identity):
                context.trace(self.body.path, NORMALIZED_SUM, output)
        return result.with_output(output)


@dataclass(frozen=True)
class Parallel(Spec):
    """x + Σ_k f_k(norm(x)): parallel layers after one norm (Wang & Komatsuzaki 2021; Chowdhery et al. 2022, §2)."""

    bodies: tuple[Spec, ...]
    norm: Spec = field(default_factory=LayerNorm)
    dropout: float = 0.0

    def build(self, dim: int) -> ParallelMixer:
        """Create the parallel layers for a model of width `dim`."""
        return ParallelMixer(
            [build_part(body, dim, Mixer) for body in self.bodies], norm=self.norm.build(dim), dropout=self.dropout
        )


class ParallelMixer(LayerSequence):
    title = "parallel layers"

    def __init__(self, bodies: list[Mixer], norm: nn.Module, dropout: float) -> None:
        """Create x + Σ_k dropout(f_k(norm(x))): `bodies` are the layers f_k, which all read the same normalized x."""
        super().__init__()
        self.bodies = nn.ModuleList(bodies)
        self.norm = norm
        self.dropout = Dropout(dropout)

    def named_layers(self) -> NamedLayers:
        """Return the parallel layers as (name, layer), named "0", "1", …."""
        return [(name, cast(Mixer, body)) for name, body in self.bodies.named_children()]

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x + Σ_k dropout(f_k(norm(x))), B T D → B T D; `state` maps the names of the layers f_k to their states."""
        normalized = self.norm(x, context.layout)
        context.trace(self.path, NORMALIZED, normalized)
        new_state: State = {}
        losses: tuple[Tensor, ...] = ()
        for name, body in self.named_layers():
            result = body(normalized, context, None if state is None else state[name])
            x, new_state[name] = x + self.dropout(result.output), result.state
            losses += result.auxiliary_losses
        context.trace(self.path, RESIDUAL_SUM, x)
        return MixerOutput(x, None if state is None else new_state, auxiliary_losses=losses)


@dataclass(frozen=True)
class Stack(Spec):
    """A block of parts, repeated `depth` times with separate weights.

    `position` is added or concatenated to the embeddings, and is also passed to all attention layers, for positions
    that act there. The input is normalized by `input_norm` (Devlin et al. 2019) and, if `input_dim`, its width together
    with concatenated positions, differs from the model's width, projected (Lan et al. 2020). `gradient_checkpointing`
    recomputes each block in the backward pass instead of keeping its activations (Chen et al. 2016); in a stack of one
    block, each part.
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
        """Create the stack for a model of width `dim`."""
        return StackMixer(self, dim)


class StackMixer(LayerSequence):
    title = "input"
    output_quantity = STACK_OUTPUT

    def __init__(self, spec: Stack, dim: int) -> None:
        """Build `spec.depth` blocks of layers of width `dim`, with position encoding, input norm and final norm.

        `project` maps the embeddings to `dim`, if their width differs. `_blocks` groups the layers that gradient
        checkpointing recomputes together: the layers of a block, or, in a stack of one block, each layer. Layers that
        must not be computed twice, those with batch norm, raise a UserError with gradient checkpointing.
        """
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(build_part(part, dim, Mixer) for part in spec.block) for _ in range(spec.depth)
        )
        input_dim = spec.input_dim or dim
        self.position = build_part(spec.position, input_dim, Position)
        self.supports_packing = self.position.supports_packing
        self.input_norm = spec.input_norm.build(input_dim) if spec.input_norm else Identity()
        self.dropout = Dropout(spec.dropout)
        self.project = nn.Identity() if input_dim == dim else nn.Linear(input_dim, dim)
        self.norm = spec.norm.build(dim) if spec.norm else Identity()
        self.gradient_checkpointing = spec.gradient_checkpointing
        layers = self.named_layers()
        size = max(1, len(spec.block)) if spec.depth > 1 else 1  # layers that are recomputed together
        self._blocks = [LayerBlock(layers[start : start + size]) for start in range(0, len(layers), size)]
        supports_recomputation = all(getattr(part, "supports_recomputation", True) for part in self.layers.modules())
        if spec.gradient_checkpointing and not supports_recomputation:
            raise UserError(
                "gradient checkpointing computes layers twice, so that the running statistics of batch "
                "normalization (system.settings.norm=batch) would count every batch twice: set "
                "training.gradient_checkpointing to false, or choose another normalization, such as "
                "system.settings.norm=layer"
            )

    def named_layers(self) -> NamedLayers:
        """Return all layers as (name, layer); "0.1" is the second part of the first block."""
        blocks = enumerate(self.layers.children())
        return [(f"{i}.{j}", cast(Mixer, part)) for i, block in blocks for j, part in enumerate(block.children())]

    def layer_numbers(self) -> dict[str, int]:
        """Return the number, from 1, of the layer to which each part belongs, by the name of the part.

        Every block begins a layer, and within a block every part with a title that the layer has already: attention,
        feed-forward, attention, feed-forward are two layers.
        """
        numbers: dict[str, int] = {}
        number, current_block, titles = 0, "", set[str]()
        for name, part in self.named_layers():
            block = name.partition(".")[0]
            if block != current_block or part.title in titles:
                number, current_block, titles = number + 1, block, set()
            titles.add(part.title)
            numbers[name] = number
        return numbers

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the states of all layers for `batch` rows of up to `max_length` tokens.

        They have dtype and device of `like`. More tokens than the position encoding supports raise a UserError.
        """
        limit = self.position.max_length
        if limit is not None and max_length > limit:
            raise UserError(
                f"this model has learned positions for {limit} tokens, but the search may generate {max_length} "
                f"tokens: set search.max_target_length to at most {limit}"
            )
        return super().init_state(batch, max_length, like)

    def prepare(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Add positions to the embeddings x, B T D, normalize and project them: return the input of the first layer.

        The returned context gives the layers the stack's position encoding, its input, and a cache of attention masks.
        """
        embedding = x
        x = self.position.embed(embedding, context.layout)
        context.trace(self.path, EMBEDDING, embedding)
        if context.is_traced and x is not embedding and x.shape == embedding.shape:  # not if it was concatenated
            context.trace(self.path, POSITION_VECTOR, x - embedding)
        x = self.project(self.dropout(self.input_norm(x, context.layout)))
        if x is not embedding:
            context.trace(self.path, STACK_INPUT, x)
        return x, replace(context, masks=AttentionMasks(), shared_position=self.position, stack_inputs=x)

    def steps(self, context: Context, state: State | None) -> Sequence[tuple[str, Callable[..., MixerOutput]]]:
        """Return (name, function) of what runs one after the other: all layers.

        With gradient checkpointing, they are blocks of layers that are recomputed in the backward pass, but not in
        decoding (with a state) and while attention is recorded, which would then be recorded twice.
        """
        recomputes = self.gradient_checkpointing and torch.is_grad_enabled()
        if not recomputes or state is not None or context.recorder is not None:
            return self.named_layers()
        # no names: these are the keys of a state, and there is none here
        return [("", partial(checkpoint, block, use_reentrant=False)) for block in self._blocks]

    def finish(self, x: Tensor, y: Tensor, layout: SequenceLayout) -> Tensor:
        """Apply the final norm to y, the output of the last layer, B T D; the input x of the stack is not used."""
        return self.norm(y, layout)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the layers, which also use the stack's positions, and the projection."""
        parts = module_flops(self.layers, replace(work, shared_position=self.position))
        return parts + sum(module_flops(part, work) for part in (self.input_norm, self.project, self.norm))


class LayerBlock(LayerSequence):
    """Layers that belong to a stack, as a unit of gradient checkpointing."""

    def __init__(self, layers: NamedLayers) -> None:
        """Run some layers of a stack, given as (name, layer), as one unit; the stack owns their weights."""
        super().__init__()
        self._layers = layers  # in a list, so that they are not registered twice

    def named_layers(self) -> NamedLayers:
        """Return the layers of the block as (name, layer), in the order in which they run."""
        return self._layers

    def prepare(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return x unchanged, and the context with an empty cache of attention masks, which the layers then fill."""
        return x, context.with_new_masks()  # the backward pass runs the block again: it must not change shared objects
