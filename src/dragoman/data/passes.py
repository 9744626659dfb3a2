"""The two passes over the training corpora: one counts and chooses what to hold out, the other writes the stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus, Pair
from dragoman.data.examples import Example, chunks
from dragoman.data.holdout import HoldOut, HoldoutSampler, hashes_of
from dragoman.data.inspection import Limits, Seen
from dragoman.data.reading import MOST, Reading
from dragoman.data.shards import Columns, columns
from dragoman.data.workers import cores, spread
from dragoman.text.framing import Framing
from dragoman.text.untranslatable import CopyEvidence

if TYPE_CHECKING:
    from dragoman.text.tokenizer import Tokenizer

TELL_EVERY = 10.0  # seconds
COPY_SAMPLE = 200  # pairs of a chunk whose numbers and punctuation marks are looked up in the target
SMALL = 2**25  # bytes of text for which no other processes are started: they take a second or two to begin

Say = Callable[[str], None]


class Chunk(NamedTuple):
    """Some pairs of one corpus, as plain tuples, which are sent to another process several times faster."""

    corpus: int
    pairs: list[tuple[object, ...]]


def workers_for(asked: int | None, corpora: Sequence[Corpus], reading: Reading) -> int:
    """How many processes to use: as asked, or one a core; but one for little text and for vectors, which are copied."""
    if reading.signals:
        return 1
    if asked is not None:
        return asked
    size = sum(file.stat().st_size for corpus in corpora for file in corpus.files if file.exists())
    return cores() if size > SMALL else 1


def read_chunks(reading: Reading, corpora: Iterable[Corpus]) -> Iterator[Chunk]:
    """The pairs of all corpora, some at a time; where a chunk ends follows from the text alone."""
    for number, corpus in enumerate(corpora):
        for some in chunks(reading.read([corpus]), MOST if reading.signals else None):
            yield Chunk(number, [tuple(pair) for pair in some])


class Counted(NamedTuple):
    pairs: int
    words: int
    hashes: NDArray[np.uint64]
    copying: CopyEvidence


@dataclass(frozen=True)
class Count:
    """Counts pairs and words, hashes the sources for what is to be held out, and sees what is copied into targets."""

    def __call__(self, chunk: Chunk) -> Counted:
        pairs = list(map(Pair._make, chunk.pairs))
        words = sum(pair.source.count(" ") + (pair.target or "").count(" ") + 2 for pair in pairs)
        return Counted(len(pairs), words, hashes_of(pairs), _copying(pairs))


def _copying(pairs: Sequence[Pair]) -> CopyEvidence:
    found = CopyEvidence()
    for number, pair in enumerate(pairs):
        if pair.target is not None and pair.signal is None:
            look = CopyEvidence.of if number < COPY_SAMPLE else CopyEvidence.of_line
            found += look(pair.source, pair.target)
    return found


class Survey(NamedTuple):
    pairs: int
    words: int
    holdout: HoldoutSampler
    copying: CopyEvidence


def survey(reading: Reading, corpora: Sequence[Corpus], size: int | None, workers: int, say: Say) -> Survey:
    """The first pass: how much there is, which pairs could be held out, and what is copied into the targets."""
    holdout, pairs, words, copying = HoldoutSampler(size), 0, 0, CopyEvidence()
    tell = Teller("read", say)
    for counted in spread(Count(), read_chunks(reading, corpora), workers):
        pairs, words, copying = pairs + counted.pairs, words + counted.words, copying + counted.copying
        holdout.add(counted.hashes)
        tell(pairs)
    return Survey(pairs, words, holdout, copying)


Part = tuple[Seen, Columns | None]  # of a chunk: what was seen, and what is kept, where anything is


class Encoded(NamedTuple):
    """Some pairs of a corpus as they are written, and what was seen of them: those to train on, and those held out."""

    corpus: int
    pairs: int
    train: list[Part]
    held: list[Part]


@dataclass(frozen=True)
class Encode:
    """Makes token ids of pairs, drops what cannot be used, and parts train from what is held out.

    `tags` are the tokens that stand before the sources of each corpus.
    """

    reading: Reading
    tokenizers: tuple[Tokenizer, Tokenizer]
    framing: Framing
    longest: int
    split: HoldOut | None = None
    tags: Sequence[Sequence[int]] = ()

    def __call__(self, chunk: Chunk) -> Encoded:
        pairs = list(map(Pair._make, chunk.pairs))
        held = [pair in self.split for pair in pairs] if self.split else [False] * len(pairs)
        train, valid = ([pair for pair, out in zip(pairs, held) if out is which] for which in (False, True))
        tag = self.tags[chunk.corpus] if self.tags else ()
        return Encoded(chunk.corpus, len(pairs), list(self._encode(train, tag)), list(self._encode(valid, tag)))

    def _encode(self, pairs: list[Pair], tag: Sequence[int]) -> Iterator[Part]:
        inspector = self.reading.inspector(*self.tokenizers, Limits(self.longest))
        sizes = (self.tokenizers[0].size, self.tokenizers[1].size)
        for chunk in self.reading.encode(pairs, *self.tokenizers, self.longest, self.framing):
            kept, seen = inspector.look(chunk, tag)
            yield seen, columns(_tagged(kept, tag), sizes) if kept else None


def _tagged(examples: list[Example], tag: Sequence[int]) -> list[Example]:
    return [example._replace(source=[*tag, *example.source]) for example in examples] if tag else examples


class Teller:
    """Says now and then how far one is, how fast, and how long it will still take."""

    def __init__(self, done: str, say: Say, total: int | None = None) -> None:
        self.done, self.say, self.total = done, say, total
        self.began = self.last = time.monotonic()

    def __call__(self, number: int) -> None:
        if (now := time.monotonic()) - self.last >= TELL_EVERY:
            self.last, speed = now, number / (now - self.began)
            left = f", {max(0, self.total - number) / speed:,.0f} s left" if self.total else ""
            self.say(f"  {number:,} pairs {self.done}, {speed:,.0f} a second{left}")
