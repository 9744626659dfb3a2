"""Names that earlier versions used, with their present names: the one place where old run folders are translated.

Files carry the names of the version that wrote them: settings in `config.yaml`, specs and framing in `model.json`,
search configurations, weights in checkpoints. The readers of those files call the functions below, so that no other
code knows an old name. Each table maps an old name to the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")

#: settings of a configuration, by their dotted names: "training.old" → "training.new"
SETTINGS: dict[str, str] = {
    "data.longest": "data.max_length",
    "data.hold_out": "data.validation_size",
    "data.source_key": "data.source_column",
    "data.target_key": "data.target_column",
    "data.weights": "data.sampling_weights",
    "data.temperature": "data.sampling_temperature",
    "data.tags": "data.corpus_tags",
    "data.valid_tags": "data.valid_corpus_tags",
    "data.workers": "data.num_workers",
    "text.kind": "text.tokenizer",
    "text.size": "text.vocab_size",
    "text.joint": "text.shared_vocabulary",
    "text.marker": "text.space_marker",
    "text.dropout": "text.bpe_dropout",
    "text.source_vectors": "text.source_word_vectors",
    "text.target_vectors": "text.target_word_vectors",
    "training.tokens": "training.batch_tokens",
    "training.batch_width": "training.batch_by",
    "training.fit": "training.auto_batch_size",
    "training.checkpointing": "training.gradient_checkpointing",
    "training.accumulate": "training.gradient_accumulation",
    "training.warmup": "training.warmup_steps",
    "training.warmup_start": "training.warmup_start_factor",
    "training.final_rate": "training.final_rate_factor",
    "training.decay": "training.decay_fraction",
    "training.hold": "training.halving_start_epoch",
    "training.halve_every": "training.halving_interval",
    "training.clip": "training.clip_norm",
    "training.validate_every": "training.validation_interval",
    "training.validate_sentences": "training.validation_sentences",
    "training.best_by": "training.selection_metric",
    "training.keep": "training.keep_checkpoints",
    "training.average": "training.average_checkpoints",
    "training.ema": "training.ema_decay",
    "training.distribution": "training.parallelism",
    "training.layout": "training.batch_layout",
    "search.beam": "search.beam_size",
    "search.normalisation": "search.length_normalization",
    "search.unfinished": "search.rank_unfinished",
    "search.coverage": "search.coverage_penalty",
    "search.tokens": "search.batch_tokens",
    "search.longest_source": "search.max_source_length",
    "search.length_extra": "search.length_offset",
    "search.longest_target": "search.max_target_length",
    "search.least": "search.min_length",
    "search.no_repeat": "search.no_repeat_ngram_size",
    "search.description": "search.strategy",
}

#: values of settings, by the present name of the setting: {"section.name": {"old": "new"}}
SETTING_VALUES: dict[str, dict[str, str]] = {"search.rank_unfinished": {"behind": "last", "beside": "by_score"}}

#: kinds of specs and search configurations: "OldKind" → "NewKind"
KINDS: dict[str, str] = {}

#: fields of specs and search configurations, by the present kind: {"Kind": {"old_field": "new_field"}}
FIELDS: dict[str, dict[str, str]] = {}

#: fields of the framing in `model.json`
FRAMING: dict[str, str] = {}

#: parts of the dotted names of weights: ".old." → ".new."
WEIGHTS: dict[str, str] = {}

#: options of the command line: "--old" → "--new"
OPTIONS: dict[str, str] = {}


def translate_settings(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration tree under present names. A section may be renamed as well as a setting in it."""
    tree = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    for old, new in SETTINGS.items():
        section, _, name = old.partition(".")
        if isinstance(tree.get(section), dict) and name in tree[section]:
            new_section, _, new_name = new.partition(".")
            tree.setdefault(new_section, {}).setdefault(new_name, tree[section].pop(name))
    for setting, renamed in SETTING_VALUES.items():
        section, _, name = setting.partition(".")
        if isinstance(tree.get(section), dict) and tree[section].get(name) in renamed:
            tree[section][name] = renamed[tree[section][name]]
    if isinstance(tree.get("chosen"), dict):
        tree["chosen"] = {SETTINGS.get(name, name): value for name, value in tree["chosen"].items()}
    return tree


def translate_description(data: dict[str, Any]) -> dict[str, Any]:
    """One spec or search configuration (`{"kind": …}`, not what is nested in it) under present names."""
    kind = data.get("kind")
    if not isinstance(kind, str):
        return data
    kind = KINDS.get(kind, kind)
    fields = FIELDS.get(kind, {})
    return {fields.get(name, name): kind if name == "kind" else value for name, value in data.items()}


def translate_framing(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a framing under present names."""
    return {FRAMING.get(name, name): value for name, value in values.items()}


def translate_weights(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Weights of a checkpoint under present names."""
    renamed = {}
    for name, tensor in tensors.items():
        dotted = f".{name}."
        for old, new in WEIGHTS.items():
            dotted = dotted.replace(old, new)
        renamed[dotted[1:-1]] = tensor
    return renamed
