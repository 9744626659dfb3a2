"""Attention: softmax of scores, a weighted sum of values. All of it goes through `attend`, which picks the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention_scores import Score
from dragoman.parts.mixer import Context, Layout, Memory, Mixer, State, beam_size
from dragoman.parts.norm import Identity
from dragoman.parts.positions import NoPosition, Position
from dragoman.parts.spec import Spec, build_part
from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.parts.visibility import Causal, Visibility

if torch.cuda.is_available():  # packed rows are for GPUs, and what they need takes a second to import
    from dragoman.parts.packed_attention import packed_attention, varying_attention

if TRITON_AVAILABLE:
    from dragoman.parts import kernels

FEW = 32  # queries that our own kernels are for


@dataclass(frozen=True)
class AttentionArgs:
    """How one attention looks: what may be seen, where things stand, how a key answers a query."""

    visibility: Visibility | None = None  # None: everything
    positions: tuple[Position, ...] = ()
    score: Score | None = None  # None: scaled dot product
    scale: float | None = None  # of the dot product; 1/√E unless told
    dropout: float = 0.0
    path: str = ""
    mask: Tensor | None = None  # B T S: what else must hold for a key to be seen
    mask_key: tuple[object, ...] = ()  # what all that sees alike in a call has in common, so that it shares a mask


def attend(
    query: Tensor, key: Tensor, value: Tensor, queries: Layout, keys: Layout, context: Context, look: AttentionArgs
) -> Tensor:
    """softmax(score(Q, K) + bias) V over what may be seen.

    query B H T E, key and value B G S E with G heads shared by H/G queries each → B H T E. A fused kernel wherever
    nobody needs the weights themselves; all ways agree. Packed rows on a GPU go block by block where that is compiled,
    and otherwise sequence by sequence.
    """
    needs_weights = context.recorder is not None or look.score is not None or _adds_to_values(look)
    if keys.cu_seqlens is not None and not needs_weights and query.is_cuda and torch.compiler.is_compiling():
        return packed_attention(query, key, value, queries, keys, context, look.visibility, look.positions, look.scale)
    if keys.cu_seqlens is not None and not needs_weights and query.is_cuda and _plain(look):
        return varying_attention(
            query, key, value, queries, keys, look.visibility is not None and look.visibility.causal, look.scale
        )
    everything = (look.visibility is None or look.visibility.full) and look.mask is None
    if everything and keys.lengths is not None and _by_kernel(query, context, look):
        return kernels.short_query_attention(
            query, key, value, keys.lengths, look.scale or 1 / math.sqrt(query.shape[-1])
        )
    bias = _bias(query, queries, keys, look)
    whole = queries is keys and queries.segment_ids is None and bias is None
    if (
        whole and look.visibility is not None and look.visibility.causal and not needs_weights
    ):  # padding on the right is hidden by causality itself
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=look.dropout,
            is_causal=True,
            scale=look.scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )
    mask = bias
    if bias is None and not needs_weights and look.mask_key and not torch.is_grad_enabled():
        mask = _added(queries, keys, context, look, query)
    else:
        visible = _visible(queries, keys, context, look)
        if needs_weights:
            return _explicit(query, key, value, visible, bias, queries, keys, context, look)
        if visible is not None:
            mask = visible[:, None] if bias is None else bias.masked_fill(~visible[:, None], -torch.inf)  # B 1 T S
    # Products only where every query sees a key: what is left over in a packed row may see none, and the softmax of
    # nothing is NaN. The fused kernel gives 0 there.
    if key.stride(-2) == 1 and not look.dropout and keys.segment_ids is None:
        return matmul_attention(query, key, value, mask, look.scale)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=look.dropout,
        scale=look.scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )


def _by_kernel(query: Tensor, context: Context, look: AttentionArgs) -> bool:
    """Are there few enough queries for our own kernels, B H T E, and is it what these compute?"""
    few = TRITON_AVAILABLE and query.is_cuda and query.shape[2] <= FEW and not torch.is_grad_enabled()
    return few and context.recorder is None and look.score is None and _plain(look) and not _adds_to_values(look)


def matmul_layout(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """B G S E each, in memory as a CPU's product of a few queries reads them, which is faster there than the kernel."""
    if key.device.type != "cpu" or torch.is_grad_enabled():
        return key, value
    return key.transpose(-1, -2).contiguous().transpose(-1, -2), value.contiguous()


def matmul_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Two products and a softmax; the queries that share a head's keys ask side by side.

    `mask`, B 1 T S or B H T S, is True where a key may be seen, or a number that is added to its score.
    """
    batch, heads, count, width = query.shape
    groups, longest = key.shape[1:3]
    asked = query.reshape(batch * groups, -1, width)  # B·G (H/G)·T E
    answers, scale = key.transpose(-1, -2).reshape(batch * groups, width, longest), scale or 1 / math.sqrt(width)
    scores = torch.bmm(asked, answers).view(batch, heads, count, longest)
    if mask is None:
        scores = scores * scale
    else:
        scores = torch.add(_numbers(mask, query) if mask.dtype == torch.bool else mask, scores, alpha=scale)
    weights, values = scores.softmax(-1).view(batch * groups, -1, longest), value.reshape(batch * groups, longest, -1)
    return torch.bmm(weights, values).view(batch, heads, count, -1)


def _numbers(visible: Tensor, like: Tensor) -> Tensor:
    """0 where something may be seen, else −∞."""
    return torch.where(visible, 0.0, -torch.inf).to(like.dtype)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    queries: Layout,
    keys: Layout,
    context: Context,
    look: AttentionArgs,
) -> Tensor:
    """The same with the weights written out: for the lens, and for scores that no kernel knows."""
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    if look.score is not None:
        scores = look.score(query, key)  # B H T S
    else:
        scores = query @ key.transpose(-1, -2) * (look.scale or 1 / math.sqrt(query.shape[-1]))
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    if visible is not None and (look.visibility is not None or keys.segment_ids is not None):
        # padding that sees nothing gets 0, as from the kernels
        weights = weights.masked_fill(~visible.any(-1)[:, None, :, None], 0.0)
    context.record(look.path, weights)
    weights = F.dropout(weights, look.dropout)
    y = weights @ value
    for position in look.positions:
        extra = position.value_bias(weights, queries.positions, keys.positions)
        y = y if extra is None else y + extra
    return y


def _bias(query: Tensor, queries: Layout, keys: Layout, look: AttentionArgs) -> Tensor | None:
    """What the position parts add to the scores, to be broadcast to B H T S."""
    biased = [position for position in look.positions if type(position).score_bias is not Position.score_bias]
    scaled = query * (look.scale or 1 / math.sqrt(query.shape[-1])) if biased else query
    total: Tensor | None = None
    for position in biased:
        bias = position.score_bias(scaled, queries.positions, keys.positions)
        if bias is not None:
            total = bias if total is None else total + bias
    return total


def _plain(look: AttentionArgs) -> bool:
    """Is it softmax(QKᵀ) V and no more, with everything or everything before visible?"""
    biased = any(type(position).score_bias is not Position.score_bias for position in look.positions)
    known = look.visibility is None or look.visibility.full or look.visibility.causal
    return known and not biased and not look.dropout


def _adds_to_values(look: AttentionArgs) -> bool:
    return any(type(position).value_bias is not Position.value_bias for position in look.positions)


def _added(queries: Layout, keys: Layout, context: Context, look: AttentionArgs, like: Tensor) -> Tensor | None:
    """B 1 T S: −∞ where a query may not see a key, else 0; None where all is visible.

    Made once for all layers that ask and answer in the same places and see as much.
    """
    if look.mask_key not in context.masks:
        visible = _visible(queries, keys, context, look)
        context.masks[look.mask_key] = None if visible is None else _numbers(visible[:, None], like)
    return context.masks[look.mask_key]


def _visible(queries: Layout, keys: Layout, context: Context, look: AttentionArgs) -> Tensor | None:
    """B T S, True where a query may see a key: visibility, padding and borders of packed sequences; None: all of it."""
    visibility = look.visibility
    masks = (
        [] if visibility is None or visibility.full else [visibility.mask(queries.positions, keys.positions, context)]
    )
    if look.mask is not None:
        masks.append(look.mask)
    if (real := keys.token_mask) is not None:
        masks.append(real[:, None, :])
    if keys.segment_ids is not None and queries.segment_ids is not None:
        masks.append(queries.segment_ids[:, :, None] == keys.segment_ids[:, None, :])
    visible = None
    for mask in masks:
        visible = mask if visible is None else visible & mask
    return visible


def split_heads(x: Tensor, heads: int) -> Tensor:
    """B T (H·E) → B H T E."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """B H T E → B T (H·E)."""
    return x.transpose(1, 2).flatten(2)


def head_width(dim: int, heads: int, kv_heads: int | None, width: int | None) -> int:
    """The width of a head, or an error that says which numbers do not fit."""
    if width is None and dim % heads:
        raise UserError(f"a width of {dim} cannot be split into {heads} heads: choose a divisor of {dim}")
    if heads % (kv_heads or heads):
        raise UserError(f"{heads} query heads cannot share {kv_heads} key heads: choose a divisor of {heads}")
    return width or dim // heads


@dataclass(frozen=True)
class SelfAttention(Spec):
    """Multi-head self-attention (Vaswani et al. 2017, §3.2.2): softmax(QKᵀ/√E) V in every head, then W_O.

    `kv_heads` fewer than `heads`: grouped queries (Ainslie et al. 2023), one: multi-query (Shazeer 2019). `scale` takes
    the place of 1/√E.
    """

    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None  # of one head; D / heads unless told
    visibility: Spec = field(default_factory=Causal)
    position: Spec = field(default_factory=NoPosition)
    bias: bool = True
    dropout: float = 0.0
    scale: float | None = None
    output_bias: bool | None = None  # of W_O; as `bias` unless told
    qk_norm: Spec | None = None  # of queries and keys, head by head (Henry et al. 2020)

    def build(self, dim: int) -> SelfAttentionMixer:
        return SelfAttentionMixer(self, dim)


class SelfAttentionMixer(Mixer):
    def __init__(self, spec: SelfAttention, dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = spec.heads, spec.kv_heads or spec.heads
        self.width = head_width(dim, spec.heads, spec.kv_heads, spec.head_dim)
        self.project = nn.Linear(dim, (self.heads + 2 * self.kv_heads) * self.width, bias=spec.bias)
        self.blocks = {"project.weight": tuple(n * self.width for n in (self.heads, self.kv_heads, self.kv_heads))}
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = nn.Linear(self.heads * self.width, dim, bias=output_bias)
        self.position = build_part(spec.position, self.width, Position)
        self.visibility = build_part(spec.visibility, dim, Visibility)
        self.query_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.key_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.supports_packing = self.visibility.supports_packing and self.position.supports_packing and not spec.dropout
        self.dropout, self.scale = spec.dropout, spec.scale

    @property
    def _sight(self) -> str:
        """The same for all parts that surely see as much."""
        return "all" if self.visibility.full else "before" if self.visibility.causal else self.path

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        shape = (batch, longest, self.kv_heads, self.width)
        return {"key": like.new_zeros(shape), "value": like.new_zeros(shape)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        groups = self.project(x).unflatten(-1, (-1, self.width))  # B T (H+2G) E
        query, key, value = groups.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        query, key = self.query_norm(query), self.key_norm(key)
        positions = context.layout.positions
        query = self.position.rotate(query.transpose(1, 2), positions)  # B H T E
        key = self.position.rotate(key.transpose(1, 2), positions).transpose(1, 2)  # B T G E
        shared = (context.shared_position,) if isinstance(context.shared_position, Position) else ()
        longest = x.shape[1] if state is None else state["key"].shape[1]
        look = AttentionArgs(
            self.visibility,
            (self.position, *shared),
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            path=self.path,
            mask_key=("own", longest, self._sight) if context.layout.segment_ids is None else (),
        )
        if state is not None and x.shape[1] == 1 and self.visibility.causal and _by_kernel(query, context, look):
            return self.output(self._next(query, key, value, context, state)[:, None]), state
        keys = context.layout
        if state is not None:
            rows, keys = _cached(x, longest, context)
            key = state["key"].index_put_((rows, positions), key.to(state["key"].dtype))  # B S G E
            value = state["value"].index_put_((rows, positions), value.to(state["value"].dtype))
        if state is not None and context.ancestors is not None:
            y = self._among_beams(query, key, value, context, look)
        else:
            y = attend(query, key.transpose(1, 2), value.transpose(1, 2), context.layout, keys, context, look)
        return self.output(join_heads(y)), state

    def _next(self, query: Tensor, key: Tensor, value: Tensor, context: Context, state: State) -> Tensor:
        """R (H·E) for the next token of every row on a GPU, R H 1 E, with key and value R 1 G E put into the caches."""
        scale, places = self.scale or 1 / math.sqrt(self.width), context.layout.positions[:, 0]
        caches = state["key"], state["value"]
        return kernels.cached_attention_step(
            query[:, :, 0], key[:, 0], value[:, 0], *caches, places.contiguous(), context.ancestors, scale
        ).flatten(1)

    def _among_beams(self, query: Tensor, key: Tensor, value: Tensor, context: Context, look: AttentionArgs) -> Tensor:
        """R H 1 E, with the caches of all hypotheses of a source, R S G E, as so many keys, of which each hypothesis
        sees its ancestors': nothing is copied when it goes on with what another one has written."""
        assert context.ancestors is not None
        batch, width, longest = context.ancestors.shape
        if "ancestors" not in context.masks:
            queries = Layout(context.layout.positions.view(batch, width))
            rows = torch.arange(width, device=query.device)[:, None]
            places = torch.arange(longest, device=query.device).repeat(width).expand(batch, -1)  # B K·S
            context.masks["ancestors"] = (
                queries,
                Layout(places),
                (context.ancestors[:, :, None] == rows).flatten(2),
            )  # B K K·S
        queries, keys, mask = context.masks["ancestors"]
        folded = query.unflatten(0, (batch, width))[..., 0, :].transpose(1, 2)  # B H K E
        key, value = (x.view(batch, width * longest, *x.shape[2:]).transpose(1, 2) for x in (key, value))
        y = attend(folded, key, value, queries, keys, context, replace(look, mask=mask))
        return y.transpose(1, 2).flatten(0, 1)[:, :, None]

    def reorder_state(self, state: State, rows: Tensor) -> State:
        return state  # context.ancestors says who has written what


def _cached(x: Tensor, longest: int, context: Context) -> tuple[Tensor, Layout]:
    """The numbers of the rows of x, B 1, and where the keys of a cache lie: made once for all layers."""
    name = "cache", longest
    if name not in context.masks:
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        context.masks[name] = rows, Layout(torch.arange(longest, device=x.device).expand(x.shape[0], -1))
    return context.masks[name]


@dataclass(frozen=True)
class CrossAttention(Spec):
    """Multi-head attention from the decoder to the encoder's output (Vaswani et al. 2017, §3.2.3)."""

    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None
    bias: bool = True
    dropout: float = 0.0
    scale: float | None = None
    output_bias: bool | None = None
    qk_norm: Spec | None = None  # of queries and keys

    def build(self, dim: int) -> CrossAttentionMixer:
        return CrossAttentionMixer(self, dim)


class CrossAttentionMixer(Mixer):
    """Keys and values are projected once for a source; the rows of a beam ask as so many more queries."""

    def __init__(self, spec: CrossAttention, dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = spec.heads, spec.kv_heads or spec.heads
        self.width = head_width(dim, spec.heads, spec.kv_heads, spec.head_dim)
        self.query = nn.Linear(dim, self.heads * self.width, bias=spec.bias)
        self.project = nn.Linear(dim, 2 * self.kv_heads * self.width, bias=spec.bias)
        self.blocks = {"project.weight": (self.kv_heads * self.width,) * 2}  # keys, values
        output_bias = spec.bias if spec.output_bias is None else spec.output_bias
        self.output = nn.Linear(self.heads * self.width, dim, bias=output_bias)
        self.query_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.key_norm = spec.qk_norm.build(self.width) if spec.qk_norm else Identity()
        self.supports_packing = not spec.dropout
        self.dropout, self.scale = spec.dropout, spec.scale

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        key, value = (split_heads(x, self.kv_heads) for x in self.project(memory.states).chunk(2, dim=-1))
        key, value = matmul_layout(self.key_norm(key), value)
        return {"key": key, "value": value}  # B G S E

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        assert context.memory is not None
        kept = context.memory.projections[self.path]
        folded = fold_beams(x, context.memory)  # B K·T D
        look = AttentionArgs(
            scale=self.scale, dropout=self.dropout if self.training else 0.0, path=self.path, mask_key=("memory",)
        )
        query = self.query_norm(split_heads(self.query(folded), self.heads))  # B H K·T E
        y = attend(query, kept["key"], kept["value"], context.layout, context.memory.layout, context, look)
        return self.output(join_heads(y)).reshape(x.shape), state


def fold_beams(x: Tensor, memory: Memory) -> Tensor:
    """R T D → B K·T D: the hypotheses of a source side by side, so that its memory is never repeated."""
    return x.reshape(memory.states.shape[0], beam_size(x.shape[0], memory) * x.shape[1], x.shape[2])
