"""Output layer and cross-entropy in one: the logits of all tokens never exist at once, and are computed only once.

A chunk of tokens at a time, logits, loss and gradients are computed in the forward pass, since the gradient of a
softmax is known with it: p − y. The backward pass scales what is there already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.data import IGNORE_INDEX
from dragoman.parts.precision import at_least_float32

MAX_CHUNK_LOGITS = {
    "cpu": 2**23,
    "cuda": 2**28,
}  # logits that exist at a time: what a cache holds, what a GPU is busy with


def token_metrics(x: Tensor, weight: Tensor, bias: Tensor | None, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is lost, for measuring: N D, V D, V, N → `likelihood`, `spread`, `correct`, nothing to learn from."""
    sums = [_zero(x) for _ in range(3)]
    for some, right in zip(x.split(size := chunk_rows(x, weight)), answers.split(size)):
        log_p = at_least_float32(torch.nn.functional.linear(some, weight, bias)).log_softmax(-1)
        real = right != IGNORE_INDEX
        at_right = log_p.gather(1, right.clamp(min=0)[:, None])[:, 0]
        found = (log_p.argmax(-1) == right, -at_right, -log_p.mean(-1))
        for number, each in enumerate((found[1], found[2], found[0].to(log_p.dtype))):
            sums[number] = sums[number] + each.masked_fill(~real, 0.0).sum()
    return sums[0], sums[1], sums[2]


def chunk_rows(x: Tensor, weight: Tensor) -> int:
    """How many tokens make up a chunk."""
    return max(1, MAX_CHUNK_LOGITS.get(x.device.type, 2**23) // weight.shape[0])


class FusedCrossEntropy(torch.autograd.Function):
    """Σ over the answers of −(1 − ε) log p(answer) − ε mean log p, from states x (N D) and the output layer W, b.

    With e = exp(logits − max) and s = Σ e a row, ∂/∂logits = e/s − (1 − ε) [answer] − ε/V. Neither the division by s
    nor the constant ε/V is done to the logits: 1/s scales the rows of what is multiplied with e, and ε/V·Σ W is one
    vector. Returns the total, and, to be read only, `likelihood` −Σ log p(answer) and `spread` −Σ mean log p.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, answers: Tensor, smoothing: float, size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        table = weight.to(x.dtype)
        vocabulary = weight.shape[0]
        mean, mean_bias = weight.mean(0), 0.0 if bias is None else bias.mean()  # of all words
        of_x = torch.empty_like(x)
        of_weight = torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias)
        likelihood, spread = _zero(x), _zero(x)
        for start in range(0, len(x), size):
            some, right = x[start : start + size], answers[start : start + size]
            logits = at_least_float32(some @ table.T)  # n V
            real, right = (right != IGNORE_INDEX).to(logits.dtype), right.clamp(min=0)[:, None]
            if bias is not None:
                logits += bias
            top = logits.amax(-1, keepdim=True)
            at_right = logits.gather(1, right)[:, 0]
            at_mean = at_least_float32(some) @ mean + mean_bias
            e = logits.sub_(top).exp_()
            s = e.sum(-1)
            log_s = s.log() + top[:, 0]
            likelihood = likelihood + (real * (log_s - at_right)).sum()
            spread = spread + (real * (log_s - at_mean)).sum()
            e = _without(e, right, (1 - smoothing) * s[:, None]).to(x.dtype)
            share = real / s
            smooth = smoothing * real
            of_x[start : start + size] = share[:, None] * at_least_float32(e @ table) - smooth[:, None] * mean
            scaled = (at_least_float32(some) * share[:, None]).to(x.dtype)
            of_weight = _add_product(of_weight, e.T, scaled)
            if smoothing:
                of_weight -= (smooth @ at_least_float32(some)) / vocabulary
            if of_bias is not None:
                of_bias = of_bias + share @ at_least_float32(e) - smooth.sum() / vocabulary
        ctx.save_for_backward(of_x, of_weight, of_bias)
        ctx.mark_non_differentiable(likelihood, spread)
        return (1 - smoothing) * likelihood + smoothing * spread, likelihood, spread

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        of_x, of_weight, of_bias = ctx.saved_tensors
        of_bias = None if of_bias is None else of_bias * scale
        return of_x * scale.to(of_x.dtype), of_weight * scale, of_bias, None, None, None


class RDropCrossEntropy(torch.autograd.Function):
    """The same for pairs of passes over the same answers that differ by dropout, and how far they differ.

    The rows of x are the first passes and then, in the same order, the second: Σ cross-entropy of both + α/2 Σ
    (KL(p₁‖p₂) + KL(p₂‖p₁)) (Liang et al. 2021, R-Drop). With δ = log p₁ − log p₂ the two divergences are Σ (p₁ − p₂) δ
    together, and ∂/∂logits₁ = p₁ (δ − Σ p₁ δ) + p₁ − p₂.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        answers: Tensor,
        smoothing: float,
        alpha: float,
        size: int,
    ) -> tuple[Tensor, ...]:
        half, vocabulary = len(x) // 2, len(weight)
        table, both = weight.to(x.dtype), x.unflatten(0, (2, half))
        of_x = torch.empty_like(both)
        of_weight = torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias)
        sums = [_zero(x) for _ in range(3)]
        for start in range(0, half, max(1, size // 2)):
            stop = min(half, start + max(1, size // 2))
            some = both[:, start:stop].flatten(0, 1)  # 2n D
            right = answers[start:stop]
            logits = at_least_float32(some @ table.T)
            real, right = (right != IGNORE_INDEX).to(logits.dtype)[None, :, None], right.clamp(min=0)[None, :, None]
            log_p = (logits if bias is None else logits + bias).log_softmax(-1).unflatten(0, (2, -1))  # 2 n V
            p = log_p.exp()
            delta = log_p[:1] - log_p[1:]  # 1 n V
            apart = (p[:1] - p[1:]) * delta
            lost = (-log_p.gather(2, right.expand(2, -1, -1)), -log_p.mean(-1, keepdim=True), apart)
            sums = [total + (real * each).sum() for total, each in zip(sums, lost)]
            sign = torch.tensor([1.0, -1.0], dtype=p.dtype, device=x.device)[:, None, None]
            slope = p * sign * delta
            slope = slope - p * slope.sum(-1, keepdim=True) + sign * (p[:1] - p[1:])
            wanted = torch.where(torch.arange(vocabulary, device=x.device) == right, 1 - smoothing, 0.0)
            gradient = real * (p - wanted - smoothing / vocabulary + alpha / 2 * slope)
            gradient = gradient.flatten(0, 1).to(x.dtype)
            of_x[:, start:stop] = (gradient @ table).unflatten(0, (2, -1))
            of_weight = _add_product(of_weight, gradient.T, some)
            if of_bias is not None:
                of_bias = of_bias + at_least_float32(gradient).sum(0)
        likelihood, spread, divergence = sums
        ctx.save_for_backward(of_x.flatten(0, 1), of_weight, of_bias)
        ctx.mark_non_differentiable(likelihood, spread, divergence)
        total = (1 - smoothing) * likelihood + smoothing * spread + alpha / 2 * divergence
        return total, likelihood, spread, divergence

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*FusedCrossEntropy.backward(ctx, gradients[0]), None)


def _zero(x: Tensor) -> Tensor:
    """A sum over values of x, in float32 or better."""
    return torch.zeros((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)


def _without(e: Tensor, right: Tensor, much: Tensor) -> Tensor:
    """e less so much at the right word of each row (n 1); on a GPU in the same pass that computes e."""
    if e.is_cuda:
        return e - torch.where(torch.arange(e.shape[1], device=e.device) == right, much, 0.0)
    return e.scatter_(1, right, e.gather(1, right) - much)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """total + left · right, accumulated in float32 or better."""
    if left.dtype in (torch.float32, torch.float64):
        return total.addmm_(left, right)
    if left.is_cuda:
        return total + torch.mm(left, right, out_dtype=torch.float32)
    return total + (left @ right).float()
