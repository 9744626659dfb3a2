"""Linear layers for inference on a CPU, with weights packed once for the matrix-product kernels, in float32 or int8.

torch's plain product reorders the weights in every call, which for the few rows of a decoding step takes as long as the
product itself. Packed weights have no gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # x → x Wᵀ + b, over the last dimension
Pack = Callable[[Tensor, Tensor | None], Product]

PACKED_ROWS = 160  # rows of x that MKL packs the weights for; any other number works as well
MIN_PACKED_ROWS = 4  # with fewer rows of x, the plain product is faster
VOCABULARY_ROWS = 8_000  # a weight with more rows is treated as an output layer


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    """Return the function x → x Wᵀ + b by torch's own product, with weights as they are."""
    return lambda x: F.linear(x, weight, bias)


def packed_float32(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b with W packed by MKL, or by oneDNN, which is slower for few rows; plain without both."""
    try:
        if torch.backends.mkl.is_available():
            return _mkl(weight, bias)
        if torch.backends.mkldnn.is_available():
            return _onednn(weight, bias)
    except (AttributeError, RuntimeError):  # these private operators may disappear
        pass
    return plain(weight, bias)


def _mkl(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b with W packed by MKL; x of few rows uses W unpacked, except for an output layer."""
    packed, multiply = torch.ops.mkl._mkl_reorder_linear_weight(weight, PACKED_ROWS), torch.ops.mkl._mkl_linear.default
    width, min_rows = weight.shape[1], 0 if weight.shape[0] >= VOCABULARY_ROWS else MIN_PACKED_ROWS

    def product(x: Tensor) -> Tensor:
        """x Wᵀ + b, over the last dimension of x."""
        rows = x.numel() // width
        return F.linear(x, weight, bias) if rows < min_rows else multiply(x, packed, weight, bias, rows)

    return product


def _onednn(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b with W packed by oneDNN, without an activation after it ("none")."""
    packed, multiply = torch.ops.mkldnn._reorder_linear_weight(weight), torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")  # activation, its scalars and its algorithm


def packed_int8(weight: Tensor, bias: Tensor | None) -> Product:
    """Return x → x Wᵀ + b with W quantized to int8, q_w, and x to q_x in every call.

    y = s_x s_w (q_x − z_x) q_wᵀ + b, with a scale s_w per row of W, and dynamic scale s_x and zero point z_x. All
    activations of a call share one scale, so that a row can depend, within rounding, on the others. The activations
    inside a feed-forward layer vary in size from row to row: if W has more columns than rows, each row of x is first
    divided by its maximum. Falls back to float32 if torch has no int8 kernels.
    """
    rows, columns = weight.shape
    inner_bias = bias if columns <= rows else None
    try:
        with _quantized_engine(weight), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions")  # deprecated in torch
            scale = weight.abs().amax(1).clamp(min=1e-8).double() / 127
            zero_point = torch.zeros_like(scale, dtype=torch.long)
            quantized = torch.quantize_per_channel(weight, scale, zero_point, 0, torch.qint8)  # axis 0: rows
            packed = torch.ops.quantized.linear_prepack(quantized, inner_bias)
    except (AttributeError, RuntimeError):
        return packed_float32(weight, bias)
    multiply, reduce_range = torch.ops.quantized.linear_dynamic.default, not _has_vnni()
    if columns <= rows:
        return lambda x: multiply(x, packed, reduce_range)

    def product(x: Tensor) -> Tensor:
        """x Wᵀ + b, each row of x being divided by its largest absolute value and multiplied again afterwards."""
        size = x.abs().amax(-1, keepdim=True).clamp_(min=1e-8)
        y = multiply(x / size, packed, reduce_range)
        return y.mul_(size) if bias is None else torch.addcmul(bias, y, size)

    return product


def _has_vnni() -> bool:
    """Whether the CPU has VNNI instructions: int8 products cannot overflow; otherwise activations use 7 bits."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", lambda: False)())


@contextmanager
def _quantized_engine(weight: Tensor) -> Iterator[None]:
    """Select torch's int8 library while the context is open: oneDNN for output layers, otherwise FBGEMM ("x86").

    oneDNN is faster for weights with as many rows as a vocabulary.
    """
    current, supported = torch.backends.quantized.engine, torch.backends.quantized.supported_engines
    preferred = ("onednn", "x86") if weight.shape[0] >= VOCABULARY_ROWS else ("x86", "onednn")
    torch.backends.quantized.engine = next((name for name in (*preferred, "qnnpack") if name in supported), current)
    try:
        yield
    finally:
        torch.backends.quantized.engine = current


#: how the weights of a model are packed, by precision
PACKS: dict[str, Pack] = {"float32": packed_float32, "int8": packed_int8}


def pack(weight: Tensor, bias: Tensor | None, precision: str) -> Product:
    """Return x → x Wᵀ + b with W packed for a CPU in `precision`, "float32" or "int8".

    Weights on a GPU or of another dtype than float32 are used as they are.
    """
    supported = weight.device.type == "cpu" and weight.dtype == torch.float32
    return (PACKS[precision] if supported else plain)(weight.detach(), None if bias is None else bias.detach())
