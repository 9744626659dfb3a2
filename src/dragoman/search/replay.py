"""Steps of a search on a GPU: recorded as CUDA graphs, so that one launch does what hundreds did."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]
Advance = Callable[[Tree, Sequence[int]], Tree]

MOST = 16  # shapes that are kept, those that were used last


class Replay:
    """A function from slots to slots, recorded when a shape of them comes up for the third time.

    The first time everything is made that is made only once (kernels, workspaces), the second shows whether something
    waits for the device, which cannot be recorded: that is done as it is from then on. For one shape the slots that
    come back are always the same tensors, with new values in them. On a CPU there is nothing to record.
    """

    def __init__(self, advance: Advance) -> None:
        self.advance = advance
        self.shapes: dict[Any, Recording] = {}
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None

    def __call__(self, slots: Tree, places: Sequence[int]) -> Tree:
        key = (tuple(places), *((path, leaf.shape, leaf.dtype) for path, leaf in leaves(slots).items()))
        known = self.shapes.pop(key) if key in self.shapes else Recording(apart(slots))
        self.shapes[key] = known
        if len(self.shapes) > MOST:
            self.shapes.pop(next(iter(self.shapes)))
        if slots is not known.slots:
            copy(known.slots, slots)
        work = partial(self._work, known.slots, tuple(places))
        if known.graph is not None:
            known.graph.replay()
        elif known.slots["tokens"].is_cuda:
            self._on_device(known, work)
        else:
            work()
        return known.slots

    def _work(self, slots: Tree, places: Sequence[int]) -> None:
        copy(slots, self.advance(slots, places))

    def _on_device(self, known: Recording, work: Callable[[], None]) -> None:
        """Do it, and find out how it can be done from now on."""
        if self.stream is None:
            self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        known.times += 1
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if known.times == 2:
                known.waits = _waits(work)
            elif known.times == 1 or known.waits:
                work()
            else:
                known.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(
                    known.graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
                ):
                    work()
                known.graph.replay()
        torch.cuda.current_stream().wait_stream(self.stream)


@dataclass
class Recording:
    """What is known of a shape."""

    slots: Tree
    times: int = 0  # that it came up
    waits: bool = False  # does a step wait for the device?
    graph: torch.cuda.CUDAGraph | None = None


def _waits(work: Callable[[], None]) -> bool:
    """Do it, and find out whether it waits for the device."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return any("synchroniz" in str(one.message) for one in caught)


def leaves(tree: Tree, path: str = "") -> dict[str, Tensor]:
    """All tensors by their places in the tree."""
    found: dict[str, Tensor] = {}
    for name, value in tree.items():
        found |= leaves(value, f"{path}.{name}") if isinstance(value, dict) else {f"{path}.{name}": value}
    return found


def copy(to: Tree, tree: Tree) -> None:
    """Put a tree's values into another one's tensors, where they are not there already."""
    values = leaves(tree)
    for path, one in leaves(to).items():
        other = values[path]
        if one.data_ptr() != other.data_ptr() or one.stride() != other.stride():
            one.copy_(other)


def apart(tree: Tree, seen: set[int] | None = None) -> Tree:
    """The tree with copies of those tensors that share memory with others, so that each can be changed for itself."""
    seen = set() if seen is None else seen
    found: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found[name] = apart(value, seen)
        else:
            home = value.untyped_storage().data_ptr()
            found[name] = value.clone() if home in seen else value
            seen.add(home)
    return found
