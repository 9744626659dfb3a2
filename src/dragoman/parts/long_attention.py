"""Attention for very long sequences: within blocks, and to a compressed memory (Liu et al. 2018, §4.2.4).

Multiplications for the scores, a token of a sequence of T (with T a multiple of block and stride), D the width; the sum
of values takes as many again:

    full attention         D · (T + 1) / 2
    LocalAttention         D · (block + 1) / 2
    CompressedAttention    D · ((T / stride + 1) / 2 + 1 / stride), and 2 · kernel / stride · D² to compress

Positions enter at the bottom of the stack, as with sinusoidal or learned ones; neither part reads packed rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention import AttentionArgs, attend, head_width
from dragoman.parts.mixer import Context, Layout, Mixer, State
from dragoman.parts.spec import Spec
from dragoman.parts.visibility import CausalVisibility, Visibility


class LongAttentionMixer(Mixer):
    """What both have: queries, keys and values of every head, and W_O."""

    supports_packing = False

    def __init__(self, dim: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.width = heads, head_width(dim, heads, None, None)
        self.project = nn.Linear(dim, 3 * dim, bias=bias)
        self.blocks = {"project.weight": (dim,) * 3}  # queries, keys, values
        self.output = nn.Linear(dim, dim, bias=bias)
        self.causal = CausalVisibility()
        self.dropout = dropout

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """B T D → query, key and value, B T H E each."""
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, self.width)).unbind(2)
        return query, key, value

    def look_at(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        queries: Layout,
        keys: Layout,
        context: Context,
        visibility: Visibility | None = None,
    ) -> Tensor:
        """query B T H E, key and value B S H E → B T H E."""
        look = AttentionArgs(visibility or self.causal, dropout=self.dropout if self.training else 0.0, path=self.path)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)  # B H T E
        return attend(query, key, value, queries, keys, context, look).transpose(1, 2)


def rows_of(x: Tensor) -> Tensor:
    """B 1: the number of each row, to pick places row by row."""
    return torch.arange(x.shape[0], device=x.device)[:, None]


# ---- within blocks


@dataclass(frozen=True)
class LocalAttention(Spec):
    """Causal multi-head attention within blocks of `block` tokens: i sees j ≤ i with ⌊j / block⌋ = ⌊i / block⌋.

    Blocks do not overlap (Liu et al. 2018, §4.2.4), so that the cost of a token does not grow with the sequence.
    """

    heads: int = 8
    block_size: int = 256
    bias: bool = True
    dropout: float = 0.0

    def build(self, dim: int) -> LocalAttentionMixer:
        if self.block_size < 1:
            raise UserError(f"a block of local attention must hold at least 1 token, but holds {self.block_size}")
        return LocalAttentionMixer(self, dim)


class LocalVisibility(Visibility):
    full = False

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block

    def mask(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        query, key = query[:, :, None], key[:, None, :]
        return (key <= query) & (key // self.block == query // self.block)


class LocalAttentionMixer(LongAttentionMixer):
    """The state is the keys and values of the current block: cell c is the token at position c of it."""

    def __init__(self, spec: LocalAttention, dim: int) -> None:
        super().__init__(dim, spec.heads, spec.bias, spec.dropout)
        self.block = spec.block_size
        self.same_block = LocalVisibility(spec.block_size)

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        shape = (batch, self.block, self.heads, self.width)
        return {"key": like.new_zeros(shape), "value": like.new_zeros(shape)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        query, key, value = self.split(x)
        if state is not None and x.shape[1] == 1:
            y = self._step(query, key, value, context, state)
        elif state is not None:
            y, state = self._continue(query, key, value, context, state)
        elif context.recorder is not None:  # who looks wants weights from every token to every token
            y = self.look_at(query, key, value, context.layout, context.layout, context, self.same_block)
        else:
            y = self._in_blocks(query, key, value, min(self.block, x.shape[1]), context)
        return self.output(y.flatten(2)), state

    def _in_blocks(self, query: Tensor, key: Tensor, value: Tensor, block: int, context: Context) -> Tensor:
        """Sequences that begin with a block, B T H E: every block is a row of its own."""
        batch, count = query.shape[:2]

        def cut(x: Tensor) -> Tensor:
            return F.pad(x, (0, 0, 0, 0, 0, -count % block)).unflatten(1, (-1, block)).flatten(0, 1)  # B·N block H E

        layout = Layout(torch.arange(block, device=query.device)[None])
        y = self.look_at(cut(query), cut(key), cut(value), layout, layout, context)
        return y.unflatten(0, (batch, -1)).flatten(1, 2)[:, :count]  # B T H E

    def _step(self, query: Tensor, key: Tensor, value: Tensor, context: Context, state: State) -> Tensor:
        """One token a row, written into its cell."""
        rows, positions = rows_of(query), context.layout.positions
        cell = positions % self.block  # B 1
        state["key"].index_put_((rows, cell), key.to(state["key"].dtype))
        state["value"].index_put_((rows, cell), value.to(state["value"].dtype))
        keys = Layout(positions - cell + torch.arange(self.block, device=query.device))  # B block
        return self.look_at(query, state["key"], state["value"], context.layout, keys, context)

    def _continue(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, state: State
    ) -> tuple[Tensor, State]:
        """Several tokens, over borders of blocks: each row moved right until its blocks begin where blocks do."""
        rows, layout, count = rows_of(query), context.layout, query.shape[1]
        kept = layout.positions[:, :1] % self.block  # B 1: cells that earlier tokens of the first block fill
        room = -(-(count + self.block - 1) // self.block) * self.block
        token = torch.arange(room, device=query.device) - kept  # B N·block: which token of the chunk; before it: a cell
        cell_or_token = torch.where(token < 0, token + kept, token.clamp(max=count - 1) + self.block)

        def place(cells: Tensor, new: Tensor) -> Tensor:
            return torch.cat((cells, new.to(cells.dtype)), 1)[rows, cell_or_token]  # B N·block H E

        key, value = place(state["key"], key), place(state["value"], value)
        query = query[rows, token.clamp(0, count - 1)]
        y = self._in_blocks(query, key, value, self.block, context)
        y = y[rows, kept + torch.arange(count, device=query.device)]  # B T H E
        last = (kept + real_tokens(layout)[:, None] - 1).clamp(min=0)  # B 1: where each row ends
        cells = last // self.block * self.block + torch.arange(self.block, device=query.device)  # B block
        return y, {"key": key[rows, cells], "value": value[rows, cells]}


def real_tokens(layout: Layout) -> Tensor:
    """B: how many of this call's tokens are not padding."""
    positions = layout.positions
    return (
        positions.new_full(positions.shape[:1], positions.shape[1])
        if layout.token_mask is None
        else layout.token_mask.sum(1)
    )


# ---- to a compressed memory


@dataclass(frozen=True)
class CompressedAttention(Spec):
    """Memory-compressed attention: keys and values are shortened by a strided convolution (Liu et al. 2018, §4.2.4).

    Cell c = W [k_{e−kernel+1}; …; k_e] + b, with e = (c + 1) · stride − 1 the last token that it covers, and the values
    likewise. A query at i sees the cells with e ≤ i, so that nothing peeks, and in front of them a key and a value of
    zeros, because the first queries would see nothing else. The paper leaves open what those see, and whether keys and
    values are compressed alike: here they have weights of their own. With a kernel other than the stride, a cell ends
    with its group of `stride` tokens all the same, and reads zeros before the beginning of the sequence.
    """

    heads: int = 8
    kernel: int = 3
    stride: int = 3
    bias: bool = True
    dropout: float = 0.0

    def build(self, dim: int) -> CompressedAttentionMixer:
        if self.kernel < 1 or self.stride < 1:
            raise UserError(
                "compressed attention needs a kernel and a stride of at least 1, but its kernel is "
                f"{self.kernel} and its stride {self.stride}"
            )
        return CompressedAttentionMixer(self, dim)


class CompressedAttentionMixer(LongAttentionMixer):
    """The state is the compressed keys and values, and the last kernel − 1 uncompressed ones, B C H E all.

    Slot 0 is the zeros, slot c + 1 is cell c, and the last slot, which nobody sees, takes what is not to be written.
    """

    def __init__(self, spec: CompressedAttention, dim: int) -> None:
        super().__init__(dim, spec.heads, spec.bias, spec.dropout)
        self.kernel, self.stride = spec.kernel, spec.stride
        self.compress = nn.ModuleDict({name: nn.Linear(spec.kernel * dim, dim, spec.bias) for name in ("key", "value")})

    def init_state(self, batch: int, longest: int, like: Tensor) -> State:
        slots = like.new_zeros(batch, longest // self.stride + 2, self.heads, self.width)
        waiting = like.new_zeros(batch, self.kernel - 1, self.heads, self.width)
        return {name: {"slots": slots.clone(), "waiting": waiting.clone()} for name in ("key", "value")}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        query, key, value = self.split(x)
        if state is None:
            key, value = self._shorten("key", key), self._shorten("value", value)
            if context.recorder is None:
                return self.output(self._in_groups(query, key, value, context).flatten(2)), None
        else:
            state = {
                "key": self._go_on("key", key, context.layout, state["key"]),
                "value": self._go_on("value", value, context.layout, state["value"]),
            }
            key, value = state["key"]["slots"], state["value"]["slots"]
        last = torch.arange(key.shape[1], device=x.device) * self.stride - 1  # C: the last token that a slot covers
        y = self.look_at(query, key, value, context.layout, Layout(last.expand(x.shape[0], -1)), context)
        return self.output(y.flatten(2)), state

    def _cells(self, name: str, windows: Tensor) -> Tensor:
        """B C kernel H E → B C H E."""
        return self.compress[name](windows.flatten(2)).unflatten(-1, (self.heads, self.width))

    def _shorten(self, name: str, raw: Tensor) -> Tensor:
        """Whole sequences, B T H E → the zeros and every cell, B 1 + ⌊T / stride⌋ H E."""
        padded = F.pad(raw, (0, 0, 0, 0, self.kernel - 1, 0))
        windows = padded.unfold(1, self.kernel, 1)[:, self.stride - 1 :: self.stride]  # B C H E kernel
        return F.pad(self._cells(name, windows.movedim(-1, 2)), (0, 0, 0, 0, 1, 0))

    def _in_groups(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """The `stride` queries between the ends of two cells see the same slots: they are so many heads of one query.

        Query i sees the slots up to ⌊(i + 1) / stride⌋, its group; so group g sees slot s ≤ g, which is what kernels
        know as causal: nothing is computed in vain, and no mask is written out.
        """
        count, groups = query.shape[1], key.shape[1]
        query = F.pad(query, (0, 0, 0, 0, 1, groups * self.stride - count - 1)).unflatten(1, (groups, self.stride))
        query = query.flatten(2, 3)  # B C stride·H E
        key, value = (part.repeat(1, 1, self.stride, 1) for part in (key, value))
        layout = Layout(torch.arange(groups, device=query.device)[None])
        y = self.look_at(query, key, value, layout, layout, context)
        return y.unflatten(2, (self.stride, self.heads)).flatten(1, 2)[:, 1 : count + 1]  # B T H E

    def _go_on(self, name: str, new: Tensor, layout: Layout, state: State) -> State:
        """New keys or values, B T H E: those that end a cell are compressed with what was waiting."""
        rows, count = rows_of(new), new.shape[1]
        real, first = real_tokens(layout)[:, None], layout.positions[:, :1]  # B 1
        slots = state["slots"]
        raw = torch.cat((state["waiting"], new.to(slots.dtype)), 1)  # B kernel−1+T H E
        cells = torch.arange(-(-count // self.stride), device=new.device)  # no more than these can end here
        end = (-1 - first) % self.stride + cells * self.stride  # B C: which of the new tokens ends a cell
        reach = torch.arange(self.kernel, device=new.device)
        windows = raw[rows[..., None], end.clamp(max=count - 1)[..., None] + reach]  # B C kernel H E
        slot = torch.where(end < real, (first + end + 1) // self.stride, slots.shape[1] - 1)
        slots = slots.index_put_((rows, slot), self._cells(name, windows).to(slots.dtype))
        return {"slots": slots, "waiting": raw[rows, real + reach[:-1]]}
