"""Multi-head self-attention and cross-attention."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention_function import (
    AttentionArgs,
    attend,
    cached_keys,
    can_use_triton,
    fold_beams,
    head_width,
    join_heads,
    length_key,
    matmul_layout,
    split_heads,
)
from dragoman.parts.attention_quantities import AttentionQuantities, attention_quantities, projection_formulas
from dragoman.parts.flops import Workload, attention_flops, module_flops
from dragoman.parts.mixer import Context, Memory, Mixer, MixerOutput, State
from dragoman.parts.norm import Identity
from dragoman.parts.positions import NoPosition, Position
from dragoman.parts.spec import Spec, build_part
from dragoman.parts.tracing import Quantity
from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.parts.visibility import Causal, Visibility

if TRITON_AVAILABLE:
    from dragoman.parts import kernels

JOINED_HEADS = Quantity("all heads joined", "TE", "[head 1; head 2; …]", "The results of all heads, side by side.")
ATTENTION_OUTPUT = Quantity(
    "output of the attention", "TE", "W_O [heads]", "The joined heads, mixed by one more matrix: what attention adds."
)


@dataclass(frozen=True)
class SelfAttention(Spec):
    """Multi-head self-attention (Vaswani et al. 2017, §3.2.2): softmax(QKᵀ/√E) V in each head, then W_O.

    Fewer `kv_heads` than `heads`: grouped-query attention (Ainslie et al. 2023), one: multi-query (Shazeer 2019).
    Queries and keys of a head have width `head_dim` (d_k), values `value_dim` (d_v). Without `projections` there is no
    weight: queries, keys and values are x itself, and the output is softmax(x xᵀ) x, in each head for its share of x.
    """

    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None  # D / heads by default
    visibility: Spec = field(default_factory=Causal)
    position: Spec = field(default_factory=NoPosition)
    bias: bool = True
    dropout: float = 0.0
    scale: float | None = None  # 1/√E by default; 1 without projections
    output_bias: bool | None = None  # of W_O; equal to `bias` by default
    qk_norm: Spec | None = None  # norm of queries and keys in each head (Henry et al. 2020)
    value_dim: int | None = None  # `head_dim` by default
    projections: bool = True
    rotary_values: bool = False  # rotary positions rotate values as well, an option of RoFormer's code

    def build(self, dim: int) -> SelfAttentionMixer:
        """Create the layer for vectors of width `dim`."""
        return SelfAttentionMixer(self, dim)


class SelfAttentionMixer(Mixer):
    title = "self-attention"
    adaptable: ClassVar = {"project": ("query", "key", "value"), "output": ("output",)}

    def __init__(self, spec: SelfAttention, dim: int) -> None:
        """Create the layer for inputs and outputs of width `dim`.

        `project` computes queries, keys and values of all heads with one weight, in which three matrices are stacked:
        `blocks` says how many rows each of them has. Widths that do not fit together, because of settings such as
        `value_dim` and `rotary_values`, raise a UserError.
        """
        super().__init__()
        self.heads, self.kv_heads = spec.heads, spec.kv_heads or spec.heads
        self.width = head_width(dim, spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim)  # of queries and keys
        self.value_width = spec.value_dim or self.width
        #: widths of queries, keys and values of all heads, side by side in the output of `project`
        self.sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.value_width]
        if spec.projections:
            self.project: nn.Module = nn.Linear(dim, sum(self.sizes), bias=spec.bias)
            self.blocks = {"project.weight": tuple(self.sizes)}
            output_bias = spec.bias if spec.output_bias is None else spec.output_bias
            self.output: nn.Module = nn.Linear(self.heads * self.value_width, dim, bias=output_bias)
        else:
            if self.sizes != [dim] * 3:
                raise UserError(
                    f"self-attention without projections uses its input, of width {dim}, as queries, keys and values, "
                    f"but kv_heads, head_dim or value_dim make these {self.sizes} wide: leave out these settings"
                )
            self.project, self.output = ThreeCopies(), Identity()
        self.position = build_part(spec.position, self.width, Position)
        if self.position.value_dim not in (None, self.value_width):
            raise UserError(
                f"the position part adds vectors of width {self.position.value_dim} to the values of the attention, "
                f"which have width {self.value_width}: set value_dim of the position part to {self.value_width}"
            )
        if spec.rotary_values and self.value_width != self.width:
            raise UserError(
                f"rotary_values rotates values like keys, which needs equal widths, but values are {self.value_width} "
                f"wide and keys {self.width}: leave out value_dim"
            )
        self.visibility = build_part(spec.visibility, dim, Visibility)  # attention mask by position, such as causal
        self.visibility_key = repr(spec.visibility)  # equal for layers with the same kind of mask, which share it
        self.query_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.key_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        # the attention kernels for packed sequences have no dropout
        self.supports_packing = self.visibility.supports_packing and self.position.supports_packing and not spec.dropout
        self.dropout, self.scale = spec.dropout, spec.scale or (None if spec.projections else 1.0)  # None: 1/√E
        self.rotary_values = spec.rotary_values

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create empty caches of keys and values, B S G E each, for S = `max_length` tokens of `batch` rows.

        They have dtype and device of `like`. G = `kv_heads` is the number of heads of keys and values.
        """
        widths = {"key": self.width, "value": self.value_width}
        return {name: like.new_zeros(batch, max_length, self.kv_heads, width) for name, width in widths.items()}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """Return the caches unchanged, although hypothesis r of the beam now continues row `rows[r]`.

        Nothing is copied, because `context.ancestors` says which row has written each key that a hypothesis sees.
        """
        return state

    def attention_args(self, context: Context, num_keys: int) -> AttentionArgs:
        """Collect what the function `attend` needs to know of this layer: mask, positions, scale and dropout.

        Layers with equal `mask_key` share one mask: those with the same kind of mask and number of keys (`num_keys`, as
        a hashable value by `length_key`). `scale` None is 1/√E. `quantities` are descriptions of intermediate results,
        needed only if these are recorded, to explain the model.
        """
        stack_position = context.shared_position  # position encoding of the stack, used besides that of the layer
        return AttentionArgs(
            visibility=self.visibility,
            positions=(self.position,) if stack_position is None else (self.position, stack_position),
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            path=self.path,
            mask_key=("self", length_key(num_keys), self.visibility_key),
            quantities=self.quantities() if context.is_traced else None,
        )

    def quantities(self) -> AttentionQuantities:
        """Return names and formulas of query, keys, values and scores, which explain this layer to a user."""
        formulas = ("x", "x", "x")  # of query, keys and values without projections
        if isinstance(self.project, nn.Linear):
            formulas = projection_formulas(query="x", memory="x", bias=self.project.bias is not None)
        return attention_quantities(
            formulas,
            scale=self.scale,
            is_normalized=not isinstance(self.query_norm, Identity),
            rotates=self.position.rotates,
            rotates_values=self.rotary_values,
        )

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """x, B T D → B T D; with a state, keys and values are first written into its caches, then all are attended to.

        G = `kv_heads` is the number of heads of keys and values; `context.layout` holds the positions of the tokens.
        `width` and `value_width` are the widths of a head, `sizes` those of queries, keys and values of all heads. Only
        rotary positions rotate queries and keys, and with `rotary_values` values: otherwise the method `rotate` of the
        position encoding returns them unchanged.
        """
        query, key, value = self.project(x).split(self.sizes, dim=-1)
        query, key = (part.unflatten(-1, (-1, self.width)) for part in (query, key))  # B T H E and B T G E
        value = value.unflatten(-1, (-1, self.value_width))  # B T G E
        query, key = self.query_norm(query), self.key_norm(key)
        positions = context.layout.encoded_positions
        query = self.position.rotate(query.transpose(1, 2), positions)  # B H T E
        key = self.position.rotate(key.transpose(1, 2), positions).transpose(1, 2)  # B T G E
        if self.rotary_values:
            value = self.position.rotate(value.transpose(1, 2), positions).transpose(1, 2)  # B T G E
        args = self.attention_args(context, num_keys=x.shape[1] if state is None else state["key"].shape[1])
        if state is None:
            key, value, layout = key.transpose(1, 2), value.transpose(1, 2), context.layout  # B G T E
            y = join_heads(
                attend(query, key, value, query_layout=layout, key_layout=layout, context=context, args=args)
            )
        else:
            y = self._attend_to_caches(query, key, value, context, args, state)
        return MixerOutput(project_heads(self, y, context), state)

    def _attend_to_caches(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, args: AttentionArgs, state: State
    ) -> Tensor:
        """Write keys and values, R T G E, into the caches of the state, R S G E, and attend to all of them.

        Query R H T E → output R T H·E, for R rows of the batch and G = `kv_heads` heads of keys. `context.layout` holds
        the positions at which the T tokens are written. In beam search (T = 1), the K hypotheses of a source have their
        own rows, R = B·K. They are queries to the keys of all K rows, masked to those of their own tokens
        (`context.ancestors`, B K S, says which row holds them). `args` are mask, position encodings and scale of the
        layer; `self.visibility` is its kind of mask, such as causal.
        """
        keys, values, positions = state["key"], state["value"], context.layout.positions
        # one token per row, on a GPU
        if key.shape[1] == 1 and self.visibility.causal and can_use_triton(query, value, context, args):
            y = kernels.cached_attention_step(
                query=query[:, :, 0],
                key=key[:, 0],
                value=value[:, 0],
                keys=keys,
                values=values,
                positions=positions[:, 0].contiguous(),
                ancestors=context.ancestors,
                scale=args.scale_of(query),
            )  # R H E; writes key and value into the caches
            return y.flatten(1)[:, None]
        # positions and mask of all keys in the caches; `cached.rows` (R 1) are the row numbers to write to
        cached = cached_keys(context, length=keys.shape[1])
        keys.index_put_((cached.rows, positions), key.to(keys.dtype))
        values.index_put_((cached.rows, positions), value.to(values.dtype))
        batch, beam = cached.queries.positions.shape  # without a beam R and T
        if context.ancestors is not None:
            query = query.view(batch, beam, self.heads, self.width).transpose(1, 2)  # B H K E
        # B G K·S E: the keys of all hypotheses of a source, one after another
        keys, values = (cache.view(batch, -1, *cache.shape[2:]).transpose(1, 2) for cache in (keys, values))
        args = args if cached.mask is None else replace(args, mask=cached.mask)
        y = attend(
            query, keys, values, query_layout=cached.queries, key_layout=cached.keys, context=context, args=args
        )  # B H K E or R H T E
        return y.transpose(1, 2).reshape(*key.shape[:2], -1)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: projections, attention of all to all, and position encodings once per head.

        The encodings are that of the layer and, if there is one, that of the stack (`work.shared_position`).
        """
        linear = module_flops(self.project, work) + module_flops(self.output, work)
        encodings = [self.position] if work.shared_position is None else [self.position, work.shared_position]
        per_head_and_token = work.with_tokens(work.tokens * self.heads)
        position_flops = sum(module_flops(encoding, per_head_and_token) for encoding in encodings)
        key_width, value_width = self.heads * self.width, self.heads * self.value_width
        return linear + position_flops + attention_flops(work.tokens, work.tokens, key_width, value_width)


def project_heads(layer: SelfAttentionMixer | CrossAttentionMixer, joined: Tensor, context: Context) -> Tensor:
    """Multiply the concatenated outputs of all heads, B T H·E, by W_O of the layer: B T D.

    If intermediate results are recorded, to explain the model, these two are recorded, too.
    """
    output: Tensor = layer.output(joined)
    context.trace(layer.path, JOINED_HEADS, joined)
    context.trace(layer.path, ATTENTION_OUTPUT, output)
    return output


class ThreeCopies(nn.Module):
    """Queries, keys and values of self-attention without projections: the input itself, three times."""

    def forward(self, x: Tensor) -> Tensor:
        """Three copies of x side by side: B T D → B T 3D."""
        return torch.cat((x, x, x), -1)


@dataclass(frozen=True)
class CrossAttention(Spec):
    """Multi-head attention from the decoder to the encoder's output (Vaswani et al. 2017, §3.2.3).

    Queries and keys of a head have width `head_dim` (d_k), values `value_dim` (d_v).
    """

    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None
    bias: bool = True
    dropout: float = 0.0
    scale: float | None = None
    output_bias: bool | None = None
    qk_norm: Spec | None = None
    value_dim: int | None = None  # `head_dim` by default

    def build(self, dim: int) -> CrossAttentionMixer:
        """Create the layer for vectors of width `dim`."""
        return CrossAttentionMixer(self, dim)


class CrossAttentionMixer(Mixer):
    """Keys and values are projected once per source; the hypotheses of a beam are additional queries."""

    title = "cross-attention"
    adaptable: ClassVar = {"query": ("query",), "project": ("key", "value"), "output": ("output",)}

    def __init__(self, spec: CrossAttention, dim: int) -> None:
        """Create the layer for inputs, outputs and encoder outputs of width `dim`.

        `project` computes keys and values with one weight, in which two matrices are stacked: `blocks` says how many
        rows each of them has.
        """
        super().__init__()
        self.heads, self.kv_heads = spec.heads, spec.kv_heads or spec.heads
        self.width = head_width(dim, spec.heads, kv_heads=spec.kv_heads, head_dim=spec.head_dim)  # of queries and keys
        self.value_width = spec.value_dim or self.width
        self.sizes = [self.kv_heads * self.width, self.kv_heads * self.value_width]  # of all keys, and all values
        self.query = nn.Linear(dim, self.heads * self.width, bias=spec.bias)
        self.project = nn.Linear(dim, sum(self.sizes), bias=spec.bias)
        self.blocks = {"project.weight": tuple(self.sizes)}
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = nn.Linear(self.heads * self.value_width, dim, bias=output_bias)
        self.query_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.key_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.supports_packing = not spec.dropout  # the attention kernels for packed sequences have no dropout
        self.dropout, self.scale = spec.dropout, spec.scale  # scale None: 1/√E

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """Project the encoder's output (B S D) to keys and values of G = `kv_heads` heads, B G S E each.

        On a CPU, they are arranged in memory for fast attention by matrix products.
        """
        key, value = (split_heads(x, self.kv_heads) for x in self.project(memory.states).split(self.sizes, dim=-1))
        key, value = matmul_layout(self.key_norm(key), value)
        return {"key": key, "value": value}  # B G S E

    def attention_args(self, context: Context) -> AttentionArgs:
        """Collect what the function `attend` needs to know of this layer.

        All cross-attention layers share one mask, which hides the padding of the source, under the `mask_key` "memory".
        `quantities` are descriptions of intermediate results, needed only if these are recorded.
        """
        return AttentionArgs(
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            path=self.path,
            mask_key="memory",
            quantities=self.quantities() if context.is_traced else None,
        )

    def quantities(self) -> AttentionQuantities:
        """Return names and formulas of query, keys, values and scores, which explain this layer to a user.

        In the formulas, x is the input of the layer and h an output of the encoder.
        """
        projections = projection_formulas(query="x", memory="h", bias=self.query.bias is not None)
        is_normalized = not isinstance(self.query_norm, Identity)
        return attention_quantities(projections, scale=self.scale, is_normalized=is_normalized)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Attend to the encoder's output (in the context): x, R T D → R T D; the state, if any, is returned unchanged.

        The R = B·K rows are reshaped to B, the K hypotheses of a source side by side, so that they share its keys,
        which have G = `kv_heads` heads.
        """
        memory = context.encoded_source
        projections = self.memory_projections(memory)  # keys and values, which a search computes only once
        folded = fold_beams(x, memory)  # B K·T D
        query = self.query_norm(split_heads(self.query(folded), self.heads))  # B H K·T E
        key, value = projections["key"], projections["value"]  # B G S E
        args = self.attention_args(context)
        y = attend(query, key, value, query_layout=context.layout, key_layout=memory.layout, context=context, args=args)
        return MixerOutput(project_heads(self, join_heads(y), context).reshape(x.shape), state)

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` target and `work.source` source tokens: projections of both, and the attention."""
        target_projections = module_flops(self.query, work) + module_flops(self.output, work)
        source_projections = module_flops(self.project, work.with_tokens(work.source))
        key_width, value_width = self.heads * self.width, self.heads * self.value_width
        attention = attention_flops(work.tokens, work.source, key_width, value_width)
        return target_projections + source_projections + attention
