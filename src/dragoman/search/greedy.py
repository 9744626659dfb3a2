"""Greedy search: at each step the likeliest token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.search.engine import PAST, Hypothesis, Stepper, Symbols, finish


@torch.inference_mode()
def greedy_search(
    model: Model, source: Tensor, lengths: Tensor, symbols: Symbols, limits: Tensor, penalty: Callable[[int], float]
) -> list[list[Hypothesis]]:
    """B S → one hypothesis a source: y_t = argmax p(y | y_<t, x), until END or as many tokens as `limits` (B).

    `penalty` gives what the score of so many tokens is divided by.
    """
    longest = int(limits.max())
    stepper = Stepper(model, model.start(source, lengths, 1, longest, symbols.start), symbols, limits)
    batch = source.shape[0]
    scores = torch.zeros(batch, device=source.device)
    over = torch.zeros(batch, dtype=torch.bool, device=source.device)
    written = []
    for step in range(longest):
        best, tokens = stepper.step().max(-1)
        scores = torch.where(over, scores, scores + best)
        written.append(torch.where(over, PAST, tokens))
        over = over | (tokens == symbols.end) | (step + 1 >= limits)
        if bool(over.all()):
            break
        stepper.choose(tokens)
    rows = torch.stack(written, 1).tolist()
    return [[finish(row, score, symbols.end, penalty)] for row, score in zip(rows, scores.tolist())]
