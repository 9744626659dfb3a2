"""The two passes over the training corpora: one counts and chooses what to hold out, the other writes the stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.data_formats import MAX_CHUNK_FEATURE_PAIRS, DataFormat
from dragoman.data.examples import EncodedPair, chunk_pairs
from dragoman.data.holdout import HoldoutSampler, HoldoutSplit, source_hashes
from dragoman.data.inspection import InspectionCounts, PairLimits
from dragoman.data.shard_writer import EncodedColumns, encode_columns
from dragoman.processes import available_cpus, parallel_map
from dragoman.text.framing import Framing
from dragoman.text.untranslatable import CopyEvidence

if TYPE_CHECKING:
    from dragoman.text.tokenizer import Tokenizer

LOG_INTERVAL_SECONDS = 10.0  # seconds
COPY_SAMPLE_PAIRS = 200  # pairs of a chunk whose numbers and punctuation marks are looked up in the target
MIN_PARALLEL_BYTES = 2**25  # bytes of text for which no other processes are started: they take a second or two to begin

Log = Callable[[str], None]


class PairChunk(NamedTuple):
    """Some pairs of one corpus, as plain tuples, which are sent to another process several times faster."""

    corpus: int
    pairs: list[tuple[object, ...]]


def choose_num_workers(asked: int | None, corpora: Sequence[Corpus], reading: DataFormat) -> int:
    """How many processes to use: as asked, or one a core; but one for little text and for vectors, which are copied."""
    if reading.source_is_features:
        return 1
    if asked is not None:
        return asked
    size = sum(file.stat().st_size for corpus in corpora for file in corpus.files if file.exists())
    return available_cpus() if size > MIN_PARALLEL_BYTES else 1


def read_chunks(reading: DataFormat, corpora: Iterable[Corpus]) -> Iterator[PairChunk]:
    """The pairs of all corpora, some at a time; where a chunk ends follows from the text alone."""
    for number, corpus in enumerate(corpora):
        for some in chunk_pairs(
            reading.read([corpus]), MAX_CHUNK_FEATURE_PAIRS if reading.source_is_features else None
        ):
            yield PairChunk(number, [tuple(pair) for pair in some])


class ChunkSurvey(NamedTuple):
    pairs: int
    words: int
    hashes: NDArray[np.uint64]
    copying: CopyEvidence


@dataclass(frozen=True)
class SurveyChunk:
    """Counts pairs and words, hashes the sources for what is to be held out, and sees what is copied into targets."""

    def __call__(self, chunk: PairChunk) -> ChunkSurvey:
        pairs = list(map(SentencePair._make, chunk.pairs))
        words = sum(pair.source.count(" ") + (pair.target or "").count(" ") + 2 for pair in pairs)
        return ChunkSurvey(len(pairs), words, source_hashes(pairs), _copying(pairs))


def _copying(pairs: Sequence[SentencePair]) -> CopyEvidence:
    found = CopyEvidence()
    for number, pair in enumerate(pairs):
        if pair.target is not None and pair.features is None:
            look = CopyEvidence.from_pair if number < COPY_SAMPLE_PAIRS else CopyEvidence.from_line
            found += look(pair.source, pair.target)
    return found


class CorpusSurvey(NamedTuple):
    pairs: int
    words: int
    holdout: HoldoutSampler
    copying: CopyEvidence


def survey_corpora(
    reading: DataFormat, corpora: Sequence[Corpus], size: int | None, workers: int, say: Log
) -> CorpusSurvey:
    """The first pass: how much there is, which pairs could be held out, and what is copied into the targets."""
    holdout, pairs, words, copying = HoldoutSampler(size), 0, 0, CopyEvidence()
    tell = ProgressLogger("read", say)
    for counted in parallel_map(SurveyChunk(), read_chunks(reading, corpora), workers):
        pairs, words, copying = pairs + counted.pairs, words + counted.words, copying + counted.copying
        holdout.add(counted.hashes)
        tell(pairs)
    return CorpusSurvey(pairs, words, holdout, copying)


InspectedColumns = tuple[
    InspectionCounts, EncodedColumns | None
]  # of a chunk: what was seen, and what is kept, where anything is


class EncodedChunk(NamedTuple):
    """Some pairs of a corpus as they are written, and what was seen of them: those to train on, and those held out."""

    corpus: int
    pairs: int
    train: list[InspectedColumns]
    held: list[InspectedColumns]


@dataclass(frozen=True)
class ChunkEncoder:
    """Makes token ids of pairs, drops what cannot be used, and parts train from what is held out.

    `tags` are the tokens that stand before the sources of each corpus.
    """

    reading: DataFormat
    tokenizers: tuple[Tokenizer, Tokenizer]
    framing: Framing
    max_length: int
    split: HoldoutSplit | None = None
    tags: Sequence[Sequence[int]] = ()

    def __call__(self, chunk: PairChunk) -> EncodedChunk:
        pairs = list(map(SentencePair._make, chunk.pairs))
        held = [pair in self.split for pair in pairs] if self.split else [False] * len(pairs)
        train, valid = ([pair for pair, out in zip(pairs, held) if out is which] for which in (False, True))
        tag = self.tags[chunk.corpus] if self.tags else ()
        return EncodedChunk(chunk.corpus, len(pairs), list(self._encode(train, tag)), list(self._encode(valid, tag)))

    def _encode(self, pairs: list[SentencePair], tag: Sequence[int]) -> Iterator[InspectedColumns]:
        inspector = self.reading.inspector(*self.tokenizers, PairLimits(self.max_length))
        sizes = (self.tokenizers[0].vocab_size, self.tokenizers[1].vocab_size)
        for chunk in self.reading.encode(pairs, *self.tokenizers, self.max_length, self.framing):
            kept, seen = inspector.inspect_chunk(chunk, tag)
            yield seen, encode_columns(_tagged(kept, tag), sizes) if kept else None


def _tagged(examples: list[EncodedPair], tag: Sequence[int]) -> list[EncodedPair]:
    return [example._replace(source=[*tag, *example.source]) for example in examples] if tag else examples


class ProgressLogger:
    """Says now and then how far one is, how fast, and how long it will still take."""

    def __init__(self, done: str, say: Log, total: int | None = None) -> None:
        self.done, self.say, self.total = done, say, total
        self.began = self.last = time.monotonic()

    def __call__(self, number: int) -> None:
        if (now := time.monotonic()) - self.last >= LOG_INTERVAL_SECONDS:
            self.last, speed = now, number / (now - self.began)
            left = f", {max(0, self.total - number) / speed:,.0f} s left" if self.total else ""
            self.say(f"  {number:,} pairs {self.done}, {speed:,.0f} a second{left}")
