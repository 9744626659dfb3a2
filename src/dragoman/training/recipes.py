"""Recipes: how a system is trained where nothing else is said – as its paper did, or as we would today."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import unknown
from dragoman.systems import System

#: target tokens that a training sees for each √token of its corpus: 50 epochs of 30,000 sentences, 3 of 5 million
TOKENS_FOR_ROOT = 32_000


@dataclass(frozen=True)
class Recipe:
    """Settings of the training, and of the system where it is built anew; each where the user has said nothing."""

    why: str
    training: Mapping[str, Any]
    system: Mapping[str, Any] = field(default_factory=dict)
    segmentation: float = 0.0  # BPE dropout where pairs are few
    rate: float | None = None  # at a width of 1, falling as 1/width; None: as the warm-up has it


def recipe(name: str, system: System | None) -> Recipe:
    """A recipe for a system; for one that is unknown, such as an imported one, what suits most."""
    if name == "textbook":
        return textbook(system)
    if name == "modern":
        return modern(system)
    if name != "plain":
        raise unknown("recipe", name, ("textbook", "modern", "plain"))
    return Recipe("AdamW, inverse square root", {}, rate=system.rate if system else 0.4)


def textbook(system: System | None) -> Recipe:
    """The paper's own, the Transformer's for systems of its kind: Adam, 4,000 steps of warm-up, then 1/√step."""
    paper = dict(system.paper_training) if system else {}
    if paper:
        return Recipe(f"as in the paper: {', '.join(f'{k} {v}' for k, v in paper.items())}", paper)
    adam = {"optimizer": "adam", "schedule": "inverse-sqrt", "warmup": 4000, "clip": 0.0, "beta2": 0.98}
    return Recipe("as in the paper: Adam, 4,000 steps of warm-up, inverse square root", adam)


def modern(system: System | None) -> Recipe:
    """Ours: Muon, a cosine to zero, and what has been learned about the parts since."""
    settings = system.modern if system else {}
    parts = "Muon, cosine" + (", RMSNorm, rotary positions, query–key norm, gated feed-forward" if settings else "")
    training = {"optimizer": "muon", "schedule": "cosine"}
    return Recipe(f"{parts}; textbook is the paper's own", training, settings, segmentation=0.1, rate=1.5)


def default_recipe(system: System | None) -> str:
    """Modern where it was measured to win."""
    return "modern" if system is not None and system.modern else "plain"


def noam_rate(width: int, warmup: int) -> float:
    """The peak of width^−½ · min(step^−½, step · warmup^−1½) (Vaswani et al. 2017, §5.3)."""
    return 1 / math.sqrt(width * max(1, warmup))


def whole_training(target_tokens: int, tokens: int) -> int:
    """How many steps of so many tokens a training takes: the root of the corpus, since more data need fewer epochs."""
    return max(200, math.ceil(TOKENS_FOR_ROOT * math.sqrt(target_tokens) / tokens))
