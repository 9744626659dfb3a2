"""The named systems: short functions that return specs, with their papers and sizes."""

from __future__ import annotations

from dragoman.errors import unknown_name
from dragoman.systems import (
    compressed,
    convolutional,
    decoders,
    deep_recurrent,
    encoders,
    large,
    mixture,
    pretrained,
    recurrent,
    relative,
    sensory,
    transformer,
)
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary import Vocabulary

__all__ = ["SYSTEMS", "PaperTraining", "System", "Vocabulary", "system"]

_FAMILIES = (
    recurrent,
    deep_recurrent,
    convolutional,
    transformer,
    relative,
    pretrained,
    encoders,
    decoders,
    large,
    compressed,
    mixture,
    sensory,
)
SYSTEMS: dict[str, System] = {name: one for family in _FAMILIES for name, one in family.SYSTEMS.items()}


def system(name: str) -> System:
    if name not in SYSTEMS:
        raise unknown_name("system", name, SYSTEMS)
    return SYSTEMS[name]
