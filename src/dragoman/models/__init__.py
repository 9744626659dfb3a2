"""Models: parts combined to p(y|x), p(y), or one label per token."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dragoman.errors import UserError
from dragoman.models.decoder_only import DecoderOnly, DecoderOnlyModel
from dragoman.models.encoder_decoder import EncoderDecoder, EncoderDecoderModel
from dragoman.models.encoder_only import EncoderOnly, EncoderOnlyModel, ReplacedTokens, ReplacedTokensModel
from dragoman.models.hard_attention import HardAttention, HardAttentionModel
from dragoman.models.masked_decoder import MaskedDecoder, MaskedDecoderModel
from dragoman.models.model import DecodingStart, Model, ModelSpec
from dragoman.models.usage import Usage
from dragoman.parts.catalog import PARTS
from dragoman.parts.flops import Workload
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
    "HardAttention",
    "HardAttentionModel",
    "MaskedDecoder",
    "MaskedDecoderModel",
    "Model",
    "ModelSpec",
    "ReplacedTokens",
    "ReplacedTokensModel",
    "Usage",
    "cached_meta_model",
    "count_flops",
    "count_parameters",
    "meta_model",
    "model_from_dict",
    "model_to_dict",
    "training_flops",
    "unallocated_model",
]

MODELS: dict[str, type[Spec]] = {
    kind.__name__: kind
    for kind in (EncoderDecoder, HardAttention, DecoderOnly, MaskedDecoder, EncoderOnly, ReplacedTokens)
}

model_to_dict = to_dict


def model_from_dict(data: Any, parts: dict[str, type[Spec]] | None = None) -> ModelSpec:
    """Create the spec (description) of a model from JSON values, such as those of model.json.

    `parts` are classes of parts that a user has defined, by name, in addition to those of this library; None: there are
    none. A description of something other than a whole model raises a UserError.
    """
    model = from_dict(data, PARTS | MODELS | (parts or {}))
    if not isinstance(model, ModelSpec):
        raise UserError(
            "the description of a model (model.json) must have the name of a model class as its 'kind', one of "
            f"{', '.join(MODELS)}, but has {type(model).__name__}: correct it"
        )
    return model


def meta_model(spec: ModelSpec) -> Model:
    """Build a model on torch's meta device: its weights have shapes, but take no memory."""
    with torch.device("meta"):
        return spec.build()


_cached_meta_model = lru_cache(maxsize=16)(meta_model)


def cached_meta_model(spec: ModelSpec) -> Model:
    """Return a model on torch's meta device, without memory for weights, to read its properties and sizes.

    Calls with equal specs return the same model, so that nobody may change it.
    """
    try:
        return _cached_meta_model(spec)
    except TypeError:  # a user's own part has a field that cannot be hashed
        return meta_model(spec)


def unallocated_model(spec: ModelSpec) -> Model:
    """Build a model whose parameters are on torch's meta device and wait for their values (`assign_weights`).

    Buffers, such as the frequencies of sinusoids, have their values already. Nothing is drawn at random.
    """
    building_thread = threading.get_ident()

    def move_to_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        """Return a parameter on the meta device, which torch registers instead; None: the given one is registered.

        Tied parameters are already there. Models that other threads build at this time keep their weights.
        """
        if parameter is None or parameter.is_meta or threading.get_ident() != building_thread:
            return None
        return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    # torch registers what the hook returns, although the annotation of its result is None
    registration = register_module_parameter_registration_hook(move_to_meta)  # type: ignore[arg-type]
    try:
        return spec.build()
    finally:
        registration.remove()


def count_parameters(spec: ModelSpec) -> int:
    """Count the parameters (numbers, not tensors) of a model; those that several modules share count once."""
    return sum(weight.numel() for weight in cached_meta_model(spec).parameters())


def count_flops(spec: ModelSpec, source_tokens: int, target_tokens: int) -> int:
    """Count the FLOPs of a forward pass over one pair with these numbers of source and target tokens."""
    return cached_meta_model(spec).flops(Workload(tokens=target_tokens, source=source_tokens, width=spec.dim))


def training_flops(spec: ModelSpec, source_tokens: int, target_tokens: int) -> int:
    """Count the FLOPs of a forward and backward pass over one pair with these numbers of source and target tokens."""
    return cached_meta_model(spec).training_flops(Workload(tokens=target_tokens, source=source_tokens, width=spec.dim))
