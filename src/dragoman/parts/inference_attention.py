"""Attention of packed models: the next token of every row on a CPU, in few operations, for each costs as much as many
numbers. All else goes the usual way through `attend`, and comes out the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.parts.attention import CrossAttentionMixer, SelfAttentionMixer, matmul_attention
from dragoman.parts.mixer import Context, State
from dragoman.parts.norm import Identity
from dragoman.parts.positions import Position


class QuickSelfAttention(SelfAttentionMixer):
    """softmax(QKᵀ/√E) V over the caches of all hypotheses of a source, of which each sees its ancestors'."""

    def __init__(self, part: SelfAttentionMixer) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(part.__dict__)
        self.sizes = [self.heads, self.kv_heads, self.kv_heads]
        turned = type(self.position).rotate is not Position.rotate
        self.plain = self.visibility.causal and not turned and silent(self.position) and not normalised(part)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        usual = context.recorder is not None or not self.plain or not silent(context.shared_position)
        if state is None or x.shape[1] > 1 or x.is_cuda or usual:
            return super().forward(x, context, state)
        longest = state["key"].shape[1]
        batch, width, rows, mask = before(context, longest)
        groups = self.project(x).view(len(x), 1, -1, self.width)  # R 1 (H+2G) E
        query, *new = groups.split_with_sizes(self.sizes, 2)
        caches = [
            state[name].index_put_((rows, context.layout.positions), one) for name, one in zip(("key", "value"), new)
        ]
        key, value = (
            cache.view(batch, width * longest, self.kv_heads, self.width).transpose(1, 2) for cache in caches
        )  # B G K·S E
        query = query.view(batch, width, self.heads, self.width).transpose(1, 2)  # B H K E
        shares = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(query, key, value, mask, scale=self.scale, enable_gqa=shares)
        return self.output(y.transpose(1, 2).reshape(len(x), 1, -1)), state

    __call__ = forward


def before(context: Context, longest: int) -> tuple[int, int, Tensor, Tensor]:
    """B and K, the numbers of the rows (R 1), and B 1 K K·S: 0 where a hypothesis sees a place of a cache, else −∞.

    Made once for all layers.
    """
    name = "before", longest
    if name not in context.masks:
        positions, ancestors = context.layout.positions, context.ancestors
        batch, width = (len(positions), 1) if ancestors is None else ancestors.shape[:2]
        seen = (torch.arange(longest) <= positions).view(batch, width, 1, longest)
        if ancestors is not None:
            seen = seen & (ancestors[:, :, None] == torch.arange(width)[:, None])  # B K K S
        mask = torch.where(seen.view(batch, 1, width, width * longest), 0.0, -torch.inf)
        context.masks[name] = batch, width, torch.arange(len(positions))[:, None], mask
    return context.masks[name]


class QuickCrossAttention(CrossAttentionMixer):
    """softmax(QKᵀ/√E) V over the source, whose keys and values lie in memory as products read them."""

    def __init__(self, part: CrossAttentionMixer) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(part.__dict__)
        self.plain = not normalised(part)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        assert context.memory is not None
        key, value = context.memory.projections[self.path].values()  # B G S E
        if context.recorder is not None or not self.plain or key.stride(-2) != 1:
            return super().forward(x, context, state)
        if "memory" not in context.masks:
            real = context.memory.layout.token_mask
            context.masks["memory"] = None if real is None else torch.where(real, 0.0, -torch.inf)[:, None, None]
        query = self.query(x).view(len(key), -1, self.heads, self.width).transpose(1, 2)  # B H K·T E
        y = matmul_attention(query, key, value, context.masks["memory"], self.scale)
        return self.output(y.transpose(1, 2).reshape(len(x), x.shape[1], -1)), state

    __call__ = forward


def silent(position: nn.Module | None) -> bool:
    """Does it add nothing to scores and values?"""
    if not isinstance(position, Position):
        return True
    return type(position).score_bias is Position.score_bias and type(position).value_bias is Position.value_bias


def normalised(part: SelfAttentionMixer | CrossAttentionMixer) -> bool:
    return not isinstance(part.query_norm, Identity)
