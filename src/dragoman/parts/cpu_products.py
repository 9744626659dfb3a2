"""Matrix products of training in float32 on a CPU, by the faster of two libraries that torch contains.

torch multiplies by its BLAS library, which on some processors does not use all instructions: oneDNN's products are then
more than twice as fast, once they are compiled for a shape. Small products, whose shapes differ from batch to batch,
stay with BLAS. Which library is faster is measured once per machine; both compute the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import has_torch_function

from dragoman.parts.kernel_choice import fastest, kernel_choices

#: multiplications of a product; oneDNN compiles a kernel for each new shape, which takes up to a millisecond
MIN_MULTIPLICATIONS = 1 << 29
MEASURED_ROWS, MEASURED_WIDTH = 1024, 256  # of the product by which the libraries are compared
MIN_GAIN = 0.2  # share by which oneDNN must be faster, so that all processes of a machine find the same


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, N I times I O → N O, without gradients: for backward passes, and functions that have their own.

    Tensors with more dimensions are multiplied by torch, as stacks of matrices.
    """
    is_large = a.dim() == b.dim() == 2 and a.numel() * b.shape[1] >= MIN_MULTIPLICATIONS
    return _onednn_product(a, b.mT, None) if is_large and _uses_onednn(a, b) else a @ b


def use_fastest_products(model: nn.Module) -> None:
    """Let the linear layers of a model on a CPU compute their products by the faster library, in training as well."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.device.type == "cpu" and onednn_is_faster():
            module.__class__ = FastLinear


class FastLinear(nn.Linear):
    """A linear layer whose three products, of the output and of both gradients, are oneDNN's."""

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b: … I → … O."""
        is_large = x.numel() * self.out_features >= MIN_MULTIPLICATIONS
        # a mode of torch functions, such as that of deferred gradients, computes the products itself
        if not is_large or has_torch_function((x,)) or not _uses_onednn(x, self.weight):
            return F.linear(x, self.weight, self.bias)
        return _LinearFunction.apply(x, self.weight, self.bias)


class _LinearFunction(torch.autograd.Function):
    """x Wᵀ + b with the gradients g W, gᵀ x and Σ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x Wᵀ + b: x (… I), weight W (O I), bias b (O) → … O."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _onednn_product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W and b from that of the output, g (… O)."""
        (x, weight), g = ctx.saved_tensors, grad_output.flatten(0, -2)  # N O
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = product(g, weight).view(x.shape) if needs_x else None
        grad_weight = product(g.mT, x.flatten(0, -2)) if needs_weight else None
        return grad_x, grad_weight, g.sum(0) if ctx.has_bias and needs_bias else None


def _uses_onednn(*tensors: Tensor) -> bool:
    """Whether to multiply tensors by oneDNN: in float32 on a CPU, not in a compiled graph, and if it is faster."""
    if any(one.dtype != torch.float32 or one.device.type != "cpu" or not one.numel() for one in tensors):
        return False
    return not (torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")) and onednn_is_faster()


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b by oneDNN: x (… I), weight (O I) in any layout, bias (O) → … O."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")  # no activation after it


def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies clearly faster on this machine than the BLAS library of torch."""
    return _measure(torch.get_num_threads())


@cache
def _measure(threads: int) -> bool:
    """Compare the libraries, with the present number of threads, unless the choice of this machine is stored."""
    x, weight = torch.ones(MEASURED_ROWS, MEASURED_WIDTH), torch.ones(MEASURED_WIDTH, MEASURED_WIDTH)
    candidates: dict[str, Callable[[Tensor], Tensor]] = {
        "blas": lambda x: x @ weight.mT,
        "onednn": lambda x: _onednn_product(x, weight, None),
    }
    choices, key = kernel_choices(), "products in training"
    name = choices.find(key)
    if name not in candidates:
        try:
            with torch.no_grad():
                name = choices.add(key, fastest(candidates, x, margin=MIN_GAIN))
        except (AttributeError, RuntimeError):  # this torch does not have the private operator, or its library
            name = "blas"
    return name == "onednn"
