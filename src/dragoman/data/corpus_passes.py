"""The two passes over the training corpora: the survey, which chooses the held-out pairs, and the encoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.data_formats import DataFormat, Encoding
from dragoman.data.inspection import InspectionCounts, inspect_chunk
from dragoman.data.media_files import read_media_paths
from dragoman.data.text_profile import CorpusCounts, CorpusProfile, count_chunk, is_profiled
from dragoman.data.token_store import EncodedColumns, encode_columns
from dragoman.processes import OrderedMap, available_cpus
from dragoman.text.untranslatable import CopyEvidence

SECONDS_BETWEEN_LOGS = 10.0
COPY_SAMPLE_PAIRS = 200  # per chunk: their numbers and punctuation marks are compared between source and target
MAX_HOLDOUT_PAIRS = 2_000  # by default
MAX_BUFFERED_HASHES = 2**18
MIN_PARALLEL_BYTES = 2**25  # of text or media files: starting worker processes takes a second or two

Log = Callable[[str], None]


class PairChunk(NamedTuple):
    """Some pairs of one corpus, as plain tuples, which are pickled several times faster."""

    number: int  # from 0, over all corpora
    corpus: int  # index
    pairs: list[tuple[object, ...]]  # the fields of each SentencePair


def choose_num_workers(requested: int | None, corpora: Sequence[Corpus], data_format: DataFormat) -> int:
    """Return the number of worker processes that read corpora: `requested`; None: one per CPU if the corpora are large.

    It is always 1 for arrays of feature vectors, because copying them takes longer than processing them. Corpora are
    large from MIN_PARALLEL_BYTES of text or media files on.
    """
    has_media = data_format.source_is_features and all(corpus.has_media for corpus in corpora)  # images or sound
    if data_format.source_is_features and not has_media:
        return 1
    if requested is not None:
        return requested
    paths = (path for corpus in corpora for path in (read_media_paths(corpus) if has_media else corpus.files))
    # a folder is a dataset that `datasets` saved
    files = (file for path in paths for file in (path.glob("*.arrow") if path.is_dir() else [path]))
    size = sum(file.stat().st_size for file in files if file.exists())
    return available_cpus() if size > MIN_PARALLEL_BYTES else 1


def read_chunks(data_format: DataFormat, corpora: Iterable[Corpus]) -> Iterator[PairChunk]:
    """Read all corpora in chunks of pairs, numbered from 0, which are the same for any number of processes."""
    numbers = count()
    for index, corpus in enumerate(corpora):
        for chunk in data_format.chunks(data_format.read([corpus])):
            yield PairChunk(next(numbers), index, [tuple(pair) for pair in chunk])


# First pass: survey and holdout: validation pairs of the training corpus, if there are no validation files


@dataclass(frozen=True)
class HoldoutSplit:
    """Holds out pairs for validation: those whose source hashes to at most `threshold`.

    Only the source is hashed, so that all translations of a held-out sentence leave the training corpus. The split does
    not depend on the seed of a run: runs with different seeds have the same validation pairs and vocabularies. Of
    documents, units of several lines are held out.

    Attributes:
        pairs: number of held-out pairs without empty ones; 0 if the corpus has less than two different sources.
    """

    threshold: int
    pairs: int

    def __contains__(self, pair: SentencePair) -> bool:
        """Whether a pair is held out: the hash of its source is at most `threshold`."""
        return _holdout_hash(pair) <= self.threshold

    def training_pairs(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs that are not held out."""
        return (pair for pair in pairs if pair not in self)


class HoldoutSampler:
    """Chooses a split of about `size` pairs from a stream of source hashes; keeps only the smallest ones in memory."""

    def __init__(self, size: int | None = None) -> None:
        """Prepare to hold out about `size` pairs; None: a number that suits the corpus (`default_holdout_size`)."""
        self.size, self.num_pairs = size, 0  # `num_pairs` have been added
        # more hashes than are held out, because `choose` leaves at least the largest one in training
        self.capacity = (MAX_HOLDOUT_PAIRS if size is None else size) + 2
        self.buffer: list[NDArray[np.uint64]] = []  # hashes that are not counted yet
        self.smallest = np.empty(0, np.uint64)  # at most `capacity` hashes, sorted
        self.counts = np.empty(0, np.int64)  # number of pairs with each of these hashes

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes of the next pairs, except those that cannot be among the smallest."""
        self.num_pairs += len(hashes)
        if len(self.smallest) == self.capacity:  # full: larger hashes cannot be held out
            hashes = hashes[hashes <= self.smallest[-1]]
        self.buffer.append(hashes)
        if sum(map(len, self.buffer)) > MAX_BUFFERED_HASHES:
            self._merge_buffer()

    def choose(self) -> HoldoutSplit:
        """Return the split that holds out the pairs with the smallest hashes; it is empty if all hashes are equal.

        Pairs with the same hash stay together: at least those with the smallest one, else at most `size`, are held out.
        """
        self._merge_buffer()
        cumulative = np.cumsum(self.counts)[:-1]  # pairs up to each hash; the largest hash stays in training
        if not len(cumulative):
            return HoldoutSplit(threshold=-1, pairs=0)  # no hash is as small as −1
        size = default_holdout_size(self.num_pairs) if self.size is None else self.size
        chosen = max(1, int(np.searchsorted(cumulative, size, side="right")))  # number of hashes
        return HoldoutSplit(threshold=int(self.smallest[chosen - 1]), pairs=int(cumulative[chosen - 1]))

    def _merge_buffer(self) -> None:
        """Add the buffered hashes to the counts of pairs per hash, and keep the `capacity` smallest hashes."""
        new = np.concatenate([np.empty(0, np.uint64), *self.buffer])
        distinct, inverse = np.unique(np.concatenate([self.smallest, new]), return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, inverse, np.concatenate([self.counts, np.ones(len(new), np.int64)]))
        self.smallest, self.counts, self.buffer = distinct[: self.capacity], counts[: self.capacity], []


def source_hashes(pairs: Iterable[SentencePair]) -> NDArray[np.uint64]:
    """Hash the sources of the pairs that can be validation pairs: those without an empty source or target.

    Monolingual data, whose target is None, needs only a source.
    """
    usable = (pair for pair in pairs if pair.source.strip() and (pair.target is None or pair.target.strip()))
    return np.fromiter(map(_holdout_hash, usable), np.uint64)


def default_holdout_size(num_pairs: int) -> int:
    """Return the number of validation pairs: 5 %, at least 50 (or 10 %, if that is less), at most MAX_HOLDOUT_PAIRS."""
    return max(1, min(MAX_HOLDOUT_PAIRS, max(num_pairs // 20, min(50, num_pairs // 10))))


def _holdout_hash(pair: SentencePair) -> int:
    """Return a 64-bit hash of what is held out as a whole: the lines of a part of a document, or the source of a pair.

    `holdout_unit` names the part of a document; it is empty for other data. The salt makes the hash independent of
    others.
    """
    unit = (pair.holdout_unit or pair.source_with_features).encode()
    return int.from_bytes(blake2b(unit, digest_size=8, salt=b"hold out").digest(), "little")


@dataclass
class CorpusSurvey:
    """The size of the corpora, candidates for the holdout (pairs held out for validation), and counts of their text."""

    holdout: HoldoutSampler
    pairs: int = 0
    source_words: int = 0
    target_words: int = 0
    text_counts: CorpusCounts = field(default_factory=CorpusCounts)
    copying: CopyEvidence = field(default_factory=CopyEvidence)  # do targets keep numbers and punctuation?

    @cached_property
    def profile(self) -> CorpusProfile:
        """Statistics of the text, computed from its counts; to be read only after the whole corpus is counted."""
        return self.text_counts.profile()


def survey_corpora(
    data_format: DataFormat, corpora: Sequence[Corpus], holdout_size: int | None, parallel: OrderedMap, log: Log
) -> CorpusSurvey:
    """Read all corpora: count pairs and their text, find candidates for validation, and see what targets copy.

    `holdout_size` is the number of validation pairs (None: it suits the corpus); `parallel` maps a function over chunks
    of pairs in worker processes, in order; `log` prints progress.
    """
    survey = CorpusSurvey(HoldoutSampler(holdout_size))
    progress = ProgressLogger(done="read", log=log)
    for chunk in parallel(_survey_chunk, read_chunks(data_format, corpora)):
        survey.pairs += chunk.pairs
        survey.source_words += chunk.source_words
        survey.target_words += chunk.target_words
        survey.copying += chunk.copying
        if chunk.text_counts is not None:  # of a large corpus, the text of only some chunks is counted
            survey.text_counts.merge(chunk.text_counts)
        survey.holdout.add(chunk.source_hashes)
        progress(survey.pairs)
    return survey


class ChunkSurvey(NamedTuple):
    """The part of a chunk in the survey.

    `copying` counts numbers and marks that the targets copy; `text_counts` is None where the text was not counted.
    """

    pairs: int
    source_words: int
    target_words: int
    source_hashes: NDArray[np.uint64]
    copying: CopyEvidence
    text_counts: CorpusCounts | None


def _survey_chunk(chunk: PairChunk) -> ChunkSurvey:
    """Count the pairs and the text of a chunk, hash its sources, and collect evidence of what targets copy.

    Sources that are feature vectors (`features`) have no words.
    """
    pairs = list(map(SentencePair._make, chunk.pairs))
    source_words = sum(pair.source.count(" ") + 1 for pair in pairs if pair.source and pair.features is None)
    target_words = sum(pair.target.count(" ") + 1 for pair in pairs if pair.target)
    copying = CopyEvidence()
    for index, pair in enumerate(pairs):
        if pair.target is not None and pair.features is None:
            # from_line counts only sources without letters; numbers and marks are compared in a sample of the pairs
            collect = CopyEvidence.from_pair if index < COPY_SAMPLE_PAIRS else CopyEvidence.from_line
            copying += collect(pair.source, pair.target)
    text_counts = count_chunk(pairs) if is_profiled(chunk.number) else None  # of a large corpus only a sample
    return ChunkSurvey(
        pairs=len(pairs),
        source_words=source_words,
        target_words=target_words,
        source_hashes=source_hashes(pairs),
        copying=copying,
        text_counts=text_counts,
    )


# Second pass: encoding


class InspectedColumns(NamedTuple):
    """The counts of some pairs, and the columns of those that were kept; None if all were dropped."""

    counts: InspectionCounts
    columns: EncodedColumns | None


class EncodedChunk(NamedTuple):
    """The encoded training pairs and held-out pairs of a chunk."""

    corpus: int  # index
    pairs: int  # number of pairs that were read
    train: InspectedColumns
    held_out: InspectedColumns


@dataclass(frozen=True)
class ChunkEncoder:
    """Encodes pairs, drops unusable ones, and separates training pairs from held-out pairs."""

    data_format: DataFormat
    encoding: Encoding
    holdout: HoldoutSplit | None = None
    tag_ids: Sequence[Sequence[int]] = ()  # per corpus: ids of its tag, which are prepended to its sources

    def __call__(self, chunk: PairChunk) -> EncodedChunk:
        """Encode a chunk, its training pairs apart from its held-out (validation) pairs.

        Without `holdout` all are training pairs.
        """
        train: list[SentencePair] = []
        held_out: list[SentencePair] = []
        for pair in map(SentencePair._make, chunk.pairs):  # from plain tuples
            is_held_out = self.holdout is not None and pair in self.holdout
            (held_out if is_held_out else train).append(pair)
        tag_ids = self.tag_ids[chunk.corpus] if self.tag_ids else ()  # are prepended to the sources of this corpus
        return EncodedChunk(
            chunk.corpus,
            pairs=len(chunk.pairs),
            train=self._encode(train, tag_ids),
            held_out=self._encode(held_out, tag_ids),
        )

    def _encode(self, pairs: list[SentencePair], tag_ids: Sequence[int]) -> InspectedColumns:
        """Encode and count pairs, drop those with an empty or overlong side, and prepend `tag_ids` to the sources.

        `tag_ids` are those of the corpus tag, none if it is empty; they do not count in the lengths.
        """
        vocab_sizes = self.encoding.source_tokenizer.vocab_size, self.encoding.target_tokenizer.vocab_size
        encoded = self.data_format.encode(pairs, self.encoding) if pairs else []
        kept, counts = inspect_chunk(encoded, self.data_format, self.encoding, tag_ids)
        if tag_ids:
            kept = [pair._replace(source=[*tag_ids, *pair.source]) for pair in kept]
        return InspectedColumns(counts, encode_columns(kept, vocab_sizes) if kept else None)


class ProgressLogger:
    """Logs the number of processed pairs, the speed and the remaining time at regular intervals."""

    def __init__(self, done: str, log: Log, total: int | None = None) -> None:
        """Start the clock; `done` says what happened to the pairs ("read"), `total` is their number, if known."""
        self.done, self.log, self.total = done, log, total
        self.start = self.last = time.monotonic()

    def __call__(self, count: int) -> None:
        """Log `count`, the pairs processed so far, unless the last message is less than ten seconds old."""
        if (now := time.monotonic()) - self.last >= SECONDS_BETWEEN_LOGS:
            self.last, speed = now, count / (now - self.start)
            remaining = f", {max(0, self.total - count) / speed:,.0f} s left" if self.total else ""
            self.log(f"  {count:,} pairs {self.done}, {speed:,.0f} per second{remaining}")  # “pairs read”
