"""Validation sentences to decode, by corpus: each language pair is decoded and scored on its own."""

from __future__ import annotations

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
        """Translate the sources between the languages of the corpus."""
        run = run.with_languages(self.source_language or None, self.target_language or None)
        return [t.text for t in run.translate(self.sources, search=search, alignment=False, tag=self.tags)]


def decoded_corpora(run: Run, store: TokenStore, count: int) -> list[DecodedCorpus]:
    """Return about `count` pairs of a token store to decode, by corpus.

    They have equal distances in the store, so that corpora have shares by size; corpora of different languages have
    equal shares.
    """
    languages = [(corpus.source_language, corpus.target_language) for corpus in store.corpora]
    ends = np.cumsum([corpus.pairs for corpus in store.corpora])
    indices = evenly_spaced(len(store), count)
    corpora = []
    for number, (corpus, end) in enumerate(zip(store.corpora, ends.tolist())):
        start = end - corpus.pairs
        chosen = [index for index in indices if start <= index < end]
        if len(set(languages)) > 1:
            share = -(-count // len(languages))  # equal shares, rounded up
            chosen = [start + index for index in evenly_spaced(corpus.pairs, share)]
        if chosen:
            sources, tags, references = _read_sentences(run, store, chosen)
            name, (source, target) = _corpus_title(store, number), languages[number]
            corpora.append(
                DecodedCorpus(
                    name,
                    source_language=source,
                    target_language=target,
                    sources=sources,
                    tags=tags,
                    references=references,
                )
            )
    return corpora


def stored_sentences(run: Run, store: TokenStore, count: int) -> tuple[list[Source], list[str], list[str]]:
    """Return sources, corpus tags and references of `count` pairs of a token store at equal distances.

    Of a multilingual store only pairs in the languages of its first corpus, the default of the run, are returned.
    """
    languages = [(corpus.source_language, corpus.target_language) for corpus in store.corpora]
    if len(set(languages)) < 2:
        return _read_sentences(run, store, evenly_spaced(len(store), count))
    corpora = [number for number, pair in enumerate(languages) if pair == languages[0]]
    corpus_of_row = store.corpus_numbers(np.arange(len(store)))
    rows = np.flatnonzero(np.isin(corpus_of_row, corpora)).tolist()
    return _read_sentences(run, store, [rows[index] for index in evenly_spaced(len(rows), count)])


def _read_sentences(run: Run, store: TokenStore, indices: Sequence[int]) -> tuple[list[Source], list[str], list[str]]:
    """Return sources, corpus tags and references of the pairs with these indices."""
    rows: list[NDArray[Any]] = [store.source(index) for index in indices]
    sources: list[Source] = [run.decode_source(row) if row.ndim == 1 else np.array(row) for row in rows]
    return sources, [run.tag_of_row(row) for row in rows], decode_references(store, run.target_tokenizer, indices)


def _corpus_title(store: TokenStore, number: int) -> str:
    """Return a name for a corpus of a store that no other one has: its languages, its name, or both with a number."""
    languages = [f"{c.source_language}→{c.target_language}" if c.target_language else "" for c in store.corpora]
    if languages[number] and languages.count(languages[number]) == 1:
        return languages[number]
    titles = [f"{pair} {corpus.name}".strip() for pair, corpus in zip(languages, store.corpora)]
    title = titles[number]
    if titles.count(title) == 1 or not store.corpora[number].pairs:
        return title
    return f"{title} {1 + titles[:number].count(title)}"


def evenly_spaced(length: int, count: int) -> list[int]:
    """Return `count` of `length` indices at equal distances; all of them if they are fewer."""
    count = min(count, length)
    return [number * length // count for number in range(count)]


def decode_references(store: TokenStore, tokenizer: Tokenizer, indices: Sequence[int]) -> list[str]:
    """Return the targets with these indices in a token store as text.

    A word that is not in the vocabulary becomes ⁇, as in SentencePiece: an output with `<unk>` in its place is wrong.
    """
    rows = [store.target(index).tolist() for index in indices]
    texts = [tokenizer.decode(row) for row in rows]
    return [text.replace("<unk>", "⁇") if tokenizer.unk in row else text for text, row in zip(texts, rows)]


def decode_sources(store: TokenStore, tokenizer: Tokenizer, indices: Sequence[int]) -> list[str]:
    """Return the sources with these indices in a token store as text; empty if they are feature vectors."""
    rows = [store.source(index) for index in indices]
    return [tokenizer.decode(row.tolist()) for row in rows if row.ndim == 1]
