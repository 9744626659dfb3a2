"""The position-wise feed-forward network, and a sparsely gated mixture of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.dropout import Dropout
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, Mixer, MixerOutput, State
from dragoman.parts.precision import at_least_float32
from dragoman.parts.spec import Spec, build_part

Activation = Literal["relu", "gelu", "gelu-tanh", "quick-gelu", "silu", "tanh", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "quick-gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "tanh": F.tanh,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class FeedForward(Spec):
    """FFN(x) = W₂ f(W₁ x + b₁) + b₂ (Vaswani et al. 2017, §3.3).

    `inner_dim` is 4·D by default. `gated`: W₂ (f(W₁ x) ⊙ V x), which with silu is SwiGLU (Shazeer 2020).
    """

    inner_dim: int | None = None
    activation: Activation = "relu"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0

    def build(self, dim: int) -> FeedForwardMixer:
        """Create the layer for vectors of width `dim`."""
        return FeedForwardMixer(self, dim)


class FeedForwardMixer(Mixer):
    def __init__(self, spec: FeedForward, dim: int) -> None:
        """W₂ f(W₁ x): `widen` is W₁, `narrow` W₂; gated, W₂ (f(W₁ x) ⊙ V x): `gate` is V, otherwise None."""
        super().__init__()
        inner_dim = spec.inner_dim or 4 * dim
        self.widen = nn.Linear(dim, inner_dim, bias=spec.bias)
        self.gate = nn.Linear(dim, inner_dim, bias=spec.bias) if spec.gated else None
        self.narrow = nn.Linear(inner_dim, dim, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """W₂ f(W₁ x), or gated W₂ (f(W₁ x) ⊙ V x): B T D → B T D; the state, if any, is returned unchanged.

        `widen` is W₁, `narrow` W₂, `gate` V.
        """
        inner = self.activation(self.widen(x))
        if self.gate is not None:
            inner = inner * self.gate(x)
        return MixerOutput(self.narrow(self.dropout(inner)), state)


@dataclass(frozen=True)
class MixtureOfExperts(Spec):
    """y = Σ_e g_e(x) · expert_e(x) over the `top_k` experts that a router prefers (Shazeer et al. 2017, §2).

    p = softmax(W x); g is p renormalized over the selected experts, or p itself if top_k is 1, so that the router gets
    a gradient (Fedus et al. 2021, §2.1). In training, normal noise with standard deviation `router_noise` is added to
    W x (fixed here, learned in the paper), and the load-balancing loss num_experts · Σ_e fraction_e · mean p_e, times
    `balance_loss_weight`, is added to the loss (Fedus et al. 2021, §2.2). Experts have no capacity limit: no token is
    dropped, and the output of a token does not depend on other tokens.
    """

    expert: FeedForward = field(default_factory=FeedForward)
    num_experts: int = 8
    top_k: int = 2
    balance_loss_weight: float = 0.01
    router_noise: float = 0.0

    def build(self, dim: int) -> ExpertsMixer:
        """Create router and experts for vectors of width `dim`."""
        return ExpertsMixer(self, dim)


class ExpertsMixer(Mixer):
    supports_packing = False  # unused columns of a packed row would enter the load-balancing loss

    def __init__(self, spec: MixtureOfExperts, dim: int) -> None:
        """A router that scores experts, and the experts, which are feed-forward layers of width `dim`."""
        super().__init__()
        if not 1 <= spec.top_k <= spec.num_experts:
            raise UserError(
                f"experts_per_token must be at least 1 and at most the number of experts, {spec.num_experts}, but is "
                f"{spec.top_k}"
            )
        self.router = nn.Linear(dim, spec.num_experts, bias=False)
        self.experts = nn.ModuleList(build_part(spec.expert, dim, Mixer) for _ in range(spec.num_experts))
        self.top_k, self.balance_loss_weight, self.noise = spec.top_k, spec.balance_loss_weight, spec.router_noise

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """Σ_e g_e(x) · expert_e(x) over the `top_k` experts of each token: x, B T D → B T D.

        In training, the load-balancing loss is returned too. The state, if any, is returned unchanged.
        """
        scores = at_least_float32(self.router(x))  # B T experts
        if self.training and self.noise:
            scores = scores + self.noise * torch.randn_like(scores)
        p = scores.softmax(-1)
        gates, selected = p.topk(self.top_k, -1)  # B T top_k: probabilities and numbers of the experts
        losses: tuple[Tensor, ...] = ()
        if self.training:
            losses = (self.balance_loss_weight * load_balancing_loss(p, selected, context.layout.token_mask),)
        if self.top_k > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        is_step = state is not None and x.shape[1] == 1
        mix = self._dense if is_step else self._grouped
        return MixerOutput(mix(x, gates.to(x.dtype), selected, context), state, auxiliary_losses=losses)

    def _outputs(self, inputs: list[Tensor], context: Context) -> list[Tensor]:
        """Compute the output of each expert from its own input, `inputs[e]` for expert e, B T D or N D."""
        return [cast(Mixer, expert)(x, context).output for expert, x in zip(self.experts, inputs)]

    def _dense(self, x: Tensor, gates: Tensor, selected: Tensor, context: Context) -> Tensor:
        """Compute all experts for all tokens x (B T D), with gates of 0 for those not selected: static shapes.

        `gates` and `selected` (B T top_k) are weights and numbers of the selected experts.
        """
        all_gates = gates.new_zeros(*x.shape[:-1], len(self.experts)).scatter(-1, selected, gates)  # B T experts
        outputs = torch.stack(self._outputs([x] * len(self.experts), context), -1)  # B T D experts
        return (outputs @ all_gates[..., None]).squeeze(-1)

    def _grouped(self, x: Tensor, gates: Tensor, selected: Tensor, context: Context) -> Tensor:
        """Compute each expert for the tokens of x (B T D) that selected it; the order of summation is deterministic.

        Tokens are sorted by expert, split into one batch per expert, and their outputs put back in order. `gates` and
        `selected` (B T top_k) are weights and numbers of the selected experts.
        """
        expert = selected.flatten()  # B·T·top_k
        order = expert.argsort(stable=True)
        counts = expert.bincount(minlength=len(self.experts)).tolist()
        tokens = x.flatten(0, 1)[order // self.top_k]  # B·T·top_k D, sorted by expert
        outputs = torch.cat(self._outputs(list(tokens.split(counts)), context))[order.argsort()]  # order undone
        return (outputs.unflatten(0, gates.shape) * gates[..., None]).sum(-2)  # B T D

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the router, and `top_k` experts each."""
        per_expert_and_token = work.of(work.tokens * self.top_k)
        return module_flops(self.router, work) + module_flops(self.experts[0], per_expert_and_token)


def load_balancing_loss(p: Tensor, selected: Tensor, token_mask: Tensor | None) -> Tensor:
    """num_experts · Σ_e fraction_e · mean p_e over tokens: 1 if balanced, `num_experts` if one expert gets all.

    p (B T experts) are the router's probabilities, `selected` (B T top_k) the chosen experts, `token_mask` (B T) False
    at padding.
    """
    weight = torch.ones_like(p[..., :1]) if token_mask is None else token_mask[..., None].to(p.dtype)  # B T 1
    tokens, num_experts = weight.sum(), p.shape[-1]
    mean = (p * weight).sum((0, 1)) / tokens
    selections = torch.zeros_like(p).scatter(-1, selected, 1.0) * weight
    fraction = selections.sum((0, 1)) / (tokens * selected.shape[-1])
    return num_experts * (fraction * mean).sum()
