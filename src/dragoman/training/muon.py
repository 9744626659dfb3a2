"""Muon: orthogonalized momentum for the hidden matrices of a model, AdamW for all other weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dragoman.training.parallel import full_tensor, is_sharded, shard_like

A, B, C = 3.4445, -4.7750, 2.0315  # Jordan et al. 2024: small singular values grow fastest


def orthogonalize(matrices: Tensor, precision: torch.dtype = torch.float32, steps: int = 5) -> Tensor:
    """Approximate U Vᵀ of every M = U S Vᵀ in N R C by Newton–Schulz iterations, which bring S close to 1.

        X ← a X + (b G + c G²) X,   G = X Xᵀ,   X₀ = M / ‖M‖

    a, b, c and five iterations give singular values between about 0.7 and 1.2 (Jordan et al. 2024), accurate enough
    for an optimizer; values near 0 stay below. `precision` is that of the iterations.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)).to(precision)
    for _ in range(steps):
        gram = x @ x.mT  # N R R
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if tall else x).to(matrices.dtype)


def momentum_state(weight: Tensor) -> dict[str, Tensor]:
    """Return the initial momentum; it exists from the start, so that all steps are the same computation."""
    return {"momentum_buffer": torch.zeros_like(weight)}


def adam_state(weight: Tensor) -> dict[str, Tensor]:
    """Return Adam's initial state, under torch's names."""
    step = torch.zeros((), dtype=torch.float32, device=weight.device)
    return {"step": step, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) as it is scaled by Liu et al. (2025, §2.2).

        M ← μ M + (1 − μ) ∇,   O = orthogonal((1 − μ) ∇ + μ M),   W ← (1 − ηλ) W − 0.2 √max(rows, columns) η O

    so that updates have the magnitude of AdamW's, and both share one learning rate η and one weight decay λ. Matrices
    of one shape are orthogonalized in one batch. A step never synchronizes, and changes nothing where `found_inf` is 1.

    Args:
        matrices: hidden matrices, each with the number of rows of its blocks, which are orthogonalized separately.
        others: parameter groups that AdamW updates.
        precision: of the Newton–Schulz iterations.
    """

    def __init__(
        self,
        matrices: Mapping[nn.Parameter, tuple[int, ...]],
        others: Sequence[dict[str, Any]],
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.precision = precision
        hidden: dict[str, Any] = {"params": list(matrices), "blocks": list(matrices.values()), "momentum": momentum}
        defaults = {"lr": 0.0, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__([g for g in (hidden, *others) if g["params"]], defaults)
        self.found_inf = torch.zeros((), device=self.param_groups[0]["params"][0].device)
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight] = momentum_state(weight) if "blocks" in group else adam_state(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if "blocks" in group:
                self._orthogonal(group)
            else:
                self._adamw(group)

    def _orthogonal(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
        shards: list[tuple[Tensor, Tensor]] = []
        for weight, rows in zip(group["params"], group["blocks"]):
            if weight.grad is not None:
                tensors = [weight, weight.grad, self.state[weight]["momentum_buffer"]]
                if is_sharded(weight):  # singular values need the full matrix
                    sharded, tensors = tensors, [full_tensor(tensor) for tensor in tensors]
                    shards += [(sharded[0], tensors[0]), (sharded[2], tensors[2])]
                for block in zip(*(tensor.split(rows) for tensor in tensors)):
                    by_shape.setdefault(block[0].shape, []).append(block)
        skip = self.found_inf > 0
        for shape, blocks in by_shape.items():
            weights, gradients, momenta = (list(tensors) for tensors in zip(*blocks))
            gradient, before = torch.stack(gradients), torch.stack(momenta)  # N R C
            after = before.lerp(gradient, 1 - group["momentum"])
            update = orthogonalize(gradient.lerp(after, group["momentum"]), self.precision)
            update = update * (group["lr"] * (-0.2 * math.sqrt(max(shape))))
            decay = torch.where(skip, 1.0, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_copy_(momenta, list(torch.where(skip, before, after).unbind()))
            torch._foreach_mul_(weights, decay)
            # x + −0 is exactly x, even for x = −0
            torch._foreach_add_(weights, list(torch.where(skip, -0.0, update).unbind()))
        for shard, full in shards:
            shard.copy_(shard_like(full, shard))

    def _adamw(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        states = [self.state[weight] for weight in weights]
        adamw(
            weights,
            [weight.grad for weight in weights],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
