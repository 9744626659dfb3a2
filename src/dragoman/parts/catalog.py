"""Every part by name: what a model's description may name, and nothing else."""

from __future__ import annotations

from dragoman.parts import (
    attention,
    convolution,
    embedding,
    experts,
    fast_forward,
    feedforward,
    norm,
    positions,
    recurrence,
    recurrent_context,
    recurrent_decoder,
    stack,
    visibility,
)
from dragoman.parts import attention_scores as score
from dragoman.parts import feature_embedding as sensory
from dragoman.parts import initialization as initial
from dragoman.parts import long_attention as compressed
from dragoman.parts import relative_positions as relative
from dragoman.parts.spec import Spec

_MODULES = (
    attention,
    compressed,
    convolution,
    embedding,
    experts,
    fast_forward,
    feedforward,
    initial,
    norm,
    positions,
    recurrence,
    recurrent_context,
    recurrent_decoder,
    relative,
    score,
    sensory,
    stack,
    visibility,
)

PARTS: dict[str, type[Spec]] = {
    name: part
    for module in _MODULES
    for name, part in vars(module).items()
    if isinstance(part, type) and issubclass(part, Spec) and part.__module__ == module.__name__
}
