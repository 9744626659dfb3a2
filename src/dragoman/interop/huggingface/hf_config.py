"""config.json of a checkpoint, field by field: what nobody has read at the end, and is not known to be harmless, is
refused, because it could change what the model computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from dragoman.errors import UserError
from dragoman.parts.feedforward import Activation

Default = TypeVar("Default", bound=int | None)

CONFIG, GENERATION = "config.json", "generation_config.json"

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "identity",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: how the checkpoint wants to be searched, which is no concern of the model's
SEARCH = _names("""
    max_length max_new_tokens min_length min_new_tokens early_stopping do_sample num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p min_p epsilon_cutoff eta_cutoff repetition_penalty
    encoder_repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    renormalize_logits forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens sequence_bias
    num_return_sequences exponential_decay_length_penalty decoder_start_token_id pad_token_id bos_token_id eos_token_id
""")

#: fields that change nothing in what is computed: names, labels, training, devices, and what other models' heads need
HARMLESS = SEARCH | _names("""
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
""")


class Settings:
    """The fields of a checkpoint's configuration, each read by name with the library's own default."""

    def __init__(self, values: dict[str, Any], search: dict[str, Any], path: Path) -> None:
        self.values, self.search, self.path = values, search, path
        self._read = set(HARMLESS)

    @staticmethod
    def of(folder: Path) -> Settings:
        values = _document(folder / CONFIG)
        own = _document(folder / GENERATION) if (folder / GENERATION).exists() else values
        search = {name: own[name] for name in sorted(SEARCH) if own.get(name) is not None}
        return Settings(values, search, folder / CONFIG)

    def get(self, name: str, default: Any, *aliases: str) -> Any:
        """A field, or its default where it is not there or null; fields that mean the same must say the same."""
        self._read |= {name, *aliases}
        given = {one: self.values[one] for one in (name, *aliases) if self.values.get(one) is not None}
        if any(value != next(iter(given.values())) for value in given.values()):
            said = " and ".join(f"{one} {value!r}" for one, value in given.items())
            raise UserError(f"{self.path} says {said}, which mean the same: remove the wrong one")
        return next(iter(given.values()), default)

    def whole(self, name: str, default: int, *aliases: str) -> int:
        value = self.get(name, default, *aliases)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{self.path}: {name} must be a whole number above 0, but is {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise UserError(f"{self.path}: {name} must be a number, but is {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise UserError(f"{self.path}: {name} must be true or false, but is {value!r}")
        return value

    def activation(self, name: str, default: str) -> Activation:
        return self.activation_called(name, self.get(name, default))

    def activation_called(self, name: str, value: Any) -> Activation:
        if value not in ACTIVATIONS:
            raise self.refusal(name, value, f"known are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def expect(self, name: str, *allowed: Any) -> None:
        """A field that may only have these values, because the model is made for them; absent is fine."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            raise self.refusal(name, value, f"only {' or '.join(repr(one) for one in allowed)} is")

    def symbol(self, name: str, default: Default) -> int | Default:
        """The id of a special symbol, as the search has it or the model; the first where there are several.

        The default where it is null or, as older configurations say it, below 0.
        """
        value = self.search.get(name, self.values.get(name))
        value = value[0] if isinstance(value, list) and value else value
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise UserError(f"{self.path}: {name} must be the number of a token, but is {value!r}")
        return default if value is None or value < 0 else value

    def banned(self) -> tuple[int, ...]:
        """The tokens that must never be written; bad words of several tokens are the search's to keep out."""
        words = self.search.get("bad_words_ids") or []
        ends = self.search.get("eos_token_id", self.values.get("eos_token_id"))  # the library never bans END so
        alone = [word[0] for word in words if isinstance(word, list) and len(word) == 1 and word[0] != ends]
        return tuple(sorted({*alone, *(self.search.get("suppress_tokens") or [])}))

    def labels(self) -> tuple[str, ...]:
        """The names of the labels of a classifier; two without a name unless told."""
        named = self.values.get("id2label")
        if isinstance(named, dict):
            if named.keys() != {str(number) for number in range(len(named))}:
                raise UserError(f"{self.path}: id2label must number its labels from 0, but has {sorted(named)}")
            return tuple(str(named[str(number)]) for number in range(len(named)))
        return tuple(f"LABEL_{number}" for number in range(self.whole("num_labels", 2)))

    def refuse_the_rest(self) -> None:
        """Every field that nobody has read and that asks for something."""
        for name, value in self.values.items():
            if name not in self._read and value:
                raise self.refusal(name, value, f"if it changes nothing, remove it from {self.path}")

    def refusal(self, name: str, value: Any, hint: str) -> UserError:
        return UserError(f"the checkpoint asks for {name} {value!r}, which is not known here: {hint}")


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}: name a folder with a checkpoint of transformers") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(document, dict):
        raise UserError(f"{path} is damaged: it must hold names and values")
    return document
