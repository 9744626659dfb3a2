"""What is asked for: made whole where something was left open, and refused where it cannot be, before text is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dragoman import data
from dragoman.config import Config, DataConfig, SearchDefaults
from dragoman.data import Corpus, DataFormat
from dragoman.errors import UserError, unknown_name
from dragoman.models import DecoderOnly, EncoderOnly, Model, ModelSpec, count_parameters, meta_model
from dragoman.models.model import position_limit
from dragoman.parts.spec import find_specs
from dragoman.parts.stack import Stack
from dragoman.run import is_run_folder
from dragoman.systems import VocabularySizes, get_system
from dragoman.text import Framing, Tokenizer
from dragoman.training.warm_start import ParentRun, with_label_outputs

LOGITS = 2**22  # that exist at a time; on a GPU, which has the memory for them, more
MAX_SIGNAL_LENGTH = 4000  # vectors of a source, unless told: 40 seconds of speech


def check_new_folder(folder: Path) -> None:
    """A run is never written over another, nor over anything else."""
    if is_run_folder(folder):
        raise UserError(f"{folder} already holds a run: go on with --resume, or choose another name")
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists and is no run: choose another name, or remove it")


def training_corpora(config: DataConfig) -> tuple[list[Corpus], list[Corpus]]:
    """The training and validation corpora."""
    if not config.source:
        raise UserError("no training text was given: name it with --source and --target (or --source alone for TSV)")
    train = make_corpora(config, config.source, config.target)
    return train, make_corpora(config, config.valid_source, config.valid_target)


def make_corpora(config: DataConfig, sources: tuple[str, ...], targets: tuple[str, ...]) -> list[Corpus]:
    if targets and len(sources) != len(targets):
        raise UserError(f"{len(sources)} source files came with {len(targets)} target files: give one for each")
    keys = (config.source_column, config.target_column)
    return [
        Corpus(Path(source), Path(target) if target else None, config.format, *keys)
        for source, target in zip(sources, targets or [None] * len(sources))
    ]


def check_mixture(config: DataConfig, train: list[Corpus], valid: list[Corpus]) -> None:
    """Refuse weights and tags that are not as many as the corpora that they speak of."""
    for name, given in (("sampling_weights", config.sampling_weights), ("corpus_tags", config.corpus_tags)):
        if given and len(given) != len(train):
            raise UserError(f"data.{name} are {len(given)}, but there are {len(train)} training corpora: give one each")
    if config.corpus_tags and valid and len(validation_tags(config)) != len(valid):
        raise UserError(
            f"{len(valid)} validation corpora cannot be told which of data.corpus_tags to take: name one for each with "
            "data.valid_corpus_tags"
        )
    if config.valid_corpus_tags and not valid:
        raise UserError("data.valid_corpus_tags were given without validation corpora: leave them out")
    if wrong := [tag for tag in config.valid_corpus_tags if tag and tag not in config.corpus_tags]:
        raise unknown_name("tag in data.valid_corpus_tags:", wrong[0], [tag for tag in config.corpus_tags if tag])


def check_tags(tags: Sequence[str], reading: DataFormat, origin: ParentRun | None) -> None:
    """Refuse tags where no text is translated, and those that the tokenizer of the run to start from does not have."""
    if any(tags) and not reading.is_translation:
        raise UserError(
            f"data.corpus_tags mark the texts that are translated, but the data is read as {reading.item_name}"
        )
    if origin and (missing := [tag for tag in tags if tag and tag not in origin.tokenizers[0].tags]):
        known = ", ".join(origin.tokenizers[0].tags) or "none"
        raise UserError(f"the run to start from does not know the tag {missing[0]!r}: its tags are {known}")


def validation_tags(config: DataConfig) -> tuple[str, ...]:
    """The tags of the validation corpora: as named, or those of the training corpora if they are as many."""
    return config.valid_corpus_tags or config.corpus_tags


def resolve_system(config: Config, origin: ParentRun | None) -> Config:
    """The system that was named, that of the run to start from, or the Transformer."""
    if config.system.name is not None:
        if origin is None or origin.config.system.name != config.system.name:
            return config
        before = origin.config.system  # the same system: what is not told stays as it was
        settings = before.settings | config.system.settings
        return replace(config, system=replace(before, size=config.system.size or before.size, settings=settings))
    if origin is None:
        return replace(config, system=replace(config.system, name="transformer"))
    if config.system.settings or config.system.size:
        raise UserError("the settings of the run to start from stay as they are: name a --system to choose others")
    return replace(config, system=origin.config.system)


def resolve_signals(config: Config, corpus: Corpus) -> Config:
    """As many numbers a vector as the files have, unless the system was told; and sources longer than those of text."""
    name, settings = config.system.name or "", config.system.settings
    if config.data.max_length == DataConfig.max_length:
        config = replace(config, data=replace(config.data, max_length=MAX_SIGNAL_LENGTH))
    if config.search.max_source_length == SearchDefaults.max_source_length:
        config = replace(config, search=replace(config.search, max_source_length=MAX_SIGNAL_LENGTH))
    if "feature_dim" not in get_system(name).settings() or "feature_dim" in settings:
        return config
    found = {**settings, "feature_dim": data.FeatureFile(corpus.source).features}
    return replace(config, system=replace(config.system, settings=found))


def resolve_whitespace(config: Config, origin: ParentRun | None) -> Config:
    """Normalise white space unless told otherwise, or as the run to start from does."""
    wanted = config.text.normalize_whitespace
    if wanted is None and origin:
        wanted = origin.config.text.normalize_whitespace
    return replace(config, text=replace(config.text, normalize_whitespace=True if wanted is None else wanted))


def check_source_kind(name: str, spec: ModelSpec, corpus: Corpus) -> None:
    """Refuse text for a system that reads vectors, vectors for one that reads text, and vectors of another width."""
    features, signals = meta_model(spec).source_features, corpus.has_features
    if signals and features is None:
        raise UserError(f"{name} reads text, but {corpus.source} holds vectors: choose --system vision or speech")
    if features is not None and not signals:
        raise UserError(f"{name} reads vectors, but {corpus.source} is none of numpy's .npz and .npy files")
    if signals and (found := data.FeatureFile(corpus.source).features) != features:
        raise UserError(
            f"{corpus.source} has vectors of {found} numbers, but the system reads {features}: leave "
            "system.settings.feature_dim out, or give it other files"
        )


def check_vocabulary(spec: ModelSpec, vocabulary: VocabularySizes, reading: DataFormat) -> None:
    """Refuse outputs and tables that cannot serve the text."""
    if isinstance(spec, DecoderOnly) and not vocabulary.joint:
        raise UserError("a decoder alone reads source and target as one text: leave text.shared_vocabulary true")
    if (
        isinstance(spec, EncoderOnly)
        and spec.num_labels
        and not reading.target_is_tags
        and spec.num_labels < vocabulary.source
    ):
        raise UserError("the run to start from labels words: to learn words again, name a --system such as roberta")


def check_position_limit(model: Model, widest: int) -> None:
    limit = position_limit(model)
    if limit is not None and widest > limit:
        raise UserError(
            f"the longest row has {widest:,} tokens, but the system has {limit:,} positions: lower data.max_length, or "
            "raise system.settings.max_positions"
        )


def check_system(config: Config) -> ModelSpec:
    """Build the system small, so that a setting that cannot be is refused before anything is read."""
    named, settings = get_system(config.system.name or ""), config.system.settings
    if not all(isinstance(name, str) for name in settings):
        raise UserError(f"system.settings must be named, but holds {settings}")
    spec = named.spec(
        VocabularySizes(100, 100, config.text.shared_vocabulary), config.system.size or "tiny", **settings
    )
    count_parameters(spec)
    return spec


def build_spec(config: Config, vocabulary: VocabularySizes) -> ModelSpec:
    name, size = config.system.name or "", config.system.size or "tiny"  # before a size is chosen, the smallest
    return get_system(name).spec(vocabulary, size, **config.system.settings)


def with_tagging_head(spec: ModelSpec, reading: DataFormat, vocabulary: VocabularySizes) -> ModelSpec:
    """The spec with an output for every tag, where words are to be tagged."""
    return with_label_outputs(spec, vocabulary.target) if reading.target_is_tags else spec


def make_framing(spec: ModelSpec, target: Tokenizer) -> Framing:
    """The symbols around a text; tags and tokens past the tokenizer's own (sentinels) are never written by a search."""
    framing, model = spec.default_framing, meta_model(spec)
    if model.source_features is not None:  # nothing stands around vectors
        framing = replace(framing, source_prefix=(), source_suffix=())
    banned = (*framing.suppressed, *target.tags.values(), *range(target.vocab_size, model.vocab_size))
    return replace(framing, suppressed=banned)


def estimate_activations(spec: ModelSpec, tokens: int, checkpointing: bool = False) -> int:
    """Bytes kept for the backward pass, roughly: sixteen vectors a token and part, and three times a chunk of logits.

    Where layers are computed twice: three vectors a token and layer, and one layer as before.
    """
    stacks = [
        (stack.depth, sum(getattr(part, "layers", 1) for part in stack.block)) for stack in find_specs(spec, Stack)
    ]
    vectors = 16 * sum(depth * parts for depth, parts in stacks)
    if checkpointing:
        vectors = 3 * sum(depth for depth, _ in stacks) + 16 * max(parts for _, parts in stacks)
    logits = min(tokens * meta_model(spec).vocab_size, LOGITS)
    return 4 * (tokens * spec.dim * vectors + 3 * logits)
