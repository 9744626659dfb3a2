"""Stopping rules: when a beam has found enough for a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Stop = Literal["complete", "hopeless", "steps"]


def complete(worst: Tensor, ahead: Tensor) -> Tensor:
    """As soon as as many hypotheses are complete as were asked for."""
    return worst > -torch.inf


def hopeless(worst: Tensor, ahead: Tensor) -> Tensor:
    """When they are, and the best that goes on would at its present length be no better than the worst of them.

    Nothing is lost by it where α ≤ 0; where α > 0 a hypothesis may still rise as it grows, and only “steps” is exact.
    """
    return (worst > -torch.inf) & (ahead <= worst)


def steps(worst: Tensor, ahead: Tensor) -> Tensor:
    """Never before the length limit."""
    return torch.zeros_like(worst, dtype=torch.bool)


#: from the normalised scores (B) of the worst complete hypothesis that counts, −∞ while there are too few, and of the
#: best that goes on, to the sources (B) that are over
STOPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"complete": complete, "hopeless": hopeless, "steps": steps}
