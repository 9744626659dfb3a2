"""Resolution of a configuration before any text is read: defaults that depend on other settings, and their checks.

The ranges of single values are checked in `config.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman import data
from dragoman.config import Config, DataConfig, FeatureConfig, SearchDefaults, replace_settings
from dragoman.data import Corpus, DataFormat
from dragoman.data.cleaning import choose_filters
from dragoman.data.compression import file_extension
from dragoman.errors import UserError, unknown_name
from dragoman.models import Model, ModelSpec, cached_meta_model, count_parameters
from dragoman.models.model import position_limit
from dragoman.objectives import check_objective, objective_class
from dragoman.run import select_device
from dragoman.search import search_from_dict
from dragoman.systems import SYSTEMS, VocabularySizes, get_system
from dragoman.text import Framing, Tokenizer
from dragoman.text.language_identification import can_identify, known_languages
from dragoman.text.normalization import TextNormalizer
from dragoman.training.language_pairs import resolve_languages
from dragoman.training.trainable_weights import count_trained, trains_all_weights
from dragoman.training.warm_start import OpenParent, ParentRun

MAX_FEATURE_VECTORS = 4000  # default limit of the vectors of a source: 40 seconds of speech


@dataclass(frozen=True)
class RunRequest:
    """A resolved request for a new run: everything that is known before the text is read.

    Attributes:
        config: with system, objective and text normalization resolved.
        parent: the run to start from; None: training starts from random weights.
        parent_spec: hyper-parameters of its model, if the new run continues it; None if a model is built from the
            configuration.
        spec: hyper-parameters of the model: the parent's, or those of the system with a vocabulary of 100 tokens.
        train, valid, test: corpora; `valid` is empty if validation pairs are held out of `train`.
        data_format: how the corpora are read.
        device: cpu, cuda or mps.
    """

    config: Config
    parent: ParentRun | None
    parent_spec: ModelSpec | None
    spec: ModelSpec
    train: list[Corpus]
    valid: list[Corpus]
    test: list[Corpus]
    data_format: DataFormat
    device: str

    @property
    def text_key(self) -> tuple[Any, ...]:
        """All settings that decide which text is read: preparations with an equal key share what they compute of it."""
        return self.config.data, self.config.cleaning, self.config.features, self.data_format.key

    def build_spec(self, config: Config, vocabulary: VocabularySizes) -> ModelSpec:
        """Return the hyper-parameters of the parent's model, or of the configured system for these vocabulary sizes.

        If the targets are labels, the model gets a new output layer for them.
        """
        spec = self.parent_spec or build_spec(config, vocabulary)
        if not self.data_format.target_is_labels:
            return spec
        return spec.with_labels(num_labels=vocabulary.target, of_sequence=self.data_format.one_label_per_sequence)


def resolve_request(config: Config, open_parent: OpenParent = ParentRun.open) -> RunRequest:
    """Choose what a configuration leaves open before any text is read: system, objective, data format and device.

    Returns the configuration with the opened corpora and the model to start from, which `open_parent` opens by the name
    in `training.start_from`. Raises a UserError for settings and files that do not fit together.
    """
    if config.search.strategy:
        search_from_dict(config.search.strategy, "search.strategy")  # raises a UserError if it is invalid
    parent = open_parent(config.training.start_from) if config.training.start_from else None
    task_is_given = config.system.name or config.objective.name or parent
    config = resolve_system(config, parent)
    # the parent's model is trained further, unless another system is configured
    parent_spec = parent.spec if parent and config.system == parent.config.system else None
    device = str(select_device(config.training.device))
    if not config.data.source:
        raise UserError(
            "no training text: give --source and --target (or --source alone for a file with source and target, such "
            "as TSV)"
        )
    if parent and config.features == FeatureConfig():  # the user has set nothing about image and sound files
        config = replace(config, features=parent.config.features)
    config = resolve_features_column(config)
    train, valid, test = (make_corpora(config, prefix) for prefix in ("", "valid_", "test_"))
    check_mixture(config.data, train, valid)
    content = data.detect_data_format(train[0])  # pairs, text, turns of dialogues, or feature vectors
    if not content.has_target and not content.is_dialogue and not task_is_given:
        file, advice = train[0].source, "or choose a --system or --objective for single texts, such as a language model"
        if train[0].file_format.has_both_sides:
            raise UserError(f"{file} is read without a target column: name that column with --target-column, {advice}")
        raise UserError(
            f"{file} has only sources: give the file of the targets with --target, or --format tsv or csv if its lines "
            f"have both sides, {advice}"
        )
    if content.source_is_features and parent_spec is None:
        config = resolve_features(config, train[0])
    spec = parent_spec or check_system(config)
    for corpus in (*train, *valid):
        check_source_kind(config.system.name or "", spec, corpus)
    config = resolve_objective(config, spec, content.name)
    config = resolve_normalization(config, parent)
    objective = objective_class(config.objective.name or "")
    data_format = data.DATA_FORMATS[objective.data_format_for(config.objective.settings)]
    data_format = content if content.source_is_features else data_format  # vectors are read alike by all objectives
    data_format = data_format.with_normalizer(TextNormalizer.from_settings(config.text))
    config = resolve_cleaning(config, train, data_format)
    check_trained_weights(config, spec)
    if parent_spec and parent and not config.text.add_language:  # a language to be added is still unknown to the model
        resolve_languages(config.data, parent.framing, train, valid)  # an error before the text is read
    check_tags(config.data.corpus_tags, data_format, parent)
    check_feature_symbols(train[0], data_format, parent)
    return RunRequest(config, parent, parent_spec, spec, train, valid, test, data_format, device)


def make_corpora(config: Config, prefix: str = "") -> list[Corpus]:
    """Return a corpus for each source file, with its target file and its file of source features, if there are any.

    Args:
        config: has the names of the files.
        prefix: of the settings with the names: "" for training files, "valid_" for validation, "test_" for test files.
    """
    sources, targets, features = (
        getattr(config.data, f"{prefix}{name}") for name in ("source", "target", "source_features")
    )
    for file_kind, paths in (("target files", targets), ("files of source features", features)):
        if paths and len(sources) != len(paths):
            both = ", and '' for a source file that contains both sides" if paths is targets else ""
            raise UserError(
                f"{len(sources)} source files need as many {file_kind}, but {len(paths)} were given: give one for each "
                f"source file, in the same order{both}"
            )
    no_files = [None] * len(sources)
    return [
        Corpus.from_settings(config.data, source, target, config.features, feature_file)
        for source, target, feature_file in zip(sources, targets or no_files, features or no_files)
    ]


def resolve_features_column(config: Config) -> Config:
    """Set `data.features_column`, the column with feature symbols of sources, if the first training file has one.

    Feature symbols are attributes such as "V;PST". If they are in the second column, where the target usually is,
    `data.target_column` is set to the third one. What the user has set stays.
    """
    if config.data.features_column is not None or config.data.source_features or not config.data.source:
        return config
    corpus = make_corpora(config)[0]
    if corpus.has_features:  # vectors
        return config
    # {"features_column": …}, with "target_column" if needed; empty if no column looks like features
    columns = corpus.file_format.find_features(corpus, config.data.feature_separator)
    return replace_settings(config, {f"data.{name}": column for name, column in columns.items()})


def check_feature_symbols(corpus: Corpus, data_format: DataFormat, parent: ParentRun | None) -> None:
    """Raise a UserError if a corpus has feature symbols of sources, such as "V;PST", which cannot be used.

    They need pairs to translate, and a run to start from (`parent`), if there is one, that was trained with features.
    """
    if not corpus.has_feature_symbols:
        return
    if not data_format.is_translation:
        raise UserError(
            "features of sources (labels that are read before a source) need pairs to translate, but the data is read "
            f"as {data_format.item_name}: set data.features_column to '' and leave out data.source_features"
        )
    if parent and not parent.tokenizers[0].features:
        raise UserError(
            f"{corpus.source} has features of sources, but the model of --start-from {parent.folder} was trained "
            "without features: leave out --start-from, or set data.features_column to ''"
        )


def check_mixture(config: DataConfig, train: list[Corpus], valid: list[Corpus]) -> None:
    """Raise a UserError unless there are as many sampling weights and tags as training corpora, or none.

    A tag is a symbol before the sources of a corpus. If there are tags, each validation corpus needs one of those of
    the training corpora.
    """
    for name in ("sampling_weights", "corpus_tags"):
        values = getattr(config, name)
        if values and len(values) != len(train):
            raise UserError(
                f"data.{name} has {len(values)} values for {len(train)} training corpora: give one value per corpus"
            )
    if config.corpus_tags and valid and len(validation_tags(config)) != len(valid):
        raise UserError(
            f"each of the {len(valid)} validation corpora needs a tag, because the training corpora have tags "
            "(data.corpus_tags: a token before each source that names its corpus): set data.valid_corpus_tags to one "
            "of these tags per corpus"
        )
    if config.valid_corpus_tags and not valid:
        raise UserError(
            "data.valid_corpus_tags (a token before each validation source that names its corpus) is set, but there "
            "are no validation corpora: remove the setting, or give --valid-source"
        )
    if unknown := [tag for tag in config.valid_corpus_tags if tag and tag not in config.corpus_tags]:
        raise unknown_name("tag in data.valid_corpus_tags:", unknown[0], [tag for tag in config.corpus_tags if tag])


def check_tags(tags: Sequence[str], data_format: DataFormat, parent: ParentRun | None) -> None:
    """Raise a UserError if the corpora have tags, symbols before their sources, which cannot be used.

    They need pairs to translate, and must be known to the tokenizer of the run to start from (`parent`), if there is
    one.
    """
    if any(tags) and not data_format.is_translation:
        raise UserError(
            "data.corpus_tags (a token before each source that names its corpus) needs pairs to translate, but the "
            f"data is read as {data_format.item_name}: remove the setting"
        )
    if parent and (missing := [tag for tag in tags if tag and tag not in parent.tokenizers[0].tags]):
        available = ", ".join(parent.tokenizers[0].tags) or "none"
        raise UserError(
            f"data.corpus_tags (a token before each source that names its corpus) has {missing[0]!r}, but the model of "
            f"--start-from {parent.folder} knows the tags {available}: use only these"
        )


def validation_tags(config: DataConfig) -> tuple[str, ...]:
    """Return the tags (symbols before the sources) of the validation corpora: their own, or those of training."""
    return config.valid_corpus_tags or config.corpus_tags


def resolve_system(config: Config, parent: ParentRun | None) -> Config:
    """Set the section `system`: as configured, else as in the run to start from (`parent`), else the Transformer.

    If the same system as in the parent is configured, the parent's size and settings are the defaults. It is a
    UserError to change size or settings of the parent's system without naming a system.
    """
    if config.system.name is not None:
        if parent is None or parent.config.system.name != config.system.name:
            return config
        inherited = parent.config.system
        settings = inherited.settings | config.system.settings
        return replace(config, system=replace(inherited, size=config.system.size or inherited.size, settings=settings))
    if parent is None:
        return replace(config, system=replace(config.system, name="transformer"))
    if config.system.settings or config.system.size:
        raise UserError(
            "--start-from keeps the model of that run: leave out the size and the settings of the system, or name a "
            "--system to build another model"
        )
    return replace(config, system=parent.config.system)


def resolve_normalization(config: Config, parent: ParentRun | None) -> Config:
    """Set the settings of text normalization that are None: as in the run to start from (`parent`), or the defaults.

    By default only white space is normalized.
    """
    defaults = {"normalize_whitespace": True, "unicode_normalization": "none", "lowercase": False}
    values = {}
    for name, default in defaults.items():
        if getattr(config.text, name) is None:
            inherited = getattr(parent.config.text, name) if parent else None
            values[f"text.{name}"] = default if inherited is None else inherited
    return replace_settings(config, values)


def resolve_cleaning(config: Config, train: list[Corpus], data_format: DataFormat) -> Config:
    """Set the filters of the section `cleaning` that are None, and check that languages can be identified if needed.

    `data_format` reads the training corpora `train`, whose first pairs decide which filters suit them.
    """
    config = replace(config, cleaning=choose_filters(config.cleaning, data_format, train))
    languages_to_identify(config, train)  # raises a UserError if that is not possible
    return config


def languages_to_identify(config: Config, train: list[Corpus]) -> tuple[str, str]:
    """Return the codes of the languages that cleaning expects of source and target, such as "de" and "en".

    Both are empty if `cleaning.identify_language` is off. Raise a UserError if languages cannot be identified.
    """
    if not config.cleaning.identify_language:
        return "", ""
    if not can_identify():
        raise UserError(
            "cleaning.identify_language needs the package lingua: install it with pip install 'dragoman[langid]'"
        )
    source, target = _languages(config, train)
    if not source or (train[0].target and not target):
        raise UserError(
            "cleaning.identify_language must know the languages of source and target: name them with --from and --to, "
            "by their codes of two letters"
        )
    return source, target


def _languages(config: Config, train: list[Corpus]) -> tuple[str, str]:
    """Return codes of the languages of source and target: those of the settings, or the extensions of the first files.

    A code without its region ("de" for de-AT) is enough; one that language identification does not know becomes "".
    """

    def language_code(language: str, file: Path | None) -> str:
        """Return the code of a language ("de" for de-AT), by default the extension of a file, such as train.de.gz."""
        extension = file_extension(file.name) if file else ""
        code = (language or extension).lower().replace("_", "-").partition("-")[0]  # without the region
        return code if can_identify() and code in known_languages() else ""

    return (
        language_code(config.data.source_language, train[0].source),
        language_code(config.data.target_language, train[0].target),
    )


def resolve_features(config: Config, corpus: Corpus) -> Config:
    """Return the configuration for sources that are feature vectors, such as speech.

    Set the dimension of the vectors as in the corpus, and larger limits of source lengths; what the user has set stays.
    """
    values: dict[str, Any] = {}
    if config.data.max_length == DataConfig.max_length:  # still the default for text
        values["data.max_length"] = MAX_FEATURE_VECTORS
    if config.search.max_source_length == SearchDefaults.max_source_length:  # still the default for text
        values["search.max_source_length"] = MAX_FEATURE_VECTORS
    if "feature_dim" in get_system(config.system.name or "").settings() and "feature_dim" not in config.system.settings:
        values["system.settings.feature_dim"] = data.feature_dim(corpus)
    return replace_settings(config, values)


def resolve_objective(config: Config, spec: ModelSpec, content: str) -> Config:
    """Set `objective.name`, unless the user has, to the default for the content of the training files; check it.

    The default of the system comes first, then that of the model with the hyper-parameters `spec`. `content` is pairs,
    text, turns (of dialogues) or features (vectors).
    """
    name, settings = config.objective.name, config.objective.settings
    if name is None:
        system = SYSTEMS.get(config.system.name or "")
        system_default = system.default_objective(content, config.system.size) if system else None
        name, defaults = system_default or (spec.default_objectives.get(content), {})
        if name is None:
            expected_content = " or ".join(spec.default_objectives)
            specs = {name: other.spec(VocabularySizes(100, 100, True), "tiny") for name, other in SYSTEMS.items()}
            suitable = ", ".join(name for name, other in specs.items() if content in other.default_objectives)
            hint = f"choose another --system ({suitable})"
            raise UserError(
                f"the system {config.system.name} learns from {expected_content}, but the training files contain "
                f"{content}: {hint}, or give other files"
            )
        settings = dict(defaults) | settings
    check_objective(name, settings)
    return replace(config, objective=replace(config.objective, name=name, settings=settings))


def check_source_kind(name: str, spec: ModelSpec, corpus: Corpus) -> None:
    """Raise a UserError unless a corpus contains what the system `name` reads: text, or vectors of the right dimension.

    `spec` has the hyper-parameters of the system's model.
    """
    system_dim = cached_meta_model(spec).source_features  # numbers per vector; None if the model reads text
    if corpus.has_features and system_dim is None:
        raise UserError(
            f"the system {name} reads text, but {corpus.source} contains images, sound or vectors: choose --system "
            "vision or speech"
        )
    if system_dim is not None and not corpus.has_features:
        raise UserError(
            f"the system {name} reads images, sound or vectors, but {corpus.source} is neither a NumPy file (.npz, "
            ".npy) nor a list or folder of .png, .jpg or .wav files: give such a file"
        )
    if corpus.has_features and (corpus_dim := data.feature_dim(corpus)) != system_dim:
        raise UserError(
            f"{corpus.source} has vectors of {corpus_dim} numbers, but the system reads vectors of {system_dim}: "
            "remove system.settings.feature_dim, change the settings in the section features, or give other files"
        )


def check_system(config: Config) -> ModelSpec:
    """Return the system's hyper-parameters with a vocabulary of 100 tokens, after checking that a model can be built.

    Invalid settings of the system thus raise a UserError before the text is read.
    """
    settings = config.system.settings
    if not all(isinstance(name, str) for name in settings):
        raise UserError(
            f"system.settings must map names of settings to values, such as {{dropout: 0.3}}, but is {settings}: "
            "correct it"
        )
    spec = build_spec(config, VocabularySizes(source=100, target=100, joint=config.text.shared_vocabulary is not False))
    count_parameters(spec)  # builds the model without memory, which raises errors
    return spec


def build_spec(config: Config, vocabulary: VocabularySizes) -> ModelSpec:
    """Return the hyper-parameters of the configured system for these vocabulary sizes; of size "tiny" if none is set.

    `vocabulary.features` is the range of ids of feature symbols, which may be read independently of their order.
    """
    system = get_system(config.system.name or "")
    spec = system.spec(vocabulary, config.system.size or "tiny", **config.system.settings)
    if not vocabulary.features:
        return spec
    first_id, count = vocabulary.features.start, len(vocabulary.features)
    invariant = config.data.feature_positions == "invariant"
    return spec.with_feature_symbols(first_id, count, invariant_positions=invariant)


def check_trained_weights(config: Config, spec: ModelSpec) -> None:
    """Raise a UserError if LoRA has no model to start from, or if a pattern of trained weights matches none.

    `spec` has the hyper-parameters of the model.
    """
    if config.lora.rank and not config.training.start_from:
        raise UserError(
            "lora.rank adapts a trained model, but there is none: give --start-from, or leave out lora.rank"
        )
    if not trains_all_weights(config):
        count_trained(spec, config)  # raises a UserError for a pattern without matches


def check_vocabulary(spec: ModelSpec, vocabulary: VocabularySizes, data_format: DataFormat) -> None:
    """Raise a UserError unless the model with the hyper-parameters `spec` can read and generate the vocabulary.

    A decoder-only model needs a joint vocabulary of source and target, and a model that predicts labels needs labels.
    """
    model = cached_meta_model(spec)
    if model.is_decoder_only and not vocabulary.joint:
        raise UserError("a decoder-only model reads source and target as one text: set text.shared_vocabulary to true")
    # a classifier whose output layer (of width `vocab_size`) has only its labels, but the new targets are tokens
    if model.num_labels and not data_format.target_is_labels and model.vocab_size < vocabulary.source:
        raise UserError(
            "the model of --start-from predicts labels and cannot predict the tokens of this text: build a new output "
            "layer with another --system, such as roberta"
        )


def check_position_limit(model: Model, longest_row: int, longest_source: int, longest_target: int) -> None:
    """Raise a UserError if a sequence is longer than the learned position embeddings of the model.

    Args:
        model: whose positions may be limited.
        longest_row: tokens of the longest sequence of a batch.
        longest_source, longest_target: vectors and tokens of the longest source and target, for a model that reads
            vectors, whose encoder and decoder have different positions.
    """
    limits = [(longest_row, "tokens", position_limit(model))]
    if model.source_features is not None:
        vectors = longest_source, "vectors", model.max_source_length
        limits = [vectors, (longest_target, "tokens", position_limit(model.decoder))]
    for longest, unit, limit in limits:
        if limit is not None and longest > limit:
            raise UserError(
                f"the longest sequence has {longest:,} {unit}, but the system has learned positions for at most "
                f"{limit:,}: lower data.max_length, or raise system.settings.max_positions"
            )


def make_framing(spec: ModelSpec, target: Tokenizer) -> Framing:
    """Return the framing of a new model: the special tokens around source and target, and those never generated.

    `spec` has the hyper-parameters of the model, `target` is the target tokenizer. Also never generated are corpus tags
    and feature symbols, which only precede sources, and the sentinels that stand for masked spans.
    """
    framing, model = spec.default_framing, cached_meta_model(spec)
    if model.source_features is not None:  # vectors have no framing
        framing = replace(framing, source_prefix=(), source_suffix=())
    sentinels = range(target.vocab_size, model.vocab_size)  # ids of the model beyond those of the tokenizer
    suppressed = (*framing.suppressed, *target.source_prefix_ids, *sentinels)
    return replace(framing, suppressed=suppressed)
