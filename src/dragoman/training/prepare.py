"""Preparation of a run: from text files to a run folder that is ready to train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.config import Config, DataConfig, record_automatic_settings, to_yaml
from dragoman.data import HoldoutSplit, MemoryEstimate, Preflight, SentencePair, TokenStore
from dragoman.data.corpus_passes import CorpusSurvey, Log, choose_num_workers, survey_corpora
from dragoman.data.preflight import PREFLIGHT_FILE
from dragoman.errors import UserError
from dragoman.models import ModelSpec, count_parameters, meta_model
from dragoman.objectives import Objective, TaskContext, build_objective
from dragoman.objectives.pretraining_examples import PretrainingExample, pretraining_examples
from dragoman.run import CONFIG_FILE, write_model_file, write_tokenizers
from dragoman.storage import atomic_folder
from dragoman.systems import VocabularySizes
from dragoman.text import Framing, Tokenizer
from dragoman.training.batch_size_finder import find_batch_size
from dragoman.training.defaults import Choice, choose_copying, choose_selection_metric, choose_settings
from dragoman.training.length_limits import choose_length_limit
from dragoman.training.resolve import (
    RunRequest,
    check_new_folder,
    check_position_limit,
    check_vocabulary,
    estimate_activations,
    make_framing,
    resolve_request,
)
from dragoman.training.run_tokenizers import make_tokenizers, with_fertility
from dragoman.training.store_writer import StoreWriter
from dragoman.training.validation import decode_references, evenly_spaced
from dragoman.training.warm_start import write_initial_weights


@dataclass(frozen=True)
class PreparedRun:
    """A prepared run: its configuration, the report on its data, and its automatic settings."""

    config: Config
    preflight: Preflight
    choices: list[Choice]
    parameters: int
    examples: list[PretrainingExample]


@dataclass(frozen=True)
class SurveyedText:
    """The training text after a first pass; `split` holds out validation pairs if there are no validation files."""

    request: RunRequest
    survey: CorpusSurvey
    split: HoldoutSplit | None
    workers: int

    def training_pairs(self) -> Iterator[SentencePair]:
        pairs = self.request.data_format.read(self.request.train)
        return self.split.training_pairs(pairs) if self.split else pairs


def prepare_run(folder: Path, config: Config, log: Log) -> PreparedRun:
    """Create a run folder with tokenizers, token stores and the spec of the model; nothing remains if it fails."""
    check_new_folder(folder)
    request = resolve_request(config)
    with atomic_folder(folder) as partial:
        log("reading the corpus")
        text = _survey(request, log)
        resolved, tokenizers, choices = make_tokenizers(request, text.training_pairs, text.survey, log)
        resolved, more = choose_copying(resolved, request.data_format, text.survey.copying)
        choices += more
        sizes = VocabularySizes(tokenizers[0].vocab_size, tokenizers[1].vocab_size, tokenizers[0] is tokenizers[1])
        spec = request.build_spec(resolved, sizes)
        check_vocabulary(spec, sizes, request.data_format)
        continued = request.parent if request.parent_spec else None
        framing = continued.framing if continued else make_framing(spec, tokenizers[1])
        log("writing the token store")
        stores = StoreWriter(
            partial / "data", resolved.data, request.data_format, tokenizers, framing, text.workers, log
        )
        train, inspection = stores.write_train(request.train, text.split, text.survey.pairs, request.valid)
        valid = stores.write_valid(request.valid)
        resolved, more = _choose(request, resolved, sizes, train, partial / "data", tokenizers, framing, log)
        choices += more
        spec = request.build_spec(resolved, sizes)
        objective = _build_objective(resolved, spec, tokenizers, framing)
        decoded = (resolved.training.validation_sentences or 0) if objective.generates else 0
        references = decode_references(valid, tokenizers[1], evenly_spaced(valid, decoded))
        lengths = train.length_counts()
        translates = request.data_format.is_translation or request.data_format.source_is_features
        resolved, more = choose_length_limit(resolved, lengths if translates else None, framing)
        choices += more
        resolved, more = choose_selection_metric(resolved, references)
        choices += more
        check_position_limit(meta_model(spec), int(objective.row_length(lengths.source, lengths.target).max()))
        if resolved.text.bpe_dropout and objective.subword_samplers == (None, None):
            log(f"text.bpe_dropout has no effect: the objective {resolved.objective.name} does not resegment its text")
        parameters, training = count_parameters(spec), resolved.training
        activations = estimate_activations(spec, training.batch_tokens or 0, training.gradient_checkpointing)
        report = inspection.report(MemoryEstimate.for_adam(parameters, activations))
        preflight = with_fertility(report, resolved, tokenizers, request.parent)
        write_initial_weights(partial, spec, resolved, tokenizers, log)
        resolved = record_automatic_settings(config, resolved)
        examples = pretraining_examples(objective, train, training.seed)
        report_values = preflight.to_dict() | {"examples": [asdict(example) for example in examples]}
        _write(partial, resolved, spec, framing, tokenizers, report_values)
    return PreparedRun(resolved, preflight, choices, parameters, examples)


def _survey(request: RunRequest, log: Log) -> SurveyedText:
    """Count the training text, and choose held-out validation pairs or check the validation files."""
    data_format, config = request.data_format, request.config.data
    workers = choose_num_workers(config.num_workers, request.train, data_format)
    survey = survey_corpora(data_format, request.train, config.validation_size, workers, log)
    if request.valid:
        for _ in data_format.read(request.valid):  # to find errors before anything is written
            pass
        return SurveyedText(request, survey, None, workers)
    split = survey.holdout.choose()
    if not split.pairs:
        raise UserError(f"{request.train[0].source} has too few sentences to hold one out: give validation files")
    return SurveyedText(request, survey, split, workers)


def _choose(
    request: RunRequest,
    config: Config,
    sizes: VocabularySizes,
    store: TokenStore,
    data: Path,
    tokenizers: tuple[Tokenizer, Tokenizer],
    framing: Framing,
    log: Log,
) -> tuple[Config, list[Choice]]:
    """Choose system size and training settings, after measuring the largest batch size if that is requested."""

    def build(chosen: Config) -> ModelSpec:
        return request.build_spec(chosen, sizes)

    new_model, choices = request.parent_spec is None, []
    if config.training.auto_batch_size:
        config = replace(config, training=replace(config.training, auto_batch_size=False))
        trial, _ = choose_settings(config, store, request.device, build, new_model)
        tokens, reason = find_batch_size(trial, build(trial), data, tokenizers, framing, log)
        config = replace(config, training=replace(config.training, batch_tokens=tokens))
        choices = [Choice("training.batch_tokens", tokens, reason)]
    config, more = choose_settings(config, store, request.device, build, new_model)
    return config, choices + more


def _build_objective(
    config: Config, spec: ModelSpec, tokenizers: tuple[Tokenizer, Tokenizer], framing: Framing
) -> Objective:
    smoothing, dropout = config.training.label_smoothing or 0.0, config.text.bpe_dropout or 0.0
    task = TaskContext(meta_model(spec), *tokenizers, framing, smoothing, dropout)
    return build_objective(config.objective.name or "", task, config.objective.settings)


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
        tokenizer_from=_absolute(config.text.tokenizer_from),
        source_word_vectors=_absolute(config.text.source_word_vectors),
        target_word_vectors=_absolute(config.text.target_word_vectors),
    )
    training = replace(config.training, start_from=_absolute(config.training.start_from))
    config = replace(config, data=_absolute_files(config.data), text=text, training=training)
    (folder / CONFIG_FILE).write_text(to_yaml(config), encoding="utf-8")
    write_model_file(folder, config.system.name or "", spec, framing)
    (folder / PREFLIGHT_FILE).write_text(json.dumps(preflight, indent=1, ensure_ascii=False), encoding="utf-8")


def _absolute_files(config: DataConfig) -> DataConfig:
    """Make all paths absolute, so that the run does not depend on the working directory."""
    names = ("source", "target", "valid_source", "valid_target", "test_source", "test_target")
    files = {name: tuple(str(Path(file).resolve()) for file in getattr(config, name)) for name in names}
    return replace(config, **files)  # type: ignore[arg-type]


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())
