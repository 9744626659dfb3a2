"""The languages of corpora, if training starts from a multilingual model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.config import DataConfig
from dragoman.data import Corpus
from dragoman.errors import UserError
from dragoman.text import Framing

LanguagePair = tuple[str, str]  # source and target language, as codes of the model; empty for none


@dataclass(frozen=True)
class CorpusLanguages:
    """The languages of training and validation corpora, one pair per corpus.

    Attributes:
        framing: special tokens of the model, with the languages of the first training corpus as default.
        train, valid: languages of the corpora; `valid` is empty if validation pairs are held out of `train`.
    """

    framing: Framing
    train: Sequence[LanguagePair]
    valid: Sequence[LanguagePair]


def resolve_languages(
    config: DataConfig, framing: Framing, train: Sequence[Corpus], valid: Sequence[Corpus]
) -> CorpusLanguages:
    """Return source and target language of each corpus in `train` and `valid`, as language codes of the model.

    The result also has `framing`, whose default languages are now those of the first training corpus. Languages come
    from `data.corpus_languages` ("de:en" for each corpus), or for all corpora from `data.source_language` and
    `data.target_language`. `framing` has the special tokens of the model, among them its language codes. If it has
    none, all languages are empty: the settings then only describe the files. A UserError is raised for languages that
    the model does not know, and unless there is one pair of languages per corpus.
    """
    codes = framing.languages
    if codes is None:
        if config.corpus_languages:
            raise UserError(
                "data.corpus_languages needs a multilingual model to start from: give --start-from with such a model, "
                "or mark each corpus with a tag (data.corpus_tags: a token before each source that names its corpus)"
            )
        return CorpusLanguages(framing, train=[("", "")] * len(train), valid=[("", "")] * len(valid))

    def model_codes(source: str | None, target: str | None) -> LanguagePair:
        """Return the model's codes of two languages; None: its default language. Unknown ones raise a UserError."""
        source_code, target_code = codes.pair(source if codes.reads_source_code else None, target)
        return source_code or "", target_code

    train_pairs = [model_codes(*pair.split(":", 1)) for pair in config.corpus_languages]
    if not train_pairs:
        train_pairs = [model_codes(config.source_language or None, config.target_language or None)] * len(train)
    valid_pairs = [model_codes(*pair.split(":", 1)) for pair in config.valid_corpus_languages]
    if valid and not valid_pairs:  # by default those of the training corpora, one by one or all the same
        valid_pairs = train_pairs[:1] * len(valid) if len(set(train_pairs)) == 1 else train_pairs
    for setting, pairs, corpora in (
        ("data.corpus_languages", train_pairs, train),
        ("data.valid_corpus_languages", valid_pairs, valid),
    ):
        if len(pairs) != len(corpora):
            raise UserError(
                f"{setting} has {len(pairs)} language pairs for {len(corpora)} corpora: give one pair per "
                "corpus, such as de:en"
            )
    source, target = train_pairs[0]
    return CorpusLanguages(framing.with_default_languages(source or None, target), train=train_pairs, valid=valid_pairs)
