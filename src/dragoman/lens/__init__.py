"""The lens: inspections of a model's attention, predictions and searches, as data, as text and as figures."""

from __future__ import annotations

from dragoman.lens.inspection_types import (
    AttentionMap,
    BeamNode,
    BeamTree,
    Inspection,
    LayerPrediction,
    TokenAlternative,
    TokenizedText,
    TokenPrediction,
)
from dragoman.lens.sentence_inspector import inspect_sentence

__all__ = ["AttentionMap", "BeamNode", "BeamTree", "Inspection", "LayerPrediction", "TokenAlternative"]
__all__ += ["TokenPrediction", "TokenizedText", "inspect_sentence"]
