"""The protocol of every part between embedding and output: mixers, what they share in a call, and what they remember.

Letters for shapes, in the whole project: B batch, T target or query positions, S source or key positions, D width,
H heads, E width of a head, V vocabulary, K beam, R rows of a search (B·K).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

#: A nested dict of tensors, batch first, fixed in shape, dtype and stride: key–value caches and recurrent states alike.
State = dict[str, Any]


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with `function` done to every tensor in it."""
    return {
        name: map_state(function, value) if isinstance(value, dict) else function(value)
        for name, value in state.items()
    }


@dataclass(frozen=True)
class Layout:
    """Where the tokens of one call lie.

    Padded: a row is one sequence, filled up on the right (`lengths`). Packed: a row holds several sequences one after
    another, told apart by `segments`; token t of a sequence has position t in either. Where all sequences stand in one
    row, `starts` says where each begins.
    """

    positions: Tensor  # B T: each token's place in its own sequence
    lengths: Tensor | None = None  # B: real tokens of each row; None where nothing is padded
    segment_ids: Tensor | None = None  # B T: which sequence of a packed row; None where a row is one sequence
    max_length: int | None = None  # no sequence is longer than this; None where `init_state` has seen to it
    cu_seqlens: Tensor | None = None  # N+1: where each sequence of one packed row begins, and where the last one ends

    @staticmethod
    def padded(width: int, lengths: Tensor) -> Layout:
        """Rows of one sequence each, `lengths` tokens of `width`."""
        positions = torch.arange(width, device=lengths.device).expand(lengths.shape[0], width)  # B T
        return Layout(positions, lengths=lengths, max_length=width)

    @staticmethod
    def packed(segment_ids: Tensor, max_length: int | None = None) -> Layout:
        """Rows of several sequences; `segments` (B T) counts them up from 0 from left to right.

        Who packed them knows the `longest`; unless told it is looked up, for which a GPU must be waited for.
        """
        places = torch.arange(segment_ids.shape[1], device=segment_ids.device).expand_as(segment_ids)  # B T
        new = torch.ones_like(segment_ids, dtype=torch.bool)
        new[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
        start = torch.where(new, places, 0).cummax(1).values  # B T: where the token's sequence began
        positions = places - start
        return Layout(positions, segment_ids=segment_ids, max_length=max_length or int(positions.max()) + 1)

    @staticmethod
    def packed_row(width: int, lengths: Tensor, max_length: int) -> Layout:
        """One row of `width` places with sequences of these `lengths` (N) in it; what is left of it counts as one more.

        Lengths of zero stand for no sequence, so that batches of different numbers of sequences have the same shape.
        """
        ends = lengths.cumsum(0)
        starts = nn.functional.pad(ends, (1, 0)).int()  # N+1, as kernels want it
        places = torch.arange(width, device=lengths.device)
        segments = torch.searchsorted(ends, places, right=True)  # N for what is left
        positions = (places - starts[segments]).clamp(max=max_length - 1)
        return Layout(positions[None], segment_ids=segments[None], max_length=max_length, cu_seqlens=starts)

    @staticmethod
    def continuation(first: Tensor, count: int = 1, max_length: int | None = None) -> Layout:
        """`count` tokens that continue each row from position `first` (R)."""
        places = first[:, None]
        return Layout(
            places if count == 1 else places + torch.arange(count, device=first.device), max_length=max_length
        )

    @property
    def token_mask(self) -> Tensor | None:
        """B T: which tokens are not padding; None where all are real."""
        return None if self.lengths is None else self.positions < self.lengths[:, None]


@dataclass
class Memory:
    """What is constant for a source: computed once, never reordered, never repeated for a beam."""

    states: Tensor  # B S D: the encoder's output
    layout: Layout
    encoder_inputs: Tensor | None = None  # B S D: what entered the encoder's first layer, positions counted in
    final_state: State | None = None  # the last recurrent state of the encoder: hidden (and cell), B L D
    auxiliary_losses: list[Tensor] = field(default_factory=list)  # the encoder's auxiliary losses
    projections: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by the path of the part that keeps it


@dataclass
class Context:
    """What one call shares among all its parts."""

    layout: Layout
    memory: Memory | None = None
    shared_position: nn.Module | None = None  # the stack's position part, where its layers share one
    prefix_lengths: Tensor | None = None  # R: how much of each row may be seen from everywhere
    stack_inputs: Tensor | None = None  # B T D: what entered the stack's first layer, positions counted in
    ancestors: Tensor | None = None  # B K S: which row of its source holds what a row has at each position
    source_context: Tensor | None = (
        None  # B T D: what an attending layer of this stack saw of the source, for those above it
    )
    final_state: State | None = None  # left here by a recurrent part that has read to the end
    auxiliary_losses: list[Tensor] = field(default_factory=list)  # auxiliary losses
    masks: dict[Any, Any] = field(default_factory=dict)  # of packed rows, made once for all layers
    recorder: dict[str, list[Tensor]] | None = None  # attention weights by path, while somebody is looking

    def record(self, path: str, weights: Tensor) -> None:
        if self.recorder is not None:
            self.recorder.setdefault(path, []).append(weights.detach())


class Mixer(nn.Module):
    """(x: B T D, context, state) → (y: B T D, state).

    Without a state, x is whole sequences. With one, x continues what the state has seen; a call may write into the
    state that it is given, and what goes on is the one it returns.
    """

    path: str = ""  # its place in the model, under which it keeps its memory and records its weights
    supports_packing: bool = True  # can it read packed rows?

    def init_state(self, batch: int, max_length: int, like: Tensor) -> State:
        """What this part needs to go on step by step up to `longest` tokens; `like` gives dtype and device."""
        return {}

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """The state whose row r goes on with what row `rows[r]` has seen."""
        return map_state(lambda leaf: leaf.index_select(0, rows), state)

    def project_memory(self, memory: Memory) -> dict[str, Tensor]:
        """What this part computes once from the memory: projected keys and values, a first state."""
        return {}

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        raise NotImplementedError


def assign_paths(root: nn.Module) -> None:
    """Tell every mixer below `root` its path."""
    for path, module in root.named_modules():
        if isinstance(module, Mixer):
            module.path = path


def beam_size(rows: int, memory: Memory) -> int:
    """How many rows of a search stand for each source."""
    return rows // memory.states.shape[0]
