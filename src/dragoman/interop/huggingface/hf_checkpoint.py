"""Read a transformers checkpoint as one of our models: spec, weights, framing and generation settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface import bert
from dragoman.interop.huggingface.causal_lm import convert_gpt2, convert_llama
from dragoman.interop.huggingface.conversion import Conversion
from dragoman.interop.huggingface.hf_config import HFConfig
from dragoman.interop.huggingface.safetensors_weights import StoredWeights, open_weights
from dragoman.interop.huggingface.seq2seq import BART, MARIAN, MBART, MT5, T5, convert_bart, convert_t5
from dragoman.models import ModelSpec, meta_model
from dragoman.text.framing import Framing


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A checkpoint as one of our models."""

    architecture: str  # class name in transformers
    system: str  # name of the most similar named system
    spec: ModelSpec
    weights: dict[str, Tensor]  # by the parameter names of the model that the spec builds
    framing: Framing
    generation: dict[str, Any]  # generation settings under transformers' names
    labels: tuple[str, ...] = ()  # of a token classifier


@dataclass(frozen=True)
class Architecture:
    """How to convert a model class of transformers."""

    convert: Callable[[HFConfig, StoredWeights], Conversion]
    base_prefix: str  # prefix of the names of the base model's weights


def _encoders(name: str, family: bert.BertFamily, **heads: bert.Head) -> dict[str, Architecture]:
    """The architectures of an encoder family by the ends of their class names."""
    convert = partial(partial, bert.convert_encoder, family)
    heads |= {"ForTokenClassification": bert.token_classification, "Model": bert.no_head}
    return {f"{name}{end}": Architecture(convert(head), f"{name.lower()}.") for end, head in heads.items()}


ARCHITECTURES: dict[str, Architecture] = {
    "MarianMTModel": Architecture(partial(convert_bart, MARIAN), "model."),
    "MarianModel": Architecture(partial(convert_bart, MARIAN), "model."),
    "BartForConditionalGeneration": Architecture(partial(convert_bart, BART), "model."),
    "BartModel": Architecture(partial(convert_bart, BART), "model."),
    "MBartForConditionalGeneration": Architecture(partial(convert_bart, MBART), "model."),
    "MBartModel": Architecture(partial(convert_bart, MBART), "model."),
    "T5ForConditionalGeneration": Architecture(partial(convert_t5, T5), "transformer."),
    "T5Model": Architecture(partial(convert_t5, T5), "transformer."),
    "MT5ForConditionalGeneration": Architecture(partial(convert_t5, MT5), "transformer."),
    **_encoders("Bert", bert.BERT, ForPreTraining=bert.pretraining, ForMaskedLM=bert.masked_lm),
    **_encoders("Roberta", bert.ROBERTA, ForMaskedLM=bert.masked_lm),
    **_encoders("Electra", bert.ELECTRA, ForPreTraining=bert.replaced_token_detection, ForMaskedLM=bert.masked_lm),
    **_encoders("RoFormer", bert.ROFORMER, ForMaskedLM=bert.masked_lm),
    "GPT2LMHeadModel": Architecture(convert_gpt2, "transformer."),
    "GPT2Model": Architecture(convert_gpt2, "transformer."),
    "LlamaForCausalLM": Architecture(convert_llama, "model."),
}


def read_checkpoint(folder: Path) -> ConvertedCheckpoint:
    """Read config.json, generation_config.json and the safetensors of a folder; no code of it is executed."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name one with config.json and model.safetensors")
    hf = HFConfig.from_folder(folder)
    name, architecture = _architecture(hf)
    hf.expect("quantization_config", None)
    hf.expect("sliding_window", None)
    with open_weights(folder, architecture.base_prefix) as weights:
        conversion = architecture.convert(hf, weights)
        hf.refuse_unread()
        conversion.check_computed_tables(weights)
        shapes = {name: weight.shape for name, weight in meta_model(conversion.spec).named_parameters()}
        converted = conversion.convert(weights, shapes)
    return ConvertedCheckpoint(
        name, conversion.system, conversion.spec, converted, conversion.framing, hf.generation, conversion.labels
    )


def _architecture(hf: HFConfig) -> tuple[str, Architecture]:
    """Return the name of the model class in transformers, and how to convert it."""
    names, supported = hf.values.get("architectures"), ", ".join(ARCHITECTURES)
    if not isinstance(names, list) or not names:
        raise UserError(f"{hf.path} has no architectures: add the class name of the model, one of {supported}")
    if names[0] not in ARCHITECTURES:
        raise UserError(f"{hf.path.parent} holds a {names[0]}, which is not supported: supported are {supported}")
    return names[0], ARCHITECTURES[names[0]]
