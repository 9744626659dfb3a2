"""Adadelta: steps as large as those before them, measured in units of the gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

KEPT, LEAST = 0.95, 1e-6  # ρ and ε of Cho et al. (2014) and Bahdanau et al. (2015, §A.2.3)


def squares_of(weight: Tensor) -> dict[str, Tensor]:
    """The first state: no gradient and no step so far."""
    return {"square_avg": torch.zeros_like(weight), "acc_delta": torch.zeros_like(weight)}


class Adadelta(torch.optim.Optimizer):
    """Adadelta (Zeiler 2012, algorithm 1).

        E[∇²] ← ρ E[∇²] + (1 − ρ) ∇²,   Δ = √(E[Δ²] + ε) / √(E[∇²] + ε) ∇,   E[Δ²] ← ρ E[Δ²] + (1 − ρ) Δ²

    and W ← W − η Δ, with η = 1 in the papers. Nothing waits for the device, and where `found_inf` is 1 nothing changes.
    """

    found_inf: Tensor

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        super().__init__(weights, {"lr": 1.0})
        for weight in self.param_groups[0]["params"]:
            self.state[weight] = squares_of(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        kept = torch.where(self.found_inf > 0, 1.0, KEPT)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                squares, steps = self.state[weight].values()
                gradient = torch.where(self.found_inf > 0, 0.0, weight.grad)
                squares.mul_(kept).addcmul_(gradient, gradient, value=1 - KEPT)
                step = (steps + LEAST).sqrt() / (squares + LEAST).sqrt() * gradient
                steps.mul_(kept).addcmul_(step, step, value=1 - KEPT)
                weight.sub_(group["lr"] * step)
