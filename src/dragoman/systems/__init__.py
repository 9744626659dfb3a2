"""The named systems: short functions that return specs, with their papers and sizes."""

from __future__ import annotations

from dragoman.errors import unknown_name
from dragoman.systems import (
    convolutional,
    decoders,
    deep_recurrent,
    encoders,
    large,
    mixture,
    pretrained,
    recurrent,
    transformer,
)
from dragoman.systems import memory_compressed as compressed
from dragoman.systems import speech_and_vision as sensory
from dragoman.systems import transformer_variants as relative
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.vocabulary_sizes import VocabularySizes

__all__ = ["SYSTEMS", "PaperTraining", "System", "VocabularySizes", "get_system"]

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


def get_system(name: str) -> System:
    if name not in SYSTEMS:
        raise unknown_name("system", name, SYSTEMS)
    return SYSTEMS[name]
