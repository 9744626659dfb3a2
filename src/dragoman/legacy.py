"""Names of earlier versions and their present names. All translation of old files happens here.

Files carry the names of the version that wrote them: settings in `config.yaml`, specs and framing in `model.json`,
search configurations, training states in checkpoints. The readers of those files call the functions below, so that no
other code knows an old name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.builtin_names import system_names
from dragoman.errors import UserError, unknown_name


def _tables(text: str) -> dict[str, dict[str, str]]:
    """Parse "group: old=new old=new … group: old=new …" into `{"group": {"old": "new"}}`."""
    tables: dict[str, dict[str, str]] = {}
    for word in text.split():
        if word.endswith(":"):
            table = tables[word[:-1]] = {}
        else:
            old, new = word.split("=")
            table[old] = new
    return tables


#: settings by the section of the configuration that holds them
SETTINGS = _tables(
    """
    objective.settings:
        rate=mask_rate mask=mask_rate copies=mask_copies longest=max_length weight=discriminator_weight
        infill=infill_rate span=mean_span_length delete=delete_rate permute=permute_sentences rotate=rotate_document
        shuffle=shuffle_distance both_ways=bidirectional sampling=sampling_rate decay=sampling_decay
        consistency=rdrop_alpha
    system.settings:
        width=model_dim inner=ffn_dim inner_dropout=activation_dropout longest=max_positions shared=shared_embeddings
        share_embeddings=shared_embeddings tied=tied_embeddings tie_output=tied_embeddings gated=gated_ffn
        chosen=experts_per_token balance=balance_loss_weight noise=router_noise
        types=token_types kernel=kernel_size base=rope_base embedding=embedding_dim features=feature_dim
        block=block_size blocks=blocks_per_layer score=attention_score clip=max_distance values=relative_values
        buckets=position_buckets farthest=max_distance generator=generator_divisor window=attention_window
        head_width=head_dim epsilon=norm_eps positions=position_encoding direction=encoder_direction
    data:
        longest=max_length hold_out=validation_size source_key=source_column target_key=target_column
        weights=sampling_weights temperature=sampling_temperature tags=corpus_tags valid_tags=valid_corpus_tags
        workers=num_workers
    text:
        kind=tokenizer size=vocab_size joint=shared_vocabulary marker=space_marker dropout=bpe_dropout
        source_vectors=source_word_vectors target_vectors=target_word_vectors
    training:
        tokens=batch_tokens batch_width=batch_by fit=auto_batch_size checkpointing=gradient_checkpointing
        accumulate=gradient_accumulation warmup=warmup_steps warmup_start=warmup_start_factor
        final_rate=final_rate_factor decay=decay_fraction hold=halving_start_epoch halve_every=halving_interval
        clip=clip_norm validate_every=validation_interval validate_sentences=validation_sentences
        best_by=selection_metric keep=keep_checkpoints average=average_checkpoints ema=ema_decay
        distribution=parallelism layout=batch_layout
    search:
        beam=beam_size normalisation=length_normalization unfinished=rank_unfinished coverage=coverage_penalty
        tokens=batch_tokens longest_source=max_source_length length_extra=length_offset
        longest_target=max_target_length least=min_length no_repeat=no_repeat_ngram_size description=strategy
    """
)

#: values of settings and of fields, by the present name of the setting or field
VALUES = _tables(
    """
    search.rank_unfinished: behind=last beside=by_score
    Beam.rank_unfinished: behind=last beside=by_score
    objective.name: one-sequence=concatenation language=causal-lm masked=masked-lm replaced=replaced-token-detection
        spans=span-corruption masks=unified-lm
    """
)

#: kinds of specs and search configurations; types and fields of tokenizers; fields of the framing in `model.json`,
#: of the training state in a checkpoint and its sums that have not been logged yet, and of `preflight.json`
RENAMED = _tables(
    """
    kinds:
        Fixed=FixedContext Attention=AttentionContext Plain=StateReadout Attentional=AttentionalReadout
        Maxout=MaxoutReadout BandedRotary=Llama3Rotary Experts=MixtureOfExperts HalvedResidual=ScaledResidual
        MinimumRisk=MinimumBayesRisk Exact=ExactSearch Length=LengthLimit Weights=RerankWeights
    tokenizer_types: foreign=imported adopted=remapped
    tokenizer: symbols=special_tokens roles=role_ids codes=language_codes
    special_token: name=content number=id left=lstrip right=rstrip
    framing: before=source_prefix after=source_suffix start=bos end=eos forced=forced_bos closed=force_eos_at_limit
        banned=suppressed
    train_state: position=data_position best=best_metric waited=validations_since_best tokens=target_tokens
        unread=unlogged losses=loss_history elapsed=time_used validated_at=validation_time_used
    loss_history: high=high_losses
    unlogged: total=loss likelihood=nll_loss lost=nonfinite_tokens
    preflight: read=pairs_read lopsided=length_mismatch first=locations source_pieces=source_tokens
        target_pieces=target_tokens fertility=usual_tokens_per_character
    """
)
DROPPED_FROM_TRAIN_STATE = ("rewinds", "usual")

#: fields of specs and search configurations, by their present kind
FIELDS = _tables(
    """
    RecurrentDecoder: asks=attends feeds=feedback start=initial_state
    Recurrent: context=attention_context
    Learned: longest=max_length
    Sinusoidal: halves=sines_first
    Llama3Rotary: slow=low_freq_factor fast=high_freq_factor trained=original_max_length
    RelativeBias: longest=max_distance both_ways=bidirectional
    SelfAttention: width=head_dim norm=qk_norm
    CrossAttention: width=head_dim norm=qk_norm
    LocalAttention: block=block_size
    FeedForward: inner=inner_dim
    Additive: inner=inner_dim
    Concat: inner=inner_dim
    MixtureOfExperts: count=num_experts chosen=top_k balance=balance_loss_weight noise=router_noise
    Stack: recomputed=gradient_checkpointing input_width=input_dim
    Normal: deviation=std
    EncoderDecoder: source_vocabulary=source_vocab_size target_vocabulary=target_vocab_size shared=shared_embeddings
        tied=tied_embeddings initial=initialization
    DecoderOnly: vocabulary=vocab_size tied=tied_embeddings initial=initialization
    EncoderOnly: vocabulary=vocab_size types=token_types outputs=num_labels pooled=pooled_labels tied=tied_embeddings
        initial=initialization labels_sequence=one_label_per_sequence
    ReplacedTokens: shared=shared_embeddings
    Beam: best=n_best length=length_limit normalisation=length_normalization coverage=coverage_penalty
        unfinished=rank_unfinished no_repeat=no_repeat_ngram_size groups=num_groups diversity=diversity_penalty
    Sample: best=n_best length=length_limit typical=typical_p no_repeat=no_repeat_ngram_size
    LengthLimit: extra=offset most=max least=min
    MinimumBayesRisk: sharpness=posterior_scale aggregated=aggregate_references best=n_best
    Rerank: channel=channel_model language=language_model best=n_best
    ExactSearch: most=max_expansions length=length_limit width=batch_size
    Speculative: draft=draft_model ahead=draft_tokens
    """
)

#: fields of a kind that now belong to a spec in it: (field that holds this spec, its kind, their names)
MOVED_FIELDS = {"MixtureOfExperts": ("gating", "SoftmaxGating", ("balance_loss_weight", "router_noise"))}

#: options of the command line without "--": of all commands, then of single ones
OPTIONS = _tables(
    """
    all:
        least=min-length no-repeat=no-repeat-ngram-size risk=mbr require=include forbid=exclude with=ensemble
        draft=draft-model ahead=draft-tokens typical=typical-p beam=beam-size coverage=coverage-penalty
        groups=num-groups diversity=diversity-penalty best=n-best rerank-length=rerank-length-weight
        candidates=num-candidates states=max-expansions source-key=source-column target-key=target-column live=stream
        measures=metrics source-vectors=source-word-vectors target-vectors=target-word-vectors beside=compare-with
        sentences=max-sentences
    translate: tag=corpus-tag continue=resume workers=num-workers
    serve: keys=api-keys characters=max-characters texts=max-texts body=max-body-bytes queue=max-queue
        rate=requests-per-minute seconds=timeout delay=batch-delay-ms batch=max-batch-tokens
    generate: tokens=max-new-tokens
    fill: best=top-k
    score: tokens=token-scores
    compare: tokens=target-tokens
    alternatives: count=top-k
    positions: count=num-positions
    beam: penalty=length-penalty
    gradients: of=component
    diagnose: pair=language-pair
    bpe: compression=compression-ratio
    shortlist: best=translations frequent=frequent-tokens pairs=max-pairs
    """
)
OPTIONS["all"] |= {"gnmt": "length-normalization gnmt", "all-steps": "early-stopping steps"}

#: values of a beam search's former setting `stop`, and those of its successor `early_stopping`
STOP: dict[str, Any] = {"complete": True, "hopeless": False, "steps": "steps"}


def renamed_setting(name: str, system: str | None) -> str:
    """Return the present name of a setting that may have been renamed (`SETTINGS`); both are dotted names.

    Settings of a system are renamed only if it is a built-in one (or None, the default): a custom system may use names
    such as `base` in its own meaning. A name without a section is returned as it is.
    """
    section, _, key = name.rpartition(".")
    if section == "system.settings" and system is not None and system not in system_names():
        return name
    return f"{section}.{SETTINGS.get(section, {}).get(key, key)}" if section else name


def renamed_option(command: str | None, option: str | None) -> str | None:
    """Return the present name of an option of a command, such as --beam-size for --beam; None if it was not renamed.

    `OPTIONS` holds the renamed options of each command, and under "all" those of every command.
    """
    name = (option or "").removeprefix("--")
    present_name = OPTIONS.get(command or "", {}).get(name) or OPTIONS["all"].get(name)
    return f"--{present_name}" if present_name else None


def translate_settings(values: dict[str, Any], where: str = "the configuration") -> dict[str, Any]:
    """Return a configuration with the names of earlier versions replaced by present ones.

    Args:
        values: settings by section: `{"training": {"steps": 1000}}`.
        where: the file that holds them, for error messages.
    """
    system = values["system"].get("name") if isinstance(values.get("system"), dict) else None
    tree = _translate_tree(values, "", system)
    if isinstance(tree.get("search"), dict):
        tree["search"] = rename_stopping_settings(tree["search"], f"{where}: search.")
    if isinstance(tree.get("chosen"), dict):  # settings that training has chosen: {"search.beam_size": 4}
        chosen = {renamed_setting(name, system): value for name, value in tree["chosen"].items()}
        tree["chosen"] = {name: _present_value(name, value) for name, value in chosen.items()}
    return tree


def _translate_tree(values: Mapping[str, Any], section: str, system: str | None) -> dict[str, Any]:
    """Replace old names and values of settings by present ones, in a section and the sections nested in it.

    `section` is the dotted name of the section with a final dot, such as "training."; empty for the whole
    configuration. `system` is the name of the system. A value under a present name has priority over one under an old
    name of the same setting.
    """
    translated: dict[str, Any] = {}
    for name, value in values.items():
        setting = renamed_setting(f"{section}{name}", system)
        if isinstance(value, dict):
            value = _translate_tree(value, f"{setting}.", system)
        present_name = setting.removeprefix(section) if isinstance(name, str) else name  # YAML keys may be numbers
        if present_name == name or present_name not in values:
            translated[present_name] = _present_value(setting, value)
    return translated


def _present_value(setting: str, value: Any) -> Any:
    """Return the present spelling of a value that earlier versions spelled differently; `setting` is a dotted name."""
    return VALUES.get(setting, {}).get(value, value) if isinstance(value, str) else value


def rename_stopping_settings(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Rename settings of an earlier version's beam search: `stop` to `early_stopping`, `complete` to `num_finished`.

    Values of `stop` are translated, too: "complete" is True, "hopeless" is False, "steps" is unchanged.

    Args:
        values: settings of a beam search; an old name together with its new one is a UserError.
        where: prefix of a setting's name in error messages.
    """
    for old, new in (("stop", "early_stopping"), ("complete", "num_finished")):
        if old in values and new in values:
            known = ", ".join(f"{old}={name} is {new}={str(value).lower()}" for name, value in STOP.items())
            values_by_new_name = f" ({known})" if old == "stop" else ""
            raise UserError(f"{where}{old} is now called {new}{values_by_new_name}: use {new} instead of {old}")
    if not {"stop", "complete"} & values.keys():
        return values
    stop = values.get("stop", "complete")  # the default of `stop` in those versions
    if not isinstance(stop, str) or stop not in STOP:
        raise unknown_name(f"{where}stop, which is now early_stopping:", str(stop), [*STOP])
    others = {name: value for name, value in values.items() if name not in ("stop", "complete")}
    count = {"num_finished": values["complete"]} if values.get("complete") is not None else {}
    return others | {"early_stopping": STOP[stop]} | count


def rename_fields(fields: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return fields of an old file under their present names; `table` is a key of `RENAMED`, such as "framing"."""
    return {RENAMED[table].get(name, name): value for name, value in fields.items()}


def translate_description(data: dict[str, Any]) -> dict[str, Any]:
    """Rename kind, fields and values of one model part or search configuration that an earlier version stored.

    `data` is its JSON: `{"kind": "Beam", "best": 4, …}` becomes `{"kind": "Beam", "n_best": 4, …}`. Parts nested in it
    are not changed.
    """
    stored_kind = data.get("kind")
    if not isinstance(stored_kind, str):
        return data
    kind = RENAMED["kinds"].get(stored_kind, stored_kind)
    present_names = FIELDS.get(kind, {})
    renamed = {present_names.get(name, name): value for name, value in data.items()} | {"kind": kind}
    if kind in MOVED_FIELDS:
        nested_field, nested_kind, moved_names = MOVED_FIELDS[kind]  # these fields belong to a nested part now
        moved = {name: renamed.pop(name) for name in moved_names if name in renamed}
        if moved:
            renamed[nested_field] = {"kind": nested_kind, **moved}
    return {name: _present_value(f"{kind}.{name}", value) for name, value in renamed.items()}


def translate_tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tokenizer that was imported from another library under their present names."""
    renamed = rename_fields(fields, "tokenizer")
    return renamed | {"special_tokens": [rename_fields(token, "special_token") for token in renamed["special_tokens"]]}


def translate_train_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a training state under present names, without those that no longer exist."""
    present = {name: value for name, value in values.items() if name not in DROPPED_FROM_TRAIN_STATE}
    state = rename_fields(present, "train_state")
    nested = {name: state[name] for name in ("loss_history", "unlogged") if isinstance(state.get(name), dict)}
    return state | {name: rename_fields(fields, name) for name, fields in nested.items()}


def translate_preflight(values: Any) -> Any:
    """Return a preflight report (the check of the corpus before training) with present names of its fields, nested."""
    if isinstance(values, list):
        return [translate_preflight(value) for value in values]
    if not isinstance(values, dict):
        return values
    return rename_fields({name: translate_preflight(value) for name, value in values.items()}, "preflight")
