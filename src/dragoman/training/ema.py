"""Exponential moving average of the weights, which replaces them in validation and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average: w̄ ← k w̄ + (1 − k) w after every step (Polyak & Juditsky 1992).

        k = min(decay, (1 + step) / (10 + step))

    as in Tarvainen & Valpola (2017), so that initial weights are soon forgotten. Frozen
    weights, and buffers such as the statistics of a batch norm, which are averages already, are left out. `set_step`
    is called before a step, `update` after it; only `update` is part of a CUDA graph.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start the averages at the present weights of the model; `decay` is the largest decay k of an update."""
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: weight for name, weight in model.named_parameters() if weight.requires_grad
        }
        #: averages by the names of the weights
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.update_rate = torch.zeros((), device=next(model.parameters()).device)  # 1 − k

    def set_step(self, step: int) -> None:
        """Set the decay k = min(decay, (1 + step) / (10 + step)) of the next `update`; steps are counted from 1.

        It is stored as `update_rate` = 1 − k.
        """
        self.update_rate.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights: average ← average + update_rate · (weight − average).

        The tensor `update_rate` is 1 minus the decay of the step, as `set_step` has set it.
        """
        weights, averages = list(self.weights.values()), list(self.averages.values())
        # three kernels for all weights; torch._foreach_lerp_ with `update_rate` on the device would take one per weight
        change = torch._foreach_sub(weights, averages)
        torch._foreach_mul_(change, self.update_rate)
        torch._foreach_add_(averages, change)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Give the model the averages as weights inside the context, and restore its weights exactly."""
        weights = list(self.weights.values())
        saved = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, list(self.averages.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, saved)

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the saved averages of a checkpoint, by the names of the weights, into the present ones."""
        for name, average in self.averages.items():
            average.copy_(tensors[name])
