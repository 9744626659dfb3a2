"""Linear layers for inference on a CPU, with weights packed once for the matrix-product kernels, in float32 or int8.

torch's plain product reorders the weights in every call, which for the few rows of a decoding step can take as long as
the product itself. Which kernel is fastest is measured (`kernel_choice.py`). Packed weights have no gradients.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.parts import cpu_kernels
from dragoman.parts.kernel_choice import TIME_TOLERANCE, Product, fastest, kernel_choices

Pack = Callable[[Tensor, Tensor | None], Product]  # weight, bias → product

PACKED_ROWS = 160  # rows of x that MKL packs the weights for; any other number works as well
FLOAT32_MARGIN = (
    0.25  # share by which float32 must be faster than int8: its weights take the place of others in the caches
)
MAX_MEASURED_WEIGHTS = 1 << 24  # of a matrix; 64 MiB in float32 are more than most caches, and quickly packed
MAX_ROW_CLASS = 9  # classes of row counts: 1, 2–3, 4–7, … and from 256 on


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    """Return the function x → x Wᵀ + b by torch's own product, without packing the weights."""
    return lambda x: F.linear(x, weight, bias)


def _transposed(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b by torch's own product with a copy of Wᵀ, in which the weights of one input are adjacent."""
    (outputs, inputs), transposed = weight.shape, weight.t().contiguous()  # W is outputs × inputs

    def product(x: Tensor) -> Tensor:
        """x Wᵀ + b: … inputs → … outputs."""
        rows = x.reshape(x.numel() // inputs, inputs)
        y = torch.mm(rows, transposed) if bias is None else torch.addmm(bias, rows, transposed)
        return y.view(*x.shape[:-1], outputs)

    return product


def _mkl(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b with W packed by MKL; PACKED_ROWS is the number of rows of x that it is packed for."""
    packed, multiply = torch.ops.mkl._mkl_reorder_linear_weight(weight, PACKED_ROWS), torch.ops.mkl._mkl_linear.default
    width = weight.shape[1]  # of x
    return lambda x: multiply(x, packed, weight, bias, x.numel() // width)  # the last argument is the number of rows


def _onednn(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b with W packed by oneDNN, without an activation after it ("none")."""
    packed, multiply = torch.ops.mkldnn._reorder_linear_weight(weight), torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")  # activation, its scalars and its algorithm


def _compiled(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b by the kernels that are compiled on this machine, which are for few rows."""
    functions = cpu_kernels.library()
    if functions is None or not cpu_kernels.can_read(weight, *(() if bias is None else (bias,))):
        raise RuntimeError("there are no compiled kernels")  # as torch does where it has no kernel
    packed, (outputs, inputs) = cpu_kernels.pack_weight(functions, weight), weight.shape
    struct = ctypes.byref(cpu_kernels.linear_struct(packed, bias, outputs))

    def product(x: Tensor) -> Tensor:
        """x Wᵀ + b: … inputs → … outputs."""
        x = x.contiguous()
        if torch.compiler.is_compiling() or not cpu_kernels.can_read(x):
            return F.linear(x, weight, bias)
        y = x.new_empty((*x.shape[:-1], outputs))
        functions.linear_step(struct, x.data_ptr(), y.data_ptr(), x.numel() // inputs, torch.get_num_threads())
        return y

    product.tensors = (packed, bias)  # type: ignore[attr-defined]  # which the struct points into
    return product


def _int8(weight: Tensor, bias: Tensor | None, engine: str) -> Product:
    """Return x → x Wᵀ + b with W quantized to int8, q_w, and x to q_x in every call, by a library of torch (`engine`).

    y = s_x s_w (q_x − z_x) q_wᵀ + b, with a scale s_w per row of W, and dynamic scale s_x and zero point z_x. All
    activations of a call share one scale, so that a row can depend, within rounding, on the others. The activations
    inside a feed-forward layer vary in size from row to row: if W has more columns than rows, each row of x is first
    divided by its maximum.
    """
    rows, columns = weight.shape
    inner_bias = bias if columns <= rows else None  # added by the product, unless its result is rescaled afterwards
    with _quantized_engine(engine), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")  # deprecated in torch
        scale = weight.abs().amax(1).clamp(min=1e-8).double() / 127  # row maxima become 127
        zero_point = torch.zeros_like(scale, dtype=torch.long)
        quantized = torch.quantize_per_channel(weight, scale, zero_point, 0, torch.qint8)  # axis 0: rows
        packed = torch.ops.quantized.linear_prepack(quantized, inner_bias)
    # reduce_range: 7 bits for x, where sums of products of 8 bits could overflow
    multiply, reduce_range = torch.ops.quantized.linear_dynamic.default, not _has_vnni()
    if columns <= rows:
        return lambda x: multiply(x, packed, reduce_range)

    def product(x: Tensor) -> Tensor:
        """x Wᵀ + b, each row of x being divided by its largest absolute value and multiplied again afterwards."""
        if x.numel() == columns:  # a single row needs no scale of its own
            y = multiply(x, packed, reduce_range)
            return y if bias is None else y.add_(bias)
        size = x.abs().amax(-1, keepdim=True).clamp_(min=1e-8)
        y = multiply(x / size, packed, reduce_range)
        return y.mul_(size) if bias is None else torch.addcmul(bias, y, size)

    return product


def _has_vnni() -> bool:
    """Whether the CPU has VNNI instructions, whose int8 products cannot overflow; without, activations use 7 bits."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())  # a private function of torch


@contextmanager
def _quantized_engine(name: str) -> Iterator[None]:
    """Select torch's int8 library while the context is open; RuntimeError if this torch is without it."""
    current = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = current


def _int8_engines() -> list[str]:
    """Return torch's int8 libraries for this processor; QNNPACK, which is less precise, only if there is no other.

    Torch lists them with "none" for no library.
    """
    supported = torch.backends.quantized.supported_engines
    return [name for name in ("x86", "onednn") if name in supported] or [name for name in supported if name != "none"]


_FLOAT32_KERNELS: dict[str, Pack] = {
    "plain": plain,
    "transposed": _transposed,
    "mkl": _mkl,
    "onednn": _onednn,
    "compiled": _compiled,
}

#: kernels by the precision of the weights; the first of equally fast ones is used
KERNELS: dict[str, dict[str, Pack]] = {
    "float32": _FLOAT32_KERNELS,
    # quantizing the activations takes longer than a small product in float32
    "int8": {f"int8 {engine}": partial(_int8, engine=engine) for engine in _int8_engines()} | _FLOAT32_KERNELS,
}


class FastestProduct:
    """x → x Wᵀ + b by the kernel that is fastest on this machine for the shape of W and the number of rows of x.

    The kernels are compared when a number of rows occurs for the first time, unless a file says which one is fastest.
    Only weights of kernels that are used stay packed. Kernels that this machine does not have are left out; without
    any in int8, the weights are used as they are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str) -> None:
        """Compute x Wᵀ + b with W = `weight` and b = `bias`, the weights in `precision`, "float32" or "int8".

        `by_row_class` holds the product for each class of the number of rows of x: 1, 2–3, 4–7, …
        """
        self.weight, self.bias, self.precision, self.columns = weight, bias, precision, weight.shape[1]
        self.packed: dict[str, Product] = {}  # kernels in use, by name
        self.by_row_class: list[Product | None] = [None] * (MAX_ROW_CLASS + 1)  # None: not chosen yet

    def __call__(self, x: Tensor) -> Tensor:
        """x Wᵀ + b, over the last dimension of x: … inputs → … outputs.

        The kernel is chosen when a number of rows occurs for the first time; similar numbers share one choice.
        """
        num_rows = x.numel() // self.columns
        row_class = min(num_rows.bit_length(), MAX_ROW_CLASS)  # 1 row: 1, 2–3 rows: 2, 4–7 rows: 3, …
        product = self.by_row_class[row_class]
        if product is None:
            if torch.compiler.is_compiling():  # nothing can be measured in a graph
                return F.linear(x, self.weight, self.bias)
            product = self.by_row_class[row_class] = self._choose(x, row_class)
        return product(x)

    def _choose(self, x: Tensor, row_class: int) -> Product:
        """Return the product with the fastest kernel for as many rows as x has: by a stored choice, or measured with x.

        `row_class` is the class of row counts that this one belongs to: k for 2^{k−1} to 2^k − 1 rows, the last one
        also for more. A measured choice is appended to the file of `kernel_choices`, of whose choices the first one
        counts. Without any kernel, the product is torch's own.
        """
        kernels = KERNELS[self.precision]
        # outputs of a large matrix to measure with; not fewer than inputs, which int8 products treat in another way
        num_outputs = max(self.columns, MAX_MEASURED_WEIGHTS // self.columns)
        weight, bias = self.weight[:num_outputs], None if self.bias is None else self.bias[:num_outputs]
        shape = f"{self.precision} {'×'.join(map(str, self.weight.shape))} {row_class} {self.bias is not None}"
        choices = kernel_choices()
        name = choices.find(shape)
        if name not in kernels:  # None: not measured yet; a kernel of another version of this program is measured again
            products = {name: try_to_pack(kernel, weight, bias) for name, kernel in kernels.items()}
            packed = {name: product for name, product in products.items() if product is not None}
            if not packed:
                return plain(self.weight, self.bias)
            # int8 kernels come first: float32 ones must be clearly faster, because their weights fill more of the
            # caches
            margin = FLOAT32_MARGIN if self.precision == "int8" else TIME_TOLERANCE
            measured = fastest(packed, x, margin=margin)
            stored = choices.add(shape, measured)
            name = stored if stored in kernels else measured
        if name not in self.packed:  # another class of row counts may have the same kernel
            product = try_to_pack(kernels[name], self.weight, self.bias)
            self.packed[name] = product or plain(self.weight, self.bias)
        return self.packed[name]


def try_to_pack(kernel: Pack, weight: Tensor, bias: Tensor | None) -> Product | None:
    """Pack the weights for a kernel; None if this machine does not have it."""
    try:
        return kernel(weight, bias)
    except (AttributeError, RuntimeError):  # this torch does not have the private operator, or its library
        return None


def pack(weight: Tensor, bias: Tensor | None, precision: str) -> Product:
    """Return x → x Wᵀ + b with W packed for a CPU in `precision`, "float32" or "int8".

    Weights on a GPU or of another dtype than float32 are used as they are.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    supported = weight.device.type == "cpu" and weight.dtype == torch.float32
    return FastestProduct(weight, bias, precision) if supported else plain(weight, bias)
