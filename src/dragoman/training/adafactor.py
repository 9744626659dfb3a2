"""Adafactor: factored second moments, and updates relative to the size of the weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

DECAY = 0.8  # β₂ at step t is 1 − t^−0.8
GRADIENT_EPSILON, WEIGHT_EPSILON = 1e-30, 1e-3  # ε₁ and ε₂
UPDATE_CLIP = 1.0  # d: the largest root mean square of an update


def initial_state(weight: Tensor, momentum: bool) -> dict[str, Tensor]:
    """Return the state before the first step: row and column means for matrices, all squares for vectors."""
    state = {"step": torch.zeros((), device=weight.device)}
    if weight.dim() >= 2:
        state["row"] = weight.new_zeros(weight.shape[:-1], requires_grad=False)
        state["column"] = weight.new_zeros((*weight.shape[:-2], weight.shape[-1]), requires_grad=False)
    else:
        state["square"] = torch.zeros_like(weight, requires_grad=False)
    if momentum:
        state["exp_avg"] = torch.zeros_like(weight, requires_grad=False)
    return state


class Adafactor(torch.optim.Optimizer):
    """Adafactor (Shazeer & Stern 2018, algorithms 4 and 5) with a given learning rate η.

        R ← β R + (1 − β) mean_columns(∇² + ε₁),   C ← β C + (1 − β) mean_rows(∇² + ε₁),   β = 1 − t^−0.8
        U = ∇ / √(R Cᵀ / mean(R)),   U ← U / max(1, RMS(U) / d),   W ← W − η max(ε₂, RMS(W)) U

    Vectors keep all squares. With `momentum` μ the update is a moving average of such updates. A step never
    synchronizes, and changes nothing where `found_inf` is 1.
    """

    found_inf: Tensor

    def __init__(self, weights: Iterable[nn.Parameter], momentum: float = 0.0) -> None:
        super().__init__(weights, {"lr": 0.0, "momentum": momentum})
        for weight in self.param_groups[0]["params"]:
            self.state[weight] = initial_state(weight.detach(), momentum > 0)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        skip = self.found_inf > 0
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, group["lr"], group["momentum"], skip)

    def _step(self, weight: nn.Parameter, rate: Tensor, momentum: float, skip: Tensor) -> None:
        state = self.state[weight]
        state["step"] += ~skip
        beta = 1 - state["step"].clamp(min=1).pow(-DECAY).to(weight.dtype)
        gradient = torch.where(skip, 0.0, weight.grad)  # type: ignore[arg-type]
        squares = gradient.square() + GRADIENT_EPSILON

        def average(name: str, value: Tensor, decay: Tensor | float) -> Tensor:
            state[name].copy_(torch.where(skip, state[name], decay * state[name] + (1 - decay) * value))
            return state[name]

        if weight.dim() >= 2:
            rows, columns = average("row", squares.mean(-1), beta), average("column", squares.mean(-2), beta)
            rows = rows / rows.mean(-1, keepdim=True).clamp(min=GRADIENT_EPSILON)
            update = gradient * rows.rsqrt().unsqueeze(-1) * columns.rsqrt().unsqueeze(-2)
        else:
            update = gradient * average("square", squares, beta).rsqrt()
        update = update / (_root_mean_square(update) / UPDATE_CLIP).clamp(min=1)
        update = rate * _root_mean_square(weight).clamp(min=WEIGHT_EPSILON) * update
        if momentum:
            update = average("exp_avg", update, momentum)
        weight.sub_(torch.where(skip, 0.0, update))


def _root_mean_square(tensor: Tensor) -> Tensor:
    return tensor.square().mean().sqrt()
