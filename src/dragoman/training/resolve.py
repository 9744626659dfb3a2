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
from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError, unknown_name
from dragoman.models import Model, ModelSpec, count_parameters, described_model
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
        parent: the run to start from.
        parent_spec: its model, if the new run continues it; None if a model is built from the configuration.
        spec: the model with a small vocabulary, or that of the parent.
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

    def build_spec(self, config: Config, vocabulary: VocabularySizes) -> ModelSpec:
        """Return the parent's model, or the configured system for a vocabulary, with a new output layer for labels."""
        spec = self.parent_spec or build_spec(config, vocabulary)
        if not self.data_format.target_is_labels:
            return spec
        return spec.with_labels(num_labels=vocabulary.target, of_sequence=self.data_format.labels_sequence)


def resolve_request(config: Config, open_parent: OpenParent = ParentRun.open) -> RunRequest:
    """Resolve what a configuration leaves open before any text is read (system, objective, data format), and check it.

    `open_parent` opens the model of `training.start_from`. Raises a UserError for settings and files that do not fit
    together.
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
        raise UserError("no training text: give --source and --target (or --source alone for a file with both sides)")
    if parent and config.features == FeatureConfig():
        config = replace(config, features=parent.config.features)
    config = resolve_features_column(config)
    train, valid, test = (make_corpora(config, prefix) for prefix in ("", "valid_", "test_"))
    check_mixture(config.data, train, valid)
    content = data.detect_data_format(train[0])  # pairs, text, turns of dialogues, or feature vectors
    if not content.has_target and not content.is_dialogue and not task_is_given:
        has_columns = train[0].file_format.has_both_sides
        found = "is read without a target column" if has_columns else "is one side of a parallel corpus"
        missing = "name it with --target-column" if has_columns else "give the target file too"
        raise UserError(
            f"{train[0].source} {found}: {missing}, or name with --system or --objective what to learn from the source "
            "alone"
        )
    if content.source_is_features and parent_spec is None:
        config = resolve_features(config, train[0])
    spec = parent_spec or check_system(config)
    for corpus in (*train, *valid):
        check_source_kind(config.system.name or "", spec, corpus)
    config = resolve_objective(config, spec, content.name)
    config = resolve_cleaning(resolve_normalization(config, parent), train)
    objective = objective_class(config.objective.name or "")
    data_format = data.DATA_FORMATS[objective.data_format_for(config.objective.settings)]
    data_format = content if content.source_is_features else data_format
    data_format = data_format.with_normalizer(TextNormalizer.from_settings(config.text))
    check_trained_weights(config, spec)
    if parent_spec and parent and not config.text.add_language:
        resolve_languages(config.data, parent.framing, train, valid)  # an error before the text is read
    check_tags(config.data.corpus_tags, data_format, parent)
    check_feature_symbols(train[0], data_format, parent)
    return RunRequest(config, parent, parent_spec, spec, train, valid, test, data_format, device)


def make_corpora(config: Config, prefix: str = "") -> list[Corpus]:
    """Make a corpus of each source file, its target file and its file of features, as far as they are given.

    `prefix` of the settings: "" for the training files, "valid_" or "test_" for the others.
    """
    sources, *others = (getattr(config.data, f"{prefix}{name}") for name in ("source", "target", "source_features"))
    for name, paths in zip(("target files", "files of features"), others):
        if paths and len(sources) != len(paths):
            raise UserError(
                f"got {len(sources)} source files but {len(paths)} {name}: give one of the {name} for each source"
            )
    targets, features = (paths or [None] * len(sources) for paths in others)
    return [
        Corpus.from_settings(config.data, source, target, config.features, feature_file)
        for source, target, feature_file in zip(sources, targets, features)
    ]


def resolve_features_column(config: Config) -> Config:
    """Set the column of features if it is not given and the first training file has one."""
    if config.data.features_column is not None or config.data.source_features or not config.data.source:
        return config
    corpus = make_corpora(config)[0]
    column = None if corpus.has_features else corpus.file_format.find_features(corpus, config.data.feature_separator)
    return config if column is None else replace_settings(config, {"data.features_column": column})


def check_feature_symbols(corpus: Corpus, data_format: DataFormat, parent: ParentRun | None) -> None:
    """Check features of sources: they need pairs to translate, and a parent run (to start from) that has features."""
    if not corpus.has_feature_symbols:
        return
    if not data_format.is_translation:
        raise UserError(
            f"features of sources need pairs to translate, but the data is read as {data_format.item_name}: set "
            "data.features_column to '' and leave out data.source_features"
        )
    if parent and not parent.tokenizers[0].features:
        raise UserError(
            f"{corpus.source} has features, but {parent.folder} was trained without: leave out --start-from, or set "
            "data.features_column to ''"
        )


def check_mixture(config: DataConfig, train: list[Corpus], valid: list[Corpus]) -> None:
    """Raise a UserError unless there are as many sampling weights and tags as corpora."""
    for name in ("sampling_weights", "corpus_tags"):
        values = getattr(config, name)
        if values and len(values) != len(train):
            raise UserError(
                f"data.{name} has {len(values)} values for {len(train)} training corpora: give one value per corpus"
            )
    if config.corpus_tags and valid and len(validation_tags(config)) != len(valid):
        raise UserError(
            f"{len(valid)} validation corpora need one tag each, because the training corpora have tags: set "
            "data.valid_corpus_tags to values of data.corpus_tags"
        )
    if config.valid_corpus_tags and not valid:
        raise UserError(
            "data.valid_corpus_tags is set, but there are no validation corpora: remove it, or give --valid-source"
        )
    if unknown := [tag for tag in config.valid_corpus_tags if tag and tag not in config.corpus_tags]:
        raise unknown_name("tag in data.valid_corpus_tags:", unknown[0], [tag for tag in config.corpus_tags if tag])


def check_tags(tags: Sequence[str], data_format: DataFormat, parent: ParentRun | None) -> None:
    """Check corpus tags: they need pairs to translate, and must be known to the tokenizer of the parent run, if any."""
    if any(tags) and not data_format.is_translation:
        raise UserError(
            f"data.corpus_tags needs pairs to translate, but the data is read as {data_format.item_name}: remove it"
        )
    if parent and (missing := [tag for tag in tags if tag and tag not in parent.tokenizers[0].tags]):
        available = ", ".join(parent.tokenizers[0].tags) or "none"
        raise UserError(
            f"data.corpus_tags has {missing[0]!r}, but the tags of {parent.folder} are {available}: use these"
        )


def validation_tags(config: DataConfig) -> tuple[str, ...]:
    """Return the tags of the validation corpora: their own, or those of the training corpora."""
    return config.valid_corpus_tags or config.corpus_tags


def resolve_system(config: Config, parent: ParentRun | None) -> Config:
    """Set the system: the configured one, that of the parent run (the run to start from), or the Transformer."""
    if config.system.name is not None:
        if parent is None or parent.config.system.name != config.system.name:
            return config
        inherited = parent.config.system  # settings that are not given stay as they are
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
    """Set how text is normalized, where it is left open: as in the parent run, or only its white space."""
    defaults = {"normalize_whitespace": True, "unicode_normalization": "none", "lowercase": False}
    values = {}
    for name, default in defaults.items():
        if getattr(config.text, name) is None:
            inherited = getattr(parent.config.text, name) if parent else None
            values[f"text.{name}"] = default if inherited is None else inherited
    return replace_settings(config, values)


def resolve_cleaning(config: Config, train: list[Corpus]) -> Config:
    """Set the filters of cleaning that are left open."""
    config = replace(config, cleaning=config.cleaning.with_defaults())
    languages_to_identify(config, train)  # raises a UserError if that is not possible
    return config


def languages_to_identify(config: Config, train: list[Corpus]) -> tuple[str, str]:
    """Return the languages that cleaning expects of source and target; empty ones if it identifies none."""
    if not config.cleaning.identify_language:
        return "", ""
    if not can_identify():
        raise UserError(
            "cleaning.identify_language needs the package lingua: install it with pip install 'dragoman[langid]'"
        )
    source, target = _languages(config, train)
    if not source or not (target or not train[0].target):
        raise UserError(
            "cleaning.identify_language needs known languages: name them with --from and --to, by their codes of two "
            "letters"
        )
    return source, target


def _languages(config: Config, train: list[Corpus]) -> tuple[str, str]:
    """Return the languages of source and target: those of the settings, or the extensions of the first files."""
    named = (config.data.source_language, config.data.target_language)
    codes = []
    for language, file in zip(named, (train[0].source, train[0].target)):
        suffix = Path(without_compression_suffix(file.name)).suffix.removeprefix(".") if file else ""
        code = (language or suffix).lower().replace("_", "-").partition("-")[0]
        codes.append(code if can_identify() and code in known_languages() else "")
    source, target = codes
    return source, target


def resolve_features(config: Config, corpus: Corpus) -> Config:
    """Set the dimension of the feature vectors as in the corpus, and larger default limits of source lengths."""
    values: dict[str, Any] = {}
    if config.data.max_length == DataConfig.max_length:
        values["data.max_length"] = MAX_FEATURE_VECTORS
    if config.search.max_source_length == SearchDefaults.max_source_length:
        values["search.max_source_length"] = MAX_FEATURE_VECTORS
    if "feature_dim" in get_system(config.system.name or "").settings() and "feature_dim" not in config.system.settings:
        values["system.settings.feature_dim"] = data.feature_dim(corpus)
    return replace_settings(config, values)


def resolve_objective(config: Config, spec: ModelSpec, content: str) -> Config:
    """Set the objective for the content of the data (pairs, text, turns or features), unless it is given."""
    name, settings = config.objective.name, config.objective.settings
    if name is None:
        # those of the system come first, then those of the kind of model; by the content of the data
        system = SYSTEMS.get(config.system.name or "")
        by_system = system.default_objective(content, config.system.size) if system else None
        name, defaults = by_system or (spec.default_objectives.get(content), {})
        if name is None:
            expected = " or ".join(spec.default_objectives)
            raise UserError(
                f"the system {config.system.name} learns from {expected}, but the training files hold {content}: give "
                "other files, or choose another --system"
            )
        settings = dict(defaults) | settings
    check_objective(name, settings)
    return replace(config, objective=replace(config.objective, name=name, settings=settings))


def check_source_kind(name: str, spec: ModelSpec, corpus: Corpus) -> None:
    """Raise a UserError unless a corpus holds what the system `name` reads: text, or feature vectors of its width."""
    features = described_model(spec).source_features  # numbers per vector; None if the model reads text
    if corpus.has_features and features is None:
        raise UserError(f"{name} reads text, but {corpus.source} holds vectors: choose --system vision or speech")
    if features is not None and not corpus.has_features:
        raise UserError(
            f"{name} reads vectors, but {corpus.source} is neither a numpy .npz or .npy file nor a list or folder of "
            ".png, .jpg or .wav files: give such a file, with paths relative to its own folder"
        )
    if corpus.has_features and (found := data.feature_dim(corpus)) != features:
        raise UserError(
            f"{corpus.source} has vectors of {found} numbers, but the system reads vectors of {features}: remove "
            "system.settings.feature_dim, change the settings of features, or give other files"
        )


def check_system(config: Config) -> ModelSpec:
    """Build the system with a small vocabulary, so that invalid settings fail before the text is read."""
    settings = config.system.settings
    if not all(isinstance(name, str) for name in settings):
        raise UserError(f"system.settings must map names of settings to values, but is {settings}")
    spec = build_spec(config, VocabularySizes(source=100, target=100, joint=config.text.shared_vocabulary is not False))
    count_parameters(spec)  # builds the model without memory, which raises errors
    return spec


def build_spec(config: Config, vocabulary: VocabularySizes) -> ModelSpec:
    """Return the model specification of the configured system; of the smallest size if none is chosen yet."""
    system = get_system(config.system.name or "")
    spec = system.spec(vocabulary, config.system.size or "tiny", **config.system.settings)
    if not vocabulary.features:
        return spec
    first, count = vocabulary.features.start, len(vocabulary.features)
    invariant = config.data.feature_positions == "invariant"
    return spec.with_feature_symbols(first, count, invariant_positions=invariant)


def check_trained_weights(config: Config, spec: ModelSpec) -> None:
    """Raise a UserError if LoRA has no model to adapt, or if patterns of weights match nothing in the model."""
    if config.lora.rank and not config.training.start_from:
        raise UserError(
            "lora.rank adapts a trained model, but there is none: give --start-from, or leave out lora.rank"
        )
    if not trains_all_weights(config):
        count_trained(spec, config)


def check_vocabulary(spec: ModelSpec, vocabulary: VocabularySizes, data_format: DataFormat) -> None:
    """Raise a UserError unless the model can read and generate the tokens of the text."""
    model = described_model(spec)
    if model.is_decoder_only and not vocabulary.joint:
        raise UserError("a decoder-only model reads source and target as one text: leave text.shared_vocabulary true")
    if model.num_labels and not data_format.target_is_labels and model.vocab_size < vocabulary.source:
        raise UserError(
            "the run of --start-from predicts labels and cannot predict tokens: name a --system to build, such as "
            "roberta"
        )


def check_position_limit(model: Model, longest_row: int, longest_source: int, longest_target: int) -> None:
    """Raise a UserError unless every token has a position embedding.

    `longest_row` is the length of the longest sequence of a batch. A model that reads vectors has positions of its own
    for these (`longest_source`) and for the decoder's tokens (`longest_target`).
    """
    limits = [(longest_row, "tokens", position_limit(model))]
    if model.source_features is not None:
        vectors = longest_source, "vectors", model.max_source_length
        limits = [vectors, (longest_target, "tokens", position_limit(model.decoder))]
    for longest, unit, limit in limits:
        if limit is not None and longest > limit:
            raise UserError(
                f"the longest sequence has {longest:,} {unit}, but the system has only learned positions for "
                f"{limit:,}: lower data.max_length, or raise system.settings.max_positions"
            )


def make_framing(spec: ModelSpec, target: Tokenizer) -> Framing:
    """Return the framing of a new model: the special tokens around source and target, and those never generated."""
    framing, model = spec.default_framing, described_model(spec)
    if model.source_features is not None:  # vectors have no framing
        framing = replace(framing, source_prefix=(), source_suffix=())
    sentinels = range(target.vocab_size, model.vocab_size)  # tokens for masked spans, beyond the tokenizer's
    suppressed = (*framing.suppressed, *target.source_prefix_ids, *sentinels)
    return replace(framing, suppressed=suppressed)
