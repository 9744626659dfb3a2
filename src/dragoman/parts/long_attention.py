"""Attention for long sequences: within blocks, and to compressed keys and values (Liu et al. 2018, §4.2.4).

Multiplications of the scores per token of a sequence of T, T being a multiple of block size and stride; the weighted
sum of the values needs as many again:

    full attention         D · (T + 1) / 2
    LocalAttention         D · (block_size + 1) / 2
    CompressedAttention    D · ((T / stride + 1) / 2 + 1 / stride), and 2 · kernel / stride · D² for the compression

Positions are added to the embeddings, as with sinusoidal or learned ones. Packed rows are not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.attention_function import AttentionArgs, attend, head_width
from dragoman.parts.attention_quantities import attention_quantities, projection_formulas
from dragoman.parts.flops import Workload, attention_flops, module_flops
from dragoman.parts.mixer import Context, Mixer, MixerOutput, SequenceLayout, State
from dragoman.parts.spec import Spec
from dragoman.parts.visibility import Block, Causal, Visibility

CAUSAL = Causal()
Projections = tuple[Tensor, Tensor, Tensor]  # query, key and value, B T H E each


class LongAttentionMixer(Mixer):
    """Projections that local and compressed attention have in common."""

    title = "long attention"
    supports_packing = False
    adaptable: ClassVar = {"project": ("query", "key", "value"), "output": ("output",)}

    def __init__(self, dim: int, heads: int, bias: bool, dropout: float) -> None:
        """Create the projections of attention with `heads` heads for vectors of width `dim`.

        `project` computes queries, keys and values with one weight, which stacks their matrices (`blocks`: rows of
        each). `dropout` is that of the attention weights, `bias` whether the projections have a bias.
        """
        super().__init__()
        self.heads, self.width = heads, head_width(dim, heads, kv_heads=None, head_dim=None)
        self.project = nn.Linear(dim, 3 * dim, bias=bias)
        self.blocks = {"project.weight": (dim,) * 3}
        self.output = nn.Linear(dim, dim, bias=bias)
        self.dropout = dropout

    def project_inputs(self, x: Tensor) -> Projections:
        """Project x, B T D, to query, key and value of H heads, B T H E each."""
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, self.width)).unbind(2)
        return query, key, value

    def attend(
        self,
        inputs: Projections,
        query_layout: SequenceLayout,
        key_layout: SequenceLayout,
        context: Context,
        visibility: Visibility = CAUSAL,
    ) -> Tensor:
        """Compute softmax(QKᵀ/√E) V under the mask `visibility`, by default causal.

        Shape: `inputs` are query B T H E, key and value B S H E → B T H E. The layouts hold positions and lengths of
        their tokens.
        """
        args = AttentionArgs(visibility, dropout=self.dropout if self.training else 0.0, path=self.path)
        if context.is_traced:  # intermediate results are recorded, with formulas that explain them
            formulas = projection_formulas(query="x", memory="x", bias=self.project.bias is not None)
            args = replace(args, quantities=attention_quantities(formulas))
        query, key, value = (x.transpose(1, 2) for x in inputs)  # B H T E
        return attend(query, key, value, query_layout, key_layout, context, args).transpose(1, 2)


def row_numbers(x: Tensor) -> Tensor:
    """Return the numbers 0 … B−1 of the rows of x as a column, B 1, to index x with N column numbers of each (B N)."""
    return torch.arange(x.shape[0], device=x.device)[:, None]


def token_counts(layout: SequenceLayout) -> Tensor:
    """Return the number of tokens in each row without padding, B; the layout holds their positions and lengths."""
    positions, token_mask = layout.positions, layout.token_mask
    return positions.new_full(positions.shape[:1], positions.shape[1]) if token_mask is None else token_mask.sum(1)


# ---- attention within blocks


@dataclass(frozen=True)
class LocalAttention(Spec):
    """Causal attention within blocks: i sees j ≤ i with ⌊j / block_size⌋ = ⌊i / block_size⌋ (Liu et al. 2018, §4.2.4).

    Blocks do not overlap, so that the cost per token does not depend on the length of the sequence.
    """

    heads: int = 8
    block_size: int = 256
    bias: bool = True
    dropout: float = 0.0

    def build(self, dim: int) -> LocalAttentionMixer:
        """Create the layer for vectors of width `dim`; a block size below 1 raises a UserError."""
        if self.block_size < 1:
            raise UserError(
                f"block_size of LocalAttention, a number of tokens, must be at least 1, but is {self.block_size}: "
                "raise it"
            )
        return LocalAttentionMixer(self, dim)


class LocalAttentionMixer(LongAttentionMixer):
    """The state holds keys and values of the current block, indexed by the position of a token in its block."""

    def __init__(self, spec: LocalAttention, dim: int) -> None:
        """Create the layer for vectors of width `dim`.

        `same_block` is the mask in which a token sees earlier ones of its block. It is used to record attention
        weights; otherwise the blocks are computed separately.
        """
        super().__init__(dim, heads=spec.heads, bias=spec.bias, dropout=spec.dropout)
        self.block_size = spec.block_size
        self.same_block = Block(spec.block_size)

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create empty caches for keys and values of one block, B block H E each: that which each row has reached.

        They have dtype and device of `like`; `max_length` does not matter.
        """
        shape = (batch, self.block_size, self.heads, self.width)
        return {"key": like.new_zeros(shape), "value": like.new_zeros(shape)}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Each token attends to itself and to earlier ones of its block: x, B T D → B T D.

        With a state, which holds keys and values of the current block, x continues sequences by one or several tokens.
        """
        inputs = self.project_inputs(x)  # query, key, value
        if state is not None and x.shape[1] == 1:
            y = self._step(inputs, context, state)
        elif state is not None:
            y, state = self._continue(inputs, context, state)
        elif context.recorder is not None:  # records weights of all pairs of tokens
            layout = context.layout
            y = self.attend(inputs, query_layout=layout, key_layout=layout, context=context, visibility=self.same_block)
        else:  # a sequence shorter than a block is one block
            y = self._attend_in_blocks(inputs, block_size=min(self.block_size, x.shape[1]), context=context)
        return MixerOutput(self.output(y.flatten(2)), state)

    def _attend_in_blocks(self, inputs: Projections, block_size: int, context: Context) -> Tensor:
        """Attend within blocks of `block_size` tokens, of which the first starts at token 0.

        `inputs` are query, key and value, B T H E each → B T H E. Each of the N blocks of a sequence becomes a row of a
        larger batch, with a causal mask.
        """
        batch, count = inputs[0].shape[:2]

        def to_rows(x: Tensor) -> Tensor:
            """Make each of the N blocks a row: B T H E → B·N block H E, the last block padded with zeros."""
            padded = F.pad(x, (0, 0, 0, 0, 0, -count % block_size))  # B N·block H E
            return padded.unflatten(1, (-1, block_size)).flatten(0, 1)

        query, key, value = map(to_rows, inputs)
        layout = SequenceLayout(torch.arange(block_size, device=query.device)[None])
        y = self.attend((query, key, value), query_layout=layout, key_layout=layout, context=context)
        return y.unflatten(0, (batch, -1)).flatten(1, 2)[:, :count]  # B T H E

    def _step(self, inputs: Projections, context: Context, state: State) -> Tensor:
        """Attend from one new token per row to its block: B 1 H E.

        `inputs` are its query, key and value, B 1 H E each. Key and value are first written into the state, which holds
        those of the current block (B block H E), at the token's position in the block. Entries after it are old ones,
        from the block before, which the causal mask hides.
        """
        query, key, value = inputs
        rows, positions = row_numbers(query), context.layout.positions  # B 1 each
        index = positions % self.block_size  # B 1: position in the block
        state["key"].index_put_((rows, index), key.to(state["key"].dtype))
        state["value"].index_put_((rows, index), value.to(state["value"].dtype))
        key_positions = positions - index + torch.arange(self.block_size, device=query.device)  # B block
        return self.attend(
            (query, state["key"], state["value"]),
            query_layout=context.layout,
            key_layout=SequenceLayout(key_positions),
            context=context,
        )

    def _continue(self, inputs: Projections, context: Context, state: State) -> tuple[Tensor, State]:
        """Attend from T new tokens per row, which may cross block borders: B T H E, and the state of the last block.

        `inputs` are their query, key and value, B T H E each; the state holds keys and values of the block in which a
        row continues, perhaps in its middle. So a row is shifted right by its `offset` in this block, and the keys and
        values of the state are put before it: then column 0 starts a block, and N whole blocks can be computed.
        """
        query, key, value = inputs
        rows, layout, count, size = row_numbers(query), context.layout, query.shape[1], self.block_size
        offset = layout.positions[:, :1] % size  # B 1: earlier tokens in the first block
        num_columns = -(-(count + size - 1) // size) * size  # N·block: rounded up to whole blocks
        token = torch.arange(num_columns, device=query.device) - offset  # B N·block: number of the new token, or < 0
        # where each column is found in the state's block followed by the new tokens
        index = torch.where(token < 0, token + offset, token.clamp(max=count - 1) + size)

        def put_before(earlier: Tensor, new: Tensor) -> Tensor:
            """Put keys or values of the state before new ones, with column 0 at the start of the first of N blocks."""
            return torch.cat((earlier, new.to(earlier.dtype)), 1)[rows, index]

        key, value = put_before(state["key"], key), put_before(state["value"], value)
        y = self._attend_in_blocks((query[rows, token.clamp(0, count - 1)], key, value), size, context)
        y = y[rows, offset + torch.arange(count, device=query.device)]  # B T H E: the new tokens
        # B 1: column of the last token of each row; clamp: a row without any token may have none
        last = (offset + token_counts(layout)[:, None] - 1).clamp(min=0)
        last_block = last // size * size + torch.arange(size, device=query.device)  # B block: its columns
        return y, {"key": key[rows, last_block], "value": value[rows, last_block]}

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: projections, and blocks that attend to themselves, the last one padded."""
        block = max(1, min(self.block_size, work.tokens))
        padded = -(-work.tokens // block) * block  # tokens, rounded up to whole blocks
        linear = module_flops(self.project, work) + module_flops(self.output, work)
        width = self.heads * self.width  # of keys and values
        return linear + attention_flops(padded, block, key_width=width, value_width=width)


# ---- attention to compressed keys and values


@dataclass(frozen=True)
class CompressedAttention(Spec):
    """Memory-compressed attention: a strided convolution shortens keys and values (Liu et al. 2018, §4.2.4).

    Compressed key c is W [k_{e−kernel+1}; …; k_e] + b, e = (c + 1) · stride − 1 being the last token that it covers;
    values likewise. A query at i sees those with e ≤ i, preceded by a key and a value of zeros, because the first
    queries would see none. The paper does not specify this, nor whether keys and values share weights: here they do
    not. Inputs before the start of the sequence are zeros.
    """

    heads: int = 8
    kernel: int = 3
    stride: int = 3
    bias: bool = True
    dropout: float = 0.0

    def build(self, dim: int) -> CompressedAttentionMixer:
        """Create the layer for vectors of width `dim`; a kernel or stride below 1 raises a UserError."""
        if self.kernel < 1 or self.stride < 1:
            raise UserError(
                f"kernel and stride of CompressedAttention, in tokens, must be at least 1, but are {self.kernel} and "
                f"{self.stride}: raise them"
            )
        return CompressedAttentionMixer(self, dim)


class CompressedAttentionMixer(LongAttentionMixer):
    """Attention to compressed keys and values, which are kept in slots: B C H E.

    Slot 0 holds zeros, slot c + 1 compressed key (value) c. In decoding, the state also holds `waiting`, the last
    kernel − 1 uncompressed keys (values), and one more slot, which is masked: writes without effect go there.
    """

    def __init__(self, spec: CompressedAttention, dim: int) -> None:
        """Create the layer for vectors of width `dim`.

        `compress` holds the convolutions of keys and of values, as linear layers over `kernel` vectors.
        """
        super().__init__(dim, heads=spec.heads, bias=spec.bias, dropout=spec.dropout)
        self.kernel, self.stride = spec.kernel, spec.stride
        self.compress = nn.ModuleDict({name: nn.Linear(spec.kernel * dim, dim, spec.bias) for name in ("key", "value")})

    def key_labels(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return a label for each slot: that of zeros first, then the `stride` tokens up to the last one it covers."""
        ends = range(self.stride, len(tokens) + 1, self.stride)
        return ["(zero)", *("".join(tokens[end - self.stride : end]) for end in ends)]

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """Create the state of `batch` rows, for keys and for values, with dtype and device of `like`.

        `slots` hold the compressed ones of up to `max_length` tokens, `waiting` the last kernel − 1 uncompressed ones.
        """
        num_slots = max_length // self.stride + 2  # the first one holds zeros, the last one is never read
        slots = like.new_zeros(batch, num_slots, self.heads, self.width)
        waiting = like.new_zeros(batch, self.kernel - 1, self.heads, self.width)
        return {name: {"slots": slots.clone(), "waiting": waiting.clone()} for name in ("key", "value")}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Each token attends to the compressed keys that end before or at its position: x, B T D → B T D.

        A convolution compresses every `stride` keys to one, which is kept in a slot; slot 0 is zeros. Without a state,
        whole sequences are compressed, and attended to in groups of `stride` queries unless attention weights are
        recorded. With a state, new keys and values are first added to its C slots.
        """
        query, key, value = self.project_inputs(x)  # B T H E
        if state is None:
            key, value = self._compress_sequences("key", key), self._compress_sequences("value", value)  # B C H E
            if context.recorder is None:
                return MixerOutput(self.output(self._attend_in_groups(query, key, value, context).flatten(2)))
        else:
            new = {"key": key, "value": value}
            state = {name: self._add_to_slots(name, new[name], context.layout, state[name]) for name in new}
            key, value = state["key"]["slots"], state["value"]["slots"]  # B C H E
        # C: position of the last token of each slot; −1 for slot 0, which all queries see
        last_token = torch.arange(key.shape[1], device=x.device) * self.stride - 1
        slot_layout = SequenceLayout(last_token.expand(x.shape[0], -1))
        y = self.attend((query, key, value), query_layout=context.layout, key_layout=slot_layout, context=context)
        return MixerOutput(self.output(y.flatten(2)), state)

    def _convolve(self, name: str, windows: Tensor) -> Tensor:
        """Compress C windows of `kernel` keys or values (`name` is "key" or "value"): B C kernel H E → B C H E."""
        return self.compress[name](windows.flatten(2)).unflatten(-1, (self.heads, self.width))

    def _compress_sequences(self, name: str, uncompressed: Tensor) -> Tensor:
        """Compress whole sequences of keys or values (`name`): B T H E → B 1+⌊T/stride⌋ H E, the first being zeros."""
        padded = F.pad(uncompressed, (0, 0, 0, 0, self.kernel - 1, 0))  # zeros before the first token
        # windows of `kernel` tokens; only those that end with token (c + 1) · stride − 1 for some c ≥ 0 are used
        windows = padded.unfold(1, self.kernel, 1)[:, self.stride - 1 :: self.stride]  # B ⌊T/stride⌋ H E kernel
        return F.pad(self._convolve(name, windows.movedim(-1, 2)), (0, 0, 0, 0, 1, 0))

    def _attend_in_groups(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        """Attend from queries, B T H E, to C compressed keys and values (slots), B C H E → B T H E.

        Slot 0 holds zeros, slot s ≥ 1 a compressed window that ends with token s · stride − 1: query i sees the slots
        up to g = ⌊(i + 1) / stride⌋. The `stride` queries with the same g are computed as additional heads of one
        query, number g, which sees slots s ≤ g: the causal mask, which fused kernels have.
        """
        count, groups = query.shape[1], key.shape[1]
        # one padding query in front, because group 0 has only stride − 1 queries, and others to fill the last group
        query = F.pad(query, (0, 0, 0, 0, 1, groups * self.stride - count - 1)).unflatten(1, (groups, self.stride))
        query = query.flatten(2, 3)  # B C stride·H E
        key, value = (slots.repeat(1, 1, self.stride, 1) for slots in (key, value))  # B C stride·H E
        layout = SequenceLayout(torch.arange(groups, device=query.device)[None])
        y = self.attend((query, key, value), query_layout=layout, key_layout=layout, context=context)
        return y.unflatten(2, (self.stride, self.heads)).flatten(1, 2)[:, 1 : count + 1]  # B T H E

    def _add_to_slots(self, name: str, new: Tensor, layout: SequenceLayout, state: State) -> State:
        """Add T new keys or values (`name`) per row, B T H E, to the state: compress those that complete a window.

        The state holds `slots` (B C H E), zeros in slot 0 and the compressed window c in slot c + 1, and `waiting`, the
        last kernel − 1 uncompressed vectors. Window c consists of `kernel` vectors and ends at position
        (c + 1) · stride − 1. The layout holds the positions of the new tokens and says which are padding: windows that
        only padding completes go to the last slot, which is never read.
        """
        rows, count = row_numbers(new), new.shape[1]
        num_tokens, first = token_counts(layout)[:, None], layout.positions[:, :1]  # B 1: tokens, position of the first
        slots = state["slots"]
        uncompressed = torch.cat((state["waiting"], new.to(slots.dtype)), 1)  # B kernel−1+T H E
        windows_completed = torch.arange(-(-count // self.stride), device=new.device)  # C: at most so many
        # B C: number, among the new tokens, of the one that ends each window; p + 1 is a multiple of the stride at its
        # position p
        end = (-1 - first) % self.stride + windows_completed * self.stride
        offsets = torch.arange(self.kernel, device=new.device)  # of the tokens of a window
        windows = uncompressed[rows[..., None], end.clamp(max=count - 1)[..., None] + offsets]  # B C kernel H E
        slot = torch.where(end < num_tokens, (first + end + 1) // self.stride, slots.shape[1] - 1)  # B C
        slots = slots.index_put_((rows, slot), self._convolve(name, windows).to(slots.dtype))
        waiting = uncompressed[rows, num_tokens + offsets[:-1]]  # the last kernel − 1 vectors without padding
        return {"slots": slots, "waiting": waiting}

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: projections, compression, and groups of queries that attend to all slots.

        The slots are the compressed keys and, as slot 0, a key of zeros. There are as many groups as slots, filled up
        with padding to `stride` queries each.
        """
        compressed = work.tokens // self.stride
        linear = module_flops(self.project, work) + module_flops(self.output, work)
        compression = sum(module_flops(layer, work.with_tokens(compressed)) for layer in self.compress.values())
        queries, width = (compressed + 1) * self.stride, self.heads * self.width
        attention = attention_flops(queries, compressed + 1, key_width=width, value_width=width)
        return linear + compression + attention
