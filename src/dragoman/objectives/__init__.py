"""Objectives: what a training step makes smaller."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dragoman.errors import UserError, unknown_name
from dragoman.objectives.denoising import DenoisingObjective, SpanCorruptionObjective
from dragoman.objectives.language_modeling import ConcatenationObjective, DialogueObjective, LanguageModelObjective
from dragoman.objectives.masked_language_modeling import MaskedLanguageObjective
from dragoman.objectives.objective import Loss, Objective, TaskContext
from dragoman.objectives.replaced_token_detection import ReplacedTokenObjective
from dragoman.objectives.tagging import TaggingObjective
from dragoman.objectives.translation_objective import TranslationObjective
from dragoman.objectives.unified_language_modeling import UnifiedLanguageObjective
from dragoman.systems.system import validate_setting

__all__ = [
    "OBJECTIVES",
    "Loss",
    "Objective",
    "TaskContext",
    "TranslationObjective",
    "build_objective",
    "objective_class",
]

OBJECTIVES: dict[str, type[Objective]] = {
    "translation": TranslationObjective,
    "one-sequence": ConcatenationObjective,
    "language": LanguageModelObjective,
    "dialogue": DialogueObjective,
    "masked": MaskedLanguageObjective,
    "replaced": ReplacedTokenObjective,
    "denoising": DenoisingObjective,
    "spans": SpanCorruptionObjective,
    "masks": UnifiedLanguageObjective,
    "tagging": TaggingObjective,
}


def objective_class(name: str) -> type[Objective]:
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


def objective_settings(name: str) -> dict[str, inspect.Parameter]:
    """What can be set, by name."""
    parameters = inspect.signature(objective_class(name), eval_str=True).parameters
    return {key: p for key, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check_objective(name: str, settings: Mapping[str, Any]) -> None:
    """Settings that the objective does not have, or that are of another type, are refused."""
    known = objective_settings(name)
    for key, value in settings.items():
        if key not in known:
            raise unknown_name(f"setting of the objective {name}", key, known)
        validate_setting(f"{name}.{key}", value, known[key].annotation)
        if isinstance(value, float) and key in ("rate", "infill", "mask", "delete", "sampling") and not 0 <= value <= 1:
            raise UserError(f"{name}.{key} is a share and must lie between 0 and 1, but is {value}")


def build_objective(name: str, task: TaskContext, settings: Mapping[str, Any]) -> Objective:
    check_objective(name, settings)
    return objective_class(name)(task, **settings)
