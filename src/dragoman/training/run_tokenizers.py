"""Tokenizers of a run: learned from its text, taken from its parent run, or opened from files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dragoman.config import Config, TextConfig
from dragoman.data import DataFormat, Preflight, SentencePair
from dragoman.data.corpus_passes import CorpusSurvey, Log
from dragoman.data.preflight import load_preflight, usual_tokens_per_character
from dragoman.data.text_profile import CorpusCounts
from dragoman.errors import UserError
from dragoman.models import cached_meta_model
from dragoman.run import read_tokenizers
from dragoman.run_files import is_run_folder
from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.text.feature_symbols import collect_names
from dragoman.text.hf_tokenizers import open_tokenizers, with_own_special_tokens
from dragoman.text.tokenizer_types import LABEL_TYPE
from dragoman.training.defaults import Defaults
from dragoman.training.preparation_cache import PreparationCache
from dragoman.training.resolve import RunRequest
from dragoman.training.text_defaults import (
    VocabularyLimit,
    choose_tokenizers,
    choose_vocab_sizes,
    max_learning_pairs,
    report_vocab_sizes,
)
from dragoman.training.warm_start import ParentRun

Pairs = Callable[[], Iterator[SentencePair]]

LABEL_VOCAB_SIZE = 100_000
#: of a word tokenizer, if the system copies: few sentences have two unknown words of one token
UNKNOWN_WORD_TOKENS = 100
TOKENIZER_SETTINGS = (
    *("tokenizer", "source_tokenizer", "target_tokenizer"),
    *("vocab_size", "compression_ratio", "shared_vocabulary", "unknown_word_tokens", "space_marker"),
)


def make_tokenizers(
    request: RunRequest,
    defaults: Defaults,
    pairs: Pairs,
    survey: CorpusSurvey,
    validation: CorpusCounts | None,
    log: Log,
    cache: PreparationCache,
) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of source and target, and set their properties in the configuration of `defaults`.

    They are opened (`text.tokenizer_from`), those of the parent run (`training.start_from`), or learned. The labels of
    a tagger or classifier, tags of corpora and features of sources are always collected from the training text.

    Args:
        request: the user's configuration with the opened corpora and the model to start from, if there is one.
        defaults: the configuration so far, in which settings are set and recorded.
        pairs: returns an iterator over the training pairs, each time from the beginning.
        survey: number of pairs and statistics of the training text.
        validation: counts of the validation text, if it has its own files.
        log: prints a line for the user.
        cache: tokenizers that earlier preparations of this process have learned.
    """
    text, parent, data_format = defaults.config.text, request.parent, request.data_format
    if parent and text.tokenizer_from:
        raise UserError("--start-from keeps the tokenizers of that run: leave out --tokenizer-from")
    if text.tokenizer_from:
        tokenizers = _open_tokenizers(Path(text.tokenizer_from), data_format)
        defaults.config = replace(defaults.config, text=_with_properties(text, tokenizers))
    elif parent:
        tokenizers = parent.tokenizers
        defaults.config = replace(defaults.config, text=_inherit(text, parent.config.text))
    else:
        is_decoder_only = cached_meta_model(request.spec).is_decoder_only
        choose_tokenizers(defaults, data_format, survey, validation, is_decoder_only)
        text, limits = defaults.config.text, choose_vocab_sizes(defaults, data_format, survey)

        def learn() -> tuple[Tokenizer, Tokenizer]:
            """Learn the tokenizers of source and target."""
            kinds = " and ".join(dict.fromkeys(kind or "" for kind in text.tokenizers))
            log(f"learning a vocabulary of {kinds} tokens from {survey.pairs:,} {data_format.item_name}")
            # every n-th pair if there are more than needed; the division is rounded up
            interval = -(-survey.pairs // max_learning_pairs(survey.profile))
            return _learn_tokenizers(text, limits, data_format, lambda: islice(pairs(), 0, None, interval), log)

        tokenizers = cache.compute_once(
            learn,
            "tokenizers",
            replace(text, bpe_dropout=None),  # settings that tokenizers depend on: without dropout, used in training
            *request.text_key,  # settings that decide which text is read
        )
        report_vocab_sizes(defaults, limits, tokenizers)
        tokenizers = _distinguish_unknown_words(defaults, tokenizers)
    if data_format.target_is_labels:  # a tokenizer with one token for each label, which replaces that of the target
        labels = learn_tokenizer((pair.target or "" for pair in pairs()), LABEL_TYPE, size=LABEL_VOCAB_SIZE)
        tokenizers = (tokenizers[0], labels)
    if any(request.config.data.corpus_tags) and not parent:
        source, target = tokenizers
        tagged = source.with_tags([tag for tag in dict.fromkeys(request.config.data.corpus_tags) if tag])
        tokenizers = tagged, tagged if target is source else target
    if request.train[0].has_feature_symbols and not parent:
        tokenizers = _with_features(request, tokenizers, pairs)
    return tokenizers


def _with_features(
    request: RunRequest, tokenizers: tuple[Tokenizer, Tokenizer], pairs: Pairs
) -> tuple[Tokenizer, Tokenizer]:
    """Return the (source, target) tokenizers with a symbol for each feature of the training sources.

    Features are attributes of a source that the model reads as symbols before it, such as the grammatical features V
    and PST of `walk`, written as `V;PST` with the separator `;`. `pairs` returns an iterator over the training pairs.
    """
    source, target = tokenizers
    separator = request.config.data.feature_separator
    names = collect_names((pair.feature_symbols for pair in pairs()), separator)  # the different ones, such as V
    if not names:
        raise UserError(
            f"no source of {request.train[0].source} has a feature (a label, such as V or PST, that is read "
            "before the source): choose another column with data.features_column, or train without features"
        )
    extended = source.with_features(names, separator)
    return extended, extended if target is source else target


def _distinguish_unknown_words(
    defaults: Defaults, tokenizers: tuple[Tokenizer, Tokenizer]
) -> tuple[Tokenizer, Tokenizer]:
    """Return the (source, target) tokenizers with `text.unknown_word_tokens` different tokens for unknown words.

    A system that copies words distinguishes unknown ones by them. For such a system and word tokenizers the setting is
    chosen here and recorded in `defaults`, unless the user has set it.
    """
    count = defaults.config.text.unknown_word_tokens
    source, target = tokenizers
    # both are of a type in which words outside the vocabulary cannot be spelled by other tokens
    has_unknown_words = source.type.has_unknown_words and target.type.has_unknown_words
    if count is None and has_unknown_words and defaults.config.system.settings.get("copying"):
        reason = "a hash gives unknown words one of these tokens, by which they are copied from the source"
        count = defaults.set_and_report("text.unknown_word_tokens", UNKNOWN_WORD_TOKENS, reason)
    if not count:
        return tokenizers
    if not has_unknown_words:
        raise UserError(
            f"text.unknown_word_tokens={count} needs a tokenizer with unknown words, but the tokens of "
            f"text.tokenizer={defaults.config.text.tokenizer} spell every word: leave out this setting, or set "
            "text.tokenizer=word"
        )
    extended = source.with_unknown_words(count)
    return extended, extended if target is source else target.with_unknown_words(count)


def with_usual_tokens_per_character(
    preflight: Preflight, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], parent: ParentRun | None
) -> Preflight:
    """Add to a preflight report the tokens per character of the text that the tokenizers were learned from.

    The report can then compare that text with the text of this run. It is returned unchanged if the tokenizers were
    learned from this run's text, and not taken from the run `parent` or `text.tokenizer_from`, and for tokenizers of
    single characters or bytes. The number of a side is None if it is unknown.
    """
    folder = parent.folder if parent else Path(config.text.tokenizer_from) if config.text.tokenizer_from else None
    if folder is None or not tokenizers[0].has_marked_words:
        return preflight
    usual: tuple[float | None, float | None] = None, None
    try:
        source, target = read_tokenizers(folder)
        usual = usual_tokens_per_character(load_preflight(folder), joint=source is target)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        pass  # an imported run, or a tokenizer file: there is no report on its training text
    if tokenizers[1].kind == LABEL_TYPE:  # targets are labels, whose tokens were learned from this run's text
        usual = usual[0], None
    # `learned`: whether the tokenizers were learned from this corpus
    return replace(preflight, usual_tokens_per_character=usual, learned=False)


def _inherit(text: TextConfig, parent: TextConfig) -> TextConfig:
    """Return the text settings of the parent run, with the new run's settings that do not concern tokenizers.

    Raises a UserError if `text` sets anything that would change the parent's tokenizers.
    """
    default = TextConfig()  # a setting with its default value has not been set
    if any(getattr(text, name) not in (getattr(default, name), getattr(parent, name)) for name in TOKENIZER_SETTINGS):
        raise UserError(
            "--start-from keeps the tokenizers of that run: leave out "
            + ", ".join(f"text.{name}" for name in TOKENIZER_SETTINGS)
        )
    return replace(
        parent,
        bpe_dropout=text.bpe_dropout,
        add_language=text.add_language,
        similar_language=text.similar_language,
        max_new_pieces=text.max_new_pieces,
        normalize_whitespace=text.normalize_whitespace,
        unicode_normalization=text.unicode_normalization,
        lowercase=text.lowercase,
        source_word_vectors=text.source_word_vectors,
        target_word_vectors=text.target_word_vectors,
    )


def _open_tokenizers(path: Path, data_format: DataFormat) -> tuple[Tokenizer, Tokenizer]:
    """Open the source and target tokenizers of a run folder, a SentencePiece or a Hugging Face file.

    If the sources are feature vectors or the targets labels, as `data_format` says, this side gets the tokenizer of the
    other one. A UserError is raised if monolingual text would get two different tokenizers, or text one of labels.
    """
    if is_run_folder(path):
        source, target = read_tokenizers(path)
        is_shared = source is target
        source = with_own_special_tokens(source)  # PAD, BOS, EOS … at the ids that new models use
        target = source if is_shared else with_own_special_tokens(target)
    else:
        source, target = open_tokenizers(path)
    if data_format.source_is_features:
        source = target
    if data_format.target_is_labels:
        target = source
    if not data_format.has_target and source is not target:
        raise UserError(
            f"the run {path} has different tokenizers for source and target, but monolingual text needs a single one: "
            "name one of its tokenizer files with --tokenizer-from"
        )
    if target.kind == LABEL_TYPE:
        raise UserError(
            f"the run {path} predicts labels and has no tokenizer for target text: name another run with "
            "--tokenizer-from"
        )
    return source, target


def _with_properties(text: TextConfig, tokenizers: tuple[Tokenizer, Tokenizer]) -> TextConfig:
    """Return the text settings with the properties of the opened (source, target) tokenizers.

    Raise a UserError if the user has set one of these settings to another value.
    """
    source, target = tokenizers
    default = TextConfig()  # a setting with its default value has not been set
    properties = {
        "tokenizer": target.kind if source.kind == target.kind else None,
        "source_tokenizer": source.kind,
        "target_tokenizer": target.kind,
        "vocab_size": None,  # this and the next one concern only learning
        "compression_ratio": None,
        "shared_vocabulary": source is target,
        "space_marker": target.marker,  # whether a word's tokens contain the space before it or the one after it
    }
    for name, value in properties.items():
        if getattr(text, name) not in (getattr(default, name), value):
            requested = getattr(text, name)
            raise UserError(
                f"text.{name}={requested} was given, but the tokenizer of text.tokenizer_from={text.tokenizer_from} "
                f"has text.{name}={value}, which cannot be changed: leave out text.{name}"
            )
    return replace(text, **properties)  # type: ignore[arg-type]


def _learn_tokenizers(
    text: TextConfig,
    limits: tuple[VocabularyLimit, VocabularyLimit],
    data_format: DataFormat,
    pairs: Pairs,
    log: Log,
) -> tuple[Tokenizer, Tokenizer]:
    """Learn one tokenizer for source and target, or one for each, as `text.shared_vocabulary` says; return both.

    Text that is not to be translated, as `data_format` says, has a single one. `limits` are the largest vocabulary
    sizes of source and target; `pairs` returns an iterator over the training pairs, each time from the beginning.
    """

    def texts(use_source: bool, use_target: bool) -> Iterator[str]:
        """Yield the sources, the targets, or both, of all pairs."""
        for pair in pairs():
            if use_source:
                yield from data_format.source_texts(pair)
            if use_target and pair.target is not None:
                yield pair.target

    def learn(kind: str | None, limit: VocabularyLimit, use_source: bool, use_target: bool) -> Tokenizer:
        """Learn a tokenizer of a kind, such as "bpe", and of at most `limit.size` tokens from one side or both."""
        return learn_tokenizer(
            texts(use_source, use_target),
            kind or "",
            size=limit.size,
            marker=text.space_marker,
            compression_ratio=text.compression_ratio,
            log=log,
        )

    (source_kind, target_kind), (source_limit, target_limit) = text.tokenizers, limits
    if text.shared_vocabulary or not data_format.is_translation:  # one tokenizer, from the sides that are text
        use_source, use_target = not data_format.source_is_features, not data_format.target_is_labels
        shared = learn(source_kind, source_limit, use_source, use_target)
        return shared, shared
    return (
        learn(source_kind, source_limit, use_source=True, use_target=False),
        learn(target_kind, target_limit, use_source=False, use_target=True),
    )
