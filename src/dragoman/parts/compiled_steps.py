"""Decoding steps of whole layers by one compiled function: attention and feed-forward networks, with their residuals.

A step describes a layer for the compiled kernels (`cpu_kernels.py`), with its weights packed for them. Layers that the
kernels do not know have none. Whether it is faster than the modules of the layer is measured, since for many rows the
libraries' matrix products are.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from dragoman.parts import cpu_kernels
from dragoman.parts.cpu_kernels import LAYER_NORM, NO_NORM, RMS_NORM, can_read, check, linear_struct, pack_weight
from dragoman.parts.kernel_choice import fastest, kernel_choices
from dragoman.parts.mixer import Context, State
from dragoman.parts.norm import Identity, LayerNormModule, RMSNormModule

MAX_ROWS = 1023  # of a whole layer; the matrix products of more rows are left to libraries
MAX_WEIGHTS = 1 << 22  # of a whole layer; starting the operations of larger layers takes little of their time
MODULES, ONE_THREAD, ALL_THREADS = range(3)  # the fastest way to compute a layer

Arguments = tuple[int | None, ...]


class Layer(Protocol):
    """A layer that compiled functions can compute."""

    def step_fields(self) -> dict[str, float | None]:
        """Return sizes and other numbers that describe the layer, and pointers."""

    def step_arguments(self, rows: int, context: Context, state: State) -> Arguments | None:
        """Return the arguments between the number of rows and that of threads; None if this call has to use modules."""


class CompiledStep:
    """after(x + layer(before(x))) for one token per row, by a function of the compiled kernels."""

    def __init__(
        self, functions: ctypes.CDLL, name: str, struct: ctypes.Structure, layer: Layer, tensors: list[Tensor]
    ) -> None:
        """Call the function `name` of the kernels with `struct`, which describes `layer` and points into `tensors`."""
        self.function, self.struct, self.layer, self.tensors = getattr(functions, name), struct, layer, tensors
        #: by class of row counts, 1, 2–3, 4–7, …: the fastest way; None: not chosen yet
        self.choices: list[int | None] = [None] * (MAX_ROWS.bit_length() + 1)

    @classmethod
    def create(
        cls, name: str, layer: Layer, norms: Mapping[str, nn.Module], products: Mapping[str, Any]
    ) -> Self | None:
        """Return the step of a layer by the function `name`, with its norms and linear layers by their names in C.

        None if there are no compiled kernels, if they cannot compute the layer, or if it is large.
        """
        functions, tensors = cpu_kernels.library(), list[Tensor]()
        # layers without projections have other modules in place of linear layers
        is_float32 = all(getattr(product, "precision", None) == "float32" for product in products.values())
        if functions is None or not is_float32:
            return None
        if sum(product.weight.numel() for product in products.values()) > MAX_WEIGHTS:
            return None
        struct = cpu_kernels.STRUCTURES[name](**layer.step_fields())
        if not (_describe_norms(struct, norms, tensors) and _describe_products(struct, products, functions, tensors)):
            return None
        return cls(functions, name, struct, layer, tensors)

    def __call__(self, x: Tensor, context: Context, state: State, modules: Callable[[], Tensor]) -> Tensor | None:
        """Return the output for x, R 1 D; None if the modules of the layer are faster, or only they can compute it.

        `modules` computes the output by the modules; it is called only to measure how long that takes.
        """
        rows = x.shape[0]
        choice = self.choices[rows.bit_length()] if 0 < rows <= MAX_ROWS else MODULES
        if choice == MODULES or context.recorder is not None or not can_read(x):
            return None
        arguments = self.layer.step_arguments(rows, context, state)
        if arguments is None:
            return None
        if choice is None:
            choice = self.choices[rows.bit_length()] = self._choose(x, arguments, modules)
        return None if choice == MODULES else self.run(x, arguments, all_threads=choice == ALL_THREADS)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the layer has weights of its own, into which this step does not point."""

    def run(self, x: Tensor, arguments: Arguments, all_threads: bool) -> Tensor:
        """Return the output for x, R 1 D, computed by one or all threads; `arguments` are those of the layer."""
        y, threads = torch.empty_like(x), torch.get_num_threads() if all_threads else 1
        check(self.function(self.struct, x.data_ptr(), y.data_ptr(), x.shape[0], *arguments, threads))
        return y

    def _choose(self, x: Tensor, arguments: Arguments, modules: Callable[[], Tensor]) -> int:
        """Measure which way of computing the layer is fastest for this number of rows, and return it.

        All ways write the same keys and values into the caches, so that the step can be repeated.
        """
        candidates: dict[str, Callable[[Tensor], Tensor]] = {
            str(ALL_THREADS): lambda x: self.run(x, arguments, all_threads=True),
            str(ONE_THREAD): lambda x: self.run(x, arguments, all_threads=False),
            str(MODULES): lambda x: modules(),
        }
        fields = {name: value for name, value in self.layer.step_fields().items() if name != "rotations"}
        sizes = " ".join("×".join(map(str, tensor.shape)) for tensor in self.tensors)
        key = f"{self.function.__name__} {sizes} {fields} {len(x).bit_length()}"
        choices = kernel_choices()
        name = choices.find(key)
        if name not in candidates:
            name = choices.add(key, fastest(candidates, x))
        return int(name) if name in candidates else MODULES  # another process may have written an unknown name


class CompiledHeads:
    """The heads of an attention layer, between its matrix products, for one token per row and any number of rows."""

    def __init__(self, functions: ctypes.CDLL, name: str, struct: ctypes.Structure, layer: Layer, width: int) -> None:
        """Call the function `name` of the kernels with `struct`, which describes `layer`.

        `width` is that of the outputs of all heads.
        """
        self.function, self.struct, self.layer, self.width = getattr(functions, name), struct, layer, width

    @classmethod
    def create(cls, name: str, layer: Any) -> Self | None:
        """Return the heads of a layer; None if there are no compiled kernels, or if they do not know the layer."""
        functions = cpu_kernels.library()
        if functions is None:
            return None
        struct, weights = cpu_kernels.AttentionStruct(**layer.step_fields()), list[Tensor]()
        if not _describe_norms(struct, head_norms(layer), weights):  # the layer keeps these weights
            return None
        return cls(functions, name, struct, layer, layer.heads * layer.value_width)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copy of the layer has weights of its own, into which this description does not point."""

    def __call__(self, projected: Tensor, context: Context, state: State | None) -> Tensor | None:
        """Return the outputs of all heads side by side, R 1 H·E; None if the kernel cannot compute this call.

        `projected` (R 1 …) is what the layer projects its input to: queries, and in self-attention keys and values. It
        is changed in place.
        """
        rows = projected.shape[0]
        if not rows or not can_read(projected):
            return None
        arguments = self.layer.step_arguments(rows, context, state or {})
        if arguments is None:
            return None
        y = projected.new_empty(rows, 1, self.width)
        check(self.function(self.struct, projected.data_ptr(), y.data_ptr(), rows, *arguments, torch.get_num_threads()))
        return y


def attention_fields(layer: Any, rotations: Tensor | None) -> dict[str, float | None]:
    """Return what describes an attention layer for the kernels; `rotations` is a table of sines and cosines."""
    sizes = {name: getattr(layer, name) for name in ("heads", "kv_heads", "width", "value_width")}
    pointer = None if rotations is None else rotations.data_ptr()
    return {**sizes, "scale": layer.scale or 1 / math.sqrt(layer.width), "rotations": pointer}


def head_norms(layer: Any) -> dict[str, nn.Module]:
    """Return the norms of queries and keys of an attention layer."""
    return {"query_norm": layer.query_norm, "key_norm": layer.key_norm}


def _describe_norms(struct: ctypes.Structure, norms: Mapping[str, nn.Module], tensors: list[Tensor]) -> bool:
    """Set the norms of `struct`, and append their weights to `tensors`; False if the kernels do not know one."""
    kinds = {Identity: NO_NORM, LayerNormModule: LAYER_NORM, RMSNormModule: RMS_NORM}
    for name, norm in norms.items():
        kind = next((number for module, number in kinds.items() if isinstance(norm, module)), None)
        weights = [getattr(norm, attribute, None) for attribute in ("weight", "bias")]
        found = [weight for weight in weights if weight is not None]
        if kind is None or not can_read(*found):
            return False
        tensors += found
        pointers = [None if weight is None else weight.data_ptr() for weight in weights]
        setattr(struct, name, cpu_kernels.NormStruct(kind, *pointers, getattr(norm, "eps", None) or 0.0))
    return True


def _describe_products(
    struct: ctypes.Structure, products: Mapping[str, Any], functions: ctypes.CDLL, tensors: list[Tensor]
) -> bool:
    """Set the linear layers of `struct`, and append packed weights and biases to `tensors`; False if not float32."""
    for name, layer in products.items():
        biases = [] if layer.bias is None else [layer.bias]
        if not can_read(layer.weight, *biases):
            return False
        packed = pack_weight(functions, layer.weight)
        tensors += [packed, *biases]
        setattr(struct, name, linear_struct(packed, layer.bias, len(layer.weight)))
    return True
