"""Scoring: log p(y|x) of given targets by teacher forcing."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.parts.mixer import Layout
from dragoman.parts.precision import at_least_float32


@torch.inference_mode()
def token_scores(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> Tensor:
    """Framed targets, START … END (B T+1) → log p of each token after START (B T), 0 where there is padding."""
    logits = model(source, source_lengths, target[:, :-1], target_lengths - 1)
    log_p = at_least_float32(logits).log_softmax(-1).gather(2, target[:, 1:, None])[..., 0]  # B T
    real = Layout.padded(log_p.shape[1], target_lengths - 1).token_mask
    return torch.where(real, log_p, 0.0) if real is not None else log_p
