"""Fused output layer and cross-entropy: logits are computed once, a chunk of tokens at a time.

The forward pass computes logits, loss and gradients of a chunk, since the gradient of cross-entropy with respect to
the logits is known with the softmax: p − y. The backward pass only scales the stored gradients. Log-probabilities of
single tokens, whose gradients are weighted later, are computed in chunks as well (`TokenLogProbs`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.data import IGNORE_INDEX
from dragoman.parts.cpu_products import product
from dragoman.parts.precision import at_least_float32

#: logits that exist at a time: what fits the cache of a CPU, what keeps a GPU busy
MAX_CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**28}


def tokens_per_chunk(x: Tensor, weight: Tensor) -> int:
    """Return for how many of N tokens logits may be computed at a time, from features x (N D) and weight matrix (V D).

    Each token has V logits, and at most `MAX_CHUNK_LOGITS` of the device of x exist at a time.
    """
    return max(1, MAX_CHUNK_LOGITS.get(x.device.type, MAX_CHUNK_LOGITS["cpu"]) // weight.shape[0])


def token_metrics(x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum metrics over the labels for evaluation, without gradients, from features x and the output layer W, b.

    Shape: x (N, D), weight (V, D), bias (V), labels (N), of which those equal to `IGNORE_INDEX` do not count.

    Returns:
        −Σ log p(label), −Σ mean log p over the vocabulary, and the number of labels with the highest probability.
    """
    nll, smooth, correct = (_zero(x) for _ in range(3))
    chunk_size = tokens_per_chunk(x, weight)
    for chunk, label in zip(x.split(chunk_size), labels.split(chunk_size)):
        log_p = at_least_float32(torch.nn.functional.linear(chunk, weight, bias)).log_softmax(-1)  # n V
        is_ignored = label == IGNORE_INDEX
        label_log_p = log_p.gather(1, label.clamp(min=0)[:, None])[:, 0]  # IGNORE_INDEX, which is negative, is no index
        nll = nll + (-label_log_p).masked_fill(is_ignored, 0.0).sum()
        smooth = smooth + (-log_p.mean(-1)).masked_fill(is_ignored, 0.0).sum()
        correct = correct + (log_p.argmax(-1) == label).to(log_p.dtype).masked_fill(is_ignored, 0.0).sum()
    return nll, smooth, correct


class FusedCrossEntropy(torch.autograd.Function):
    """Σ over the labels of −(1 − ε) log p(label) − ε mean log p, from features x and the output layer W, b.

    With e = exp(logits − max) and s = Σ e per row, ∂/∂logits = e/s − (1 − ε) [label] − ε/V. Neither the division by s
    nor the constant ε/V is applied to the logits: 1/s scales the rows that are multiplied with e, and ε/V·Σ W is one
    vector. Returns the total and, not differentiable, −Σ log p(label) and −Σ mean log p.

    Shape: x (N, D), weight (V, D), bias (V), labels (N).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float, chunk_size: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return Σ of the smoothed cross-entropy, −Σ log p(label) and −Σ mean log p, and store the gradients.

        x (N D) are the inputs of the output layer with weight (V D) and bias (V); labels (N) equal to `IGNORE_INDEX` do
        not count. The loss of a label is −(1 − ε) log p(label) − ε mean log p, ε being `smoothing`. For `chunk_size`
        tokens (n) at a time, logits, e = exp(logits − max) and s = Σ e are computed, and from them loss and gradients:
        ∂/∂logits is e/s − (1 − ε) at the label − ε/V everywhere, where 1/s and ε/V are applied after the matrix
        products.
        """
        cast_weight = weight.to(x.dtype)
        vocab_size = weight.shape[0]
        mean_weight, mean_bias = weight.mean(0), 0.0 if bias is None else bias.mean()
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # not if it is frozen
        grad_bias = None if bias is None else torch.zeros_like(bias)
        nll, smooth = _zero(x), _zero(x)
        for start in range(0, len(x), chunk_size):
            chunk, label = x[start : start + chunk_size], labels[start : start + chunk_size]
            logits = at_least_float32(product(chunk, cast_weight.T))  # n V
            mask, label = (label != IGNORE_INDEX).to(logits.dtype), label.clamp(min=0)[:, None]  # 0 if ignored
            if bias is not None:
                logits += bias
            maximum = logits.amax(-1, keepdim=True)
            label_logit = logits.gather(1, label)[:, 0]  # n
            mean_logit = at_least_float32(chunk) @ mean_weight + mean_bias  # n: over the vocabulary
            e = logits.sub_(maximum).exp_()  # n V
            s = e.sum(-1)  # n
            log_normalizer = s.log() + maximum[:, 0]  # log Σ exp of the logits
            nll = nll + (mask * (log_normalizer - label_logit)).sum()
            smooth = smooth + (mask * (log_normalizer - mean_logit)).sum()
            grad_logits = _subtract_at(e, label, (1 - smoothing) * s[:, None]).to(x.dtype)  # times s, without ε/V
            scale = mask / s
            epsilon = smoothing * mask  # ε, or 0 if the label is ignored
            grad_chunk = scale[:, None] * at_least_float32(product(grad_logits, cast_weight))
            grad_x[start : start + chunk_size] = grad_chunk - epsilon[:, None] * mean_weight
            if grad_weight is not None:
                scaled_chunk = (at_least_float32(chunk) * scale[:, None]).to(x.dtype)
                grad_weight = _add_product(grad_weight, grad_logits.T, scaled_chunk)
                if smoothing:
                    grad_weight -= (epsilon @ at_least_float32(chunk)) / vocab_size
            if grad_bias is not None:
                grad_bias = grad_bias + scale @ at_least_float32(grad_logits) - epsilon.sum() / vocab_size
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll, smooth)
        return (1 - smoothing) * nll + smoothing * smooth, nll, smooth

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias that `forward` stored, times that of its first output, the loss.

        The other arguments have no gradient, and the other outputs are not differentiable.
        """
        return (*_scale_gradients(ctx.saved_tensors, gradients[0]), None, None, None)


class RDropCrossEntropy(torch.autograd.Function):
    """Cross-entropy of two passes over the same labels, and the KL divergence between them (R-Drop).

    The first half of x holds the first pass, the second half the other pass in the same order: Σ cross-entropy of both
    + α/2 Σ (KL(p₁‖p₂) + KL(p₂‖p₁)) (Liang et al. 2021). With δ = log p₁ − log p₂ the two divergences sum to
    Σ (p₁ − p₂) δ, and ∂/∂logits₁ = p₁ (δ − Σ p₁ δ) + p₁ − p₂.

    Shape: x (2N, D), weight (V, D), bias (V), labels (2N).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        alpha: float,
        chunk_size: int,
    ) -> tuple[Tensor, ...]:
        """Return the total loss, −Σ log p(label), −Σ mean log p and Σ of both divergences, and store the gradients.

        x (2N D) are inputs of the output layer from two passes over the same N tokens, one after the other; labels (2N)
        equal to `IGNORE_INDEX` do not count. The cross-entropy of a label is −(1 − ε) log p(label) − ε mean log p with
        ε = `smoothing`; the mean of both KL divergences has the weight `alpha`. `chunk_size` rows of x, n tokens of
        each pass, are processed at a time. With δ = log p₁ − log p₂, the divergences sum to Σ (p₁ − p₂) δ; their
        gradient with respect to the logits of pass 1 (+) and 2 (−), `grad_divergence`, is ±(p (δ − Σ p δ) + p₁ − p₂).
        """
        half, vocab_size = len(x) // 2, len(weight)  # half: N
        cast_weight, passes = weight.to(x.dtype), x.unflatten(0, (2, half))  # passes: 2 N D
        grad_x = torch.empty_like(passes)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # not if it is frozen
        grad_bias = None if bias is None else torch.zeros_like(bias)
        sums = [_zero(x) for _ in range(3)]  # of the three losses below
        tokens_at_a_time = max(1, chunk_size // 2)
        for start in range(0, half, tokens_at_a_time):
            stop = min(half, start + tokens_at_a_time)
            chunk = passes[:, start:stop].flatten(0, 1)  # 2n D
            label = labels[start:stop]  # the same in both passes
            logits = at_least_float32(product(chunk, cast_weight.T))
            mask, label = (label != IGNORE_INDEX).to(logits.dtype)[None, :, None], label.clamp(min=0)[None, :, None]
            log_p = (logits if bias is None else logits + bias).log_softmax(-1).unflatten(0, (2, -1))  # 2 n V
            p = log_p.exp()
            delta = log_p[:1] - log_p[1:]  # 1 n V
            divergence = (p[:1] - p[1:]) * delta
            losses = (-log_p.gather(2, label.expand(2, -1, -1)), -log_p.mean(-1, keepdim=True), divergence)
            sums = [total + (mask * loss).sum() for total, loss in zip(sums, losses)]
            sign = torch.tensor([1.0, -1.0], dtype=p.dtype, device=x.device)[:, None, None]  # of the two passes
            signed = p * sign * delta
            grad_divergence = signed - p * signed.sum(-1, keepdim=True) + sign * (p[:1] - p[1:])
            label_target = torch.where(torch.arange(vocab_size, device=x.device) == label, 1 - smoothing, 0.0)
            grad_logits = mask * (p - label_target - smoothing / vocab_size + alpha / 2 * grad_divergence)
            grad_logits = grad_logits.flatten(0, 1).to(x.dtype)  # 2n V
            grad_x[:, start:stop] = product(grad_logits, cast_weight).unflatten(0, (2, -1))
            if grad_weight is not None:
                grad_weight = _add_product(grad_weight, grad_logits.T, chunk)
            if grad_bias is not None:
                grad_bias = grad_bias + at_least_float32(grad_logits).sum(0)
        nll, smooth, divergence = sums
        ctx.save_for_backward(grad_x.flatten(0, 1), grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll, smooth, divergence)
        total = (1 - smoothing) * nll + smoothing * smooth + alpha / 2 * divergence
        return total, nll, smooth, divergence

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias that `forward` stored, times that of its first output, the loss.

        The other arguments have no gradient, and the other outputs are not differentiable.
        """
        return (*_scale_gradients(ctx.saved_tensors, gradients[0]), None, None, None, None)


class TokenLogProbs(torch.autograd.Function):
    """log p(label) of each token, differentiable, from features x and the output layer W, b.

    Logits exist for a chunk of tokens at a time: the backward pass computes them again. With g the gradient of log p,
    ∂/∂logits = g ([label] − p).

    Shape: x (N, D), weight (V, D), bias (V), labels (N) → N; 0 where there is no label.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk_size: int) -> Tensor:
        """Return log p of the labels (N) from x (N D), weight (V D) and bias (V), for `chunk_size` tokens at a time.

        It is 0 for ignored labels (`IGNORE_INDEX`).
        """
        normalizers, log_probs = [], []
        for chunk, label in zip(x.split(chunk_size), labels.split(chunk_size)):
            logits = _chunk_logits(chunk, weight, bias)  # n V
            normalizers.append(logits.logsumexp(-1))
            log_probs.append(logits.gather(1, label.clamp(min=0)[:, None])[:, 0] - normalizers[-1])
        ctx.chunk_size = chunk_size
        ctx.save_for_backward(x, weight, bias, labels, torch.cat(normalizers))
        return torch.cat(log_probs).masked_fill(labels == IGNORE_INDEX, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias from g, those of the log-probabilities (N): g ([label] − p).

        The probabilities p of a chunk of tokens are computed again. Labels and the chunk size have no gradient.
        """
        x, weight, bias, labels, normalizers = ctx.saved_tensors
        grad_log_p = gradients[0].masked_fill(labels == IGNORE_INDEX, 0.0)
        cast_weight = weight.to(x.dtype)
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # not if it is frozen
        grad_bias = None if bias is None else torch.zeros_like(bias)
        for start in range(0, len(x), ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            p = (_chunk_logits(x[chunk], weight, bias) - normalizers[chunk, None]).exp_()
            g = grad_log_p[chunk, None]  # n 1
            # −g p + g [label]
            grad_logits = _subtract_at(p.mul_(-g), labels[chunk].clamp(min=0)[:, None], -g).to(x.dtype)
            grad_x[chunk] = product(grad_logits, cast_weight)
            if grad_weight is not None:
                grad_weight = _add_product(grad_weight, grad_logits.T, x[chunk])
            if grad_bias is not None:
                grad_bias = grad_bias + at_least_float32(grad_logits).sum(0)
        return grad_x, grad_weight, grad_bias, None, None


def _scale_gradients(stored: tuple[Tensor | None, ...], scale: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight and bias that a forward pass has stored, times that of the loss (`scale`).

    Those of the weight, if it is frozen, and of the bias, if there is none, are None.
    """
    return tuple(None if gradient is None else gradient * scale.to(gradient.dtype) for gradient in stored)


def _chunk_logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the logits W x + b of n tokens, n D → n V, in float32 or better."""
    logits = at_least_float32(product(x, weight.to(x.dtype).T))
    return logits if bias is None else logits + bias


def _zero(x: Tensor) -> Tensor:
    """Return a scalar zero, the start of a sum of losses, on the device of x, in float32 or better."""
    return torch.zeros((), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)


def _subtract_at(matrix: Tensor, label: Tensor, subtrahend: Tensor) -> Tensor:
    """Subtract from each row of a matrix (n V) its `subtrahend` (n 1) in the column `label` (n 1); in place on a CPU.

    On a GPU it is an elementwise operation on the whole matrix, which the compiler fuses with others.
    """
    if matrix.is_cuda:
        return matrix - torch.where(torch.arange(matrix.shape[1], device=matrix.device) == label, subtrahend, 0.0)
    return matrix.scatter_(1, label, matrix.gather(1, label) - subtrahend)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return `total` plus the matrix product of `left` and `right`, in float32 or better.

    It is computed in place in float32 and float64. Products of 16-bit matrices are added in float32.
    """
    if left.dtype == torch.float32 and not left.is_cuda:
        return total.add_(product(left, right))
    if left.dtype in (torch.float32, torch.float64):
        return total.addmm_(left, right)
    if left.is_cuda:
        return total + torch.mm(left, right, out_dtype=torch.float32)
    return total + (left @ right).float()
