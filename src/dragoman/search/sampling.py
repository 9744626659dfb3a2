"""Sampling: draw each token from p(y_t | y_<t, x), softened or cut off."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.search.engine import PAST, Hypothesis, Stepper, Symbols, finish
from dragoman.search.settings import Sample


@torch.inference_mode()
def sample(
    model: Model,
    source: Tensor,
    lengths: Tensor,
    symbols: Symbols,
    limits: Tensor,
    settings: Sample,
    keys: Tensor,
) -> list[list[Hypothesis]]:
    """B S → `settings.best` samples of each source, likeliest first.

    The draw of a source depends on the seed and on its key (B) alone, never on the batch that it stands in. The score
    is the model's log p(y|x), whatever the temperature that it was drawn with.
    """
    longest = int(limits.max())
    stepper = Stepper(model, model.start(source, lengths, settings.best, longest, symbols.start), symbols, limits)
    rows = source.shape[0] * settings.best
    limits = limits.repeat_interleave(settings.best)
    uniform = torch.tensor(
        np.stack([_stream(settings.seed, key, n, longest) for key in keys.tolist() for n in range(settings.best)]),
        device=source.device,
        dtype=torch.float32,
    )  # R T
    scores = torch.zeros(rows, device=source.device)
    over = torch.zeros(rows, dtype=torch.bool, device=source.device)
    written = []
    for step in range(longest):
        log_p = stepper.step()
        tokens = draw(log_p, uniform[:, step], settings)
        scores = torch.where(over, scores, scores + log_p.gather(1, tokens[:, None])[:, 0])
        written.append(torch.where(over, PAST, tokens))
        over = over | (tokens == symbols.end) | (step + 1 >= limits)
        if bool(over.all()):
            break
        stepper.choose(tokens)
    hypotheses = [
        finish(row, score, symbols.end) for row, score in zip(torch.stack(written, 1).tolist(), scores.tolist())
    ]
    groups = [hypotheses[i : i + settings.best] for i in range(0, rows, settings.best)]
    return [sorted(group, key=lambda h: -h.score) for group in groups]


def _stream(seed: int, key: int, n: int, length: int) -> np.ndarray:
    """Uniform numbers that belong to sample n of one source; a longer stream begins like a shorter one."""
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[0, 0, 0, n])).random(length)


def draw(log_p: Tensor, uniform: Tensor, settings: Sample) -> Tensor:
    """R V, and one number a row from [0, 1) → R: the token at which the cumulated probability passes that number."""
    p, order = (log_p / settings.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    if settings.top_k is not None:
        p[:, settings.top_k :] = 0.0
    if settings.top_p is not None:  # the smallest set of tokens that reaches top_p; the likeliest is always in it
        p = p.masked_fill(p.cumsum(-1) - p >= settings.top_p * p.sum(-1, keepdim=True), 0.0)
    total = p.cumsum(-1)
    place = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)
    last = (p > 0).sum(-1, keepdim=True) - 1  # rounding may not step past the last token that has any probability
    return order.gather(1, torch.minimum(place, last))[:, 0]
