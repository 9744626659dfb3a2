"""Models: parts wired into p(y|x)."""

from __future__ import annotations

from typing import Any

import torch

from dragoman.errors import UserError
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderModel, Start
from dragoman.parts.catalog import PARTS
from dragoman.parts.spec import Spec, from_dict, to_dict

__all__ = ["EncoderDecoder", "EncoderDecoderModel", "Start", "count_parameters", "model_from_dict", "model_to_dict"]

MODELS: dict[str, type[Spec]] = {"EncoderDecoder": EncoderDecoder}

model_to_dict = to_dict


def model_from_dict(data: Any, parts: dict[str, type[Spec]] | None = None) -> EncoderDecoder:
    """The model's spec from plain values; `parts` adds a user's own parts to the known ones."""
    model = from_dict(data, PARTS | MODELS | (parts or {}))
    if not isinstance(model, EncoderDecoder):
        raise UserError(f"a model's description must be one of {', '.join(MODELS)}, but is {type(model).__name__}")
    return model


def count_parameters(spec: EncoderDecoder) -> int:
    """Counted on the model built without memory."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in spec.build().parameters())
