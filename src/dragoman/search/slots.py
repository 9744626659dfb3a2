"""What a search knows of its sources: a tree of tensors with a row a source, and how far the search is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dragoman.models import DecodingStart
from dragoman.parts.mixer import Layout, Memory

EMPTY_SLOT = -1  # stands where a place for a source is empty

#: A nested dict of tensors, all of them with one row a source: what a search knows of its sources.
Tree = dict[str, Any]


def map_tree(function: Callable[..., Any], *trees: Tree) -> Tree:
    """The tree with `function` done to every tensor in it, or to those in the same place of several trees."""
    if len(trees) == 1:  # by far the most frequent
        items = trees[0].items()
        return {name: map_tree(function, leaf) if isinstance(leaf, dict) else function(leaf) for name, leaf in items}
    return {
        name: map_tree(function, *(tree[name] for tree in trees))
        if isinstance(value, dict)
        else function(*(tree[name] for tree in trees))
        for name, value in trees[0].items()
    }


def take(tree: Tree, sources: Tensor) -> Tree:
    """Some of the sources."""
    return map_tree(lambda leaf: leaf[sources], tree)  # laid out in memory as they were


@dataclass
class BatchProgress:
    """How far one search is."""

    longest: int  # words of a target
    room: int  # words that there is room for
    places: list[int]  # positions that there is room for, by model
    inside: list[int]  # the numbers of the sources that are searched
    ages: list[int]  # how many words they have
    replays: bool  # are steps replayed, and shapes therefore few?
    limits: list[int]  # words of each source's targets, by their numbers

    @property
    def ends(self) -> bool:
        """Are all at their limits, so that nothing more can come?"""
        pairs = zip(self.inside, self.ages)
        return all(number == EMPTY_SLOT or age >= self.limits[number] for number, age in pairs)

    def size(self, count: int) -> int:
        """How many places there are for so many sources."""
        return rounded(count, 1) if self.replays and count else count


class Answer:
    """Truth values that a GPU is asked for, to be read when it has come to them."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.event = values, torch.cuda.Event() if values.is_cuda else None
        if self.event is not None:
            self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(
                values, non_blocking=True
            )
            self.event.record()

    def read(self) -> list[bool]:
        if self.event is not None:
            self.event.synchronize()
        return self.values.tolist()


def rounded(number: int, least: int = 16) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 …, so that there are few shapes."""
    power = max(least, 1 << (number - 1).bit_length())
    return power * 3 // 4 if power > least and power % 4 == 0 and number <= power * 3 // 4 else power


def wider(source: Tensor, width: int) -> Tensor:
    """B S or B S F sources with padding up to a width."""
    return pad(source, (*(0, 0) * (source.dim() - 2), 0, width - source.shape[1]))


def unshared(leaf: Tensor) -> Tensor:
    """A tensor none of whose elements lie in the same place, so that rows of it can be changed."""
    return leaf.contiguous() if 0 in leaf.stride() else leaf


def rows_of(state: Tree) -> Tree:
    """B K … → R …"""
    return map_tree(lambda leaf: leaf.flatten(0, 1), state)


def writer_of(start: DecodingStart, batch: int, moves: bool) -> Tree:
    """What a model has in its slots."""
    rows = len(start.tokens) // batch
    tree = {
        "state": map_tree(lambda leaf: leaf.unflatten(0, (batch, rows)), start.state),
        "positions": start.positions.unflatten(0, (batch, rows)),
        "memory": {} if start.memory is None else _tree(start.memory),
    }
    if moves and rows > 1:
        own = torch.arange(rows, device=start.tokens.device)
        tree["ancestors"] = own[None, :, None].repeat(batch, 1, start.max_length)
    return tree


def _tree(memory: Memory) -> Tree:
    """A memory as plain tensors; losses are of no interest any more."""
    lengths = memory.layout.lengths
    if lengths is None:
        lengths = torch.full((len(memory.states),), memory.states.shape[1], device=memory.states.device)
    tree: Tree = {"states": memory.states, "lengths": lengths, "projected": memory.projections}
    tree["positions"] = memory.layout.positions
    return tree | {
        name: value for name in ("encoder_inputs", "final_state") if (value := getattr(memory, name)) is not None
    }


def memory_of(tree: Tree) -> Memory | None:
    if not tree:
        return None
    layout = Layout(tree["positions"], lengths=tree["lengths"], max_length=tree["states"].shape[1])
    return Memory(
        tree["states"], layout, tree.get("encoder_inputs"), tree.get("final_state"), projections=tree["projected"]
    )
