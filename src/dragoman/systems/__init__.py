"""Named systems: functions from settings to specs, with their papers, sizes and training settings."""

from __future__ import annotations

from dragoman.errors import unknown_name
from dragoman.systems.convolutional_systems import CONVOLUTIONAL_SYSTEMS
from dragoman.systems.decoder_systems import DECODER_SYSTEMS
from dragoman.systems.encoder_systems import ENCODER_SYSTEMS
from dragoman.systems.recurrent_systems import RECURRENT_SYSTEMS
from dragoman.systems.system import PaperTraining, System, VocabularySizes
from dragoman.systems.transformer_systems import TRANSFORMER_SYSTEMS

__all__ = ["SYSTEMS", "PaperTraining", "System", "VocabularySizes", "get_system"]

SYSTEMS: dict[str, System] = {
    **RECURRENT_SYSTEMS,
    **CONVOLUTIONAL_SYSTEMS,
    **TRANSFORMER_SYSTEMS,
    **ENCODER_SYSTEMS,
    **DECODER_SYSTEMS,
}


def get_system(name: str) -> System:
    """Return the system (architecture with the settings of its paper) called `name`, such as "transformer".

    An unknown name raises a UserError that suggests the nearest one.
    """
    if name not in SYSTEMS:
        raise unknown_name("system", name, SYSTEMS)
    return SYSTEMS[name]
