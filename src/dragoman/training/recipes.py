"""Recipes: default training settings of a system, as in its paper or as tuned by us."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dragoman.errors import unknown_name
from dragoman.systems import PaperTraining, System
from dragoman.systems.transformer_systems import TRANSFORMER_TRAINING

#: target tokens of a training per √token of its corpus: 50 epochs of 30,000 sentences, 3 epochs of 5 million
TRAINING_TOKENS_PER_ROOT = 32_000
MIN_STEPS = 200
MAX_DEFAULT_EPOCHS = 200  # of the smallest corpora; 800 words are learned as well in 165 epochs as in 330

# peak learning rates for a model of width 1 (`Recipe.rate`)
IMPORTED_MODEL_RATE = 0.4  # AdamW, for a model without a system of ours
MODERN_RATE = 1.5  # Muon
FINE_TUNING_RATE = 0.05  # AdamW, of an imported model: 5e-5 for a width of 1,024, as usual for NLLB and mBART
LORA_RATE = 0.3  # AdamW, of low-rank updates, which start at zero

SMALL_CORPUS_DROPOUT = 0.3
NO_SETTINGS: Mapping[str, Any] = {}  # the defaults of the configuration


@dataclass(frozen=True)
class Recipe:
    """Default settings of the training, and of the system if it is newly built.

    Attributes:
        reason: why the recipe is used, for the report of automatic settings.
        training: settings of the section `training`, by name.
        system: settings of the system, by name.
        bpe_dropout: for small corpora.
        dropout: of the system for small corpora; None keeps the system's default.
        rate: peak learning rate for a model of width 1; it falls as 1/width.
        paper: the paper's training, which defines peak and warmup instead of `rate`.
        warm_start_rate: `rate` for a model that starts from another one; half of `rate` by default.
    """

    reason: str
    training: Mapping[str, Any]
    system: Mapping[str, Any] = field(default_factory=dict)
    bpe_dropout: float = 0.0
    dropout: float | None = None
    rate: float | None = None
    paper: PaperTraining | None = None
    warm_start_rate: float | None = None

    def peak_learning_rate(self, dim: int, warmup: int, size: str | None, warm_start: bool) -> tuple[float, str]:
        """Return the peak learning rate for a model of width `dim`, and the reason for it as text.

        If the recipe has a `rate`, it is `rate` / dim; if training starts from a trained model (`warm_start`), it is
        `warm_start_rate` / dim, by default half as much. Otherwise it is the paper's: the peak of its
        inverse-square-root ("noam") schedule after `warmup` steps, or a constant that may depend on the model `size`,
        such as "base".
        """
        if self.rate is not None:
            rate = self.rate
            if warm_start:
                rate = 0.5 * self.rate if self.warm_start_rate is None else self.warm_start_rate
            return rate / dim, f"{rate:g} over the width of {dim}"
        paper = self.paper
        if paper is None or paper.noam_factor is not None:
            factor = 1.0 if paper is None or paper.noam_factor is None else paper.noam_factor
            return factor * noam_rate(dim, warmup), f"{factor:g}/√(width {dim} · warmup {warmup:,})"
        return paper.learning_rates.get(size or "", paper.learning_rate or 0.0), "the paper's"

    def warmup_steps(self, steps: int | None) -> tuple[int, str] | None:
        """Return the paper's warmup steps for a training of `steps` steps, and the reason as text.

        They are scaled in proportion if the paper trains for another number of steps; `steps` None means no limit. The
        result is None if the recipe does not follow a paper.
        """
        if self.paper is None:
            return None
        warmup, total = self.paper.warmup_steps, self.paper.total_steps
        if total is None or steps is None or steps == total:
            return warmup, "the paper's"
        return math.ceil(warmup * steps / total), f"the paper's {warmup:,} of {total:,} steps, in proportion"


def get_recipe(name: str, system: System | None) -> Recipe:
    """Return the recipe (a set of training defaults) "textbook", "modern" or "plain" for a system.

    `system` is None for a model that was imported from another library.
    """
    if name == "textbook":
        return textbook(system)
    if name == "modern":
        return modern(system)
    if name != "plain":
        raise unknown_name("recipe", name, ("textbook", "modern", "plain"))
    settings = system.tuned_settings if system else {}  # better than the paper's
    rate = system.base_learning_rate if system else IMPORTED_MODEL_RATE
    reason = "--recipe textbook is the paper's own"  # printed beside the name of the recipe
    return Recipe(reason, training=NO_SETTINGS, system=settings, dropout=SMALL_CORPUS_DROPOUT, rate=rate)


def textbook(system: System | None) -> Recipe:
    """Return the recipe of the system's paper, or of the Transformer's for an imported model (`system` None).

    A recipe is a set of defaults for training and system.
    """
    paper = system.paper_training if system else TRANSFORMER_TRAINING
    computed = ("learning_rate", "warmup_steps")  # by methods of the recipe, from model and length of the training
    training = {name: value for name, value in paper.training_settings.items() if name not in computed}
    reason = "as in the paper" if system else "as in the Transformer's paper"
    reason += f", but: {system.differences}" if system and system.differences else ""
    return Recipe(reason, training, system=paper.system_settings, paper=paper)


def modern(system: System | None) -> Recipe:
    """Return the recipe with Muon, a cosine schedule, and settings of the system that are better than the paper's.

    A recipe is a set of defaults for training and system. `system` is None for an imported model.
    """
    settings = dict(system.tuned_settings) | dict(system.modern_settings) if system else {}
    training = {"optimizer": "muon", "schedule": "cosine"}
    reason = "--recipe textbook is the paper's own"  # printed beside the name of the recipe
    return Recipe(reason, training, system=settings, bpe_dropout=0.1, dropout=SMALL_CORPUS_DROPOUT, rate=MODERN_RATE)


def fine_tuning(system: System | None) -> Recipe:
    """Return the recipe that fine-tunes a model of another library: `plain` with a low learning rate.

    `system` is None if the model is not one of our systems.
    """
    reason = "with a low learning rate, which keeps what the imported model has learned"
    return replace(get_recipe("plain", system), reason=reason, warm_start_rate=FINE_TUNING_RATE)


def low_rank_adaptation(system: System | None) -> Recipe:
    """Return the recipe of LoRA: `plain` with a learning rate for low-rank updates of frozen matrices.

    Its reason, which is shown to the user, says why AdamW is used instead of Muon. `system` is None for an imported
    model.
    """
    reason = "LoRA's updates are products of two factors, whose elements AdamW scales one by one"
    return replace(get_recipe("plain", system), reason=reason, warm_start_rate=LORA_RATE)


def default_recipe(system: System | None) -> str:
    """Return the name of the system's default recipe; plain for an imported model."""
    return system.default_recipe if system is not None else "plain"


def noam_rate(dim: int, warmup: int) -> float:
    """Return the peak learning rate of the "noam" schedule for a model of width `dim`: its value at step `warmup`.

    dim^−½ · min(step^−½, step · warmup^−1½)   (Vaswani et al. 2017, §5.3)
    """
    return 1 / math.sqrt(dim * max(1, warmup))


def default_steps(target_tokens: int, step_tokens: int) -> int:
    """Return the default number of training steps for a corpus of `target_tokens`, with `step_tokens` tokens per step.

    It grows with the square root of the corpus, because more data needs fewer epochs, which are at most 200; there are
    at least 200 steps.
    """
    trained_tokens = min(TRAINING_TOKENS_PER_ROOT * math.sqrt(target_tokens), MAX_DEFAULT_EPOCHS * target_tokens)
    return max(MIN_STEPS, math.ceil(trained_tokens / step_tokens))
