"""Losses of mixtures, such as that of an output layer that can copy: their log p is no softmax of linear logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dragoman.data import IGNORE_INDEX
from dragoman.objectives.cross_entropy import tokens_per_chunk
from dragoman.parts.embedding import OutputLayer
from dragoman.parts.mixer import CopyDistribution


def mixture_loss(
    output: OutputLayer,
    x: Tensor,
    copying: CopyDistribution | None,
    labels: Tensor,
    smoothing: float,
    rdrop_alpha: float = 0.0,
) -> dict[str, Tensor]:
    """Sum the losses of all labels under the mixture of generating and copying; differentiable.

    Shape: x (N, D), labels (N). `copying` holds the tensors of the copy distribution, with N rows; it is None for a
    model that computes log-probabilities x (N, V) itself. With R-Drop (`rdrop_alpha` > 0), the two halves of the rows
    are two passes over the same labels, and the divergence is KL(p₁‖p₂) + KL(p₂‖p₁).

    Returns:
        sums over the labels by name: `nll_loss`, −log p(label); `smooth_loss`, minus the mean log p of the vocabulary;
        with R-Drop `divergence`; `total` = (1 − ε) `nll_loss` + ε `smooth_loss` + α/2 `divergence`, where ε is
        `smoothing`. Without gradients (evaluation) also `correct`, the number of labels with the highest probability.
    """
    passes = 2 if rdrop_alpha else 1

    def sum_losses(x: Tensor, labels: Tensor, *copying_fields: Tensor) -> tuple[Tensor, ...]:
        """Return −Σ log p(label), −Σ mean log p, Σ divergence and the number of correct labels of n tokens.

        x is n passes D (or V), `labels` n passes, and `copying_fields` the fields of `copying`, if it is not None.
        """
        log_p = output.logits(x, CopyDistribution(*copying_fields) if copying_fields else None)  # n passes V
        is_label = labels != IGNORE_INDEX
        nll = -log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        first, last = log_p[:, 0], log_p[:, -1]  # of the two passes; equal with one pass, whose divergence is 0
        divergence = ((first.exp() - last.exp()) * (first - last)).sum(-1)
        correct = (log_p.argmax(-1) == labels).to(log_p.dtype)
        # the divergence is divided because it is added for the label of each pass
        terms = (nll, -log_p.mean(-1), divergence[:, None] / passes, correct)
        return tuple((term * is_label).sum() for term in terms)

    # N/passes passes …: the passes of a label side by side
    tensors = [tensor.unflatten(0, (passes, -1)).transpose(0, 1) for tensor in (x, labels, *(copying or ()))]
    chunk_sums = _map_chunks(sum_losses, tensors, chunk_size=max(1, _tokens_per_chunk(output, x) // passes))
    nll, smooth, divergence, correct = (torch.stack(sums).sum() for sums in zip(*chunk_sums))
    total = (1 - smoothing) * nll + smoothing * smooth + rdrop_alpha / 2 * divergence
    losses = {"total": total, "nll_loss": nll, "smooth_loss": smooth}
    if not torch.is_grad_enabled():
        return losses | {"correct": correct}
    return losses | ({"divergence": divergence} if rdrop_alpha else {})


def mixture_log_probs(output: OutputLayer, x: Tensor, copying: CopyDistribution | None, labels: Tensor) -> Tensor:
    """Return log p of each label under the mixture of generating and copying; differentiable.

    It is 0 where there is no label (`IGNORE_INDEX`). Shape: x (N, D), labels (N) → N; `copying` has N rows, or is None
    for log-probabilities x (N, V).
    """

    def log_probs(x: Tensor, labels: Tensor, *copying_fields: Tensor) -> Tensor:
        """Return log p of n labels, x being n D (or n V); `copying_fields` are the fields of `copying`, if any."""
        log_p = output.logits(x, CopyDistribution(*copying_fields) if copying_fields else None)
        log_p = log_p.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
        return log_p.masked_fill(labels == IGNORE_INDEX, 0.0)

    return torch.cat(_map_chunks(log_probs, [x, labels, *(copying or ())], chunk_size=_tokens_per_chunk(output, x)))


def _tokens_per_chunk(output: OutputLayer, x: Tensor) -> int:
    """Return for how many of N tokens at a time log-probabilities are computed from features x (N D).

    The number limits the memory. If the output layer reads log-probabilities, which x (N V) holds already, it is N.
    """
    return max(1, len(x)) if output.reads_log_probs else tokens_per_chunk(x, output.weight)


def _map_chunks(function: Callable[..., Any], tensors: list[Tensor], chunk_size: int) -> list[Any]:
    """Call a function with `chunk_size` rows of all tensors at a time, and return the result of each call.

    With several chunks, the backward pass computes each again, so that the probabilities of one chunk exist at a time.
    """
    if len(tensors[0]) > chunk_size and torch.is_grad_enabled():
        # the functions draw no random numbers, whose state would have to be restored
        function = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
    return [function(*chunk) for chunk in zip(*(tensor.split(chunk_size) for tensor in tensors))]
