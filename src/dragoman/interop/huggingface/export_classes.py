"""Which class of transformers can hold a model of ours, and what its config.json says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface import bert_families
from dragoman.interop.huggingface.causal_lm import LLAMA, MISTRAL, QWEN2
from dragoman.interop.huggingface.conversion import Conversion
from dragoman.interop.huggingface.describing import (
    Description,
    describe_bart,
    describe_encoder,
    describe_gpt2,
    describe_llama,
    describe_t5,
)
from dragoman.interop.huggingface.equivalent_models import SpecAndWeights, remaining_differences, rewrite
from dragoman.interop.huggingface.hf_config import HFConfig
from dragoman.interop.huggingface.importing import ARCHITECTURES
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.interop.huggingface.seq2seq import BART, M2M100, MARIAN, MBART, PEGASUS
from dragoman.interop.huggingface.t5 import MT5, T5, UMT5
from dragoman.models import ModelSpec
from dragoman.text.framing import Framing

#: returns the fields of config.json with which a class of transformers is like a model, given its special tokens and
#: the length of a table of positions; None if the model is unlike the class
Describe = Callable[[ModelSpec, Framing, int], Description | None]


@dataclass(frozen=True)
class ExportClass:
    """A model class of transformers, and how a model of ours is described as one (`describe`).

    `prefix` is written before the names of the base model's weights; `model_type` is transformers' name of the family.
    `stores_positions`: position tables that follow a formula are stored.
    """

    name: str
    model_type: str
    describe: Describe
    prefix: str
    stores_positions: bool = True


def _encoder_classes(
    name: str, model_type: str, family: bert_families.BertFamily, *endings: str
) -> Iterator[ExportClass]:
    """Yield the model classes of an encoder family, such as BertForMaskedLM, that can also be imported.

    A class name is `name` and an ending: one of `endings`, or one of those that all families have. `model_type` is
    transformers' name of the family.
    """
    for ending in (*endings, "ForMaskedLM", "ForTokenClassification", "ForSequenceClassification", "Model"):
        if f"{name}{ending}" not in ARCHITECTURES:
            continue
        # before the names of the encoder's weights; the class of the bare encoder writes none
        prefix = "" if ending == "Model" else ARCHITECTURES[f"{name}{ending}"].base_prefix
        yield ExportClass(f"{name}{ending}", model_type, partial(describe_encoder, family), prefix)


#: of several classes that can hold a model, the first one is used, unless the model comes from another one
EXPORT_CLASSES = (
    ExportClass("MarianMTModel", "marian", partial(describe_bart, MARIAN), "model.", stores_positions=False),
    ExportClass("PegasusForConditionalGeneration", "pegasus", partial(describe_bart, PEGASUS), "model."),
    ExportClass("BartForConditionalGeneration", "bart", partial(describe_bart, BART), "model."),
    ExportClass("MBartForConditionalGeneration", "mbart", partial(describe_bart, MBART), "model."),
    ExportClass(
        "M2M100ForConditionalGeneration", "m2m_100", partial(describe_bart, M2M100), "model.", stores_positions=False
    ),
    ExportClass("T5ForConditionalGeneration", "t5", partial(describe_t5, T5), ""),
    ExportClass("MT5ForConditionalGeneration", "mt5", partial(describe_t5, MT5), ""),
    ExportClass("UMT5ForConditionalGeneration", "umt5", partial(describe_t5, UMT5), ""),
    ExportClass("GPT2LMHeadModel", "gpt2", describe_gpt2, "transformer."),
    ExportClass("LlamaForCausalLM", "llama", partial(describe_llama, LLAMA), "model."),
    ExportClass("MistralForCausalLM", "mistral", partial(describe_llama, MISTRAL), "model."),
    ExportClass("Qwen2ForCausalLM", "qwen2", partial(describe_llama, QWEN2), "model."),
    *_encoder_classes("Bert", "bert", bert_families.BERT, "ForPreTraining"),
    *_encoder_classes("Roberta", "roberta", bert_families.ROBERTA),
    *_encoder_classes("XLMRoberta", "xlm-roberta", bert_families.XLM_ROBERTA),
    *_encoder_classes("DistilBert", "distilbert", bert_families.DISTILBERT),
    *_encoder_classes("Electra", "electra", bert_families.ELECTRA, "ForPreTraining"),
    *_encoder_classes("RoFormer", "roformer", bert_families.ROFORMER),
)


class PlannedWeights(StoredWeights):
    """The names of weights that an export will store, without values, in place of the weights of a checkpoint.

    The conversion of an import asks only which are stored and equal, to find out which tables are tied.
    """

    def __init__(self, names: frozenset[str]) -> None:
        """Plan to store weights with these names, which lack the prefix of the base model, such as "bert."."""
        super().__init__(files={}, folder=Path("export"), base_prefix="")  # the folder is for messages only
        self._full_names = {name: name for name in sorted(names)}

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights are equal, that is tied: then only one of them will be stored."""
        return first == second or first not in self or second not in self


@dataclass(frozen=True)
class ExportPlan:
    """How a model is written: as which class of transformers, with which fields of config.json and which weights.

    `model` is our model, rewritten to be like the class. `conversion` is that of an import, which an export inverts: it
    has the `spec` that the class can represent, and the `system` (one of our named architectures) that is most like it.
    """

    export_class: ExportClass
    fields: Mapping[str, Any]
    conversion: Conversion
    model: SpecAndWeights
    obstacles: list[tuple[str, Any, Any]]  # differences of the spec that remain: path, ours, theirs
    copies: Mapping[str, str]  # further weights, and the weights that they equal


def plan_export(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    framing: Framing,
    max_positions: int,
    preferred: str = "",
    labels: tuple[str, ...] = (),
) -> ExportPlan | None:
    """Find the class of transformers that is most like a model, and return how the model is written as this class.

    The class is the one with the fewest obstacles: fields in which it still differs from the model after the model was
    rewritten to be like it. None if the model is unlike all classes.

    Args:
        spec: the spec of the model.
        weights: its weights; none if only the spec matters.
        framing: special tokens, whose ids are fields of config.json.
        max_positions: number of positions in config.json if positions are computed, not learned.
        preferred: name of a class of transformers, or of a system (one of our named architectures, such as "bart"),
            whose class is used if several classes have equally few obstacles.
        labels: names of the labels of a token classifier.
    """
    plans = []
    for export_class in EXPORT_CLASSES:
        description = export_class.describe(spec, framing, max_positions)
        if description is not None:
            plan = _plan(export_class, description, spec, framing, labels)
            if plan is not None:
                plans.append(plan)

    def rank(plan: ExportPlan) -> tuple[int, bool]:
        """Order plans by the number of obstacles, then those of the preferred class or system first.

        `plan.conversion` says as which of our specs, and of which system, an import would read the exported model.
        """
        return len(plan.obstacles), preferred not in (plan.export_class.name, plan.conversion.system)

    best = min(plans, key=rank, default=None)
    if best is not None and weights:
        best = replace(best, model=rewrite(spec, dict(weights), best.conversion.spec))
    return best


def _plan(
    export_class: ExportClass, description: Description, spec: ModelSpec, framing: Framing, labels: tuple[str, ...]
) -> ExportPlan | None:
    """Return the plan of an export as one class; None if an import would refuse the config.json of `description`.

    That config.json is converted as in an import: the spec that this gives is what the class holds. Obstacles are the
    differences of our model's `spec` from it.
    """
    fields = {
        "architectures": [export_class.name],
        "model_type": export_class.model_type,
        **description.fields,
        **token_fields(framing, encoder_decoder=bool(description.fields.get("is_encoder_decoder"))),
    }
    if labels:
        fields |= {"id2label": {str(number): label for number, label in enumerate(labels)}}
        fields |= {"label2id": {label: number for number, label in enumerate(labels)}}
    try:
        config = HFConfig(dict(fields), generation={}, path=Path("config.json"))
        # weights without values: only the names of those that will be stored
        conversion = ARCHITECTURES[export_class.name].convert(config, PlannedWeights(description.stored))
        config.refuse_unread()
    except UserError:
        return None
    model = rewrite(spec, weights={}, target_spec=conversion.spec)  # without weights: only the spec is compared
    obstacles = remaining_differences(model, conversion.spec)
    return ExportPlan(export_class, fields, conversion, model, obstacles, description.copies)


def token_fields(framing: Framing, encoder_decoder: bool) -> dict[str, Any]:
    """Return the ids of special tokens as fields of config.json and generation_config.json.

    `framing.bos` is the token that a target starts with. The BOS of transformers is the one before a source, if any.
    """
    bos = framing.source_prefix[0] if framing.source_prefix else framing.bos
    fields = {"pad_token_id": framing.pad, "eos_token_id": framing.eos, "bos_token_id": bos}
    return fields | ({"decoder_start_token_id": framing.bos} if encoder_decoder else {})
