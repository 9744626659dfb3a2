"""Adadelta: step sizes adapted to earlier gradients and updates."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

RHO, EPSILON = 0.95, 1e-6  # of Cho et al. (2014) and Bahdanau et al. (2015, §A.2.3)


class Adadelta(torch.optim.Optimizer):
    """Adadelta (Zeiler 2012, algorithm 1).

        E[∇²] ← ρ E[∇²] + (1 − ρ) ∇²,   Δ = √(E[Δ²] + ε) / √(E[∇²] + ε) ∇,   E[Δ²] ← ρ E[Δ²] + (1 − ρ) Δ²

    and W ← W − η Δ, with η = 1 in the papers. Unlike torch's, a step never synchronizes, and changes nothing where
    `found_inf` is 1.
    """

    found_inf: Tensor

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        super().__init__(weights, {"lr": 1.0})
        for weight in self.param_groups[0]["params"]:
            self.state[weight] = {"square_avg": torch.zeros_like(weight), "acc_delta": torch.zeros_like(weight)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        rho = torch.where(self.found_inf > 0, 1.0, RHO)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                squares, updates = self.state[weight].values()
                gradient = torch.where(self.found_inf > 0, 0.0, weight.grad)
                squares.mul_(rho).addcmul_(gradient, gradient, value=1 - RHO)
                update = (updates + EPSILON).sqrt() / (squares + EPSILON).sqrt() * gradient
                updates.mul_(rho).addcmul_(update, update, value=1 - RHO)
                weight.sub_(group["lr"] * update)
