"""Sampling: draw each token from p(y_t | y_<t, x), softened or cut off."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.search.configs import Sample
from dragoman.search.greedy import IndependentRows
from dragoman.search.slots import Tree


class Sampling(IndependentRows):
    """`settings.best` samples of each source, likeliest first.

    The draw of a source depends on the seed and on its key alone, never on the batch that it stands in. The score is
    the model's log p(y|x), whatever the temperature that it was drawn with.
    """

    def __init__(self, settings: Sample, end: int) -> None:
        super().__init__(settings.n_best, end)
        self.settings = settings

    def init_state(self, slots: Tree, longest: int) -> None:
        super().init_state(slots, longest)
        streams = [
            [_stream(self.settings.seed, key, n, longest) for n in range(self.rows_per_source)]
            for key in slots["key"].tolist()
        ]
        slots["uniform"] = torch.tensor(np.array(streams), device=slots["key"].device, dtype=torch.float32)  # B K T

    def select(self, slots: Tree, logits: Tensor, norm: Tensor, looks: Tensor | None) -> tuple[Tensor, None]:
        logits, uniform = at_least_float32(logits), slots["uniform"]
        places = slots["step"].clamp(max=uniform.shape[-1] - 1)[:, None, None].expand(*uniform.shape[:2], 1)
        tokens = draw(logits.flatten(0, 1), uniform.gather(2, places).flatten(), self.settings).view_as(norm)
        return self.write(slots, tokens, logits.gather(2, tokens[..., None])[..., 0] - norm)


def _stream(seed: int, key: int, n: int, length: int) -> np.ndarray:
    """Uniform numbers that belong to sample n of one source; a longer stream begins like a shorter one."""
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[0, 0, 0, n])).random(length)


def draw(log_p: Tensor, uniform: Tensor, settings: Sample) -> Tensor:
    """R V, and one number a row from [0, 1) → R: the token at which the cumulated probability passes that number."""
    p = ((log_p - log_p.amax(-1, keepdim=True)) / settings.temperature).softmax(-1)  # no overflow, however cold
    if settings.typical_p is not None:
        p = typical(p, settings.typical_p)
    p, order = p.sort(dim=-1, descending=True, stable=True)
    if settings.min_p is not None:
        p = p.masked_fill(p < settings.min_p * p[:, :1], 0.0)
    if settings.top_k is not None:
        p[:, settings.top_k :] = 0.0
    if settings.top_p is not None:  # the smallest set of tokens that reaches top_p; the likeliest is always in it
        beyond = p.cumsum(-1) - p >= settings.top_p * p.sum(-1, keepdim=True)
        beyond[:, 0] = False
        p = p.masked_fill(beyond, 0.0)
    total = p.cumsum(-1)
    place = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)
    last = (p > 0).sum(-1, keepdim=True).sub_(1).clamp_(min=0)  # rounding must not step past the last possible token
    return order.gather(1, torch.minimum(place, last))[:, 0]


def typical(p: Tensor, mass: float) -> Tensor:
    """R V: 0 but for the tokens whose surprise −log p is nearest to its mean, as few as reach the mass."""
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
    away = (-log_p + (p * log_p).sum(-1, keepdim=True)).abs().masked_fill(p == 0, torch.inf)
    order = away.argsort(dim=-1, stable=True)
    sorted_p = p.gather(1, order)
    beyond = sorted_p.cumsum(-1) - sorted_p >= mass * sorted_p.sum(-1, keepdim=True)
    beyond[:, 0] = False  # at least one token is left
    return p.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), 0.0)
