"""Sparsely gated mixtures of experts: gating networks, the layer, and how often each expert is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.feedforward import ACTIVATIONS, Activation, FeedForward
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, Mixer, MixerOutput, State
from dragoman.parts.precision import accumulator_dtype, at_least_float32
from dragoman.parts.spec import Spec, build_part

# ---- gating networks: which experts a token is sent to


class Routing(NamedTuple):
    """The experts of each token, and the balancing losses of a training step."""

    gates: Tensor  # B T top_k: weights of the selected experts
    selected: Tensor  # B T top_k: numbers of the selected experts
    losses: tuple[Tensor, ...] = ()


class Router(nn.Module):
    """Base class of gating networks: scores W x of the experts, without a bias."""

    def __init__(self, dim: int, num_experts: int, top_k: int) -> None:
        """Create the matrix W of the experts' scores W x (`weight`); each token is sent to `top_k` of `num_experts`.

        `dim` is the width of x, the vector of a token.
        """
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_experts, dim)))

    def forward(self, x: Tensor, token_mask: Tensor | None) -> Routing:
        """Choose the experts of each token: x, B T D → their numbers and weights, and in training balancing losses.

        The losses leave out padding, where `token_mask` (B T) is False; None: nothing is padded.
        """
        raise NotImplementedError

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the scores W x; what is computed in training alone is left out."""
        return 2 * work.tokens * self.weight.numel()


class Gating(Spec):
    """Base class of descriptions of gating networks."""

    def build_router(self, dim: int, num_experts: int, top_k: int) -> Router:
        """Create the gating network for vectors of width `dim`."""
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxGating(Gating):
    """p = softmax(W x); the gates are the `top_k` largest p, divided by their sum (Lepikhin et al. 2020).

    If top_k is 1 the gate is p itself, so that the router gets a gradient (Fedus et al. 2021, §2.1). In training,
    normal noise with standard deviation `router_noise` is added to W x, and the loss is num_experts · Σ_e fraction_e ·
    mean p_e, times `balance_loss_weight` (Fedus et al. 2021, §2.2).
    """

    balance_loss_weight: float = 0.01
    router_noise: float = 0.0

    def build_router(self, dim: int, num_experts: int, top_k: int) -> Router:
        """Create the gating network for vectors of width `dim`."""
        return SoftmaxRouter(self, dim, num_experts, top_k)


class SoftmaxRouter(Router):
    def __init__(self, spec: SoftmaxGating, dim: int, num_experts: int, top_k: int) -> None:
        """Create the matrix W of the scores W x of `num_experts` experts; each token is sent to the `top_k` best.

        The spec gives the standard deviation of the scores' noise in training, and the weight of the balancing loss.
        """
        super().__init__(dim, num_experts, top_k)
        self.noise, self.balance_loss_weight = spec.router_noise, spec.balance_loss_weight

    def forward(self, x: Tensor, token_mask: Tensor | None) -> Routing:
        """Choose for each token of x, B T D, the `top_k` experts with the largest p = softmax(W x + noise).

        Their weights (gates) are p, divided by their sum if there are several per token. Noise and balancing loss are
        for training; the loss leaves out padding, where `token_mask` (B T) is False.
        """
        scores = at_least_float32(F.linear(x, self.weight))  # B T experts
        if self.training and self.noise:
            scores = scores + self.noise * torch.randn_like(scores)
        p = scores.softmax(-1)
        gates, selected = p.topk(self.top_k, -1)
        losses: tuple[Tensor, ...] = ()
        if self.training:
            losses = (self.balance_loss_weight * load_balancing_loss(p, selected, token_mask),)
        if self.top_k > 1:  # a single gate divided by itself would be 1, from which the router learns nothing
            gates = gates / gates.sum(-1, keepdim=True)
        return Routing(gates, selected, losses)


@dataclass(frozen=True)
class NoisyTopKGating(Gating):
    """G(x) = softmax(KeepTopK(H(x), k)), H(x) = W x + ε ⊙ softplus(W_noise x), ε ~ N(0, 1) (Shazeer et al. 2017, §2.1).

    The noise is for training. Its losses are `importance_loss_weight` · CV(Σ_x G(x))² (§4) and `load_loss_weight` ·
    CV(Σ_x P(x))² (§A), with CV the coefficient of variation over the experts, and P(x)_i the probability that expert i
    is among the k best if only its own noise is drawn again. W and W_noise start with zeros (§A).
    """

    importance_loss_weight: float = 0.01
    load_loss_weight: float = 0.01

    def build_router(self, dim: int, num_experts: int, top_k: int) -> Router:
        """Create the gating network for vectors of width `dim`."""
        return NoisyTopKRouter(self, dim, num_experts, top_k)


class NoisyTopKRouter(Router):
    starts_with_zeros = True  # all experts are equally likely at first (§A)

    def __init__(self, spec: NoisyTopKGating, dim: int, num_experts: int, top_k: int) -> None:
        """Create the matrices of the experts' scores, W x, and of the noise in training, softplus(W_noise x) · ε.

        Both start with zeros; ε is drawn from a standard normal distribution. Each token is sent to `top_k` of
        `num_experts` experts; a single one of several raises a UserError. The spec gives the weights of the two
        balancing losses.
        """
        super().__init__(dim, num_experts, top_k)
        if top_k == 1 < num_experts:
            raise UserError(
                "noisy top-k gating needs at least two experts per token, because the gate of a single expert is "
                "always 1, so that the router learns nothing: set system.settings.experts_per_token to 2 or more"
            )
        self.weight, self.noise_weight = (nn.Parameter(torch.zeros(num_experts, dim)) for _ in range(2))
        self.importance_loss_weight, self.load_loss_weight = spec.importance_loss_weight, spec.load_loss_weight

    def forward(self, x: Tensor, token_mask: Tensor | None) -> Routing:
        """Choose the `top_k` experts of each token of x, B T D; their gates are the softmax of their scores W x.

        In training, noise is added to the scores, and two losses balance the experts: by importance, the sum of an
        expert's gates over the tokens, and by load, the expected number of its tokens. Padding, where `token_mask`
        (B T) is False, does not count.
        """
        clean_scores = at_least_float32(F.linear(x, self.weight))  # B T experts
        if not self.training:
            best_scores, selected = clean_scores.topk(self.top_k, -1)
            return Routing(best_scores.softmax(-1), selected)
        deviation = F.softplus(at_least_float32(F.linear(x, self.noise_weight)))  # standard deviation of the noise
        noisy_scores = clean_scores + deviation * torch.randn_like(clean_scores)
        best_scores, selected = noisy_scores.topk(self.top_k, -1)
        gates = best_scores.softmax(-1)
        all_gates = torch.zeros_like(noisy_scores).scatter(-1, selected, gates)  # B T experts
        selection_probs = selection_probability(clean_scores, noisy_scores, deviation, self.top_k)  # B T experts
        weight = token_weights(noisy_scores, token_mask)  # 0 at padding
        importance, load = (all_gates * weight).sum((0, 1)), (selection_probs * weight).sum((0, 1))  # experts
        losses = (
            self.importance_loss_weight * squared_variation(importance),
            self.load_loss_weight * squared_variation(load),
        )
        return Routing(gates, selected, losses)


def selection_probability(clean_scores: Tensor, noisy_scores: Tensor, deviation: Tensor, top_k: int) -> Tensor:
    """Return the probability that an expert is among the `top_k` if its noise alone is drawn again: … experts.

    P(x, i) = Φ((clean_i − k-th largest noisy score of the other experts) / deviation_i) (Shazeer et al. 2017, §A); 1 if
    all experts are selected. Scores and the standard deviation of their noise are … experts.
    """
    if top_k == clean_scores.shape[-1]:
        return torch.ones_like(clean_scores)
    best = noisy_scores.topk(top_k + 1, -1).values  # … top_k+1, descending: the selected scores and the next one
    last_selected, first_rejected = best[..., -2, None], best[..., -1, None]
    # the k-th largest score without expert i itself
    threshold = torch.where(noisy_scores > first_rejected, first_rejected, last_selected)
    return torch.special.ndtr((clean_scores - threshold) / deviation)


def squared_variation(x: Tensor) -> Tensor:
    """Square of the coefficient of variation, Var(x) / mean(x)², of a vector: 0 if all values are equal."""
    # clamp: no division by 0 if all values are 0
    return x.var(correction=0) / x.mean().square().clamp(min=1e-10)


def token_weights(scores: Tensor, token_mask: Tensor | None) -> Tensor:
    """Return 1 for tokens and 0 for padding, B T 1, with the dtype of the scores (B T experts).

    `token_mask` (B T) is False at padding; None: nothing is padded.
    """
    return torch.ones_like(scores[..., :1]) if token_mask is None else token_mask[..., None].to(scores.dtype)


def load_balancing_loss(p: Tensor, selected: Tensor, token_mask: Tensor | None) -> Tensor:
    """Return num_experts · Σ_e fraction_e · mean p_e: 1 if balanced, `num_experts` if one expert gets all tokens.

    fraction_e is the share of expert e in all selections, mean p_e its mean probability over the tokens. p (B T
    experts) are the router's probabilities, `selected` (B T top_k) the numbers of the chosen experts, `token_mask`
    (B T) is False at padding, which does not count.
    """
    weight = token_weights(p, token_mask)  # B T 1: 0 at padding
    num_tokens, num_experts = weight.sum(), p.shape[-1]
    mean = (p * weight).sum((0, 1)) / num_tokens  # experts
    is_selected = torch.zeros_like(p).scatter(-1, selected, 1.0) * weight  # B T experts
    fraction = is_selected.sum((0, 1)) / (num_tokens * selected.shape[-1])  # experts
    return num_experts * (fraction * mean).sum()


# ---- the layer


@dataclass(frozen=True)
class MixtureOfExperts(Spec):
    """y = f(Σ_e g_e(x) · expert_e(x)) over the `top_k` experts that a gating network selects (Shazeer et al. 2017, §2).

    f is `output_activation`. Experts have no capacity limit: no token is dropped, and the output of a token does not
    depend on other tokens.
    """

    expert: FeedForward = field(default_factory=FeedForward)
    num_experts: int = 8
    top_k: int = 2
    gating: Gating = field(default_factory=SoftmaxGating)
    output_activation: Activation = "identity"

    def build(self, dim: int) -> ExpertsMixer:
        """Create router and experts for vectors of width `dim`."""
        return ExpertsMixer(self, dim)


class ExpertsMixer(Mixer):
    title = "mixture of experts"
    supports_packing = False  # unused columns of a packed row would enter the balancing losses

    def __init__(self, spec: MixtureOfExperts, dim: int) -> None:
        """Create a router, which selects `top_k` experts for each token, and the experts: feed-forward layers.

        Unless `top_k` is from 1 to the number of experts, a UserError is raised.
        """
        super().__init__()
        if not 1 <= spec.top_k <= spec.num_experts:
            raise UserError(
                "system.settings.experts_per_token, the number of experts that process a token, must be from 1 to "
                f"system.settings.experts, which is {spec.num_experts}, but is {spec.top_k}: change one of the two"
            )
        self.router = spec.gating.build_router(dim, spec.num_experts, spec.top_k)
        self.experts = nn.ModuleList(build_part(spec.expert, dim, Mixer) for _ in range(spec.num_experts))
        self.top_k, self.output_activation = spec.top_k, ACTIVATIONS[spec.output_activation]

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> MixerOutput:
        """f(Σ_e g_e(x) · expert_e(x)) over the `top_k` experts of each token, g_e being their gates: x, B T D → B T D.

        In training, the balancing losses are returned too. The state, if any, is returned unchanged.
        """
        routing: Routing = self.router(x, context.layout.token_mask)
        is_step = state is not None and x.shape[1] == 1
        # CUDA graphs, compiled decoding steps and exported models need shapes that do not depend on the selection
        needs_static_shapes = is_step and (x.is_cuda or torch.compiler.is_compiling())
        combine = self._compute_all if needs_static_shapes or torch.compiler.is_exporting() else self._compute_selected
        y = self.output_activation(combine(x, routing.gates.to(x.dtype), routing.selected, context))
        return MixerOutput(y, state, auxiliary_losses=routing.losses)

    def _expert_outputs(self, inputs: list[Tensor], context: Context) -> list[Tensor]:
        """Compute the output of each expert e from its own input, `inputs[e]`: all tokens, B T D, or N of them, N D.

        In training, experts without tokens are computed too, so that their weights have a gradient of 0.
        """
        return [
            cast(Mixer, expert)(x, context).output if x.shape[0] or torch.is_grad_enabled() else x
            for expert, x in zip(self.experts, inputs)
        ]

    def _compute_all(self, x: Tensor, gates: Tensor, selected: Tensor, context: Context) -> Tensor:
        """Compute all experts for all tokens x (B T D), and sum their outputs with gates: 0 if not selected.

        Shapes do not depend on the selection. `gates` and `selected` (B T top_k) are weights and numbers of the
        selected experts.
        """
        all_gates = gates.new_zeros(*x.shape[:-1], len(self.experts)).scatter(-1, selected, gates)  # B T experts
        outputs = torch.stack(self._expert_outputs([x] * len(self.experts), context), -1)  # B T D experts
        return (outputs @ all_gates[..., None]).squeeze(-1)

    def _compute_selected(self, x: Tensor, gates: Tensor, selected: Tensor, context: Context) -> Tensor:
        """Compute each expert for the tokens of x (B T D) that selected it, and sum their outputs with gates.

        Tokens are sorted by expert, split into one batch per expert, and their outputs put back in order, so that sums
        are deterministic. `gates` and `selected` (B T top_k) are weights and numbers of the selected experts.
        """
        experts = selected.flatten()  # B·T·top_k
        order = experts.argsort(stable=True)  # selection i is the expert number i % top_k of token i // top_k
        counts = experts.bincount(minlength=len(self.experts)).tolist()  # tokens of each expert
        tokens = x.flatten(0, 1)[order // self.top_k]  # B·T·top_k D, sorted by expert
        sorted_outputs = torch.cat(self._expert_outputs(list(tokens.split(counts)), context))
        outputs = sorted_outputs[order.argsort()]  # in the order of the tokens again
        return (outputs.unflatten(0, gates.shape) * gates[..., None]).sum(-2)  # B T D

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` tokens: the router, and `top_k` experts each."""
        per_expert_and_token = work.with_tokens(work.tokens * self.top_k)
        return module_flops(self.router, work) + module_flops(self.experts[0], per_expert_and_token)


# ---- how often each expert is used


@dataclass
class ExpertUsage:
    """How a mixture of experts has distributed the tokens that it has read, padding excluded."""

    load: Tensor  # experts: number of tokens sent to each
    importance: Tensor  # experts: sum of the gates of each

    def count(self, router: nn.Module, inputs: tuple[Tensor, Tensor | None], routing: Routing) -> None:
        """Add the tokens and gates that a call of the router has given to each expert; padding does not count.

        This is a forward hook of the gating network `router`: `inputs` are its arguments, x and the token mask, and
        `routing` its result, numbers and gates of the selected experts. Nothing is copied from the device.
        """
        gates, selected = routing.gates.detach().to(self.load.dtype), routing.selected.flatten()
        _, token_mask = inputs
        weight = token_weights(gates, token_mask).expand_as(gates)
        self.load.index_add_(0, selected, weight.flatten())
        self.importance.index_add_(0, selected, (weight * gates).flatten())

    @property
    def load_fractions(self) -> list[float]:
        """The share of each expert in all selections; together 1."""
        return (self.load / self.load.sum().clamp(min=1)).tolist()

    @property
    def load_variation(self) -> float:
        """The coefficient of variation of the experts' loads, the numbers of their tokens.

        It is 0 if they are balanced, and √(num_experts / top_k − 1) if the same experts get all tokens.
        """
        return float(squared_variation(self.load).sqrt())

    @property
    def importance_variation(self) -> float:
        """The coefficient of variation of the experts' importance, the sum of the gates of each: 0 if balanced."""
        return float(squared_variation(self.importance).sqrt())


@contextmanager
def record_expert_usage(model: nn.Module) -> Iterator[dict[str, ExpertUsage]]:
    """Count the tokens that each expert of a model gets within the context: path of the layer → usage.

    The result is empty for a model without experts.
    """
    layers, usage = expert_layers(model), {}
    for path, layer in layers.items():
        weight = layer.router.weight
        zeros = weight.new_zeros(len(layer.experts), dtype=accumulator_dtype(weight.device))
        usage[path] = ExpertUsage(load=zeros, importance=zeros.clone())
    with ExitStack() as hooks:
        for path, layer in layers.items():
            hooks.enter_context(layer.router.register_forward_hook(usage[path].count))
        yield usage


@contextmanager
def record_gates(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the gates that each mixture of experts computes last within the context: path of the layer → B T experts.

    The gates of experts that are not selected are 0. The result is empty for a model without experts.
    """
    recorded: dict[str, Tensor] = {}

    def record(path: str, num_experts: int) -> Callable[[nn.Module, object, Routing], None]:
        """Return a forward hook that records the gates of the router in the layer `path`, of `num_experts` experts."""

        def hook(router: nn.Module, inputs: object, routing: Routing) -> None:
            """Keep the gates of a call of `router`, whose result is `routing`, as B T experts."""
            gates = routing.gates.detach()
            recorded[path] = gates.new_zeros(*gates.shape[:-1], num_experts).scatter(-1, routing.selected, gates)

        return hook

    with ExitStack() as hooks:
        for path, layer in expert_layers(model).items():
            hooks.enter_context(layer.router.register_forward_hook(record(path, len(layer.experts))))
        yield recorded


def expert_layers(model: nn.Module) -> dict[str, ExpertsMixer]:
    """Return the mixture-of-experts layers of a model by their names in it, such as "encoder.layers.1.1.body"."""
    return {path: part for path, part in model.named_modules() if isinstance(part, ExpertsMixer)}
