"""Preparation of a run: from text files to a run folder that is ready to train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.config import Config, DataConfig, record_automatic_settings, replace_settings, to_yaml
from dragoman.data import (
    Corpus,
    CorpusInspection,
    DataFormat,
    Encoding,
    HoldoutSplit,
    MemoryEstimate,
    Preflight,
    SentencePair,
    TokenStore,
    corpus_passes,
    draws_per_corpus,
    write_shards,
)
from dragoman.data.cleaning import CleaningReport, clean_corpora
from dragoman.data.corpus_passes import Log
from dragoman.data.preflight import PREFLIGHT_FILE
from dragoman.data.text_profile import CorpusCounts, count_chunk, is_profiled
from dragoman.data.token_store import EncodedColumns
from dragoman.errors import UserError
from dragoman.models import ModelSpec, meta_model
from dragoman.objectives import TaskContext, build_objective, objective_class
from dragoman.objectives.pretraining_examples import PretrainingExample, pretraining_examples
from dragoman.parts.spec import Spec
from dragoman.processes import parallel_map
from dragoman.run import write_model_file, write_tokenizers
from dragoman.run_files import CONFIG_FILE, check_new_folder
from dragoman.storage import atomic_folder, link_or_copy
from dragoman.systems import VocabularySizes
from dragoman.text import Framing, Tokenizer
from dragoman.training import resolve
from dragoman.training.added_language import add_language
from dragoman.training.batch_size_finder import find_batch_size
from dragoman.training.defaults import (
    Choice,
    Defaults,
    choose_copy_mechanism,
    choose_copying,
    choose_selection_metric,
    choose_settings,
)
from dragoman.training.language_pairs import CorpusLanguages, resolve_languages
from dragoman.training.length_limits import choose_length_limit
from dragoman.training.memory_plan import estimate_activations
from dragoman.training.preparation_cache import PreparationCache
from dragoman.training.run_tokenizers import make_tokenizers, with_fertility
from dragoman.training.system_choice import choose_system
from dragoman.training.trainable_weights import ParameterCounts, count_trained
from dragoman.training.validation_corpora import decode_references, decode_sources, evenly_spaced
from dragoman.training.warm_start import OpenParent, ParentRun, write_initial_weights

MIN_DIFFERENT_PAIRS = 100  # corpora of at least this size are rejected if all pairs are equal
FILE_SETTINGS = (
    *(f"data.{part}{side}" for part in ("", "valid_", "test_") for side in ("source", "target", "source_features")),
    *("text.tokenizer_from", "text.source_word_vectors", "text.target_word_vectors", "training.start_from"),
)


class StoreWriter:
    """Writes the token stores of a run, and inspects all pairs for the preflight report.

    Memory holds a few chunks of text per worker, length distributions, hashes of the validation and test pairs, the
    held-out pairs, and 32 MiB of hashes of written pairs: nothing that grows with the training corpora.
    """

    def __init__(
        self,
        folder: Path,
        config: DataConfig,
        data_format: DataFormat,
        tokenizers: tuple[Tokenizer, Tokenizer],
        languages: CorpusLanguages,
        workers: int,
        log: Log,
    ) -> None:
        """Prepare to write the token stores (tokenized text on disk) of training and validation into `folder`."""
        self.folder, self.config, self.data_format, self.workers, self.log = folder, config, data_format, workers, log
        self.held_out: list[tuple[int, EncodedColumns]] = []
        self.names: list[str] = []
        self.languages, framing = languages, languages.framing.for_default_languages()
        self.encoding = Encoding(*tokenizers, config.max_length, framing)
        self.inspection = CorpusInspection(purpose="validate on")

    def write_train(
        self,
        train: list[Corpus],
        split: HoldoutSplit | None,
        total: int,
        valid: list[Corpus],
        test: list[Corpus],
    ) -> tuple[TokenStore, CorpusInspection]:
        """Write the training store, and return it with the inspection of its pairs for the preflight report.

        Args:
            train: training corpora with `total` pairs.
            split: pairs to hold out, which are kept in memory for the validation store; None with validation files.
            valid, test: validation and test corpora, whose pairs are counted if they also occur in training.
        """
        self.names = [corpus.name for corpus in train]
        compared = {} if split else {"valid": self.data_format.read(valid)}  # to find overlaps with training
        if test:
            compared["test"] = self.data_format.read(test)
        self.folder.mkdir(exist_ok=True)
        inspection = CorpusInspection(compared, folder=self.folder)
        draws = partial(  # how many pairs of each corpus are drawn in an epoch
            draws_per_corpus, weights=self.config.sampling_weights, temperature=self.config.sampling_temperature
        )
        progress = corpus_passes.ProgressLogger("written", self.log, total)

        def columns_of_corpora() -> Iterator[tuple[int, EncodedColumns]]:
            """Yield encoded training pairs with the index of their corpus; held-out pairs are put aside."""
            pairs_read = 0
            for chunk in self._encode(train, split, self.config.corpus_tags, self.workers):
                pairs_read += chunk.pairs
                progress(pairs_read)
                inspection.add(chunk.train.counts)
                if chunk.train.columns is not None:
                    yield chunk.corpus, chunk.train.columns
                self._hold_out(chunk.corpus, chunk.held_out)
            inspection.require_pairs()  # raises a UserError if all pairs were dropped

        tags, languages = self.config.corpus_tags, self.languages.train
        store = write_shards(self.folder / "train", columns_of_corpora(), self.names, tags, languages, draws)
        return store, inspection

    def write_valid(self, valid: list[Corpus]) -> TokenStore:
        """Write the validation store from the validation files, or from the held-out pairs."""
        tags, languages = self.config.corpus_tags, self.languages.train
        if valid:
            languages = self.languages.valid
            tags, self.names = resolve.validation_tags(self.config), [corpus.name for corpus in valid]
            for chunk in self._encode(valid, split=None, tags=tags, workers=1):
                self._hold_out(chunk.corpus, chunk.train)
        self.inspection.require_pairs()  # raises a UserError if all pairs were dropped
        counts = self.inspection.counts
        if counts.dropped:
            dropped = f"{counts.pairs_read - counts.pairs:,} of {counts.pairs_read:,} validation pairs"
            self.log(f"  dropped {dropped}: {', '.join(counts.dropped)}")
        return write_shards(self.folder / "valid", self.held_out, self.names, tags, languages)

    def _encode(
        self, corpora: list[Corpus], split: HoldoutSplit | None, tags: Sequence[str], workers: int
    ) -> Iterator[corpus_passes.EncodedChunk]:
        """Tokenize corpora in chunks; pairs of `split` are held out, and sources begin with the tag of their corpus."""
        tag_ids = [(self.encoding.source_tokenizer.tags[tag],) if tag else () for tag in tags]
        encode = corpus_passes.ChunkEncoder(self.data_format, self.encoding, split, tag_ids)
        return parallel_map(encode, corpus_passes.read_chunks(self.data_format, corpora), workers)

    def _hold_out(self, corpus: int, inspected: corpus_passes.InspectedColumns) -> None:
        """Keep the held-out pairs of a chunk for the validation store, and add their counts to its report."""
        self.inspection.add(inspected.counts)
        if inspected.columns is not None:
            self.held_out.append((corpus, inspected.columns))


@dataclass(frozen=True)
class StoredText:
    """Token stores of training and validation, and the preflight report on the training pairs."""

    folder: Path
    report: Preflight


@dataclass(frozen=True)
class PreparedRun:
    """A prepared run: its configuration, the report on its data, and its automatic settings."""

    config: Config
    preflight: Preflight
    choices: list[Choice]
    parameters: ParameterCounts
    examples: list[PretrainingExample]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, the number of parameters and the report on the data as JSON values."""
        counts = {"parameters": self.parameters.total, "trained_parameters": self.parameters.trained}
        return {"settings": asdict(self.config), **counts, "preflight": self.report()}

    def report(self) -> dict[str, Any]:
        """Return the contents of `preflight.json`: the report on the data, automatic settings and examples."""
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
) -> PreparedRun:
    """Create a run folder with tokenizers, token stores, configuration and model file; nothing remains if it fails.

    A token store is the tokenized corpus on disk. Settings that the configuration leaves open are chosen on the way.

    Args:
        log: receives messages for the user.
        custom_parts: classes of custom parts that the model contains.
        cache: results of earlier preparations of this process, which runs with equal text settings share.
        open_parent: opens the model of `training.start_from`, by default a run.
    """
    cache = cache or PreparationCache()
    check_new_folder(folder)
    request = resolve.resolve_request(config, open_parent)
    data_format, defaults = request.data_format, Defaults(request.config)
    objective_name = request.config.objective.name or ""
    if request.parent is None and (reason := objective_class(objective_name).warm_start_reason):
        log(f"warning: the objective {objective_name} needs a trained model: {reason}")
    with atomic_folder(folder) as partial:
        log("reading the corpus")
        workers = corpus_passes.choose_num_workers(config.data.num_workers, request.train, data_format)
        request, cleaning = _clean(request, partial, workers, log, cache)
        survey = cache.compute_once(
            lambda: corpus_passes.survey_corpora(data_format, request.train, config.data.validation_size, workers, log),
            *("survey", request.config.data, request.config.cleaning, request.config.features, data_format.key),
        )
        split, validation = _choose_validation_pairs(request, survey, cleaning)

        def training_pairs() -> Iterator[SentencePair]:
            """Read the training text again, without the held-out pairs."""
            pairs = data_format.read(request.train)
            return split.training_pairs(pairs) if split else pairs

        if config.text.add_language:
            request = _add_language(request, split, log)
        if request.parent is None:
            choose_copy_mechanism(defaults, data_format, survey.pairs, survey.text.profile())
        tokenizers = make_tokenizers(request, defaults, training_pairs, survey, validation, log, cache)
        if config.data.features_column is None and (column := request.config.data.features_column):
            symbols = ", ".join(tokenizers[0].features.names[:3])
            defaults.set_and_report("data.features_column", column, f"it holds features of the sources: {symbols} …")
        choose_copying(defaults, data_format, survey.copying)
        source_tokenizer, target_tokenizer = tokenizers
        is_shared = source_tokenizer is target_tokenizer
        features = source_tokenizer.features.id_range
        sizes = VocabularySizes(source_tokenizer.vocab_size, target_tokenizer.vocab_size, is_shared, features)
        spec = request.build_spec(defaults.config, sizes)
        resolve.check_vocabulary(spec, sizes, data_format)
        continued_run = request.parent if request.parent_spec else None  # whose model is trained further
        # special tokens around source and target
        framing = continued_run.framing if continued_run else resolve.make_framing(spec, target_tokenizer)
        languages = resolve_languages(request.config.data, framing, request.train, request.valid)
        framing = languages.framing.for_default_languages()
        write_tokenizers(partial, *tokenizers)

        def write_stores() -> StoredText:
            """Write the token stores of training and validation."""
            log("writing the tokenized text")
            stores = StoreWriter(
                partial / "data", defaults.config.data, data_format, tokenizers, languages, workers, log
            )
            _, inspection = stores.write_train(request.train, split, survey.pairs, request.valid, request.test)
            report = inspection.report()
            if report.pairs >= MIN_DIFFERENT_PAIRS and report.duplicates == report.pairs - 1:
                raise UserError(
                    f"{request.train[0].source} consists of {report.pairs:,} equal {data_format.item_name}, from which "
                    "nothing can be learned: give different ones"
                )
            stores.write_valid(request.valid)
            return StoredText(folder / "data", report)

        stored = cache.compute_once(
            write_stores,
            *("stores", request.config.data, request.config.cleaning, request.config.features, data_format.key),
            languages,
            *(tokenizer.to_json() for tokenizer in tokenizers),
        )
        if stored.folder.exists():  # written by an earlier preparation
            shutil.copytree(stored.folder, partial / "data", copy_function=link_or_copy)
        elif not (partial / "data").exists():  # that preparation has failed, and left nothing
            write_stores()
        train, valid = (TokenStore(partial / "data" / name) for name in ("train", "valid"))
        choose_system(defaults, config, data_format, tokenizers, sizes, train)
        _choose_settings(request, defaults, sizes, train, languages.framing, partial, custom_parts, log)
        resolved = defaults.config
        spec, training = request.build_spec(resolved, sizes), resolved.training
        smoothing, dropout = training.label_smoothing or 0.0, resolved.text.bpe_dropout or 0.0
        task = TaskContext(meta_model(spec), *tokenizers, framing, smoothing, dropout)
        objective = build_objective(resolved.objective.name or "", task, resolved.objective.settings)
        lengths = train.length_counts()
        translates = data_format.is_translation or data_format.source_is_features
        choose_length_limit(defaults, lengths if translates else None, framing, valid.length_counts())
        decoded = (training.validation_sentences or 0) if objective.generates else 0
        indices = evenly_spaced(len(valid), decoded)
        references = decode_references(valid, target_tokenizer, indices)
        choose_selection_metric(defaults, references, decode_sources(valid, source_tokenizer, indices))
        longest_row = int(objective.row_length(lengths.source, lengths.target).max())
        longest_target = int(lengths.target.max()) + len(framing.target_prefix)
        resolve.check_position_limit(task.model, longest_row, int(lengths.source.max()), longest_target)
        if dropout and objective.subword_samplers == (None, None):
            log(f"text.bpe_dropout has no effect: the objective {resolved.objective.name} does not support it")
        new_weights = write_initial_weights(partial, spec, resolved, request.parent, tokenizers, log)
        parameters = count_trained(spec, resolved, new_weights)
        activations = estimate_activations(spec, training.batch_tokens or 0, bool(training.gradient_checkpointing))
        memory = MemoryEstimate.for_adam(parameters.total, parameters.trained, activations)
        report = replace(stored.report, memory=memory, text=survey.profile, cleaning=cleaning)
        preflight = with_fertility(report, resolved, tokenizers, request.parent)
        resolved = record_automatic_settings(config, defaults.config)
        examples = pretraining_examples(objective, train, training.seed)
        prepared = PreparedRun(resolved, preflight, defaults.choices, parameters, examples)
        (partial / CONFIG_FILE).write_text(to_yaml(_with_absolute_paths(resolved)), encoding="utf-8")
        write_model_file(partial, resolved.system.name or "", spec, languages.framing)
        (partial / PREFLIGHT_FILE).write_text(
            json.dumps(prepared.report(), indent=1, ensure_ascii=False), encoding="utf-8"
        )
    return prepared


def _choose_validation_pairs(
    request: resolve.RunRequest, survey: corpus_passes.CorpusSurvey, cleaning: CleaningReport | None
) -> tuple[HoldoutSplit | None, CorpusCounts | None]:
    """Choose training pairs to hold out for validation; with validation files read these, and count their text.

    `cleaning` says in messages why there are few pairs.
    """
    if request.valid:
        counts = CorpusCounts()
        # also finds errors before anything is written
        for number, chunk in enumerate(request.data_format.chunks(request.data_format.read(request.valid))):
            if is_profiled(number):
                counts.merge(count_chunk(chunk))
        return None, counts
    split = survey.holdout.choose()
    if not split.pairs:
        source, items = request.train[0].source, request.data_format.item_name
        if survey.pairs == 1 and cleaning is not None and cleaning.removed:
            found = f"has a single one of its {cleaning.pairs_read:,} {items} left after cleaning: {cleaning.summary}; "
            found += "give others"
        elif survey.pairs == 1:
            found = f"has a single one of the {items} that training needs: give more"
        elif not survey.holdout.total:
            found = f"has {survey.pairs:,} {items}, but none with text on both sides: check that no file is empty"
        else:
            found = f"has the same source in all {survey.holdout.total:,} {items}: give others"
        raise UserError(f"{source} {found}, or name validation files with --valid-source")
    return split, None


def _clean(
    request: resolve.RunRequest, folder: Path, workers: int, log: Log, cache: PreparationCache
) -> tuple[resolve.RunRequest, CleaningReport | None]:
    """Clean the training corpora as the settings say; return the request with what is kept, and a report."""
    config, data_format = request.config, request.data_format
    if not config.cleaning.is_active:
        return request, None
    languages = resolve.languages_to_identify(config, request.train)
    cleaned = cache.compute_once(
        lambda: clean_corpora(data_format, request.train, config.cleaning, folder, workers, log, languages),
        *("cleaning", config.data, config.cleaning, config.features, data_format.key),
    )
    return replace(request, train=cleaned.corpora), cleaned.report


def _add_language(request: resolve.RunRequest, split: HoldoutSplit | None, log: Log) -> resolve.RunRequest:
    """Return the request with a new language in the model to start from, learned from the text that is not held out."""
    language, data = request.config.text.add_language or "", request.config.data
    if request.parent is None or request.parent_spec is None:
        raise UserError(
            f"--add-language {language} extends a trained model: name it with --start-from, without another --system"
        )
    named = [tuple(pair.split(":", 1)) for pair in data.corpus_languages]
    named = named or [(data.source_language, data.target_language)] * len(request.train)

    def read(side: int) -> Iterator[str]:
        """Yield the sources (0) or targets (1) of the corpora in which this side is in the new language."""
        corpora = [corpus for corpus, pair in zip(request.train, named) if pair[side] == language]
        pairs = request.data_format.read(corpora)
        for pair in split.training_pairs(pairs) if split else pairs:
            yield (pair.source, pair.target or "")[side]

    parent = add_language(request.parent, request.config, lambda: read(0), lambda: read(1), log)
    return replace(request, parent=parent, parent_spec=parent.spec, spec=parent.spec)


def _choose_settings(
    request: resolve.RunRequest,
    defaults: Defaults,
    sizes: VocabularySizes,
    store: TokenStore,
    framing: Framing,
    folder: Path,
    custom_parts: Sequence[type[Spec]],
    log: Log,
) -> None:
    """Choose system size and training settings, and set them in `defaults`.

    With `training.auto_batch_size`, settings are first chosen on trial, to measure with them the largest batch size
    that fits into memory; then all are chosen again for that size.

    Args:
        request: what is known before the text is read, such as a parent run.
        sizes, store, framing: vocabulary sizes, tokenized training pairs, special tokens around source and target.
        folder: run folder that is being prepared.
    """

    def choose(chosen: Defaults) -> ModelSpec:
        """Choose all settings that `chosen` leaves open, and return the spec of the model."""
        choose_settings(
            chosen,
            store,
            request.device,
            build=lambda config: request.build_spec(config, sizes),
            new_model=request.parent_spec is None,
            imported_parent=request.parent is not None and request.parent.is_imported,
        )
        return request.build_spec(chosen.config, sizes)

    if defaults.config.training.auto_batch_size:
        defaults.set_quietly({"training.auto_batch_size": False})
        trial = Defaults(defaults.config)
        spec = choose(trial)
        write_model_file(folder, trial.config.system.name or "", spec, framing)
        batch_tokens, reason = find_batch_size(folder, trial.config, spec, log, custom_parts)
        defaults.set_and_report("training.batch_tokens", batch_tokens, reason)
        recomputes = trial.config.training.gradient_checkpointing
        defaults.set_quietly({"training.gradient_checkpointing": recomputes})
        defaults.batch_is_measured = True
    choose(defaults)
    for warning in defaults.warnings:
        log(f"warning: {warning}")


def _with_absolute_paths(config: Config) -> Config:
    """Return the configuration with absolute paths of all files, so that the run works in any working directory."""
    values: dict[str, Any] = {}
    for name in FILE_SETTINGS:
        section, key = name.split(".")
        value = getattr(getattr(config, section), key)
        if isinstance(value, tuple):
            values[name] = [str(Path(file).resolve()) for file in value]
        elif value is not None:
            values[name] = str(Path(value).resolve())
    return replace_settings(config, values)
