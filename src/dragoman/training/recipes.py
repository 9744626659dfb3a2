"""Recipes: how a system is trained where nothing else is said – as its paper did, or as we would today."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import unknown_name
from dragoman.systems import PaperTraining, System
from dragoman.systems.transformer_systems import TRANSFORMER_TRAINING

#: target tokens that a training sees for each √token of its corpus: 50 epochs of 30,000 sentences, 3 of 5 million
TOKENS_FOR_ROOT = 32_000


@dataclass(frozen=True)
class Recipe:
    """Settings of the training, and of the system where it is built anew; each where the user has said nothing."""

    reason: str
    training: Mapping[str, Any]
    system: Mapping[str, Any] = field(default_factory=dict)
    bpe_dropout: float = 0.0  # where pairs are few
    dropout: float | None = None  # of the system where pairs are few; None: the system's own
    rate: float | None = None  # the peak learning rate for a width of 1; it falls as 1/width
    paper: PaperTraining | None = None  # has the peak and the warm-up in place of `rate`

    def peak_learning_rate(self, width: int, warmup: int, size: str | None, started: bool) -> tuple[float, str]:
        """The peak learning rate and its reason; half as large for a model that is `started` from another run."""
        if self.rate is not None:
            rate = 0.5 * self.rate if started else self.rate
            return rate / width, f"{rate:g} over the width of {width}"
        paper = self.paper
        if paper is None or paper.noam_factor is not None:
            factor = 1.0 if paper is None or paper.noam_factor is None else paper.noam_factor
            return factor * noam_rate(width, warmup), f"{factor:g}/√(width {width} · warm-up {warmup:,})"
        rate = paper.learning_rates.get(size or "", paper.training_settings["learning_rate"])
        return rate, "the paper's"

    def warmup_steps(self, steps: int | None) -> tuple[int, str] | None:
        """The warm-up of a training of `steps` steps and its reason, where the recipe says so."""
        if self.paper is None:
            return None
        warmup, of = self.paper.training_settings["warmup_steps"], self.paper.total_steps
        if of is None or steps is None or steps == of:
            return warmup, "the paper's"
        return math.ceil(warmup * steps / of), f"the paper's {warmup:,} of {of:,} steps, in proportion"


def get_recipe(name: str, system: System | None) -> Recipe:
    """A recipe for a system; for one that is unknown, such as an imported one, what suits most."""
    if name == "textbook":
        return textbook(system)
    if name == "modern":
        return modern(system)
    if name != "plain":
        raise unknown_name("recipe", name, ("textbook", "modern", "plain"))
    tuned = system.tuned_settings if system else {}
    return Recipe(
        "--recipe textbook is the paper's own",
        {},
        tuned,
        dropout=0.3,
        rate=system.base_learning_rate if system else 0.4,
    )


def textbook(system: System | None) -> Recipe:
    """The paper's own training; the Transformer's for an imported model, whose paper is not known here."""
    paper = system.paper_training if system else TRANSFORMER_TRAINING
    training = {
        name: value for name, value in paper.training_settings.items() if name not in ("learning_rate", "warmup_steps")
    }
    why = "as in the paper" if system else "as in the Transformer's paper"
    but = f", but: {paper.differences}" if paper.differences else ""
    return Recipe(f"{why}{but}", training, paper.system_settings, paper=paper)


def modern(system: System | None) -> Recipe:
    """Muon, a cosine to zero, and what has been learned about the parts since."""
    settings = dict(system.tuned_settings) | dict(system.modern_settings) if system else {}
    training = {"optimizer": "muon", "schedule": "cosine"}
    why = "--recipe textbook is the paper's own"
    return Recipe(why, training, settings, bpe_dropout=0.1, dropout=0.3, rate=1.5)


def default_recipe(system: System | None) -> str:
    """The system's own; plain for an imported model."""
    return system.default_recipe if system is not None else "plain"


def noam_rate(width: int, warmup: int) -> float:
    """The peak of width^−½ · min(step^−½, step · warmup^−1½) (Vaswani et al. 2017, §5.3)."""
    return 1 / math.sqrt(width * max(1, warmup))


def default_steps(target_tokens: int, tokens: int) -> int:
    """How many steps of so many tokens a training takes: the root of the corpus, since more data need fewer epochs."""
    return max(200, math.ceil(TOKENS_FOR_ROOT * math.sqrt(target_tokens) / tokens))
