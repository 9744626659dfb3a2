"""config.json of a transformers checkpoint, read field by field with types and transformers' defaults.

A field that the converter of the model does not read and that is not known to be harmless is refused: it could change
what the model computes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import UserError
from dragoman.parts.feedforward import Activation

Default = TypeVar("Default", bound=int | None)  # type of a default: int, or None if the token may be missing

CONFIG_JSON, GENERATION_CONFIG_JSON = "config.json", "generation_config.json"

#: transformers' names of activation functions → ours
HF_ACTIVATIONS: dict[str, Activation] = {
    **{"relu": "relu", "tanh": "tanh", "linear": "identity", "quick_gelu": "quick-gelu"},
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate"), "gelu-tanh"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh"), "gelu-tanh"),
}


def field_names(text: str) -> frozenset[str]:
    """Return the names of fields in a text, where they are separated by white space."""
    return frozenset(text.split())


#: settings of generation, which older versions store in config.json
GENERATION_FIELDS = field_names(
    """
    max_length max_new_tokens min_length min_new_tokens early_stopping do_sample num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p min_p epsilon_cutoff eta_cutoff repetition_penalty
    encoder_repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    renormalize_logits forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens sequence_bias
    num_return_sequences exponential_decay_length_penalty decoder_start_token_id pad_token_id bos_token_id eos_token_id
    forced_decoder_ids language task lang_to_id task_to_id no_timestamps_token_id is_multilingual return_timestamps
    """
)

#: fields that do not change what the model computes: names, labels, training, devices, and heads of other tasks
IGNORED_FIELDS = GENERATION_FIELDS | field_names(
    """
    _name_or_path name_or_path architectures model_type transformers_version _commit_hash auto_map tokenizer_class
    torch_dtype dtype torchscript use_bfloat16 tf_legacy_loss use_cache cache_implementation output_attentions
    output_hidden_states output_past output_scores return_dict return_dict_in_generate attn_implementation
    _attn_implementation _attn_implementation_internal _attn_implementation_autoset _experts_implementation
    gradient_checkpointing chunk_size_feed_forward reorder_and_upcast_attn pretraining_tp remove_invalid_values
    initializer_range initializer_factor init_std task_specific_params prefix finetuning_task problem_type
    id2label label2id num_labels _num_labels is_encoder_decoder unk_token_id mask_token_id cls_token_id sep_token_id
    encoder_layerdrop decoder_layerdrop classifier_dropout classif_dropout n_ctx n_special predict_special_tokens
    summary_type summary_use_proj summary_activation summary_last_dropout summary_first_dropout summary_proj_to_labels
    pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type directionality
    """
)


class HFConfig:
    """The values of config.json and of generation_config.json; remembers which fields were read."""

    def __init__(self, values: dict[str, Any], generation: dict[str, Any], path: Path) -> None:
        """Read fields from `values`, those of config.json at `path`, and `generation`, those of generation_config.json.

        `refuse_unread` later refuses fields that were never read.
        """
        self.values, self.generation, self.path = values, generation, path
        self._read = set(IGNORED_FIELDS)  # names of fields that were read or may be ignored

    @staticmethod
    def from_folder(folder: Path) -> HFConfig:
        """Read config.json, and generation_config.json or, in older checkpoints, its fields in config.json."""
        values = read_json_object(folder / CONFIG_JSON)
        generation_path = folder / GENERATION_CONFIG_JSON
        generation = read_json_object(generation_path) if generation_path.exists() else values
        generation = {name: generation[name] for name in sorted(GENERATION_FIELDS) if generation.get(name) is not None}
        return HFConfig(values, generation, folder / CONFIG_JSON)

    def integer(self, field: str, default: int, alias: str | None = None) -> int:
        """Read a positive integer; the default if the field and its `alias`, another name of it, are missing."""
        value = self.get(field, default, alias)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{self.path}: {field} must be a whole number above 0, but is {value!r}: correct it")
        return value

    def number(self, field: str, default: float | None) -> float:
        """Read a number; with the default None, a missing field is an error."""
        value = self.get(field, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UserError(f"{self.path}: {field} must be a number, but is {value!r}: correct it")
        return float(value)

    def boolean(self, field: str, default: bool) -> bool:
        """Read true or false; the default if the field is missing."""
        value = self.get(field, default)
        if not isinstance(value, bool):
            raise UserError(f"{self.path}: {field} must be true or false, but is {value!r}: correct it")
        return value

    def get(self, name: str, default: Any, alias: str | None = None) -> Any:
        """Return a field of config.json, or the default if it is missing or null.

        `alias` is another name of the field; if both are there, they must not contradict each other.
        """
        names = [name] if alias is None else [name, alias]
        self._read.update(names)  # `refuse_unread` refuses fields that were never read
        values = {key: self.values[key] for key in names if self.values.get(key) is not None}
        first = next(iter(values.values()), default)
        if any(value != first for value in values.values()):
            contradiction = " and ".join(f"{key} {value!r}" for key, value in values.items())
            raise UserError(
                f"{self.path} has different values in fields with the same meaning ({contradiction}): remove the "
                "field with the wrong value"
            )
        return first

    def ignore(self, *names: str) -> None:
        """Accept any value of these fields of config.json, although nothing reads them."""
        self._read |= set(names)

    def expect(self, name: str, *supported: Any) -> None:
        """Raise an error if a field of config.json has none of the supported values; a missing field has the first."""
        value = self.get(name, supported[0])
        if value not in supported:
            raise self.unsupported(name, value, f"only {' or '.join(map(repr, supported))} is")

    def activation(self, name: str, default: str) -> Activation:
        """Read a field that names an activation function of transformers, and return our name of the function."""
        return self.supported_activation(name, self.get(name, default))

    def supported_activation(self, name: str, value: Any) -> Activation:
        """Return our name of the activation function that transformers calls `value`; `name` is its field."""
        if value not in HF_ACTIVATIONS:
            raise self.unsupported(name, value, f"supported are {', '.join(HF_ACTIVATIONS)}")
        return HF_ACTIVATIONS[value]

    def token_id(self, field: str, default: Default) -> int | Default:
        """Return the id of a special token from generation_config.json or else config.json; of a list, the first id.

        The default is returned for a missing field, null and a negative id, which means none in older configurations.
        """
        value = self.generation.get(field, self.values.get(field))
        value = value[0] if isinstance(value, list) and value else value
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise UserError(f"{self.path}: {field} must be a token id, but is {value!r}: correct it")
        return default if value is None or value < 0 else value

    def suppressed_tokens(self) -> tuple[int, ...]:
        """Return the ids of tokens that are never generated, sorted.

        They are `suppress_tokens` and the forbidden words (`bad_words_ids`) of one token; longer words are left out.
        """
        # transformers ignores a forbidden word that is EOS alone
        eos = self.generation.get("eos_token_id", self.values.get("eos_token_id"))
        bad_words = self.generation.get("bad_words_ids") or []
        single_tokens = [word[0] for word in bad_words if isinstance(word, list) and len(word) == 1 and word[0] != eos]
        tokens = {*single_tokens, *(self.generation.get("suppress_tokens") or [])}
        return tuple(sorted(token for token in tokens if token >= 0))  # −1 is no token

    def label_names(self) -> tuple[str, ...]:
        """Return the names of a classifier's labels (id2label); LABEL_0, LABEL_1 … for `num_labels` (2) if missing."""
        names = self.values.get("id2label")
        if isinstance(names, dict):
            if names.keys() != {str(number) for number in range(len(names))}:
                raise UserError(
                    f"{self.path}: id2label must number its labels 0, 1, 2, …, but the numbers are {sorted(names)}: "
                    "correct it"
                )
            labels = tuple(str(names[str(number)]) for number in range(len(names)))
            if len(set(labels)) < len(labels):
                raise UserError(
                    f"{self.path}: id2label must give every label its own name, but the names are {list(labels)}: "
                    "correct it"
                )
            return labels
        return tuple(f"LABEL_{number}" for number in range(self.integer("num_labels", 2)))

    def refuse_unread(self) -> None:
        """Raise an error for a field of config.json that has a value but was neither read nor may be ignored."""
        for name, value in self.values.items():
            if name not in self._read and value:  # an empty or false value switches nothing on
                raise self.unsupported(name, value, f"if it changes nothing, remove it from {self.path}")

    def unsupported(self, field: str, value: Any, hint: str) -> UserError:
        """Return the error for a field whose value is not supported; `hint` says what is supported, or what to do."""
        return UserError(f"{self.path} has {field} {value!r}, which is not supported: {hint}")


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; raise a UserError otherwise."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"the folder {path.parent} has no file {path.name}: name a folder with a transformers checkpoint"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: it is no valid JSON ({error}); get the file again") from None
    if not isinstance(document, dict):
        raise UserError(
            f"{path} is damaged: expected a JSON object, but found a {type(document).__name__}; get the file again"
        )
    return document
