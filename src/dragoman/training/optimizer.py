"""The optimiser: AdamW, weight decay on matrices alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig


def adamw(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019); biases and norms are not decayed."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, eps=config.epsilon, fused=True)


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the names of the weights: `exp_avg/decoder.…`."""
    return {
        f"{kind}/{name}": value.detach()
        for name, weight in model.named_parameters()
        for kind, value in optimizer.state[weight].items()
    }


def load_state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    weights = dict(model.named_parameters())
    for name, value in tensors.items():
        kind, _, weight = name.partition("/")
        like = weights[weight]
        optimizer.state[like][kind] = value.to(like.device)
