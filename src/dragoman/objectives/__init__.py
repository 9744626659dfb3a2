"""Training objectives: how the rows of a batch are built, and the loss that training minimizes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dragoman.errors import UserError, unknown_name
from dragoman.objectives import denoising, label_objectives, language_modeling, masked_language_modeling
from dragoman.objectives.objective import Loss, Objective, TaskContext
from dragoman.objectives.reward_objective import MinimumRiskObjective, RewardObjective
from dragoman.objectives.translation_objective import TranslationObjective
from dragoman.objectives.unified_masking import MaskedTargetObjective, UnifiedMaskedObjective
from dragoman.systems.system import validate_setting

__all__ = ["OBJECTIVES", "Loss", "Objective", "TaskContext", "TranslationObjective", "build_objective"]

OBJECTIVES: dict[str, type[Objective]] = {
    "translation": TranslationObjective,
    "reward": RewardObjective,
    "minimum-risk": MinimumRiskObjective,
    "concatenation": language_modeling.ConcatenationObjective,
    "causal-lm": language_modeling.LanguageModelObjective,
    "dialogue": language_modeling.DialogueObjective,
    "masked-lm": masked_language_modeling.MaskedLanguageObjective,
    "replaced-token-detection": masked_language_modeling.ReplacedTokenObjective,
    "denoising": denoising.DenoisingObjective,
    "span-corruption": denoising.SpanCorruptionObjective,
    "unified-lm": language_modeling.UnifiedLanguageObjective,
    "unified-masked-lm": UnifiedMaskedObjective,
    "masked-target": MaskedTargetObjective,
    "tagging": label_objectives.TaggingObjective,
    "classification": label_objectives.ClassificationObjective,
}


def objective_class(name: str) -> type[Objective]:
    """Return the class of the training objective of this name; an unknown name raises a UserError."""
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


def objective_settings(name: str) -> dict[str, inspect.Parameter]:
    """Return the settings of the training objective `name`: the keyword-only parameters of its class, by name."""
    parameters = inspect.signature(objective_class(name), eval_str=True).parameters
    return {key: parameter for key, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def check_objective(name: str, settings: Mapping[str, Any]) -> None:
    """Raise a UserError unless the objective `name` has all these settings, with values of valid types.

    Settings whose names end in "_rate" are probabilities, from 0 to 1.
    """
    parameters = objective_settings(name)
    for key, value in settings.items():
        if key not in parameters:
            raise unknown_name(f"setting of the objective {name}", key, parameters)
        validate_setting(f"{name}.{key}", value, parameters[key].annotation)
        if key.endswith("_rate") and not 0 <= value <= 1:
            raise UserError(
                f"the setting {key} of the objective {name} is a probability and must be from 0 to 1, but is {value}: "
                f"change objective.settings.{key}"
            )


def build_objective(name: str, task: TaskContext, settings: Mapping[str, Any]) -> Objective:
    """Build the training objective `name` with these settings, which are validated first.

    `task` holds the model to be trained, its tokenizers and its regularization.
    """
    check_objective(name, settings)
    return objective_class(name)(task, **settings)
