"""Preparation: from the user's files to a run folder that is ready to train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman import data
from dragoman.config import Config, DataConfig, record_automatic_settings, to_yaml
from dragoman.data import Corpus, HoldOut, Memory, Pair, Preflight, Reading
from dragoman.data.passes import Say, survey, workers_for
from dragoman.errors import UserError
from dragoman.models import ModelSpec, blueprint, count_parameters
from dragoman.objectives import Material, make, objective
from dragoman.objectives.examples import PretrainingExample, examples
from dragoman.run import CONFIG, pick_device, write_model, write_tokenizers
from dragoman.search import from_description
from dragoman.storage import atomic_folder
from dragoman.systems import Vocabulary
from dragoman.text import Framing, Tokenizer
from dragoman.training.beginning import Origin, begin
from dragoman.training.budget import fit
from dragoman.training.choices import Choice, choose, choose_best_by, choose_copying, choose_objective
from dragoman.training.length_limits import choose_length_limit
from dragoman.training.settle import (
    check_free,
    check_lengths,
    check_mixture,
    check_source,
    check_tags,
    check_vocabulary,
    corpora,
    estimate_activations,
    framing_of,
    labelled,
    make_spec,
    settle_signals,
    settle_system,
    settle_whitespace,
    try_spec,
)
from dragoman.training.stores import Stores
from dragoman.training.validation import decode_references, spread_over
from dragoman.training.vocabularies import tokenizers_for, with_fertility


@dataclass(frozen=True)
class Prepared:
    """What preparation found and chose."""

    config: Config
    preflight: Preflight
    choices: list[Choice]
    parameters: int
    examples: list[PretrainingExample]  # of what pretraining makes of a text


def prepare(folder: Path, config: Config, say: Say) -> Prepared:
    """Make the run folder: tokenizers, token stores, the model's spec. Nothing is left behind if it fails."""
    check_free(folder)
    given = config
    if config.search.strategy:
        from_description(config.search.strategy, "search.strategy")
    origin = Origin.open(config.training.start_from) if config.training.start_from else None
    told = config.system.name or config.objective.name or origin
    config = settle_system(config, origin)
    kept = origin.spec if origin and config.system == origin.config.system else None  # else another system is built
    device = str(pick_device(config.training.device))
    train, valid = corpora(config.data)
    check_mixture(config.data, train, valid)
    holds = data.kind_of(train[0])
    if holds == "text" and not told:
        raise UserError(
            f"{train[0].source} is one side of a parallel corpus: name the target file too, or say with --system or "
            "--objective what to learn from it alone"
        )
    if holds == "signals":
        config = settle_signals(config, train[0]) if kept is None else config
    tried = kept or try_spec(config)
    for corpus in (*train, *valid):
        check_source(config.system.name or "", tried, corpus)
    config = choose_objective(config, tried, holds)
    config = settle_whitespace(config, origin)
    reading = data.READINGS["signals" if holds == "signals" else _reads(config)]
    reading = reading.normalizing(whitespace=bool(config.text.normalize_whitespace))
    check_tags(config.data.corpus_tags, reading, origin)
    with atomic_folder(folder) as partial:
        say("reading the corpus")
        workers = workers_for(config.data.num_workers, train, reading)
        found = survey(reading, train, config.data.validation_size, workers, say)
        split = None
        if valid:
            for _ in reading.read(valid):  # all of it, so that a flaw in it shows before anything is made
                pass
        else:
            split = found.holdout.choose()
            if not split.pairs:
                raise UserError(f"{train[0].source} has too few sentences to hold one out: give validation files")
        config, tokenizers, choices = tokenizers_for(
            config, reading, lambda: _train(reading, train, split), found, origin, say
        )
        config, more = choose_copying(config, reading, found.copying)
        choices += more
        vocabulary = Vocabulary(tokenizers[0].size, tokenizers[1].size, tokenizers[0] is tokenizers[1])
        spec = labelled(kept or make_spec(config, vocabulary), reading, vocabulary)
        check_vocabulary(spec, vocabulary, reading)
        framing = origin.framing if origin and kept else framing_of(spec, tokenizers[1])
        say("writing the token store")
        stores = Stores(partial / "data", config.data, reading, tokenizers, framing, workers, say)
        store, inspector = stores.write_train(train, split, found.pairs, valid)
        held = stores.write_valid(valid)

        def build(chosen: Config) -> ModelSpec:
            return labelled(make_spec(chosen, vocabulary), reading, vocabulary)

        own = build if kept is None else None
        if config.training.auto_batch_size:
            config = replace(config, training=replace(config.training, auto_batch_size=False))
            likely, _ = choose(config, spec, store, device, own)
            tokens, why = fit(likely, own(likely) if own else spec, partial / "data", tokenizers, framing, say)
            config = replace(config, training=replace(config.training, batch_tokens=tokens))
            choices = [*choices, Choice("training.batch_tokens", tokens, why)]
        config, more = choose(config, spec, store, device, own)
        decoded = (config.training.validation_sentences or 0) if objective(config.objective.name or "").decodes else 0
        config, selection = choose_best_by(config, decode_references(held, tokenizers[1], spread_over(held, decoded)))
        if kept is None:  # what was chosen for the amount of data is in it now
            spec = build(config)
        parameters = count_parameters(spec)
        activations = estimate_activations(
            spec, config.training.batch_tokens or 0, config.training.gradient_checkpointing
        )
        memory = Memory.of(parameters, activations)
        preflight = with_fertility(inspector.report(memory), config, tokenizers, origin)
        dropout = config.text.bpe_dropout or 0.0
        material = Material(blueprint(spec), *tokenizers, framing, config.training.label_smoothing or 0.0, dropout)
        learned = make(config.objective.name or "", material, config.objective.settings)  # refuses what cannot be
        lengths = store.length_counts()
        translates = holds == "signals" or _reads(config) == "pairs"
        config, limits = choose_length_limit(config, lengths if translates else None, framing)
        check_lengths(blueprint(spec), int(learned.width(lengths.source, lengths.target).max()))
        if dropout and learned.segments == (None, None):
            say(f"text.bpe_dropout has no effect: the objective {config.objective.name} does not resegment its text")
        begin(partial, spec, config, tokenizers, say)
        config = record_automatic_settings(given, config)
        shown = examples(learned, store, config.training.seed)
        _write(partial, config, spec, framing, tokenizers, preflight.to_dict() | {"examples": [*map(asdict, shown)]})
    return Prepared(config, preflight, choices + more + limits + selection, parameters, shown)


def _reads(config: Config) -> str:
    return objective(config.objective.name or "").reading(config.objective.settings)


def _train(reading: Reading, train: list[Corpus], split: HoldOut | None) -> Iterator[Pair]:
    return split.train(reading.read(train)) if split else reading.read(train)


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
    (folder / CONFIG).write_text(to_yaml(absolute), encoding="utf-8")
    write_model(folder, config.system.name or "", spec, framing)
    (folder / "preflight.json").write_text(json.dumps(preflight, indent=1, ensure_ascii=False), encoding="utf-8")


def _absolute(config: DataConfig) -> DataConfig:
    """Files by their full names, so that the run knows them from wherever it is looked at."""
    names = ("source", "target", "valid_source", "valid_target", "test_source", "test_target")
    files = {name: tuple(str(Path(file).resolve()) for file in getattr(config, name)) for name in names}
    return replace(config, **files)  # type: ignore[arg-type]


def _full(path: str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())
