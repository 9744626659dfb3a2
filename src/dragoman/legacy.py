"""Names of earlier versions and their present names. All translation of old files happens here.

Files carry the names of the version that wrote them: settings in `config.yaml`, specs and framing in `model.json`,
search configurations, weights in checkpoints. The readers of those files call the functions below, so that no other
code knows an old name. Each table maps an old name to the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from dragoman.errors import UserError, unknown_name

Value = TypeVar("Value")

#: settings of a configuration, by their dotted names: "training.old" → "training.new"
SETTINGS: dict[str, str] = {
    "objective.settings.rate": "objective.settings.mask_rate",
    "objective.settings.mask": "objective.settings.mask_rate",
    "objective.settings.copies": "objective.settings.mask_copies",
    "objective.settings.longest": "objective.settings.max_length",
    "objective.settings.weight": "objective.settings.discriminator_weight",
    "objective.settings.infill": "objective.settings.infill_rate",
    "objective.settings.span": "objective.settings.mean_span_length",
    "objective.settings.delete": "objective.settings.delete_rate",
    "objective.settings.permute": "objective.settings.permute_sentences",
    "objective.settings.rotate": "objective.settings.rotate_document",
    "objective.settings.shuffle": "objective.settings.shuffle_distance",
    "objective.settings.both_ways": "objective.settings.bidirectional",
    "objective.settings.sampling": "objective.settings.sampling_rate",
    "objective.settings.decay": "objective.settings.sampling_decay",
    "objective.settings.consistency": "objective.settings.rdrop_alpha",
    "system.settings.width": "system.settings.model_dim",
    "system.settings.inner": "system.settings.ffn_dim",
    "system.settings.inner_dropout": "system.settings.activation_dropout",
    "system.settings.longest": "system.settings.max_positions",
    "system.settings.shared": "system.settings.shared_embeddings",
    "system.settings.share_embeddings": "system.settings.shared_embeddings",
    "system.settings.tied": "system.settings.tied_embeddings",
    "system.settings.tie_output": "system.settings.tied_embeddings",
    "system.settings.gated": "system.settings.gated_ffn",
    "system.settings.chosen": "system.settings.experts_per_token",
    "system.settings.balance": "system.settings.balance_loss_weight",
    "system.settings.noise": "system.settings.router_noise",
    "system.settings.types": "system.settings.token_types",
    "system.settings.kernel": "system.settings.kernel_size",
    "system.settings.base": "system.settings.rope_base",
    "system.settings.embedding": "system.settings.embedding_dim",
    "system.settings.features": "system.settings.feature_dim",
    "system.settings.block": "system.settings.block_size",
    "system.settings.blocks": "system.settings.blocks_per_layer",
    "system.settings.score": "system.settings.attention_score",
    "system.settings.clip": "system.settings.max_distance",
    "system.settings.values": "system.settings.relative_values",
    "system.settings.buckets": "system.settings.position_buckets",
    "system.settings.farthest": "system.settings.max_distance",
    "system.settings.generator": "system.settings.generator_divisor",
    "system.settings.window": "system.settings.attention_window",
    "system.settings.head_width": "system.settings.head_dim",
    "system.settings.epsilon": "system.settings.norm_eps",
    "system.settings.positions": "system.settings.position_encoding",
    "system.settings.direction": "system.settings.encoder_direction",
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

#: values of settings and of fields, by the present name: {"section.name": {"old": "new"}}
SETTING_VALUES: dict[str, dict[str, str]] = {
    "search.rank_unfinished": {"behind": "last", "beside": "by_score"},
    "Beam.rank_unfinished": {"behind": "last", "beside": "by_score"},
    "objective.name": {
        "one-sequence": "concatenation",
        "language": "causal-lm",
        "masked": "masked-lm",
        "replaced": "replaced-token-detection",
        "spans": "span-corruption",
        "masks": "unified-lm",
    },
}

#: kinds of specs and search configurations: "OldKind" → "NewKind"
KINDS: dict[str, str] = {
    "Fixed": "FixedContext",
    "Attention": "AttentionContext",
    "Plain": "StateReadout",
    "Attentional": "AttentionalReadout",
    "Maxout": "MaxoutReadout",
    "BandedRotary": "Llama3Rotary",
    "Experts": "MixtureOfExperts",
    "HalvedResidual": "ScaledResidual",
    "MinimumRisk": "MinimumBayesRisk",
    "Exact": "ExactSearch",
    "Length": "LengthLimit",
    "Weights": "RerankWeights",
}

#: fields of specs and search configurations, by the present kind: {"Kind": {"old_field": "new_field"}}
FIELDS: dict[str, dict[str, str]] = {
    "RecurrentDecoder": {"asks": "attends", "feeds": "feedback", "start": "initial_state"},
    "Recurrent": {"context": "attention_context"},
    "Learned": {"longest": "max_length"},
    "Sinusoidal": {"halves": "sines_first"},
    "Llama3Rotary": {"slow": "low_freq_factor", "fast": "high_freq_factor", "trained": "original_max_length"},
    "RelativeBias": {"longest": "max_distance", "both_ways": "bidirectional"},
    "SelfAttention": {"width": "head_dim", "norm": "qk_norm"},
    "CrossAttention": {"width": "head_dim", "norm": "qk_norm"},
    "LocalAttention": {"block": "block_size"},
    "FeedForward": {"inner": "inner_dim"},
    "Additive": {"inner": "inner_dim"},
    "Concat": {"inner": "inner_dim"},
    "MixtureOfExperts": {
        "count": "num_experts",
        "chosen": "top_k",
        "balance": "balance_loss_weight",
        "noise": "router_noise",
    },
    "Stack": {"recomputed": "gradient_checkpointing", "input_width": "input_dim"},
    "Normal": {"deviation": "std"},
    "EncoderDecoder": {
        "source_vocabulary": "source_vocab_size",
        "target_vocabulary": "target_vocab_size",
        "shared": "shared_embeddings",
        "tied": "tied_embeddings",
        "initial": "initialization",
    },
    "DecoderOnly": {"vocabulary": "vocab_size", "tied": "tied_embeddings", "initial": "initialization"},
    "EncoderOnly": {
        "vocabulary": "vocab_size",
        "types": "token_types",
        "outputs": "num_labels",
        "pooled": "pooled_labels",
        "tied": "tied_embeddings",
        "initial": "initialization",
    },
    "ReplacedTokens": {"shared": "shared_embeddings"},
    "Beam": {
        "best": "n_best",
        "length": "length_limit",
        "normalisation": "length_normalization",
        "coverage": "coverage_penalty",
        "unfinished": "rank_unfinished",
        "no_repeat": "no_repeat_ngram_size",
        "groups": "num_groups",
        "diversity": "diversity_penalty",
    },
    "Sample": {"best": "n_best", "length": "length_limit", "typical": "typical_p", "no_repeat": "no_repeat_ngram_size"},
    "LengthLimit": {"extra": "offset", "most": "max", "least": "min"},
    "MinimumBayesRisk": {"sharpness": "posterior_scale", "aggregated": "aggregate_references", "best": "n_best"},
    "Rerank": {"channel": "channel_model", "language": "language_model", "best": "n_best"},
    "ExactSearch": {"most": "max_expansions", "length": "length_limit", "width": "batch_size"},
    "Speculative": {"draft": "draft_model", "ahead": "draft_tokens"},
}

#: fields of the framing in `model.json`
FRAMING: dict[str, str] = {
    "before": "source_prefix",
    "after": "source_suffix",
    "start": "bos",
    "end": "eos",
    "forced": "forced_bos",
    "closed": "force_eos_at_limit",
    "banned": "suppressed",
}

#: types of tokenizers, fields of imported tokenizers, and fields of their special tokens in `tokenizer.json`
TOKENIZER_KINDS: dict[str, str] = {"foreign": "imported", "adopted": "remapped"}
TOKENIZER_FIELDS: dict[str, str] = {"symbols": "special_tokens", "roles": "role_ids", "codes": "language_codes"}
SPECIAL_TOKEN_FIELDS: dict[str, str] = {"name": "content", "number": "id", "left": "lstrip", "right": "rstrip"}

#: parts of the dotted names of weights: ".old." → ".new."
WEIGHTS: dict[str, str] = {}

#: options of the command line: "--old" → "--new", or "command --old" → "--new" where commands differ
OPTIONS: dict[str, str] = {
    "--least": "--min-length",
    "--no-repeat": "--no-repeat-ngram-size",
    "--risk": "--mbr",
    "--require": "--include",
    "--forbid": "--exclude",
    "--with": "--ensemble",
    "--draft": "--draft-model",
    "--ahead": "--draft-tokens",
    "--typical": "--typical-p",
    "--beam": "--beam-size",
    "--gnmt": "--length-normalization gnmt",
    "--coverage": "--coverage-penalty",
    "--all-steps": "--early-stopping steps",
    "--groups": "--num-groups",
    "--diversity": "--diversity-penalty",
    "--best": "--n-best",
    "--rerank-length": "--rerank-length-weight",
    "--candidates": "--num-candidates",
    "--states": "--max-expansions",
    "translate --tag": "--corpus-tag",
    "--source-key": "--source-column",
    "--target-key": "--target-column",
    "--live": "--stream",
    "translate --continue": "--resume",
    "translate --workers": "--num-workers",
    "--measures": "--metrics",
    "serve --keys": "--api-keys",
    "serve --characters": "--max-characters",
    "serve --texts": "--max-texts",
    "serve --body": "--max-body-bytes",
    "serve --queue": "--max-queue",
    "serve --rate": "--requests-per-minute",
    "serve --seconds": "--timeout",
    "serve --delay": "--batch-delay-ms",
    "serve --batch": "--max-batch-tokens",
    "generate --tokens": "--max-new-tokens",
    "fill --best": "--top-k",
    "score --tokens": "--token-scores",
    "compare --tokens": "--target-tokens",
    "--source-vectors": "--source-word-vectors",
    "--target-vectors": "--target-word-vectors",
    "alternatives --count": "--top-k",
    "positions --count": "--num-positions",
    "beam --penalty": "--length-penalty",
    "--beside": "--compare-with",
    "gradients --of": "--component",
    "--sentences": "--max-sentences",
    "diagnose --pair": "--language-pair",
    "shortlist --best": "--translations",
    "shortlist --frequent": "--frequent-tokens",
    "shortlist --pairs": "--max-pairs",
}


#: fields of the training state in a checkpoint; an empty name drops a field
TRAIN_STATE: dict[str, str] = {
    "position": "data_position",
    "best": "best_metric",
    "waited": "validations_since_best",
    "tokens": "target_tokens",
    "unread": "unlogged",
    "losses": "loss_history",
    "elapsed": "time_used",
    "validated_at": "validation_time_used",
    "rewinds": "",
    "usual": "",
}

#: sums of a training state that have not been logged yet
UNLOGGED: dict[str, str] = {"total": "loss", "likelihood": "nll_loss", "lost": "nonfinite_tokens"}


#: values of a beam search's former setting `stop`, and those of its successor `early_stopping`
STOP: dict[str, Any] = {"complete": True, "hopeless": False, "steps": "steps"}


#: fields of `preflight.json`, at any depth
PREFLIGHT: dict[str, str] = {
    "read": "pairs_read",
    "lopsided": "length_mismatch",
    "first": "locations",
    "source_pieces": "source_tokens",
    "target_pieces": "target_tokens",
}


def translate_settings(values: dict[str, Any], where: str = "the configuration") -> dict[str, Any]:
    """Return a configuration tree under present names.

    Args:
        values: settings by section: `{"training": {"steps": 1000}}`.
        where: the file that holds them, for error messages.
    """
    tree = _copy(values)
    for old, new in SETTINGS.items():
        *sections, name = old.split(".")
        section: Any = tree
        for key in sections:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            value = section.pop(name)
            *sections, name = new.split(".")
            section = tree
            for key in sections:
                section = section.setdefault(key, {})
            section.setdefault(name, value)
    for setting in SETTING_VALUES:
        *sections, name = setting.split(".")
        section = tree
        for key in sections:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and name in section:
            section[name] = _present_value(setting, section[name])
    if isinstance(tree.get("search"), dict):
        tree["search"] = translate_stopping(tree["search"], f"{where}: search.")
    if isinstance(tree.get("chosen"), dict):
        chosen = {SETTINGS.get(name, name): value for name, value in tree["chosen"].items()}
        tree["chosen"] = {name: _present_value(name, value) for name, value in chosen.items()}
    return tree


def _present_value(setting: str, value: Any) -> Any:
    """Return a setting's value under its present name."""
    return SETTING_VALUES.get(setting, {}).get(value, value) if isinstance(value, str) else value


def _copy(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, dict) else value for name, value in tree.items()}


def translate_stopping(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return settings of a beam search with `stop` as `early_stopping` and `complete` as `num_finished`.

    Args:
        values: settings of a beam search; an old name together with its new one is an error.
        where: prefix of a setting's name in error messages.
    """
    for old, new in (("stop", "early_stopping"), ("complete", "num_finished")):
        if old in values and new in values:
            known = ", ".join(f"{old}={name} is {new}={str(value).lower()}" for name, value in STOP.items())
            raise UserError(f"{where}{old} is now called {new}{f': {known}' if old == 'stop' else ''}")
    if not {"stop", "complete"} & values.keys():
        return values
    stop = values.get("stop", "complete")
    if not isinstance(stop, str) or stop not in STOP:
        raise unknown_name(f"{where}stop, which is now early_stopping:", str(stop), [*STOP])
    others = {name: value for name, value in values.items() if name not in ("stop", "complete")}
    count = {"num_finished": values["complete"]} if values.get("complete") is not None else {}
    return others | {"early_stopping": STOP[stop]} | count


def translate_description(data: dict[str, Any]) -> dict[str, Any]:
    """Return one spec or search configuration (`{"kind": …}`, without nested ones) under present names."""
    kind = data.get("kind")
    if not isinstance(kind, str):
        return data
    kind = KINDS.get(kind, kind)
    fields = FIELDS.get(kind, {})
    translated = {fields.get(name, name): kind if name == "kind" else value for name, value in data.items()}
    return {name: _present_value(f"{kind}.{name}", value) for name, value in translated.items()}


def translate_framing(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a framing under present names."""
    return {FRAMING.get(name, name): value for name, value in values.items()}


def translate_tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an imported tokenizer under present names."""
    renamed = {TOKENIZER_FIELDS.get(name, name): value for name, value in fields.items()}
    tokens = renamed["special_tokens"]
    return renamed | {"special_tokens": [{SPECIAL_TOKEN_FIELDS.get(k, k): v for k, v in t.items()} for t in tokens]}


def translate_weights(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Return the weights of a checkpoint under present names."""
    renamed = {}
    for name, tensor in tensors.items():
        dotted = f".{name}."
        for old, new in WEIGHTS.items():
            dotted = dotted.replace(old, new)
        renamed[dotted[1:-1]] = tensor
    return renamed


def translate_train_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a training state under present names."""
    state = {TRAIN_STATE.get(name, name): value for name, value in values.items() if TRAIN_STATE.get(name, name)}
    for field, names in (("loss_history", {"high": "high_losses"}), ("unlogged", UNLOGGED)):
        if isinstance(state.get(field), dict):
            state[field] = {names.get(name, name): value for name, value in state[field].items()}
    return state


def translate_preflight(values: Any) -> Any:
    """Rename the fields of a preflight report to their present names."""
    if isinstance(values, list):
        return [translate_preflight(value) for value in values]
    if not isinstance(values, dict):
        return values
    return {PREFLIGHT.get(name, name): translate_preflight(value) for name, value in values.items()}
