"""Readings: what a corpus is read as, and how it becomes token ids: pairs, text alone, tags, dialogues, signals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import TYPE_CHECKING, ClassVar

from dragoman.data.corpus import Corpus, SentencePair, read_dialogues, read_monolingual, read_pairs
from dragoman.data.examples import (
    ENDS_MID_LINE,
    FOLLOWS_PREVIOUS_ROW,
    STARTS_MID_LINE,
    EncodedPair,
    chunk_pairs,
    encode_pairs,
)
from dragoman.data.feature_files import read_feature_pairs
from dragoman.data.inspection import FeatureInspector, PairInspector
from dragoman.errors import UserError
from dragoman.text.framing import Framing
from dragoman.text.whitespace import normalize_whitespace

if TYPE_CHECKING:
    from dragoman.text.tokenizer import Tokenizer

HOLDOUT_UNIT_LINES = 32  # lines of a document that are held out together at most

MAX_CHUNK_FEATURE_PAIRS = 100  # examples of vectors that are dealt with at a time: they take more room than sentences


class DataFormat:
    """Sentence pairs, with their white space normalised if that is asked for."""

    item_name = "pairs"
    text_columns = 2  # how many of them have text
    target_is_tags = False  # is the target a label for every word?
    source_is_features = False  # is the source vectors instead of text?
    normalizes_whitespace = False  # is white space normalised?
    inspector: ClassVar[type[PairInspector]] = PairInspector

    def with_whitespace_normalization(self, whitespace: bool) -> DataFormat:
        """The same reading with or without normalisation of white space."""
        reading = copy(self)
        reading.normalizes_whitespace = whitespace
        return reading

    def read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        pairs = self._read(corpora)
        return map(self._normalize, pairs) if self.normalizes_whitespace else pairs

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        return read_pairs(corpora)

    def _normalize(self, pair: SentencePair) -> SentencePair:
        target = None if pair.target is None else normalize_whitespace(pair.target)
        return pair._replace(source=normalize_whitespace(pair.source), target=target)

    def encode(
        self, pairs: Iterable[SentencePair], source: Tokenizer, target: Tokenizer, max_length: int, framing: Framing
    ) -> Iterator[list[EncodedPair]]:
        return encode_pairs(pairs, source, target)


class MonolingualFormat(DataFormat):
    """One side alone, without empty lines; a line of more than `longest` tokens is cut into several rows."""

    item_name = "lines"
    text_columns = 1

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        return (pair for pair in read_monolingual(corpora) if pair.source.strip())

    def encode(
        self, pairs: Iterable[SentencePair], source: Tokenizer, target: Tokenizer, max_length: int, framing: Framing
    ) -> Iterator[list[EncodedPair]]:
        for examples in encode_pairs(pairs, source):
            yield [row for one in examples for row in self._cut(one.pair, list(one.source), source, max_length)]

    def _cut(self, pair: SentencePair, ids: list[int], tokenizer: Tokenizer, max_length: int) -> Iterator[EncodedPair]:
        follows = FOLLOWS_PREVIOUS_ROW if pair.follows_previous else 0
        if len(ids) <= max_length:
            yield EncodedPair(pair, ids, None, follows)
            return
        for start in range(0, len(ids), max_length):
            some = ids[start : start + max_length]
            flags = FOLLOWS_PREVIOUS_ROW | STARTS_MID_LINE if start else follows
            flags |= ENDS_MID_LINE if start + max_length < len(ids) else 0
            yield EncodedPair(pair._replace(source=tokenizer.decode(some)), some, None, flags)


class DocumentFormat(MonolingualFormat):
    """Lines that know their neighbours: an empty line ends a document, and so does a file (Devlin et al. 2019).

    A long document is divided into units, which are held out as a whole, so that neighbours stay together.
    """

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        for corpus in corpora:
            unit, lines = "", 0
            for pair in read_monolingual([corpus]):
                if not pair.source.strip():
                    lines = 0
                    continue
                if lines % HOLDOUT_UNIT_LINES == 0:
                    unit, lines = pair.source, 0
                yield pair._replace(follows_previous=lines > 0, holdout_unit=unit)
                lines += 1


class TaggingFormat(DataFormat):
    """Words and tags, both parted by spaces, one tag a word; the tag stands at the word's first piece."""

    item_name = "sentences"
    target_is_tags = True

    def _normalize(self, pair: SentencePair) -> SentencePair:
        return pair  # is split at white space anyway, and words must stay as many as tags

    def encode(
        self, pairs: Iterable[SentencePair], source: Tokenizer, target: Tokenizer, max_length: int, framing: Framing
    ) -> Iterator[list[EncodedPair]]:
        for chunk in chunk_pairs(pairs):
            words = [pair.source.split() for pair in chunk]
            tags = target.encode_batch([" ".join((pair.target or "").split()) for pair in chunk])
            for pair, some, of in zip(chunk, words, tags):
                if len(some) != len(of):
                    raise UserError(
                        f"{pair.corpus}, line {pair.line:,} has {len(some)} words but {len(of)} tags: one tag a word, "
                        "parted by spaces, is expected"
                    )
            yield [
                EncodedPair(pair, *align_tags(ids, of, framing.pad))
                for pair, ids, of in zip(chunk, encode_words(words, source), tags)
            ]


def encode_words(sentences: list[list[str]], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """The pieces of each word of each sentence, as they are in the sentence."""
    flat = tokenizer.encode_batch([word for words in sentences for word in words])
    pieces = iter(flat)
    return [[next(pieces) for _ in words] for words in sentences]


def align_tags(words: list[list[int]], tags: list[int], pad: int) -> tuple[list[int], list[int]]:
    """The pieces of some words, and their tags: each at the first piece, `pad` at the others."""
    ids = [piece for pieces in words for piece in pieces]
    answers = [tag if n == 0 else pad for pieces, tag in zip(words, tags) for n in range(len(pieces))]
    return ids, answers


class DialogueFormat(DataFormat):
    """Dialogues as one sequence each: START u₁ SEPARATOR r₁ END u₂ SEPARATOR r₂ END …, with answers to the replies."""

    item_name = "dialogues"
    text_columns = 1

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        return read_dialogues(corpora)

    def _normalize(self, pair: SentencePair) -> SentencePair:
        return pair._replace(source="\t".join(map(normalize_whitespace, pair.source.split("\t"))))

    def encode(
        self, pairs: Iterable[SentencePair], source: Tokenizer, target: Tokenizer, max_length: int, framing: Framing
    ) -> Iterator[list[EncodedPair]]:
        for chunk in chunk_pairs(pairs):
            turns = encode_words([pair.source.split("\t") for pair in chunk], source)
            yield [EncodedPair(pair, *encode_dialogue(some, framing)) for pair, some in zip(chunk, turns)]


def encode_dialogue(turns: list[list[int]], framing: Framing) -> tuple[list[int], list[int]]:
    """The ids of a dialogue, and for each the next one where that is part of a reply, PAD elsewhere."""
    ids, counts = [*framing.source_prefix], [False] * len(framing.source_prefix)
    for number, turn in enumerate(turns):
        reply = number % 2 == 1
        ids += [*turn, framing.eos if reply else framing.bos]
        counts += [reply] * (len(turn) + 1)
    return ids[:-1], [token if count else framing.pad for token, count in zip(ids[1:], counts[1:])]


class FeatureFormat(DataFormat):
    """Vectors instead of a source's text, and the words that go with them."""

    item_name = "examples"
    source_is_features = True
    inspector = FeatureInspector

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        return read_feature_pairs(corpora)

    def _normalize(self, pair: SentencePair) -> SentencePair:
        return pair._replace(target=normalize_whitespace(pair.target or ""))

    def encode(
        self, pairs: Iterable[SentencePair], source: Tokenizer, target: Tokenizer, max_length: int, framing: Framing
    ) -> Iterator[list[EncodedPair]]:
        for chunk in chunk_pairs(pairs, MAX_CHUNK_FEATURE_PAIRS):
            ids = target.encode_batch([pair.target or "" for pair in chunk])
            yield [EncodedPair(pair, pair.features, of) for pair, of in zip(chunk, ids) if pair.features is not None]


DATA_FORMATS: dict[str, DataFormat] = {
    "pairs": DataFormat(),
    "text": MonolingualFormat(),
    "documents": DocumentFormat(),
    "tags": TaggingFormat(),
    "turns": DialogueFormat(),
    "signals": FeatureFormat(),
}
