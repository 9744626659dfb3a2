"""Functions from trees of tensors to trees of tensors, captured as CUDA graphs for each shape of their input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.cuda_graphs import CapturedGraph, CudaGraphCache
from dragoman.search.search_state import Tree, map_tensors, tensor_leaves, tree_leaves

MAX_CAPTURED_SHAPES = 16  # of the input, for which graphs and their tensors are stored


@dataclass
class StaticTensors:
    """The trees that a captured function reads and writes."""

    inputs: Any
    outputs: Any = None
    alias: Any = None  # another tree of the same tensors as `inputs`


class GraphedFunction:
    """A function of a tree and of integers, captured when a shape of the tree comes up for the third time.

    For one shape the result consists always of the same tensors, with new values. If `in_place`, these are the tensors
    of the input, so that the next call finds its input in place.
    """

    def __init__(self, function: Callable[..., Any], in_place: bool) -> None:
        """Wrap `function`, which maps a tree of tensors (nested dataclass, dict or list) to another one.

        `in_place`: the results are written into the tensors of the input tree, which is returned; False: into tensors
        of their own.
        """
        self.function, self.in_place = function, in_place
        self.cache: CudaGraphCache[StaticTensors] | None = None  # captured graphs by shape, created by the first call

    def __call__(self, tree: Any, *numbers: int) -> Any:
        """Return `function(tree, *numbers)`, by a replay if a CUDA graph was captured for these shapes and numbers.

        `tree` is a nested dataclass, dict or list of tensors; `numbers` are sizes, such as the length of a cache. A
        graph reads and writes fixed (static) tensors: the tensors of `tree` are copied into them, unless they are the
        same. In that case `tree` is remembered as `alias`, so that its tensors need not be compared again.
        """
        if self.cache is None:
            self.cache = CudaGraphCache(tensor_leaves(tree)[0].device, MAX_CAPTURED_SHAPES)
        captured = self._lookup(self.cache, tree, numbers)
        static = captured.static
        if tree is not static.inputs and tree is not static.alias and not copy_tensors(static.inputs, tree):
            static.alias = tree

        def run_on_static_tensors() -> None:
            """Run the function on the static tensors; this is what is captured."""
            outputs = self.function(static.inputs, *numbers)
            if static.outputs is None:  # the first run for these shapes
                static.outputs = unshare_tensors(outputs)
            else:
                copy_tensors(static.outputs, outputs)

        self.cache.run(captured, run_on_static_tensors)
        return static.outputs

    def _lookup(
        self, cache: CudaGraphCache[StaticTensors], tree: Any, numbers: tuple[int, ...]
    ) -> CapturedGraph[StaticTensors]:
        """Return the graph, perhaps not captured yet, for `numbers` and the shapes and dtypes of the tree's tensors.

        `numbers` are further arguments of the captured function. The static tensors, which the graph will read and
        write, are created if the shapes are new: copies of those in `tree`, or themselves if the function writes its
        results into its input (`in_place`).
        """
        # the last result, as the next input, is recognized as an object, without computing a key from its shapes; with
        # `numbers`, which may differ for the same object, the key is needed
        for captured in cache.entries.values():
            if not numbers and (captured.static.inputs is tree or captured.static.alias is tree):
                return captured
        leaves = ((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(tree))

        def create() -> StaticTensors:
            """Create the static tensors of a new shape; the outputs are the inputs if `in_place`, or else set later."""
            inputs = unshare_tensors(tree, clone_all=not self.in_place)
            return StaticTensors(inputs, outputs=inputs if self.in_place else None)

        return cache.lookup((numbers, *leaves), create)


def copy_tensors(destination: Any, source: Any) -> int:
    """Copy the tensors of the tree `source` into those of `destination`, except where both are the same memory.

    A tree is a nested dataclass, dict or list. Returns how many tensors were copied.
    """
    pairs = zip(tensor_leaves(destination), tensor_leaves(source))
    different = [
        (to, values) for to, values in pairs if to.data_ptr() != values.data_ptr() or to.stride() != values.stride()
    ]
    for dtype in {to.dtype for to, _ in different}:  # one kernel for all tensors of a dtype
        group = [pair for pair in different if pair[0].dtype == dtype]
        torch._foreach_copy_([to for to, _ in group], [values for _, values in group])
    return len(different)


def unshare_tensors(tree: Tree, clone_all: bool = False) -> Tree:
    """Return a tree (nested dataclass, dict or list) in which no two tensors share memory.

    A tensor that shares the memory of an earlier one is cloned; with `clone_all`, every tensor is.
    """
    seen: set[int] = set()  # addresses of storages

    def unshared(leaf: Tensor) -> Tensor:
        """Return the tensor, or a copy if an earlier one shares its memory or all are to be cloned."""
        storage = leaf.untyped_storage().data_ptr()
        needs_clone = storage in seen or clone_all
        seen.add(storage)
        return leaf.clone() if needs_clone else leaf

    return map_tensors(unshared, tree)
