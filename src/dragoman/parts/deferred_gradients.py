"""Weight gradients of recurrent loops, computed once for all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dragoman.parts.cpu_products import product


class StepProduct(NamedTuple):
    """What the weight gradient xᵀ g of one product y = x W is computed from."""

    x: Tensor  # N I
    grad_output: Tensor  # N O: g = ∂L/∂y


def deferred_weight_gradients() -> AbstractContextManager[Any]:
    """Context manager for the loop over the steps of an RNN, in which the gradient of each weight W is computed once.

    The gradient of products x_t W is Σ_t x_tᵀ g_t, g_t being the gradients of the outputs. Autograd would compute one
    product x_tᵀ g_t per step and add them up; here it is one product of the concatenated x_t and g_t. Without gradients
    and in compiled graphs, it does nothing.
    """
    enabled = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return DeferredGradientMode() if enabled else nullcontext()


class DeferredGradientMode(TorchFunctionMode):
    """While active, computes products with a trained matrix by its `SharedMatrix`, which defers the weight gradient."""

    def __init__(self) -> None:
        """Start without any matrix; each is added at its first product within the context."""
        super().__init__()
        #: by address, shape and stride of a matrix; the matrix is kept alive so that its address is not reused
        self.shared_matrices: dict[tuple[Any, ...], tuple[Tensor, SharedMatrix]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function as usual, but let products with a trained matrix W defer the gradient of W.

        These are F.linear and matmul in the steps of an RNN. Autograd would compute one gradient of W per step; the
        `SharedMatrix` of W, which all steps use, computes their sum as one product after the backward pass of all.
        """
        # such products have positional arguments only
        if kwargs or func not in (F.linear, Tensor.__matmul__, Tensor.matmul, torch.matmul):
            return func(*args, **(kwargs or {}))
        x, matrix, *bias = args
        if not matrix.requires_grad:
            return func(*args)
        if torch.is_autocast_enabled(x.device.type):  # convert x as autocast does
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if func is F.linear:
            return self.shared_matrix(matrix, bias[0] if bias else None, transposed=True).linear(x)
        return self.shared_matrix(matrix, bias=None, transposed=False).multiply(x)

    def shared_matrix(self, matrix: Tensor, bias: Tensor | None, transposed: bool) -> SharedMatrix:
        """Return the `SharedMatrix` for products x W + b, or x Wᵀ + b if `transposed`, with this matrix W and bias b.

        It collects what the gradients of W and b are computed from. The first product creates it; later ones, whose
        matrix is the same part of memory (perhaps another view of it), use it again.
        """
        key = (matrix.data_ptr(), matrix.shape, matrix.stride(), matrix.dtype, transposed)
        if key not in self.shared_matrices:
            self.shared_matrices[key] = matrix, SharedMatrix(matrix, bias, transposed)
        return self.shared_matrices[key][1]


class SharedMatrix:
    """A matrix W used in many products x W + b, whose weight gradient is computed once, after all backward steps."""

    def __init__(self, matrix: Tensor, bias: Tensor | None, transposed: bool) -> None:
        """Prepare products with W = `matrix`, or its transpose if `transposed`, and the bias b.

        In the backward pass, every product (`DeferredProduct`) appends its x and output gradient to `products`. Then
        autograd reaches `CollectGradient`, through which all products got the matrix: it computes the gradient of W.
        """
        if torch.is_autocast_enabled(matrix.device.type):
            matrix = matrix.to(torch.get_autocast_dtype(matrix.device.type))
        self.products: list[StepProduct] = []
        outputs = CollectGradient.apply(matrix.mT if transposed else matrix, bias, self.products)
        self.matrix: Tensor = outputs if bias is None else outputs[0]
        self.bias: Tensor | None = None if bias is None else outputs[1]
        on_cpu = matrix.device.type == "cpu"  # where products with a contiguous matrix are faster
        self.contiguous = self.matrix.detach().contiguous() if on_cpu and transposed else self.matrix.detach()

    def multiply(self, x: Tensor) -> Tensor:
        """x W + b, N inputs → N outputs; the backward pass appends x and the output gradient to `products`."""
        return DeferredProduct.apply(x, self.matrix, self.contiguous, self.bias, self.products)

    def linear(self, x: Tensor) -> Tensor:
        """x W + b for x of any rank, … inputs → … outputs; `multiply` needs a matrix, so that x is flattened to one."""
        return self.multiply(x.flatten(0, -2)).unflatten(0, x.shape[:-1]) if x.dim() != 2 else self.multiply(x)


class CollectGradient(torch.autograd.Function):
    """Identity of a matrix and its bias, whose backward pass computes their gradients from all products with them."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, bias: Tensor | None, products: list[StepProduct]) -> Any:
        """Return the matrix and, if there is one, the bias unchanged, as views.

        `products` is empty now: the products with the matrix append to it in the backward pass.
        """
        ctx.products, ctx.bias = products, bias
        ctx.set_materialize_grads(False)  # the gradients of both outputs are not used: do not create zeros for them
        return matrix.view_as(matrix) if bias is None else (matrix.view_as(matrix), bias.view_as(bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        """Compute the gradients of matrix, Σ xᵀ g, and bias, Σ g, over all products with inputs x and gradients g.

        `ctx.products` holds these x and g. `gradients`, from autograd, are None: the products pass none on.
        """
        if not ctx.products:
            return None, None, None
        x, g = (torch.cat(steps, -2) for steps in zip(*ctx.products))
        ctx.products.clear()
        grad_bias = None if ctx.bias is None else g.sum(0, dtype=ctx.bias.dtype)
        return product(x.mT, g), grad_bias, None  # no gradient of the list `products`


class DeferredProduct(torch.autograd.Function):
    """x W + b, whose backward pass records x and the output gradient instead of computing the weight gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: Tensor, contiguous: Tensor, bias: Tensor | None, products: list[StepProduct]
    ) -> Tensor:
        """x W + b: x (N I), matrix W (I O), bias b (O) → N O, for N rows, I inputs and O outputs.

        `contiguous` has the values of W in an order that multiplies faster, and no gradient. In the backward pass,
        `products` collects the inputs and output gradients of all products with W.
        """
        ctx.save_for_backward(x, matrix)
        ctx.products = products
        y = product(x, contiguous)
        return y if bias is None else y.add_(bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        """Return the gradient g Wᵀ of x, g being the output gradient (N O); of the other four arguments none.

        N is the number of rows, O that of outputs. Instead of computing the gradients of W and b here, x and g are
        appended to `products`: `CollectGradient` computes them for all products at once.
        """
        x, matrix = ctx.saved_tensors
        # If only other gradients are wanted, `CollectGradient` does not run, and the list keeps x. It must not keep the
        # graph of x, which holds the list: Python cannot free such a cycle.
        ctx.products.append(StepProduct(x.detach(), grad_output))
        grad_x = product(grad_output, matrix.mT) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, None, None
