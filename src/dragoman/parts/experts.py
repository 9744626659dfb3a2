"""Mixtures of experts: a sparsely gated feed-forward network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.mixer import Context, Mixer, State
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Spec, build_part


@dataclass(frozen=True)
class MixtureOfExperts(Spec):
    """y = Σ_e g_e(x) · expert_e(x) over the `chosen` experts that a router likes best (Shazeer et al. 2017, §2).

    p = softmax(W x); g is p among the chosen, made to sum to 1; one chosen alone keeps its p, from which the router
    learns (Fedus et al. 2021, §2.1). In training `noise` is the deviation of what is added to W x, fixed where the
    paper learns it, and balance · count · Σ_e share_e · mean p_e is added to the loss (Fedus et al. 2021, §2.2), with
    share_e the part of all choices that fell on e. No expert has a capacity: no token is dropped, and what becomes of
    one never depends on the others.
    """

    expert: FeedForward = field(default_factory=FeedForward)
    num_experts: int = 8
    top_k: int = 2
    balance_loss_weight: float = 0.01
    router_noise: float = 0.0

    def build(self, dim: int) -> ExpertsMixer:
        return ExpertsMixer(self, dim)


class ExpertsMixer(Mixer):
    supports_packing = False  # what is left of a packed row would be balanced too

    def __init__(self, spec: MixtureOfExperts, dim: int) -> None:
        super().__init__()
        if not 1 <= spec.top_k <= spec.num_experts:
            raise UserError(
                f"{spec.top_k} of {spec.num_experts} experts cannot be chosen: choose 1 to {spec.num_experts}"
            )
        self.router = nn.Linear(dim, spec.num_experts, bias=False)
        self.experts = nn.ModuleList(build_part(spec.expert, dim, Mixer) for _ in range(spec.num_experts))
        self.chosen, self.balance, self.noise = spec.top_k, spec.balance_loss_weight, spec.router_noise

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        scores = at_least_float32(self.router(x))  # B T experts
        if self.training and self.noise:
            scores = scores + self.noise * torch.randn_like(scores)
        p = scores.softmax(-1)
        gates, chosen = p.topk(self.chosen, -1)  # B T chosen
        if self.training:
            context.auxiliary_losses.append(self.balance * load_balancing_loss(p, chosen, context.layout.token_mask))
        if self.chosen > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        one_step = state is not None and x.shape[1] == 1
        mix = self._all if one_step else self._grouped
        return mix(x, gates.to(x.dtype), chosen, context), state

    def _outputs(self, inputs: list[Tensor], context: Context) -> list[Tensor]:
        return [cast(Mixer, expert)(some, context)[0] for expert, some in zip(self.experts, inputs)]

    def _all(self, x: Tensor, gates: Tensor, chosen: Tensor, context: Context) -> Tensor:
        """Every expert at every token, those not chosen times zero: shapes that are known beforehand, for steps."""
        every = gates.new_zeros(*x.shape[:-1], len(self.experts)).scatter(-1, chosen, gates)  # B T experts
        outputs = torch.stack(self._outputs([x] * len(self.experts), context), -1)  # B T D experts
        return (outputs @ every[..., None]).squeeze(-1)

    def _grouped(self, x: Tensor, gates: Tensor, chosen: Tensor, context: Context) -> Tensor:
        """Each expert once, at the tokens that chose it; nothing is summed in an order that could change."""
        choice = chosen.flatten()  # B·T·chosen
        order = choice.argsort(stable=True)
        counts = choice.bincount(minlength=len(self.experts)).tolist()
        tokens = x.flatten(0, 1)[order // self.chosen]  # B·T·chosen D, sorted by expert
        outputs = torch.cat(self._outputs(list(tokens.split(counts)), context))[order.argsort()]
        return (outputs.unflatten(0, gates.shape) * gates[..., None]).sum(-2)  # B T D


def load_balancing_loss(p: Tensor, chosen: Tensor, real: Tensor | None) -> Tensor:
    """count · Σ_e share_e · mean p_e over the real tokens: 1 if all are chosen alike, `count` if one always is."""
    weight = torch.ones_like(p[..., :1]) if real is None else real[..., None].to(p.dtype)  # B T 1
    tokens, count = weight.sum(), p.shape[-1]
    mean = (p * weight).sum((0, 1)) / tokens
    counted = torch.zeros_like(p).scatter(-1, chosen, 1.0) * weight
    share = counted.sum((0, 1)) / (tokens * chosen.shape[-1])
    return count * (share * mean).sum()
