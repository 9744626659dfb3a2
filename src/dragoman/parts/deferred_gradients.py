"""Loops over the same matrices: their gradients are computed once for all steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

Use = tuple[Tensor, Tensor]  # what a matrix was multiplied by, and the gradient of the product


def deferred_weight_gradients() -> AbstractContextManager[Any]:
    """Inside, ∂L/∂W = Σ_t x_tᵀ g_t of a product x_t W is one product of all x_t and all g_t, where autograd would
    compute one for every step and add them up. Nothing else is different."""
    return AtOnce() if torch.is_grad_enabled() and not torch.compiler.is_compiling() else nullcontext()


class AtOnce(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[tuple[Any, ...], tuple[Tensor, Shared]] = {}  # kept alive, so that no address comes up again

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if kwargs or func not in (F.linear, Tensor.__matmul__, Tensor.matmul, torch.matmul):
            return func(*args, **(kwargs or {}))
        x, matrix, *bias = args
        if not matrix.requires_grad:
            return func(*args)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if func is F.linear:
            return self.of(matrix, bias[0] if bias else None, True).linear(x)
        return self.of(matrix, None, False)(x)

    def of(self, matrix: Tensor, bias: Tensor | None, turned: bool) -> Shared:
        """The matrix, or another view of it, as it was seen before."""
        key = (matrix.data_ptr(), matrix.shape, matrix.stride(), matrix.dtype, turned)
        if key not in self.shared:
            self.shared[key] = matrix, Shared(matrix, bias, turned)
        return self.shared[key][1]


class Shared:
    """A matrix that many are multiplied by."""

    def __init__(self, matrix: Tensor, bias: Tensor | None, turned: bool) -> None:
        """`turned`: the transposed one is multiplied by."""
        if torch.is_autocast_enabled(matrix.device.type):
            matrix = matrix.to(torch.get_autocast_dtype(matrix.device.type))
        self.uses: list[Use] = []
        self.bias = bias is not None
        held = Held.apply(matrix.mT if turned else matrix, bias, self.uses)
        self.matrix: Tensor = held[0] if self.bias else held
        self.added: Tensor | None = held[1] if self.bias else None
        cpu = matrix.device.type == "cpu"  # where rows that lie one after the other are multiplied faster
        self.lying = self.matrix.detach().contiguous() if cpu and turned else self.matrix.detach()

    def __call__(self, x: Tensor) -> Tensor:
        return Times.apply(x, self.matrix, self.lying, self.added, self.uses)

    def linear(self, x: Tensor) -> Tensor:
        return self(x.flatten(0, -2)).unflatten(0, x.shape[:-1]) if x.dim() != 2 else self(x)


class Held(torch.autograd.Function):
    """The matrix itself; its gradient is that of all its uses, none of which has given it any."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, bias: Tensor | None, uses: list[Use]) -> Any:
        ctx.uses, ctx.bias = uses, bias
        ctx.set_materialize_grads(False)
        return matrix.view_as(matrix) if bias is None else (matrix.view_as(matrix), bias.view_as(bias))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if not ctx.uses:
            return None, None, None
        x, g = (torch.cat(some, -2) for some in zip(*ctx.uses))
        ctx.uses.clear()
        bias = None if ctx.bias is None else g.sum(0, dtype=ctx.bias.dtype)
        return x.mT @ g, bias, None


class Times(torch.autograd.Function):
    """x W + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, lying: Tensor, bias: Tensor | None, uses: list[Use]) -> Tensor:
        """`lying` is the matrix once more, as it is multiplied by fastest."""
        ctx.save_for_backward(x, matrix)
        ctx.uses = uses
        if bias is None:
            return x @ lying
        return torch.addmm(bias.to(x.dtype), x, lying)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, matrix = ctx.saved_tensors
        ctx.uses.append((x, g))
        return g @ matrix.mT if ctx.needs_input_grad[0] else None, None, None, None, None
