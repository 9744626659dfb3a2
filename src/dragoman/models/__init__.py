"""Models: parts wired into p(y|x), p(y), and one label a word."""

from __future__ import annotations

from typing import Any

import torch

from dragoman.errors import UserError
from dragoman.models.decoder_only import DecoderOnly, DecoderOnlyModel
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderModel
from dragoman.models.encoder_only import EncoderOnly, EncoderOnlyModel
from dragoman.models.model import DecodingStart, Model
from dragoman.models.replaced_token_detection import ReplacedTokens, ReplacedTokensModel
from dragoman.models.usage import Usage
from dragoman.parts.catalog import PARTS
from dragoman.parts.spec import Spec, from_dict, to_dict

__all__ = [
    "MODELS",
    "DecoderOnly",
    "DecoderOnlyModel",
    "DecodingStart",
    "EncoderDecoder",
    "EncoderDecoderModel",
    "EncoderOnly",
    "EncoderOnlyModel",
    "Model",
    "ModelSpec",
    "ReplacedTokens",
    "ReplacedTokensModel",
    "Usage",
    "count_parameters",
    "meta_model",
    "model_from_dict",
    "model_to_dict",
]

ModelSpec = EncoderDecoder | DecoderOnly | EncoderOnly | ReplacedTokens
MODELS: dict[str, type[Spec]] = {
    kind.__name__: kind for kind in (EncoderDecoder, DecoderOnly, EncoderOnly, ReplacedTokens)
}

model_to_dict = to_dict


def model_from_dict(data: Any, parts: dict[str, type[Spec]] | None = None) -> ModelSpec:
    """The model's spec from plain values; `parts` adds a user's own parts to the known ones."""
    model = from_dict(data, PARTS | MODELS | (parts or {}))
    if not isinstance(model, ModelSpec):
        raise UserError(f"a model's description must be one of {', '.join(MODELS)}, but is {type(model).__name__}")
    return model


def meta_model(spec: ModelSpec) -> Model:
    """The model with shapes and no memory."""
    with torch.device("meta"):
        return spec.build()


def count_parameters(spec: ModelSpec) -> int:
    return sum(weight.numel() for weight in meta_model(spec).parameters())
