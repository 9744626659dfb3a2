"""Objectives: what a training step makes smaller."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from dragoman.errors import UserError, unknown_name
from dragoman.objectives.denoising import Denoising, Spans
from dragoman.objectives.language import Dialogue, Language, OneSequence
from dragoman.objectives.masked_words import MaskedWords
from dragoman.objectives.mixed_masks import MixedMasks
from dragoman.objectives.objective import Loss, Material, Objective
from dragoman.objectives.replaced_tokens import ReplacedWords
from dragoman.objectives.tagging import Tagging
from dragoman.objectives.translation import Translation
from dragoman.systems.system import check_setting

__all__ = ["OBJECTIVES", "Loss", "Material", "Objective", "Translation", "make", "objective"]

OBJECTIVES: dict[str, type[Objective]] = {
    "translation": Translation,
    "one-sequence": OneSequence,
    "language": Language,
    "dialogue": Dialogue,
    "masked": MaskedWords,
    "replaced": ReplacedWords,
    "denoising": Denoising,
    "spans": Spans,
    "masks": MixedMasks,
    "tagging": Tagging,
}


def objective(name: str) -> type[Objective]:
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


def settings_of(name: str) -> dict[str, inspect.Parameter]:
    """What can be set, by name."""
    parameters = inspect.signature(objective(name), eval_str=True).parameters
    return {key: p for key, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Settings that the objective does not have, or that are of another type, are refused."""
    known = settings_of(name)
    for key, value in settings.items():
        if key not in known:
            raise unknown_name(f"setting of the objective {name}", key, known)
        check_setting(f"{name}.{key}", value, known[key].annotation)
        if isinstance(value, float) and key in ("rate", "infill", "mask", "delete", "sampling") and not 0 <= value <= 1:
            raise UserError(f"{name}.{key} is a share and must lie between 0 and 1, but is {value}")


def make(name: str, material: Material, settings: Mapping[str, Any]) -> Objective:
    check(name, settings)
    return objective(name)(material, **settings)
