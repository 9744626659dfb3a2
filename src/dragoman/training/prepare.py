"""Preparation: from the user's files to a run folder that is ready to train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman import data
from dragoman.config import Config, DataConfig, record_automatic_settings, to_yaml
from dragoman.data import Corpus, DataFormat, HoldoutSplit, MemoryEstimate, Preflight, SentencePair
from dragoman.data.corpus_passes import Log, choose_num_workers, survey_corpora
from dragoman.errors import UserError
from dragoman.models import ModelSpec, count_parameters, meta_model
from dragoman.objectives import TaskContext, build_objective, objective_class
from dragoman.objectives.pretraining_examples import PretrainingExample, pretraining_examples
from dragoman.run import CONFIG_FILE, select_device, write_model_file, write_tokenizers
from dragoman.search import search_from_dict
from dragoman.storage import atomic_folder
from dragoman.systems import VocabularySizes
from dragoman.text import Framing, Tokenizer
from dragoman.training.batch_size_finder import find_batch_size
from dragoman.training.defaults import (
    Choice,
    choose_copying,
    choose_objective,
    choose_selection_metric,
    choose_settings,
)
from dragoman.training.length_limits import choose_length_limit
from dragoman.training.resolve import (
    build_spec,
    check_mixture,
    check_new_folder,
    check_position_limit,
    check_source_kind,
    check_system,
    check_tags,
    check_vocabulary,
    estimate_activations,
    make_framing,
    resolve_signals,
    resolve_system,
    resolve_whitespace,
    training_corpora,
    with_tagging_head,
)
from dragoman.training.run_tokenizers import make_tokenizers, with_fertility
from dragoman.training.store_writer import StoreWriter
from dragoman.training.validation import decode_references, evenly_spaced
from dragoman.training.warm_start import ParentRun, write_initial_weights


@dataclass(frozen=True)
class PreparedRun:
    """What preparation found and chose."""

    config: Config
    preflight: Preflight
    choices: list[Choice]
    parameters: int
    examples: list[PretrainingExample]  # of what pretraining makes of a text


def prepare_run(folder: Path, config: Config, say: Log) -> PreparedRun:
    """Make the run folder: tokenizers, token stores, the model's spec. Nothing is left behind if it fails."""
    check_new_folder(folder)
    given = config
    if config.search.strategy:
        search_from_dict(config.search.strategy, "search.strategy")
    origin = ParentRun.open(config.training.start_from) if config.training.start_from else None
    told = config.system.name or config.objective.name or origin
    config = resolve_system(config, origin)
    kept = origin.spec if origin and config.system == origin.config.system else None  # else another system is built
    device = str(select_device(config.training.device))
    train, valid = training_corpora(config.data)
    check_mixture(config.data, train, valid)
    holds = data.detect_data_format(train[0])
    if not holds.has_target and not holds.is_dialogue and not told:
        raise UserError(
            f"{train[0].source} is one side of a parallel corpus: name the target file too, or say with --system or "
            "--objective what to learn from it alone"
        )
    if holds.source_is_features:
        config = resolve_signals(config, train[0]) if kept is None else config
    tried = kept or check_system(config)
    for corpus in (*train, *valid):
        check_source_kind(config.system.name or "", tried, corpus)
    config = choose_objective(config, tried, holds.name)
    config = resolve_whitespace(config, origin)
    reading = holds if holds.source_is_features else data.DATA_FORMATS[_reads(config)]
    reading = reading.with_whitespace_normalization(bool(config.text.normalize_whitespace))
    check_tags(config.data.corpus_tags, reading, origin)
    with atomic_folder(folder) as partial:
        say("reading the corpus")
        workers = choose_num_workers(config.data.num_workers, train, reading)
        found = survey_corpora(reading, train, config.data.validation_size, workers, say)
        split = None
        if valid:
            for _ in reading.read(valid):  # all of it, so that a flaw in it shows before anything is made
                pass
        else:
            split = found.holdout.choose()
            if not split.pairs:
                raise UserError(f"{train[0].source} has too few sentences to hold one out: give validation files")
        config, tokenizers, choices = make_tokenizers(
            config, reading, lambda: _train(reading, train, split), found, origin, say
        )
        config, more = choose_copying(config, reading, found.copying)
        choices += more
        vocabulary = VocabularySizes(tokenizers[0].vocab_size, tokenizers[1].vocab_size, tokenizers[0] is tokenizers[1])
        spec = with_tagging_head(kept or build_spec(config, vocabulary), reading, vocabulary)
        check_vocabulary(spec, vocabulary, reading)
        framing = origin.framing if origin and kept else make_framing(spec, tokenizers[1])
        say("writing the token store")
        stores = StoreWriter(partial / "data", config.data, reading, tokenizers, framing, workers, say)
        store, inspector = stores.write_train(train, split, found.pairs, valid)
        held = stores.write_valid(valid)

        def build(chosen: Config) -> ModelSpec:
            return with_tagging_head(build_spec(chosen, vocabulary), reading, vocabulary)

        own = build if kept is None else None
        if config.training.auto_batch_size:
            config = replace(config, training=replace(config.training, auto_batch_size=False))
            likely, _ = choose_settings(config, spec, store, device, own)
            tokens, why = find_batch_size(
                likely, own(likely) if own else spec, partial / "data", tokenizers, framing, say
            )
            config = replace(config, training=replace(config.training, batch_tokens=tokens))
            choices = [*choices, Choice("training.batch_tokens", tokens, why)]
        config, more = choose_settings(config, spec, store, device, own)
        decoded = (
            (config.training.validation_sentences or 0) if objective_class(config.objective.name or "").generates else 0
        )
        config, selection = choose_selection_metric(
            config, decode_references(held, tokenizers[1], evenly_spaced(held, decoded))
        )
        if kept is None:  # what was chosen for the amount of data is in it now
            spec = build(config)
        parameters = count_parameters(spec)
        activations = estimate_activations(
            spec, config.training.batch_tokens or 0, config.training.gradient_checkpointing
        )
        memory = MemoryEstimate.for_adam(parameters, activations)
        preflight = with_fertility(inspector.report(memory), config, tokenizers, origin)
        dropout = config.text.bpe_dropout or 0.0
        material = TaskContext(meta_model(spec), *tokenizers, framing, config.training.label_smoothing or 0.0, dropout)
        learned = build_objective(
            config.objective.name or "", material, config.objective.settings
        )  # refuses what cannot be
        lengths = store.length_counts()
        writes_translations = reading.is_translation or reading.source_is_features
        config, limits = choose_length_limit(config, lengths if writes_translations else None, framing)
        check_position_limit(meta_model(spec), int(learned.row_length(lengths.source, lengths.target).max()))
        if dropout and learned.segmenters == (None, None):
            say(f"text.bpe_dropout has no effect: the objective {config.objective.name} does not resegment its text")
        write_initial_weights(partial, spec, config, tokenizers, say)
        config = record_automatic_settings(given, config)
        shown = pretraining_examples(learned, store, config.training.seed)
        _write(partial, config, spec, framing, tokenizers, preflight.to_dict() | {"examples": [*map(asdict, shown)]})
    return PreparedRun(config, preflight, choices + more + limits + selection, parameters, shown)


def _reads(config: Config) -> str:
    return objective_class(config.objective.name or "").data_format_for(config.objective.settings)


def _train(reading: DataFormat, train: list[Corpus], split: HoldoutSplit | None) -> Iterator[SentencePair]:
    return split.training_pairs(reading.read(train)) if split else reading.read(train)


def _write(
    folder: Path,
    config: Config,
    spec: ModelSpec,
    framing: Framing,
    tokenizers: tuple[Tokenizer, Tokenizer],
    preflight: dict[str, Any],
) -> None:
    write_tokenizers(folder, *tokenizers)
    text = replace(
        config.text,
        tokenizer_from=_full(config.text.tokenizer_from),
        source_word_vectors=_full(config.text.source_word_vectors),
        target_word_vectors=_full(config.text.target_word_vectors),
    )
    training = replace(config.training, start_from=_full(config.training.start_from))
    absolute = replace(config, data=_absolute(config.data), text=text, training=training)
    (folder / CONFIG_FILE).write_text(to_yaml(absolute), encoding="utf-8")
    write_model_file(folder, config.system.name or "", spec, framing)
    (folder / "preflight.json").write_text(json.dumps(preflight, indent=1, ensure_ascii=False), encoding="utf-8")


def _absolute(config: DataConfig) -> DataConfig:
    """Files by their full names, so that the run knows them from wherever it is looked at."""
    names = ("source", "target", "valid_source", "valid_target", "test_source", "test_target")
    files = {name: tuple(str(Path(file).resolve()) for file in getattr(config, name)) for name in names}
    return replace(config, **files)  # type: ignore[arg-type]


def _full(path: str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())
