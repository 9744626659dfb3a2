"""A checkpoint of transformers as a model of ours: its spec, its weights, and how it wants to be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface import bart, bert, gpt2, llama, t5
from dragoman.interop.huggingface.conversion import Conversion, names
from dragoman.interop.huggingface.hf_config import Settings
from dragoman.interop.huggingface.weights import Stored, gathered, opened
from dragoman.models import ModelSpec, meta_model
from dragoman.text.framing import Framing

Read = Callable[[Settings, Stored], Conversion]


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """What was found in a folder."""

    architecture: str
    system: str  # the named system that it is nearest to
    spec: ModelSpec
    weights: dict[str, Tensor]  # by the names of the model that the spec builds
    framing: Framing
    search: dict[str, Any]  # generation settings, by the library's names
    labels: tuple[str, ...] = ()  # of a model that labels words


@dataclass(frozen=True)
class Architecture:
    read: Read
    base: str  # what the names of the base model's weights begin with


def _encoder(body: Callable[[Settings], bert.Body], head: bert.Head) -> Read:
    return lambda settings, stored: head(settings, stored, body(settings))


_bert, _roberta = partial(_encoder, bert.bert), partial(_encoder, bert.roberta)
_electra, _roformer = partial(_encoder, bert.electra), partial(_encoder, bert.roformer)

ARCHITECTURES: dict[str, Architecture] = {
    "MarianMTModel": Architecture(bart.marian, "model."),
    "MarianModel": Architecture(bart.marian, "model."),
    "BartForConditionalGeneration": Architecture(bart.bart, "model."),
    "BartModel": Architecture(bart.bart, "model."),
    "MBartForConditionalGeneration": Architecture(bart.mbart, "model."),
    "MBartModel": Architecture(bart.mbart, "model."),
    "T5ForConditionalGeneration": Architecture(t5.t5, "transformer."),
    "T5Model": Architecture(t5.t5, "transformer."),
    "MT5ForConditionalGeneration": Architecture(t5.mt5, "transformer."),
    "BertForPreTraining": Architecture(_bert(bert.masked_and_next), "bert."),
    "BertForMaskedLM": Architecture(_bert(bert.masked), "bert."),
    "BertForTokenClassification": Architecture(_bert(bert.labels), "bert."),
    "BertModel": Architecture(_bert(bert.states), "bert."),
    "RobertaForMaskedLM": Architecture(_roberta(bert.masked_roberta), "roberta."),
    "RobertaForTokenClassification": Architecture(_roberta(bert.labels), "roberta."),
    "RobertaModel": Architecture(_roberta(bert.states), "roberta."),
    "ElectraForMaskedLM": Architecture(_electra(bert.masked_electra), "electra."),
    "ElectraForPreTraining": Architecture(_electra(bert.replaced), "electra."),
    "ElectraForTokenClassification": Architecture(_electra(bert.labels), "electra."),
    "ElectraModel": Architecture(_electra(bert.states), "electra."),
    "RoFormerForMaskedLM": Architecture(_roformer(bert.masked), "roformer."),
    "RoFormerForTokenClassification": Architecture(_roformer(bert.labels), "roformer."),
    "RoFormerModel": Architecture(_roformer(bert.states), "roformer."),
    "GPT2LMHeadModel": Architecture(gpt2.gpt2, "transformer."),
    "GPT2Model": Architecture(gpt2.gpt2, "transformer."),
    "LlamaForCausalLM": Architecture(llama.llama, "model."),
}


def read_checkpoint(folder: Path) -> ConvertedCheckpoint:
    """The checkpoint in a folder: config.json and its safetensors, nothing of which is ever executed."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: name one with config.json and model.safetensors")
    settings = Settings.of(folder)
    name, architecture = _architecture(settings)
    settings.expect("quantization_config", None)
    settings.expect("sliding_window", None)
    with opened(folder) as stored:
        stored.strip(architecture.base)
        reading = architecture.read(settings, stored)
        settings.refuse_the_rest()
        shapes = {ours: weight.shape for ours, weight in meta_model(reading.spec).named_parameters()}
        unused = reading.unused + _formulas(stored, reading)
        weights = gathered(stored, reading.origins, shapes, unused)
    return ConvertedCheckpoint(
        name, reading.system, reading.spec, weights, reading.framing, settings.search, reading.labels
    )


def _architecture(settings: Settings) -> tuple[str, Architecture]:
    said, known = settings.values.get("architectures"), ", ".join(ARCHITECTURES)
    if not isinstance(said, list) or not said:
        raise UserError(f"{settings.path} does not say which of these it is: name it in architectures: {known}")
    if said[0] not in ARCHITECTURES:
        raise UserError(f"{settings.path.parent} holds a {said[0]}, which cannot be read here: known are {known}")
    return said[0], ARCHITECTURES[said[0]]


def _formulas(stored: Stored, reading: Conversion) -> tuple[str, ...]:
    """Tables that we compute: they may be stored, but not be others than we would compute."""
    for name, position in reading.computed.items():
        if name not in stored:
            continue
        table = stored[name]
        formula = position.encoding(torch.arange(len(table)))
        if table.shape != formula.shape or not torch.allclose(table, formula, rtol=0, atol=2e-3):  # of float16
            raise UserError(f"{stored.folder} has positions of its own in {name}, but they must be sines and cosines")
    return names(*reading.computed)
