"""Read a transformers checkpoint as one of our models, open it as a run, or import it into a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import Tensor

from dragoman import checkpoint as checkpoints
from dragoman import config
from dragoman.errors import UserError
from dragoman.interop.huggingface import bert, bert_families
from dragoman.interop.huggingface.causal_lm import LLAMA, MISTRAL, QWEN2, convert_gpt2, convert_llama
from dragoman.interop.huggingface.conversion import Conversion
from dragoman.interop.huggingface.converted_checkpoint import ConvertedCheckpoint, OpenedCheckpoint
from dragoman.interop.huggingface.hf_config import CONFIG_JSON, HFConfig, field_names
from dragoman.interop.huggingface.safetensors_weights import StoredWeights, open_weights
from dragoman.interop.huggingface.seq2seq import BART, M2M100, MARIAN, MBART, PEGASUS, convert_bart
from dragoman.interop.huggingface.t5 import MT5, T5, UMT5, convert_t5
from dragoman.interop.huggingface.tokenizer_framing import tokenizer_framing
from dragoman.interop.huggingface.whisper import convert_whisper
from dragoman.models import meta_model, unallocated_model
from dragoman.models.model import position_limit
from dragoman.parts.inference import InferencePrecision
from dragoman.run import Run, select_device, write_model_file, write_tokenizers
from dragoman.run.inference_weights import InferenceWeights
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, check_new_folder, is_marian_checkpoint
from dragoman.search.search_config import DEFAULT_OFFSET, DEFAULT_RATIO
from dragoman.storage import exclusive_folder, replace_symlink
from dragoman.text import Tokenizer
from dragoman.text.hf_tokenizers import MissingTokenizerError, tokenizers_from_folder
from dragoman.text.imported_tokenizer import ImportedTokenizer
from dragoman.text.tokenizer import IMPORTED_TYPE
from dragoman.training.checkpoint_manager import TrainState

#: generation settings that become settings of our search or part of the framing
SUPPORTED_GENERATION_SETTINGS = field_names(
    """
    num_beams length_penalty max_new_tokens max_length min_new_tokens min_length early_stopping no_repeat_ngram_size
    bad_words_ids suppress_tokens decoder_start_token_id pad_token_id bos_token_id eos_token_id forced_bos_token_id
    forced_eos_token_id begin_suppress_tokens forced_decoder_ids language task lang_to_id task_to_id
    no_timestamps_token_id is_multilingual
    """
)
#: values of other generation settings that change nothing
NEUTRAL_GENERATION_VALUES: dict[str, Any] = {
    **dict.fromkeys(("do_sample", "renormalize_logits"), False),
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty"), 1.0),
    **{"top_k": 50, "num_beam_groups": 1, "num_return_sequences": 1},
}


StoredPrecision = Literal["stored", "float32", "bfloat16"]
#: data types of the weights in a run folder; "stored" is that of each weight in the checkpoint
STORED_TYPES: dict[StoredPrecision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MIN_TOKEN_SHARE = 0.9  # of the embeddings have a token; with a smaller share, the tokenizer may be another model's


@dataclass(frozen=True)
class Architecture:
    """How to convert a model class of transformers."""

    convert: Callable[[HFConfig, StoredWeights], Conversion]
    base_prefix: str  # prefix of the names of the base model's weights


def _encoders(
    name: str, family: bert_families.BertFamily, base_prefix: str = "", **heads: bert.Head
) -> dict[str, Architecture]:
    """Return how to convert the model classes of an encoder family, by class name such as BertForMaskedLM.

    A class name is `name` and an ending; `heads` maps further endings to functions that add their output layers. The
    names of the base model's weights start with `base_prefix`, by default the lower-case name and a dot.
    """
    all_heads = {
        "ForMaskedLM": bert.masked_lm,
        "ForTokenClassification": bert.token_classification,
        "ForSequenceClassification": bert.sequence_classification,
        "Model": bert.no_head,
        **heads,
    }
    base_prefix = base_prefix or f"{name.lower()}."
    return {
        f"{name}{ending}": Architecture(partial(bert.convert_encoder, family, head), base_prefix)
        for ending, head in all_heads.items()
    }


ARCHITECTURES: dict[str, Architecture] = {
    "MarianMTModel": Architecture(partial(convert_bart, MARIAN), "model."),
    "MarianModel": Architecture(partial(convert_bart, MARIAN), "model."),
    "BartForConditionalGeneration": Architecture(partial(convert_bart, BART), "model."),
    "BartModel": Architecture(partial(convert_bart, BART), "model."),
    "MBartForConditionalGeneration": Architecture(partial(convert_bart, MBART), "model."),
    "MBartModel": Architecture(partial(convert_bart, MBART), "model."),
    "PegasusForConditionalGeneration": Architecture(partial(convert_bart, PEGASUS), "model."),
    "PegasusModel": Architecture(partial(convert_bart, PEGASUS), "model."),
    "M2M100ForConditionalGeneration": Architecture(partial(convert_bart, M2M100), "model."),  # and NLLB-200
    "M2M100Model": Architecture(partial(convert_bart, M2M100), "model."),
    "T5ForConditionalGeneration": Architecture(partial(convert_t5, T5), "transformer."),
    "T5Model": Architecture(partial(convert_t5, T5), "transformer."),
    "MT5ForConditionalGeneration": Architecture(partial(convert_t5, MT5), "transformer."),
    "MT5Model": Architecture(partial(convert_t5, MT5), "transformer."),
    "UMT5ForConditionalGeneration": Architecture(partial(convert_t5, UMT5), "transformer."),
    "UMT5Model": Architecture(partial(convert_t5, UMT5), "transformer."),
    "WhisperForConditionalGeneration": Architecture(convert_whisper, "model."),
    **_encoders("Bert", bert_families.BERT, ForPreTraining=bert.pretraining),
    **_encoders("Roberta", bert_families.ROBERTA),
    **_encoders("XLMRoberta", bert_families.XLM_ROBERTA, "roberta."),
    **_encoders("DistilBert", bert_families.DISTILBERT),
    **_encoders("Electra", bert_families.ELECTRA, ForPreTraining=bert.replaced_token_detection),
    **_encoders("RoFormer", bert_families.ROFORMER),
    "GPT2LMHeadModel": Architecture(convert_gpt2, "transformer."),
    "GPT2Model": Architecture(convert_gpt2, "transformer."),
    "LlamaForCausalLM": Architecture(partial(convert_llama, LLAMA), "model."),
    "MistralForCausalLM": Architecture(partial(convert_llama, MISTRAL), "model."),
    "Qwen2ForCausalLM": Architecture(partial(convert_llama, QWEN2), "model."),
}


def read_checkpoint(folder: Path) -> ConvertedCheckpoint:
    """Convert a transformers checkpoint (config.json, generation_config.json, safetensors) to one of our models.

    No code of the folder is executed. Quantized weights are refused, and so are fields that the conversion does not
    know, because they could change what the model computes.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder: name the folder of a checkpoint, with config.json and model.safetensors"
        )
    hf_config = HFConfig.from_folder(folder)
    class_name, architecture = _architecture(hf_config)
    hf_config.expect("quantization_config", None)  # quantized weights are an error
    weights = open_weights(folder, architecture.base_prefix, class_name)
    conversion = architecture.convert(hf_config, weights)
    hf_config.refuse_unread()  # an error for fields of config.json that the conversion has not read
    conversion.check_computed_tables(weights)
    # a meta model has shapes, but no values
    shapes = {name: weight.shape for name, weight in meta_model(conversion.spec).named_parameters()}
    converted = conversion.convert(weights, shapes, hf_config.values)
    return ConvertedCheckpoint(
        class_name,
        system=conversion.system,
        spec=conversion.spec,
        weights=converted,
        framing=conversion.framing,
        generation=hf_config.generation,
        labels=conversion.labels,
        feature_settings=conversion.feature_settings,
    )


def _architecture(hf_config: HFConfig) -> tuple[str, Architecture]:
    """Return the name of the model class in transformers (the first of `architectures`), and how to convert it."""
    class_names, supported = hf_config.values.get("architectures"), ", ".join(ARCHITECTURES)
    if not isinstance(class_names, list) or not class_names:
        raise UserError(
            f"{hf_config.path} has no field 'architectures': add it with the class name of the model, one of "
            f"{supported}"
        )
    if class_names[0] not in ARCHITECTURES:
        raise UserError(
            f"{hf_config.path.parent} holds a model of class {class_names[0]}, which cannot be imported: supported are "
            f"{supported}"
        )
    return class_names[0], ARCHITECTURES[class_names[0]]


# ---- opening and importing


@dataclass(frozen=True)
class ImportResult:
    """An imported checkpoint."""

    checkpoint: ConvertedCheckpoint
    parameters: int  # number of weights
    vocab_sizes: tuple[int, int]  # of the source and target tokenizers
    unsupported_generation_settings: dict[str, Any]


class NoTokenizer:
    """Placeholder of a missing tokenizer: every use raises a UserError with the reason."""

    def __init__(self, reason: str) -> None:
        """Keep the `reason` why there is no tokenizer: the message of the error."""
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        """Raise the error for every attribute and method of a tokenizer."""
        raise UserError(self.reason)


def load_checkpoint(folder: Path, device: str | None = None, weights: InferencePrecision = "float32") -> Run:
    """Open a checkpoint of transformers or Marian as a run (a model that can translate) without writing a run folder.

    `device` None is a GPU if there is one; `weights` is their precision in inference. Without tokenizer files, the run
    can only compute logits of token ids, and every use of a tokenizer is a UserError.
    """
    try:
        checkpoint, source, target, _ = _open_checkpoint(folder)
    except MissingTokenizerError as missing:
        checkpoint = read_checkpoint(folder)
        source = target = cast(Tokenizer, NoTokenizer(str(missing)))
    torch_device = select_device(device or "auto")
    model = unallocated_model(checkpoint.spec).eval()
    inference_weights = InferenceWeights(weights, torch_device)
    checkpoints.assign_weights(model, checkpoint.weights, folder, inference_weights.loading_device)
    settings = _run_config(checkpoint, shared_vocabulary=source is target)
    name = checkpoint.architecture  # in place of a name such as "best" of a checkpoint in a run folder
    return Run(folder, settings, model, source, target, checkpoint.framing, name, inference_weights)


def import_checkpoint(
    folder: Path, run_folder: Path, log: Callable[[str], None], precision: StoredPrecision = "stored"
) -> ImportResult:
    """Write `run_folder` with model, tokenizers and configuration of a checkpoint of transformers or Marian.

    If it fails, no folder is left behind. `log` receives messages of progress. `precision` is that of the weights in
    the run folder ("stored": as in the checkpoint); inference and training compute in float32 in any case.

    Of the converted checkpoint, `system` names our most similar system, such as "bart"; `spec` is the exact model,
    `framing` its special tokens, and `architecture` the name of the model class in transformers.
    """
    check_new_folder(run_folder)
    log(f"reading {folder}")
    checkpoint, source, target, messages = _open_checkpoint(folder)
    settings = _run_config(checkpoint, shared_vocabulary=source is target)
    for message in messages:
        log(message)
    source_embeddings, _ = checkpoint.embedding_counts
    if source.vocab_size < MIN_TOKEN_SHARE * source_embeddings:
        log(
            f"the tokenizer has only {source.vocab_size:,} tokens for the {source_embeddings:,} embeddings of the "
            "model: check that they belong together"
        )
    log(f"writing {run_folder}")
    with exclusive_folder(run_folder) as unfinished:  # a temporary folder, which becomes `run_folder` if all succeeds
        (unfinished / CONFIG_FILE).write_text(config.to_yaml(settings), encoding="utf-8")
        write_model_file(unfinished, checkpoint.system, checkpoint.spec, checkpoint.framing)
        write_tokenizers(unfinished, source, target)
        (unfinished / CHECKPOINT_DIR).mkdir()
        # the state of a training that has made no step
        values = {"validated": False, "progress": TrainState().to_dict(), "architecture": checkpoint.architecture}
        weights: Mapping[str, Tensor] = checkpoint.weights
        if precision != "stored":
            weights = {name: checkpoint.weights.load(name, STORED_TYPES[precision]) for name in weights}
        checkpoints.save(unfinished / CHECKPOINT_DIR / "000000", {"model": weights}, values)
        for link in ("best", "last"):  # the only checkpoint is both
            replace_symlink(unfinished / CHECKPOINT_DIR / link, "000000")
    parameters = sum(shape.numel() for shape in checkpoint.weights.shapes.values())
    unsupported = _unsupported_generation_settings(checkpoint.generation)
    return ImportResult(checkpoint, parameters, (source.vocab_size, target.vocab_size), unsupported)


def _open_checkpoint(folder: Path) -> OpenedCheckpoint:
    """Read a checkpoint of transformers or Marian with its tokenizers."""
    if is_marian_checkpoint(folder):
        # imported late, because it imports this package
        from dragoman.interop.marian import read_marian_checkpoint

        return read_marian_checkpoint(folder)
    return OpenedCheckpoint(*_with_tokenizers(folder, read_checkpoint(folder)), messages=[])


def _with_tokenizers(folder: Path, checkpoint: ConvertedCheckpoint) -> tuple[ConvertedCheckpoint, Tokenizer, Tokenizer]:
    """Read the tokenizers in a folder; return the checkpoint, the source tokenizer and the target tokenizer.

    The checkpoint gets the special tokens around a text (framing) that the source tokenizer adds. The target tokenizer
    of a classifier has its labels as tokens.
    """
    values = json.loads((folder / CONFIG_JSON).read_text(encoding="utf-8"))
    source, target = tokenizers_from_folder(folder, values)
    for tokenizer, count in zip((source, target), checkpoint.embedding_counts):  # count: number of embeddings
        if tokenizer.vocab_size > count:
            raise UserError(
                f"the tokenizer in {folder} has {tokenizer.vocab_size:,} tokens, but the model has only {count:,} "
                "embeddings: get tokenizer and weights of the same model"
            )
    checkpoint = replace(checkpoint, framing=tokenizer_framing(folder, checkpoint, source))
    return checkpoint, source, _label_tokenizer(checkpoint.labels) if checkpoint.labels else target


def _label_tokenizer(labels: tuple[str, ...]) -> Tokenizer:
    """Return a tokenizer whose tokens are the labels of a classifier: the id of a label is its position in `labels`."""
    vocabulary = {label: number for number, label in enumerate(labels)}
    # the package tokenizers demands an unknown token, but no other text than labels is encoded
    word_tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=labels[0]))
    word_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return ImportedTokenizer(word_tokenizer, dict(enumerate(labels)), special_tokens={}, role_ids={})


def _run_config(checkpoint: ConvertedCheckpoint, shared_vocabulary: bool) -> config.Config:
    """Return the configuration of a run, with the generation settings of the checkpoint as settings of the search.

    Lengths of our search count the prompt of a target, such as Whisper's language and task, but not BOS before it. Of
    transformers' settings, `max_new_tokens` and `min_new_tokens` count neither, `max_length` and `min_length` both;
    only if there is a prompt, `max_length` counts neither. The limit of a target is `length_ratio` · source length +
    `length_offset`; with a maximum length it does not depend on the source: the ratio is 0.
    """
    generation, prompt_length = checkpoint.generation, checkpoint.framing.prompt_length
    max_length, min_length = generation.get("max_new_tokens"), generation.get("min_new_tokens")
    if max_length is not None:
        max_length += prompt_length
    elif isinstance(generation.get("max_length"), int):
        # Whisper's `generate`, which alone has a prompt, adds BOS and the prompt to `max_length`
        max_length = generation["max_length"] + prompt_length if prompt_length else generation["max_length"] - 1
    if min_length is not None:
        min_length += prompt_length
    elif isinstance(generation.get("min_length"), int):
        min_length = max(0, generation["min_length"] - 1)  # without BOS
    model = meta_model(checkpoint.spec)
    if prompt_length and (positions := position_limit(model.decoder)):
        # Whisper's `generate` fills the decoder's positions at most, of which BOS has one
        max_length = min(positions - 1, max_length or positions)
    early_stopping = generation.get("early_stopping")  # True, False, "never", or missing
    search = {
        "beam_size": generation.get("num_beams", 1),
        "length_penalty": generation.get("length_penalty"),
        "max_target_length": max_length,
        "length_ratio": DEFAULT_RATIO if max_length is None else 0.0,
        "length_offset": DEFAULT_OFFSET if max_length is None else max_length,
        "min_length": min_length,
        "no_repeat_ngram_size": generation.get("no_repeat_ngram_size"),
        "early_stopping": early_stopping if early_stopping in (True, "never") else False,
        # hypotheses that the length limit cuts off are ranked among the finished ones, as transformers does
        "rank_unfinished": "by_score",
        # in feature vectors, such as frames; None: not set
        "max_source_length": None if model.source_features is None else model.max_source_length,
    }
    values: dict[str, Any] = {
        "text": {"tokenizer": IMPORTED_TYPE, "shared_vocabulary": shared_vocabulary},
        "system": {"name": checkpoint.system},
        "search": {name: value for name, value in search.items() if value is not None},
        "features": dict(checkpoint.feature_settings),
    }
    if model.source_features is not None and model.max_source_length:
        values["data"] = {"max_length": model.max_source_length}
    return config.from_dict(values, "the checkpoint's generation_config.json")


def _unsupported_generation_settings(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of generation_config.json that our search lacks and that would change its results.

    Forbidden words (`bad_words_ids`) are among them only if they consist of several tokens.
    """
    unsupported = {
        name: value
        for name, value in generation.items()
        if name not in SUPPORTED_GENERATION_SETTINGS
        and value != NEUTRAL_GENERATION_VALUES.get(name)
        and value not in (0, None, [])  # switched off
    }
    bad_words = [word for word in generation.get("bad_words_ids") or [] if isinstance(word, list) and len(word) > 1]
    return unsupported | ({"bad_words_ids": bad_words} if bad_words else {})
