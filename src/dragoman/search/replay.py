"""Steps of a search on a GPU: recorded as CUDA graphs, so that one launch does what hundreds did."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dragoman.search.slots import Tree

Work = Callable[..., tuple[Tree, Any]]

MOST = 16  # shapes that are kept, those that were used last
PATIENCE = 4  # times that a shape is looked at before it is given up


class Replay:
    """A function from a tree of tensors, and numbers that belong to its shape, to a tree and something that follows
    from the shapes alone; recorded when a shape of the tree comes up for the third time.

    The first time everything is made that is made only once (kernels, workspaces), the second shows whether something
    waits for the device, which cannot be recorded: after a few times that is done as it is. For one shape what comes
    back are always the same tensors, with new values in them; `again`: they are those that went in, so that the next
    step finds them in place. On a CPU there is nothing to record.
    """

    def __init__(self, function: Work, again: bool) -> None:
        self.function, self.again = function, again
        self.shapes: dict[Any, Recording] = {}
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None

    def __call__(self, tree: Tree, *numbers: int) -> tuple[Tree, Any]:
        known = self._known(tree, numbers)
        if tree is not known.tree and tree is not known.same and not copy(known.tree, tree):
            known.same = tree
        work = partial(self._work, known, numbers)
        if known.graph is not None:
            known.graph.replay()
        elif next(iter(leaves(known.tree).values())).is_cuda:
            self._on_device(known, work)
        else:
            work()
        assert known.found is not None
        return known.found, known.told

    def _known(self, tree: Tree, numbers: tuple[int, ...]) -> Recording:
        for one in self.shapes.values():  # those that are given back again and again are known at sight
            if (one.tree is tree or one.same is tree) and one.numbers == numbers:
                return one
        key = (numbers, *((path, leaf.shape, leaf.dtype) for path, leaf in leaves(tree).items()))
        known = self.shapes.pop(key) if key in self.shapes else Recording(apart(tree, self.again), numbers)
        known.found = known.tree if self.again else known.found
        self.shapes[key] = known
        if len(self.shapes) > MOST:
            self.shapes.pop(next(iter(self.shapes)))
        return known

    def _work(self, known: Recording, numbers: tuple[int, ...]) -> None:
        found, known.told = self.function(known.tree, *numbers)
        if known.found is None:
            known.found = apart(found)
        else:
            copy(known.found, found)

    def _on_device(self, known: Recording, work: Callable[[], None]) -> None:
        """Do it, and find out how it can be done from now on."""
        if self.stream is None:
            self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        known.times += 1
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if known.waits and 1 < known.times < PATIENCE:
                known.waits = _waits(work)
            elif known.waits:
                work()
            else:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    work()
                known.graph = graph
                graph.replay()
        torch.cuda.current_stream().wait_stream(self.stream)


@dataclass
class Recording:
    """What is known of a shape."""

    tree: Tree  # that is read
    numbers: tuple[int, ...]
    same: Tree | None = None  # another tree of the same tensors
    found: Tree | None = None  # that is written
    told: Any = None
    times: int = 0  # that it came up
    waits: bool = True  # does it wait for the device, as far as is known?
    graph: torch.cuda.CUDAGraph | None = None


def _waits(work: Callable[[], None]) -> bool:
    """Do it, and find out whether it waits for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            caught.clear()  # that the mode is a prototype
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


def copy(to: Tree, tree: Tree) -> int:
    """Put a tree's values into another one's tensors, where they are not there already; how many tensors' that were."""
    values = leaves(tree)
    pairs = [(one, values[path]) for path, one in leaves(to).items()]
    moved = [(one, two) for one, two in pairs if one.data_ptr() != two.data_ptr() or one.stride() != two.stride()]
    for dtype in {one.dtype for one, _ in moved}:  # those of a kind by as few kernels as can be
        alike = [pair for pair in moved if pair[0].dtype == dtype]
        torch._foreach_copy_([one for one, _ in alike], [two for _, two in alike])
    return len(moved)


def apart(tree: Tree, ours: bool = True, seen: set[int] | None = None) -> Tree:
    """The tree with copies of those tensors that share memory with others, so that each can be changed for itself.

    Not `ours`: of all of them.
    """
    seen = set() if seen is None else seen
    found: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found[name] = apart(value, ours, seen)
        else:
            home = value.untyped_storage().data_ptr()
            found[name] = value.clone() if home in seen or not ours else value
            seen.add(home)
    return found
