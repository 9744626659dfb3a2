"""The running mean of the weights: what is validated and kept in their place, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential moving average of the weights: w̄ ← k w̄ + (1 − k) w after every step (Polyak & Juditsky 1992).

        k = min(decay, (1 + step) / (10 + step))

    as in Tarvainen & Valpola (2017), with a k that grows towards `decay` so that the weights of the beginning are soon
    forgotten. Buffers, such as the statistics of a batch norm, are means already and stay as they are. `set_step` goes
    before a step and `update` after it; only `update` belongs into a graph.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = dict(model.named_parameters())
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.share = torch.zeros((), device=next(model.parameters()).device)  # 1 − k

    def set_step(self, step: int) -> None:
        """Tell the number of the step, counted from 1, that the next update follows."""
        self.share.fill_(1 - min(self.decay, (1 + step) / (10 + step)))

    @torch.no_grad()
    def update(self) -> None:
        weights, averages = list(self.weights.values()), list(self.averages.values())
        # a lerp by a number on the device would be one kernel a weight, these are three in all
        change = torch._foreach_sub(weights, averages)
        torch._foreach_mul_(change, self.share)
        torch._foreach_add_(averages, change)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Within it the model has the averages as its weights; afterwards its own again, to the bit."""
        weights = list(self.weights.values())
        own = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, list(self.averages.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, own)

    def state_tensors(self) -> dict[str, Tensor]:
        """The averages by the names of the weights, for a checkpoint; the step's number is all that else is needed."""
        return dict(self.averages)

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the averages in place to what `tensors` gave."""
        for name, average in self.averages.items():
            average.copy_(tensors[name])
