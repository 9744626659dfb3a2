"""Validation sentences to decode, by corpus: each language pair is decoded and scored on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data import TokenStore
from dragoman.run import Run, Source
from dragoman.search import SearchConfig
from dragoman.text import Tokenizer


@dataclass(frozen=True)
class DecodedCorpus:
    """Validation sentences of one corpus that are decoded.

    A source is what `Run.translate` takes: text, or S F features. The languages are those of a multilingual model, else
    empty.
    """

    name: str
    source_language: str
    target_language: str
    sources: list[Source]
    tags: list[str]
    references: list[str]

    def translate(self, run: Run, search: SearchConfig) -> list[str]:
        """Translate the sources with a run and a `search`, from the source to the target language of the corpus.

        Returns the texts, aligned with the sources.
        """
        run = run.with_languages(self.source_language or None, self.target_language or None)
        translations = run.translate(self.sources, search=search, alignment=False, tag=self.tags)
        return [translation.text for translation in translations]


def decoded_corpora(run: Run, store: TokenStore, count: int) -> list[DecodedCorpus]:
    """Return about `count` validation pairs to decode, by corpus.

    They have equal distances in the token store (the tokenized validation pairs of all corpora), so that each corpus
    has a share by its size; corpora of different languages have equal shares. `run` has the tokenizers.
    """
    languages = [(corpus.source_language, corpus.target_language) for corpus in store.corpora]
    ends = np.cumsum([corpus.pairs for corpus in store.corpora])  # the store has the corpora one after the other
    indices = evenly_spaced(len(store), count)
    corpora = []
    for number, (corpus, end) in enumerate(zip(store.corpora, ends.tolist())):
        start = end - corpus.pairs
        corpus_indices = [index for index in indices if start <= index < end]
        if len(set(languages)) > 1:
            equal_share = math.ceil(count / len(languages))
            corpus_indices = [start + index for index in evenly_spaced(corpus.pairs, equal_share)]
        if corpus_indices:
            sources, tags, references = _read_sentences(run, store, corpus_indices)
            corpora.append(
                DecodedCorpus(
                    _corpus_title(store, number),
                    source_language=corpus.source_language,
                    target_language=corpus.target_language,
                    sources=sources,
                    tags=tags,
                    references=references,
                )
            )
    return corpora


def stored_sentences(run: Run, store: TokenStore, count: int) -> tuple[list[Source], list[str], list[str]]:
    """Return sources, corpus tags and references of at most `count` pairs of a token store at equal distances.

    If its corpora have several languages, only pairs in the languages of its first corpus, the default of the run, are
    returned. A tag is the symbol before the sources of a corpus; empty for none.
    """
    languages = [(corpus.source_language, corpus.target_language) for corpus in store.corpora]
    if len(set(languages)) < 2:
        return _read_sentences(run, store, evenly_spaced(len(store), count))
    default_corpora = [number for number, pair in enumerate(languages) if pair == languages[0]]
    corpus_of_pair = store.corpus_numbers(np.arange(len(store)))
    pairs = np.flatnonzero(np.isin(corpus_of_pair, default_corpora)).tolist()
    return _read_sentences(run, store, [pairs[index] for index in evenly_spaced(len(pairs), count)])


def _read_sentences(run: Run, store: TokenStore, indices: Sequence[int]) -> tuple[list[Source], list[str], list[str]]:
    """Return sources, corpus tags and references of the pairs with these indices in a token store.

    A source is text, or an S × F array of feature vectors; a tag is the symbol before the sources of a corpus, empty
    for none.
    """
    stored: list[NDArray[Any]] = [store.source(index) for index in indices]  # token ids, or feature vectors
    sources: list[Source] = [run.decode_source(source) if source.ndim == 1 else np.array(source) for source in stored]
    tags = [run.tag_of_row(source) for source in stored]
    return sources, tags, decode_references(store, run.target_tokenizer, indices)


def _corpus_title(store: TokenStore, number: int) -> str:
    """Return a unique name for the corpus with this number in a token store.

    It is its languages ("de→en"), its languages and name, or these with a number, whichever is unique first. Empty
    corpora, of which nothing is shown, get no number.
    """
    languages = [
        f"{corpus.source_language}→{corpus.target_language}" if corpus.target_language else ""
        for corpus in store.corpora
    ]
    if languages[number] and languages.count(languages[number]) == 1:
        return languages[number]
    titles = [f"{pair} {corpus.name}".strip() for pair, corpus in zip(languages, store.corpora)]
    title = titles[number]
    if titles.count(title) == 1 or not store.corpora[number].pairs:
        return title
    return f"{title} {1 + titles[:number].count(title)}"


def evenly_spaced(length: int, count: int) -> list[int]:
    """Return `count` of the indices 0 … `length` − 1 at equal distances, or all of them if they are fewer."""
    count = min(count, length)
    return [number * length // count for number in range(count)]


def decode_references(store: TokenStore, tokenizer: Tokenizer, indices: Sequence[int]) -> list[str]:
    """Return the targets with these indices in a token store as text.

    A word that is not in the vocabulary becomes ⁇, as in SentencePiece: an output with `<unk>` in its place is wrong.
    """
    targets = [store.target(index).tolist() for index in indices]  # token ids
    texts = [tokenizer.decode(ids) for ids in targets]
    return [text.replace("<unk>", "⁇") if tokenizer.unk in ids else text for text, ids in zip(texts, targets)]


def decode_sources(store: TokenStore, tokenizer: Tokenizer, indices: Sequence[int]) -> list[str]:
    """Return the sources with these indices in a token store as text; empty if they are feature vectors."""
    sources = [store.source(index) for index in indices]
    return [tokenizer.decode(ids.tolist()) for ids in sources if ids.ndim == 1]
