"""Stopping rules of beam search: when the search of a source ends before its length limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dragoman.search.configs import Beam

#: `early_stopping` as in Hugging Face's `generate`, and "steps", which always searches up to the length limit
EarlyStopping = Literal[True, False, "never", "steps"]
RULES: tuple[EarlyStopping, ...] = get_args(EarlyStopping)


def search_ends(settings: Beam, finished: Tensor, live: Tensor, length: Tensor, limit: Tensor) -> Tensor:
    """The sources (B) whose search ends, by `settings.rule`.

    Args:
        finished: B N, normalised scores of the finished hypotheses, best first, −∞ where there are fewer.
        live: B K, log p of the hypotheses that can still be continued, −∞ where there is none.
        length: B, the number of their tokens.
        limit: B, the largest number of tokens of a target, END included.

    True stops at `settings.pool` finished hypotheses. False stops when moreover the best live hypothesis, normalised by
    its present length, does not beat the worst of them: a heuristic, for with α > 0 its score may still rise.

    "never" is exact: it stops when no continuation can enter the n best. log p only falls as a hypothesis grows, and a
    coverage penalty is at most 0, so whatever comes of a hypothesis scores at most log p / max lp(l), where l runs from
    the next length to the limit: lp is monotonic, so its maximum is at one of the two.
    """
    rule = settings.stopping_rule
    if rule == "steps":
        return torch.zeros_like(limit, dtype=torch.bool)
    if rule is True:
        return finished[:, settings.max_finished - 1] > -torch.inf
    best = live.amax(1)
    if rule is False:
        worst = finished[:, settings.max_finished - 1]
        return (worst > -torch.inf) & (best / settings.length_divisor(length) <= worst)
    return best / settings.max_length_divisor(length + 1, limit) <= finished[:, settings.n_best - 1]
