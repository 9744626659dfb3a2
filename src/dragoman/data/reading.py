"""Readings: what a corpus is read as, and how it becomes token ids: pairs, text alone, tags, dialogues, signals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import TYPE_CHECKING, ClassVar

from dragoman.data.corpus import Corpus, Pair, read, read_dialogues, read_monolingual
from dragoman.data.examples import CONTINUES, CUT, FOLLOWS, Example, chunks, encode
from dragoman.data.inspection import Inspector, SignalInspector
from dragoman.data.signals import read_signals
from dragoman.errors import UserError
from dragoman.text.framing import Framing
from dragoman.text.whitespace import normalize_whitespace

if TYPE_CHECKING:
    from dragoman.text.tokenizer import Tokenizer

UNIT = 32  # lines of a document that are held out together at most

MOST = 100  # examples of vectors that are dealt with at a time: they take more room than sentences


class Reading:
    """Sentence pairs, with their white space normalised if that is asked for."""

    name = "pairs"
    sides = 2  # how many of them have text
    labels = False  # is the target a label for every word?
    signals = False  # is the source vectors instead of text?
    normalizes = False  # is white space normalised?
    inspector: ClassVar[type[Inspector]] = Inspector

    def normalizing(self, whitespace: bool) -> Reading:
        """The same reading with or without normalisation of white space."""
        reading = copy(self)
        reading.normalizes = whitespace
        return reading

    def read(self, corpora: Iterable[Corpus]) -> Iterator[Pair]:
        pairs = self._read(corpora)
        return map(self._normalize, pairs) if self.normalizes else pairs

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[Pair]:
        return read(corpora)

    def _normalize(self, pair: Pair) -> Pair:
        target = None if pair.target is None else normalize_whitespace(pair.target)
        return pair._replace(source=normalize_whitespace(pair.source), target=target)

    def encode(
        self, pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, longest: int, framing: Framing
    ) -> Iterator[list[Example]]:
        return encode(pairs, source, target)


class Text(Reading):
    """One side alone, without empty lines; a line of more than `longest` tokens is cut into several rows."""

    name = "lines"
    sides = 1

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[Pair]:
        return (pair for pair in read_monolingual(corpora) if pair.source.strip())

    def encode(
        self, pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, longest: int, framing: Framing
    ) -> Iterator[list[Example]]:
        for examples in encode(pairs, source):
            yield [row for one in examples for row in self._cut(one.pair, list(one.source), source, longest)]

    def _cut(self, pair: Pair, ids: list[int], tokenizer: Tokenizer, longest: int) -> Iterator[Example]:
        follows = FOLLOWS if pair.follows else 0
        if len(ids) <= longest:
            yield Example(pair, ids, None, follows)
            return
        for start in range(0, len(ids), longest):
            some = ids[start : start + longest]
            flags = FOLLOWS | CONTINUES if start else follows
            flags |= CUT if start + longest < len(ids) else 0
            yield Example(pair._replace(source=tokenizer.decode(some)), some, None, flags)


class Documents(Text):
    """Lines that know their neighbours: an empty line ends a document, and so does a file (Devlin et al. 2019).

    A long document is divided into units, which are held out as a whole, so that neighbours stay together.
    """

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[Pair]:
        for corpus in corpora:
            unit, lines = "", 0
            for pair in read_monolingual([corpus]):
                if not pair.source.strip():
                    lines = 0
                    continue
                if lines % UNIT == 0:
                    unit, lines = pair.source, 0
                yield pair._replace(follows=lines > 0, unit=unit)
                lines += 1


class Tags(Reading):
    """Words and tags, both parted by spaces, one tag a word; the tag stands at the word's first piece."""

    name = "sentences"
    labels = True

    def _normalize(self, pair: Pair) -> Pair:
        return pair  # is split at white space anyway, and words must stay as many as tags

    def encode(
        self, pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, longest: int, framing: Framing
    ) -> Iterator[list[Example]]:
        for chunk in chunks(pairs):
            words = [pair.source.split() for pair in chunk]
            tags = target.encode_batch([" ".join((pair.target or "").split()) for pair in chunk])
            for pair, some, of in zip(chunk, words, tags):
                if len(some) != len(of):
                    raise UserError(
                        f"{pair.corpus}, line {pair.line:,} has {len(some)} words but {len(of)} tags: one tag a word, "
                        "parted by spaces, is expected"
                    )
            yield [
                Example(pair, *aligned(ids, of, framing.pad))
                for pair, ids, of in zip(chunk, encode_words(words, source), tags)
            ]


def encode_words(sentences: list[list[str]], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """The pieces of each word of each sentence, as they are in the sentence."""
    flat = tokenizer.encode_batch([word for words in sentences for word in words])
    pieces = iter(flat)
    return [[next(pieces) for _ in words] for words in sentences]


def aligned(words: list[list[int]], tags: list[int], pad: int) -> tuple[list[int], list[int]]:
    """The pieces of some words, and their tags: each at the first piece, `pad` at the others."""
    ids = [piece for pieces in words for piece in pieces]
    answers = [tag if n == 0 else pad for pieces, tag in zip(words, tags) for n in range(len(pieces))]
    return ids, answers


class Turns(Reading):
    """Dialogues as one sequence each: START u₁ SEPARATOR r₁ END u₂ SEPARATOR r₂ END …, with answers to the replies."""

    name = "dialogues"
    sides = 1

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[Pair]:
        return read_dialogues(corpora)

    def _normalize(self, pair: Pair) -> Pair:
        return pair._replace(source="\t".join(map(normalize_whitespace, pair.source.split("\t"))))

    def encode(
        self, pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, longest: int, framing: Framing
    ) -> Iterator[list[Example]]:
        for chunk in chunks(pairs):
            turns = encode_words([pair.source.split("\t") for pair in chunk], source)
            yield [Example(pair, *dialogue(some, framing)) for pair, some in zip(chunk, turns)]


def dialogue(turns: list[list[int]], framing: Framing) -> tuple[list[int], list[int]]:
    """The ids of a dialogue, and for each the next one where that is part of a reply, PAD elsewhere."""
    ids, counts = [*framing.before], [False] * len(framing.before)
    for number, turn in enumerate(turns):
        reply = number % 2 == 1
        ids += [*turn, framing.end if reply else framing.start]
        counts += [reply] * (len(turn) + 1)
    return ids[:-1], [token if count else framing.pad for token, count in zip(ids[1:], counts[1:])]


class Signals(Reading):
    """Vectors instead of a source's text, and the words that go with them."""

    name = "examples"
    signals = True
    inspector = SignalInspector

    def _read(self, corpora: Iterable[Corpus]) -> Iterator[Pair]:
        return read_signals(corpora)

    def _normalize(self, pair: Pair) -> Pair:
        return pair._replace(target=normalize_whitespace(pair.target or ""))

    def encode(
        self, pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, longest: int, framing: Framing
    ) -> Iterator[list[Example]]:
        for chunk in chunks(pairs, MOST):
            ids = target.encode_batch([pair.target or "" for pair in chunk])
            yield [Example(pair, pair.signal, of) for pair, of in zip(chunk, ids) if pair.signal is not None]


READINGS: dict[str, Reading] = {
    "pairs": Reading(),
    "text": Text(),
    "documents": Documents(),
    "tags": Tags(),
    "turns": Turns(),
    "signals": Signals(),
}
