"""Preparation of a run: from text files to a run folder that is ready to train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.config import Config, DataConfig, record_automatic_settings, replace_settings, to_yaml
from dragoman.data import (
    HoldoutSplit,
    MemoryEstimate,
    Preflight,
    SentencePair,
    TokenStore,
    corpus_passes,
)
from dragoman.data.cleaning import CleaningReport, clean_corpora
from dragoman.data.corpus_passes import Log
from dragoman.data.preflight import PREFLIGHT_FILE
from dragoman.data.text_profile import CorpusCounts, count_chunk, is_profiled
from dragoman.errors import UserError
from dragoman.models import ModelSpec, meta_model
from dragoman.objectives import TaskContext, build_objective, objective_class
from dragoman.objectives.pretraining_examples import PretrainingExample, pretraining_examples
from dragoman.parts.spec import Spec
from dragoman.processes import OrderedMap, process_map
from dragoman.run import write_model_file, write_tokenizers
from dragoman.run_files import CONFIG_FILE, check_new_folder
from dragoman.storage import exclusive_folder, link_or_copy
from dragoman.systems import VocabularySizes
from dragoman.text import Framing, Tokenizer
from dragoman.training import resolve
from dragoman.training.added_language import add_language
from dragoman.training.batch_size_finder import find_batch_size
from dragoman.training.defaults import (
    Choice,
    Defaults,
    choose_copy_mechanism,
    choose_copy_untranslatable,
    choose_selection_metric,
    choose_settings,
)
from dragoman.training.language_pairs import CorpusLanguages, resolve_languages
from dragoman.training.length_limits import choose_length_limit
from dragoman.training.memory_plan import estimate_activations
from dragoman.training.preparation_cache import PreparationCache
from dragoman.training.run_tokenizers import make_tokenizers, with_usual_tokens_per_character
from dragoman.training.store_writer import StoreWriter
from dragoman.training.system_choice import choose_system, labelling_system
from dragoman.training.trainable_weights import ParameterCounts, count_trained
from dragoman.training.validation_corpora import decode_references, decode_sources, evenly_spaced
from dragoman.training.warm_start import OpenParent, ParentRun, write_initial_weights

MIN_DIFFERENT_PAIRS = 100  # corpora of at least this size are rejected if all pairs are equal
FILE_SETTINGS = (
    *(f"data.{part}{side}" for part in ("", "valid_", "test_") for side in ("source", "target", "source_features")),
    *("text.tokenizer_from", "text.source_word_vectors", "text.target_word_vectors", "training.start_from"),
)


@dataclass(frozen=True)
class SurveyedText:
    """The corpora after cleaning, what a first reading found in them, and what is held out of them.

    Attributes:
        request: with the corpora that are left after cleaning.
        survey: counts of the training pairs.
        split: the pairs to hold out for validation; None with validation files.
        validation: counts of the text of the validation files, if there are any.
        cleaning: what was removed; None without cleaning.
        parallel: maps chunks of text, with several processes or machines.
    """

    request: resolve.RunRequest
    survey: corpus_passes.CorpusSurvey
    split: HoldoutSplit | None
    validation: CorpusCounts | None
    cleaning: CleaningReport | None
    parallel: OrderedMap

    def training_pairs(self) -> Iterator[SentencePair]:
        """Read the training text again and yield its pairs, without those held out for validation."""
        pairs = self.request.data_format.read(self.request.train)
        return self.split.training_pairs(pairs) if self.split else pairs


@dataclass(frozen=True)
class Vocabulary:
    """Source and target tokenizer (the same object if it is shared), and the special tokens around their text."""

    tokenizers: tuple[Tokenizer, Tokenizer]
    sizes: VocabularySizes
    languages: CorpusLanguages

    @property
    def framing(self) -> Framing:
        """The special tokens around source and target; those of a multilingual model are for its default languages."""
        return self.languages.framing.for_default_languages()


@dataclass(frozen=True)
class StoredText:
    """Token stores of training and validation, and the preflight report on the training pairs."""

    folder: Path
    report: Preflight

    @property
    def train(self) -> TokenStore:
        """The tokenized training pairs."""
        return TokenStore(self.folder / "train")

    @property
    def valid(self) -> TokenStore:
        """The tokenized validation pairs."""
        return TokenStore(self.folder / "valid")


@dataclass(frozen=True)
class PreparedRun:
    """A prepared run: its configuration, the report on its data, and its automatic settings."""

    config: Config
    preflight: Preflight
    choices: list[Choice]
    parameters: ParameterCounts
    examples: list[PretrainingExample]

    def to_dict(self) -> dict[str, Any]:
        """Return all settings, the numbers of parameters, and what `report` returns ("preflight"), as JSON values."""
        counts = {"parameters": self.parameters.total, "trained_parameters": self.parameters.trained}
        return {"settings": asdict(self.config), **counts, "preflight": self.report()}

    def report(self) -> dict[str, Any]:
        """Return what `preflight.json` stores: statistics of the data, automatic settings, and pretraining examples."""
        return self.preflight.to_dict() | {
            "choices": [asdict(choice) for choice in self.choices],
            "examples": [asdict(example) for example in self.examples],
        }


def prepare_run(
    folder: Path,
    config: Config,
    log: Log,
    custom_parts: Sequence[type[Spec]] = (),
    cache: PreparationCache | None = None,
    open_parent: OpenParent = ParentRun.open,
    parallel: OrderedMap | None = None,
) -> PreparedRun:
    """Create a run folder that is ready to train: tokenizers, tokenized text, configuration and model file.

    Settings that the configuration leaves open are chosen on the way. If an error is raised, nothing remains.

    Args:
        folder: the run folder, which must not exist.
        config: the user's configuration, with the training files.
        log: prints a line for the user.
        custom_parts: layer classes of the user that the model contains besides those of the package.
        cache: results of earlier preparations of this process, which runs with equal text settings share.
        open_parent: opens the model that `training.start_from` names, by default a run folder.
        parallel: maps chunks of text, by default with `data.num_workers` processes.

    Returns:
        The complete configuration, the report on the data, the automatic settings and the numbers of parameters.
    """
    cache = cache or PreparationCache()
    check_new_folder(folder)
    request = resolve.resolve_request(config, open_parent)
    defaults, objective = Defaults(request.config), request.config.objective.name or ""
    if request.parent is None and (reason := objective_class(objective).warm_start_reason):
        log(f"warning: the objective {objective} needs a trained model: {reason}")
    with exclusive_folder(folder) as partial:  # a temporary folder, which becomes `folder` at the end
        surveyed = _survey(request, partial, log, cache, parallel)
        request = surveyed.request
        vocabulary = _make_vocabulary(surveyed, defaults, log, cache)
        _report_columns(defaults, request, config.data, vocabulary.tokenizers[0])
        write_tokenizers(partial, *vocabulary.tokenizers)
        stored = _store_text(surveyed, vocabulary, defaults.config.data, folder / "data", partial / "data", log, cache)
        choose_system(
            defaults,
            user_config=config,
            data_format=request.data_format,
            tokenizers=vocabulary.tokenizers,
            sizes=vocabulary.sizes,
            profile=surveyed.survey.profile,
            store=stored.train,
        )
        # the user has named neither a system nor an objective, nor a model to start from
        is_task_open = config.system.name is None and config.objective.name is None and request.parent is None
        if is_task_open and (suggestion := labelling_system(surveyed.survey.profile)):
            log(f"hint: {suggestion}")
        _choose_settings(
            request, defaults, vocabulary.sizes, stored, vocabulary.languages.framing, partial, custom_parts, log
        )
        spec = request.build_spec(defaults.config, vocabulary.sizes)
        examples = _check_and_choose_search(request, defaults, spec, vocabulary, stored, log)
        resolved, tokenizers = record_automatic_settings(config, defaults.config), vocabulary.tokenizers
        new_weights = write_initial_weights(partial, spec, resolved, request.parent, tokenizers, log)
        parameters = count_trained(spec, resolved, new_weights)
        memory = _estimate_memory(spec, resolved, parameters)
        report = replace(stored.report, memory=memory, text=surveyed.survey.profile, cleaning=surveyed.cleaning)
        preflight = with_usual_tokens_per_character(report, resolved, tokenizers, request.parent)
        prepared = PreparedRun(resolved, preflight, defaults.choices, parameters, examples)
        (partial / CONFIG_FILE).write_text(to_yaml(_with_absolute_paths(resolved)), encoding="utf-8")
        write_model_file(partial, resolved.system.name or "", spec, vocabulary.languages.framing)
        document = json.dumps(prepared.report(), indent=1, ensure_ascii=False)
        (partial / PREFLIGHT_FILE).write_text(document, encoding="utf-8")
    return prepared


def _survey(
    request: resolve.RunRequest, folder: Path, log: Log, cache: PreparationCache, parallel: OrderedMap | None
) -> SurveyedText:
    """Clean the corpora, count their pairs and text, and choose the validation pairs.

    If `text.add_language` is set, the new language is added to the model of the request.

    Args:
        request: the user's configuration with the opened corpora and the model to start from.
        folder: run folder that is being prepared, into which is written which pairs cleaning has removed.
        log: prints a line for the user.
        cache: results of earlier preparations of this process.
        parallel: maps chunks of text; None: with `data.num_workers` processes.
    """
    log("reading the corpus")
    config, data_format = request.config, request.data_format
    workers = corpus_passes.choose_num_workers(config.data.num_workers, request.train, data_format)
    parallel = parallel or process_map(workers)
    request, cleaning = _clean(request, folder, parallel, log, cache)
    survey = cache.compute_once(
        lambda: corpus_passes.survey_corpora(data_format, request.train, config.data.validation_size, parallel, log),
        "survey",
        *request.text_key,
    )
    split, validation = _choose_validation_pairs(request, survey, cleaning, log)
    if config.text.add_language:
        request = _add_language(request, split, log)
    return SurveyedText(request, survey, split, validation, cleaning, parallel)


def _make_vocabulary(surveyed: SurveyedText, defaults: Defaults, log: Log, cache: PreparationCache) -> Vocabulary:
    """Learn the tokenizers, or take over those of a parent run; return them with their sizes and special tokens.

    Settings that depend on the text are set in `defaults`: tokenizers and copying. `surveyed` has the training text and
    its counts, `cache` results of earlier preparations.
    """
    request, survey = surveyed.request, surveyed.survey
    data_format = request.data_format
    if request.parent is None:
        choose_copy_mechanism(defaults, data_format, survey.pairs, survey.profile)
    source, target = tokenizers = make_tokenizers(
        request, defaults, surveyed.training_pairs, survey, surveyed.validation, log, cache
    )
    choose_copy_untranslatable(defaults, data_format, survey.copying, survey.profile)
    # `features` are the ids of symbols for features of sources, such as "PST"
    sizes = VocabularySizes(
        source=source.vocab_size, target=target.vocab_size, joint=source is target, features=source.features.id_range
    )
    spec = request.build_spec(defaults.config, sizes)
    resolve.check_vocabulary(spec, sizes, data_format)
    continued_run = request.parent if request.parent_spec else None  # whose model is trained further
    framing = continued_run.framing if continued_run else resolve.make_framing(spec, target)
    return Vocabulary(tokenizers, sizes, resolve_languages(request.config.data, framing, request.train, request.valid))


def _report_columns(
    defaults: Defaults, request: resolve.RunRequest, user_data: DataConfig, source_tokenizer: Tokenizer
) -> None:
    """Report the columns of features, sources and targets that were found, and not named by the user.

    `defaults` has the configuration with the columns, `user_data` what the user has set (None: not set),
    `source_tokenizer` the names of the features. The first corpus of `request` tells the columns; texts without targets
    and dialogues, whose columns are turns, have none.
    """
    data, corpus = defaults.config.data, request.train[0]
    if request.data_format.has_target and (columns := corpus.file_format.columns_by_order(corpus)):
        defaults.choices.append(Choice("data.source_column", columns.source, columns.reason))
        defaults.choices.append(Choice("data.target_column", columns.target, columns.reason))
    if data.features_column and user_data.features_column is None:
        symbols = ", ".join(source_tokenizer.features.names[:3])
        reason = f"it holds features of the sources: {symbols} …"
        defaults.set_and_report("data.features_column", data.features_column, reason)
        if user_data.target_column is None and data.target_column is not None:
            reason = "since column 1, which usually holds the targets, has the features"
            defaults.set_and_report("data.target_column", data.target_column, reason)


def _store_text(
    surveyed: SurveyedText,
    vocabulary: Vocabulary,
    config: DataConfig,
    final_folder: Path,
    folder: Path,
    log: Log,
    cache: PreparationCache,
) -> StoredText:
    """Tokenize the corpora into `folder`, or copy the tokenized text of an earlier preparation with equal settings.

    Args:
        surveyed, vocabulary: the text, and the tokenizers with their special tokens.
        config: settings of the data, such as the largest length.
        final_folder: the name that `folder` gets when the preparation succeeds: there later preparations find the text.
        folder: receives the training and validation text, tokenized ("token stores").
        log: prints a line for the user.
        cache: results of earlier preparations of this process.
    """
    request = surveyed.request

    def write() -> StoredText:
        """Write training and validation text, tokenized; raise a UserError if all training pairs are equal."""
        log("writing the tokenized text")
        stores = StoreWriter(
            folder, config, request.data_format, vocabulary.tokenizers, vocabulary.languages, surveyed.parallel, log
        )
        _, inspection = stores.write_train(
            request.train, surveyed.split, total=surveyed.survey.pairs, valid=request.valid, test=request.test
        )
        report = inspection.report()
        all_equal = report.duplicates == report.pairs - 1  # all pairs repeat the first one
        if report.pairs >= MIN_DIFFERENT_PAIRS and all_equal:
            raise UserError(
                f"{request.train[0].source} consists of {report.pairs:,} equal {request.data_format.item_name}, from "
                f"which nothing can be learned: give different {request.data_format.item_name}"
            )
        stores.write_valid(request.valid)
        return StoredText(final_folder, report)

    documents = [tokenizer.to_json() for tokenizer in vocabulary.tokenizers]
    stored = cache.compute_once(write, "stores", *request.text_key, vocabulary.languages, *documents)
    if stored.folder.exists():  # written by an earlier preparation
        shutil.copytree(stored.folder, folder, copy_function=link_or_copy)
    elif not folder.exists():  # that preparation has failed, and left nothing
        write()
    return StoredText(folder, stored.report)


def _check_and_choose_search(
    request: resolve.RunRequest,
    defaults: Defaults,
    spec: ModelSpec,
    vocabulary: Vocabulary,
    stored: StoredText,
    log: Log,
) -> list[PretrainingExample]:
    """Choose the length limit of the search and the selection metric, and check that the longest pair fits the model.

    Both settings are set in `defaults`. `spec` has the hyper-parameters of the model, `stored` the tokenized text, and
    `vocabulary` the tokenizers and the special tokens around their text. A user who has set BPE dropout is told if the
    objective does not support it. Returns examples of inputs and labels that a pretraining objective makes of the text,
    for the report; other objectives have none.
    """
    config, data_format, framing = defaults.config, request.data_format, vocabulary.framing
    training, train, valid = config.training, stored.train, stored.valid
    source_tokenizer, target_tokenizer = vocabulary.tokenizers
    smoothing, dropout = training.label_smoothing or 0.0, config.text.bpe_dropout or 0.0
    model = meta_model(spec)
    task = TaskContext(
        model, source_tokenizer, target_tokenizer, framing, label_smoothing=smoothing, bpe_dropout=dropout
    )
    objective = build_objective(config.objective.name or "", task, config.objective.settings)
    lengths = train.length_counts()
    translates = data_format.is_translation or data_format.source_is_features
    choose_length_limit(defaults, lengths if translates else None, framing, valid.length_counts())
    num_decoded = (training.validation_sentences or 0) if objective.generates else 0  # at each validation
    indices = evenly_spaced(len(valid), num_decoded)
    references = decode_references(valid, target_tokenizer, indices)
    choose_selection_metric(defaults, references, decode_sources(valid, source_tokenizer, indices))
    longest_row = int(objective.row_length(lengths.source, lengths.target).max())
    longest_target = int(lengths.target.max()) + len(framing.target_prefix)
    resolve.check_position_limit(task.model, longest_row, int(lengths.source.max()), longest_target)
    if dropout and objective.subword_samplers == (None, None):  # samplers segment source and target by BPE dropout
        log(f"text.bpe_dropout has no effect: the objective {config.objective.name} does not support it")
    return pretraining_examples(objective, train, training.seed)


def _estimate_memory(spec: ModelSpec, config: Config, parameters: ParameterCounts) -> MemoryEstimate:
    """Estimate the bytes of memory that training takes: weights, gradients, optimizer state and activations.

    `spec` has the hyper-parameters of the model, `parameters` the numbers of all and of trained parameters.
    """
    training = config.training
    activations = estimate_activations(spec, training.batch_tokens or 0, bool(training.gradient_checkpointing))
    return MemoryEstimate.for_adam(parameters.total, parameters.trained, activations)


def _choose_validation_pairs(
    request: resolve.RunRequest, survey: corpus_passes.CorpusSurvey, cleaning: CleaningReport | None, log: Log
) -> tuple[HoldoutSplit | None, CorpusCounts | None]:
    """Choose the pairs to validate on: those of validation files, or some of the training pairs that `survey` counts.

    Returns the split of the training pairs that holds some of them out, and None; or, if the request names validation
    files, None and the counts of their text. A UserError is raised if no pairs can be held out; its message quotes the
    report of the `cleaning` (None: there was none).
    """
    if request.valid:
        counts = CorpusCounts()
        # reads all chunks, to find errors before anything is written, but counts only some of a large corpus
        for number, chunk in enumerate(request.data_format.chunks(request.data_format.read(request.valid))):
            if is_profiled(number):
                counts.merge(count_chunk(chunk))
        return None, counts
    split = survey.holdout.choose()  # among the candidates that were collected while the pairs were counted
    if not split.pairs:  # nothing can be held out
        file, items = request.train[0].source, request.data_format.item_name  # such as "pairs"
        if survey.pairs == 1 and cleaning is not None and cleaning.removed:
            problem = f"has a single one of its {cleaning.pairs_read:,} {items} left after cleaning: "
            problem += f"{cleaning.summary}; give others"
        elif survey.pairs == 1:
            problem = f"has a single one of the {items} that training needs: give more"
        elif not survey.pairs:
            problem = f"has no {items}: give a file with some"
        elif not survey.holdout.num_pairs:
            problem = f"has {survey.pairs:,} {items}, but none with text on both sides: check that no file is empty"
        else:
            problem = f"has the same source in all {survey.holdout.num_pairs:,} {items}: give others"
        raise UserError(f"no pairs can be held out for validation: {file} {problem}, or name files with --valid-source")
    size = request.config.data.validation_size
    if size is not None and 2 * size > survey.pairs:
        raise UserError(
            f"data.validation_size={size} would hold out more than half of {survey.pairs:,} pairs for validation: set "
            f"it to at most {survey.pairs // 2:,}, or name files with --valid-source"
        )
    log(f"holding out {split.pairs:,} of {survey.pairs:,} pairs for validation")
    return split, None


def _clean(
    request: resolve.RunRequest, folder: Path, parallel: OrderedMap, log: Log, cache: PreparationCache
) -> tuple[resolve.RunRequest, CleaningReport | None]:
    """Remove training pairs as the section `cleaning` of the configuration says; flags of removed pairs go to `folder`.

    Returns the request with the corpora without the removed pairs, and a report, or None if cleaning is off. `parallel`
    maps chunks of text, `cache` has results of earlier preparations.
    """
    config, data_format = request.config, request.data_format
    if not config.cleaning.is_active:
        return request, None
    languages = resolve.languages_to_identify(config, request.train)
    cleaned = cache.compute_once(
        lambda: clean_corpora(data_format, request.train, config.cleaning, folder, parallel, log, languages),
        "cleaning",
        *request.text_key,
    )
    return replace(request, train=cleaned.corpora), cleaned.report


def _add_language(request: resolve.RunRequest, split: HoldoutSplit | None, log: Log) -> resolve.RunRequest:
    """Return the request with a parent model that also knows the new language `text.add_language`.

    New subwords come from the training text in this language, without the pairs that `split` holds out for validation
    (None: there are validation files). A UserError is raised if there is no model to extend.
    """
    language, data = request.config.text.add_language or "", request.config.data
    if request.parent is None or request.parent_spec is None:
        raise UserError(
            f"--add-language {language} extends a trained model: name it with --start-from, without another --system"
        )
    language_pairs = [tuple(pair.split(":", 1)) for pair in data.corpus_languages]
    language_pairs = language_pairs or [(data.source_language, data.target_language)] * len(request.train)

    def read(side: int) -> Iterator[str]:
        """Yield the sources (`side` 0) or targets (1) of the corpora in which this side is in the new language."""
        corpora = [corpus for corpus, languages in zip(request.train, language_pairs) if languages[side] == language]
        pairs = request.data_format.read(corpora)
        for pair in split.training_pairs(pairs) if split else pairs:
            yield (pair.source, pair.target or "")[side]

    parent = add_language(request.parent, request.config, sources=lambda: read(0), targets=lambda: read(1), log=log)
    return replace(request, parent=parent, parent_spec=parent.spec, spec=parent.spec)


def _choose_settings(
    request: resolve.RunRequest,
    defaults: Defaults,
    sizes: VocabularySizes,
    stored: StoredText,
    framing: Framing,
    folder: Path,
    custom_parts: Sequence[type[Spec]],
    log: Log,
) -> None:
    """Choose system size and training settings, and set them in `defaults`.

    With `training.auto_batch_size`, settings are first chosen on trial, to measure with them the largest batch size
    that fits into memory; then all are chosen again for that size.

    Args:
        request: the user's configuration with the opened corpora and the model to start from, if there is one.
        defaults: the configuration so far; chosen settings are set and recorded in it.
        sizes, stored, framing: vocabulary sizes, tokenized pairs, special tokens around source and target.
        folder: run folder that is being prepared.
        custom_parts: layer classes of the user that the model contains besides those of the package.
        log: prints a line for the user.
    """

    def choose(open_settings: Defaults) -> ModelSpec:
        """Choose all settings that `open_settings` leaves open, and return the hyper-parameters of the model."""
        choose_settings(
            open_settings,
            stored.train,
            request.device,
            num_valid=len(stored.valid),
            build_spec=lambda config: request.build_spec(config, sizes),
            new_model=request.parent_spec is None,
            imported_parent=request.parent is not None and request.parent.is_imported,
        )
        return request.build_spec(open_settings.config, sizes)

    if defaults.config.training.auto_batch_size:
        defaults.set_quietly({"training.auto_batch_size": False})  # the run is saved with the size that is found
        trial = Defaults(defaults.config)
        spec = choose(trial)
        write_model_file(folder, trial.config.system.name or "", spec, framing)
        batch_tokens, reason = find_batch_size(folder, trial.config, spec, log, custom_parts)
        defaults.set_and_report("training.batch_tokens", batch_tokens, reason)
        defaults.set_quietly({"training.gradient_checkpointing": trial.config.training.gradient_checkpointing})
        defaults.batch_is_measured = True
    choose(defaults)
    for warning in defaults.warnings:
        log(f"warning: {warning}")


def _with_absolute_paths(config: Config) -> Config:
    """Return the configuration with absolute paths of all files, so that the run works in any working directory."""
    paths: dict[str, Any] = {}
    for name in FILE_SETTINGS:  # such as "data.source"
        section, key = name.split(".")
        value = getattr(getattr(config, section), key)
        if isinstance(value, tuple):
            paths[name] = [str(Path(file).resolve()) for file in value]
        elif value is not None:
            paths[name] = str(Path(value).resolve())
    return replace_settings(config, paths)
