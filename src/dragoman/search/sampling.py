"""Sampling: draw each token from p(y_t | y_<t, x), truncated and rescaled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.search.greedy import IndependentRows, RowsState
from dragoman.search.search_state import SearchState

if TYPE_CHECKING:
    from dragoman.search.configs import Sample


@dataclass
class SamplingState(RowsState):
    """The state of sampling."""

    uniform: Tensor  # B K T: random numbers from [0, 1), one per token


class Sampling(IndependentRows):
    """Draws `config.n_best` samples of each source; returns them in order of log p(y|x).

    The samples of a source depend only on the seed and on its key, not on the rest of the batch. Scores are the model's
    log p(y|x), whatever the temperature.
    """

    def __init__(self, config: Sample, eos: int) -> None:
        super().__init__(config.n_best, eos)
        self.config = config

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        state = super().init_state(state, max_length)
        assert isinstance(state.strategy, RowsState)
        uniform = [
            [_uniform_numbers(self.config.seed, key, row, max_length) for row in range(self.rows_per_source)]
            for key in state.key.tolist()
        ]
        numbers = torch.tensor(np.array(uniform), device=state.key.device, dtype=torch.float32)
        return replace(state, strategy=SamplingState(state.strategy.ended, numbers))

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, None]:
        assert isinstance(state.strategy, SamplingState)
        logits, uniform = at_least_float32(logits), state.strategy.uniform
        index = state.step.clamp(max=uniform.shape[-1] - 1)[:, None, None].expand(*uniform.shape[:2], 1)
        tokens = draw(logits.flatten(0, 1), uniform.gather(2, index).flatten(), self.config).view_as(log_normalizer)
        return self.append(state, tokens, logits.gather(2, tokens[..., None])[..., 0] - log_normalizer)


def _uniform_numbers(seed: int, key: int, row: int, length: int) -> np.ndarray:
    """Return the random numbers of one sample of a source; more numbers begin with the same ones."""
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[0, 0, 0, row])).random(length)


def draw(logits: Tensor, uniform: Tensor, config: Sample) -> Tensor:
    """Draw a token per row: logits R V, random numbers from [0, 1) R → R.

    The token is the one at which the cumulative probability exceeds the random number.
    """
    p = ((logits - logits.amax(-1, keepdim=True)) / config.temperature).softmax(-1)  # no overflow at low temperatures
    if config.typical_p is not None:
        p = typical(p, config.typical_p)
    p, order = p.sort(dim=-1, descending=True, stable=True)
    if config.min_p is not None:
        p = p.masked_fill(p < config.min_p * p[:, :1], 0.0)
    if config.top_k is not None:
        p[:, config.top_k :] = 0.0
    if config.top_p is not None:
        p = p.masked_fill(_beyond_mass(p, config.top_p), 0.0)
    cumulative = p.cumsum(-1)
    index = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)
    last = (p > 0).sum(-1, keepdim=True).sub_(1).clamp_(min=0)  # rounding must not go beyond the last possible token
    return order.gather(1, torch.minimum(index, last))[:, 0]


def typical(p: Tensor, mass: float) -> Tensor:
    """Typical sampling (Meister et al. 2023): keep the tokens whose −log p is closest to the entropy; R V → R V.

    Keeps the smallest number of tokens with at least the probability `mass`, and sets the others to 0.
    """
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
    distance = (-log_p + (p * log_p).sum(-1, keepdim=True)).abs().masked_fill(p == 0, torch.inf)
    order = distance.argsort(dim=-1, stable=True)
    beyond = _beyond_mass(p.gather(1, order), mass)
    return p.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), 0.0)


def _beyond_mass(p: Tensor, mass: float) -> Tensor:
    """R V: the tokens after the first ones that together reach a share `mass` of the total; the first is never one."""
    beyond = p.cumsum(-1) - p >= mass * p.sum(-1, keepdim=True)
    beyond[:, 0] = False
    return beyond
