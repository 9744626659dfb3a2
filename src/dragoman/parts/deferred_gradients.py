"""Weight gradients of recurrent loops, computed once for all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Use = tuple[Tensor, Tensor]  # input x and output gradient g of one product x W


def deferred_weight_gradients() -> AbstractContextManager[Any]:
    """Context manager in which ∂L/∂W = Σ_t x_tᵀ g_t of products x_t W is computed as one product over all steps.

    Autograd would compute one product per step and sum them up. All results are the same.
    """
    enabled = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return DeferredGradientMode() if enabled else nullcontext()


class DeferredGradientMode(TorchFunctionMode):
    """Replaces products with a matrix that needs a gradient by those of its `SharedMatrix`."""

    def __init__(self) -> None:
        """Start without any matrix; each is added at its first product."""
        super().__init__()
        #: by address, shape and stride of a matrix; the matrix is kept alive so that its address is not reused
        self.matrices: dict[tuple[Any, ...], tuple[Tensor, SharedMatrix]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Intercept torch functions: replace F.linear and matmul with a trained matrix, run all others as usual."""
        if kwargs or func not in (F.linear, Tensor.__matmul__, Tensor.matmul, torch.matmul):
            return func(*args, **(kwargs or {}))
        x, matrix, *bias = args
        if not matrix.requires_grad:
            return func(*args)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if func is F.linear:
            return self.shared(matrix, bias[0] if bias else None, transposed=True).linear(x)
        return self.shared(matrix, bias=None, transposed=False).multiply(x)

    def shared(self, matrix: Tensor, bias: Tensor | None, transposed: bool) -> SharedMatrix:
        """Return the `SharedMatrix` of this matrix, one for all equal views; `transposed`: products are x Wᵀ."""
        key = (matrix.data_ptr(), matrix.shape, matrix.stride(), matrix.dtype, transposed)
        if key not in self.matrices:
            self.matrices[key] = matrix, SharedMatrix(matrix, bias, transposed)
        return self.matrices[key][1]


class SharedMatrix:
    """A matrix used in many products."""

    def __init__(self, matrix: Tensor, bias: Tensor | None, transposed: bool) -> None:
        """A matrix W, and a bias, of many products x W (x Wᵀ if `transposed`), whose gradient is computed only once.

        Every product appends its x and output gradient to `uses` in the backward pass. `CollectGradient`, which returns
        the matrix unchanged, runs last there and computes the gradient from all uses.
        """
        if torch.is_autocast_enabled(matrix.device.type):
            matrix = matrix.to(torch.get_autocast_dtype(matrix.device.type))
        self.uses: list[Use] = []
        outputs = CollectGradient.apply(matrix.mT if transposed else matrix, bias, self.uses)
        self.matrix: Tensor = outputs if bias is None else outputs[0]
        self.bias: Tensor | None = None if bias is None else outputs[1]
        on_cpu = matrix.device.type == "cpu"  # where products with a contiguous matrix are faster
        self.contiguous = self.matrix.detach().contiguous() if on_cpu and transposed else self.matrix.detach()

    def multiply(self, x: Tensor) -> Tensor:
        """x W + b, N inputs → N outputs; the backward pass adds x and the output gradient to `uses`."""
        return DeferredProduct.apply(x, self.matrix, self.contiguous, self.bias, self.uses)

    def linear(self, x: Tensor) -> Tensor:
        """x W + b for x of any rank, … inputs → … outputs; `multiply` needs a matrix."""
        return self.multiply(x.flatten(0, -2)).unflatten(0, x.shape[:-1]) if x.dim() != 2 else self.multiply(x)


class CollectGradient(torch.autograd.Function):
    """Identity of a matrix and its bias; the backward pass computes the gradients of all uses."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, bias: Tensor | None, uses: list[Use]) -> Any:
        """Return the matrix and, if there is one, the bias unchanged, as views.

        `uses` is filled in the backward pass, with (x, output gradient) of every product with the matrix.
        """
        ctx.uses, ctx.bias = uses, bias
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix) if bias is None else (matrix.view_as(matrix), bias.view_as(bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        """Compute the gradients of matrix, xᵀ g, and bias, Σ g, over all recorded products.

        `ctx.uses` holds their inputs x and output gradients g; `gradients` are not set.
        """
        if not ctx.uses:
            return None, None, None
        x, g = (torch.cat(steps, -2) for steps in zip(*ctx.uses))
        ctx.uses.clear()
        grad_bias = None if ctx.bias is None else g.sum(0, dtype=ctx.bias.dtype)
        return x.mT @ g, grad_bias, None  # no gradient of `uses`


class DeferredProduct(torch.autograd.Function):
    """x W + b, whose backward pass records x and the output gradient instead of computing the weight gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: Tensor, contiguous: Tensor, bias: Tensor | None, uses: list[Use]
    ) -> Tensor:
        """x W + b: x (N I), matrix W (I O); `contiguous` is a copy of W, which is faster.

        `uses` collects (x, output gradient) of all products with W in the backward pass.
        """
        ctx.save_for_backward(x, matrix)
        ctx.uses = uses
        return x @ contiguous if bias is None else torch.addmm(bias.to(x.dtype), x, contiguous)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        """Append (x, output gradient g) to `uses` instead of computing the gradient of W; return that of x, g Wᵀ."""
        x, matrix = ctx.saved_tensors
        ctx.uses.append((x, g))
        return g @ matrix.mT if ctx.needs_input_grad[0] else None, None, None, None, None
