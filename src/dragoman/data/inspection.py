"""Filtering and counting of pairs for the preflight report, on their way into the token store."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import SentencePair
from dragoman.data.data_formats import DataFormat, EncodedPair, Encoding
from dragoman.data.preflight import (
    MAX_SHOWN,
    ColumnReport,
    CorpusOverlap,
    LengthStats,
    MemoryEstimate,
    Occurrences,
    Preflight,
    SampleSegmentation,
)
from dragoman.errors import UserError
from dragoman.text.special_tokens import UNK

MAX_LENGTH_RATIO = 4.0  # between the sides of a pair; more is only reported
MAX_HASHES_IN_MEMORY = 2**22  # 32 MiB, and twice that during sorting
NUM_RANGES = 2**12  # of hash values, which are merged one after the other

_Hashes = NDArray[np.uint64]


class PairHashes(NamedTuple):
    """64-bit hashes of some pairs: of their sources alone, and of source and target together."""

    sources: _Hashes
    pairs: _Hashes


@dataclass
class ColumnCounts:
    """Histograms of the lengths of a column; feature vectors have no words and characters."""

    words: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    unknown: int = 0  # UNK tokens

    def add_text(self, texts: list[str], ids: list[Any]) -> None:
        """Count UNK tokens, and texts by their number of words, characters and tokens; `ids` are those of each text."""
        self.words.update([len(text.split()) for text in texts])
        self.characters.update(map(len, texts))
        self.tokens.update(map(len, ids))
        self.unknown += sum(token_ids.count(UNK) for token_ids in ids)

    def merge(self, other: ColumnCounts) -> None:
        """Add the counts of other texts."""
        self.words.update(other.words)
        self.characters.update(other.characters)
        self.tokens.update(other.tokens)
        self.unknown += other.unknown

    def report(self) -> ColumnReport | None:
        """Return the statistics of the lengths, and the share of unknown tokens; None if nothing was counted.

        Words and characters are None for feature vectors.
        """
        histograms = (self.words, self.characters, self.tokens)
        words, characters, tokens = (LengthStats.from_histogram(counts) if counts else None for counts in histograms)
        return ColumnReport(words, characters, tokens, unknown=self.unknown / tokens.total) if tokens else None


@dataclass
class InspectionCounts:
    """Counts over some pairs; picklable, so that worker processes can return them."""

    pairs_read: int = 0
    pairs: int = 0  # that were kept
    source: ColumnCounts = field(default_factory=ColumnCounts)
    target: ColumnCounts = field(default_factory=ColumnCounts)
    dropped: dict[str, Occurrences] = field(default_factory=dict)  # by reason
    identical: Occurrences = field(default_factory=Occurrences)  # equal source and target
    length_mismatch: Occurrences = field(default_factory=Occurrences)  # by a factor above MAX_LENGTH_RATIO
    samples: list[SampleSegmentation] = field(default_factory=list)
    hashes: PairHashes | None = None  # None if all pairs were dropped

    def merge(self, later: InspectionCounts) -> None:
        """Add the counts of later pairs, without their hashes; the first MAX_SHOWN samples are kept."""
        self.pairs_read += later.pairs_read
        self.pairs += later.pairs
        self.source.merge(later.source)
        self.target.merge(later.target)
        for reason, pairs in later.dropped.items():
            self.dropped.setdefault(reason, Occurrences()).merge(pairs)
        self.identical.merge(later.identical)
        self.length_mismatch.merge(later.length_mismatch)
        self.samples += later.samples[: MAX_SHOWN - len(self.samples)]


def inspect_chunk(
    chunk: list[EncodedPair], data_format: DataFormat, encoding: Encoding, tag_ids: Sequence[int] = ()
) -> tuple[list[EncodedPair], InspectionCounts]:
    """Drop pairs with an empty or overlong side; return the kept ones, and counts over both for the preflight report.

    `encoding` has the tokenizers and the maximum length; `tag_ids` are those of the corpus tag, which is prepended to
    the sources later: samples show it, lengths do not count it.
    """
    counts = InspectionCounts(pairs_read=len(chunk))
    kept = []
    for encoded in chunk:
        if reason := _drop_reason(encoded, encoding.max_length):
            counts.dropped.setdefault(reason, Occurrences()).add(encoded.pair)
        else:
            kept.append(encoded)
    if not kept:
        return kept, counts
    pairs, has_features = [encoded.pair for encoded in kept], data_format.source_is_features
    # vectors and single labels have no lengths that are comparable with those of the other side
    has_comparable_lengths = not has_features and not data_format.one_label_per_sequence
    counts.pairs = len(kept)
    counts.hashes = _hash_pairs(pairs)
    if has_features:  # feature vectors in place of source text count as tokens
        counts.source.tokens.update(len(encoded.source) for encoded in kept)
    else:
        counts.source.add_text([pair.source for pair in pairs], [encoded.source for encoded in kept])
    if pairs[0].target is not None:
        counts.target.add_text([pair.target or "" for pair in pairs], [encoded.target or [] for encoded in kept])
        for pair, source, target, _ in kept:  # pair, token ids of source and target, flags
            if pair.source == pair.target:
                counts.identical.add(pair)
            # in tokens with EOS, which makes the lengths of short pairs less different
            lengths = len(source) + 1, len(target or ()) + 1
            if has_comparable_lengths and max(lengths) > MAX_LENGTH_RATIO * min(lengths):
                counts.length_mismatch.add(pair)
    counts.samples = [_segmentation_sample(encoded, encoding, tag_ids, has_features) for encoded in kept[:MAX_SHOWN]]
    return kept, counts


class CorpusInspection:
    """Accumulates the counts of a corpus and writes the preflight report.

    Args:
        references: other corpora (valid, test) that the training corpus should not contain, by name.
        purpose: of the corpus, for messages.
        folder: for a temporary file with the hashes of a large corpus.
    """

    def __init__(
        self,
        references: Mapping[str, Iterable[SentencePair]] | None = None,
        purpose: str = "train on",
        folder: Path | None = None,
    ) -> None:
        """Hash the reference corpora (valid, test); no training pairs are counted yet.

        `purpose` says in messages what the corpus is for; `folder` is for a temporary file with hashes.
        """
        self.purpose = purpose
        self.other_corpora = {name: _OtherCorpus(pairs) for name, pairs in (references or {}).items()}
        self.duplicates = DuplicateCounter(folder)
        self.counts = InspectionCounts()

    def add(self, counts: InspectionCounts) -> None:
        """Add the counts of the next pairs, and compare their hashes with earlier pairs and with the other corpora.

        The hashes are None if all of these pairs were dropped.
        """
        self.counts.merge(counts)
        if counts.hashes is not None:
            self.duplicates.add(counts.hashes.pairs)
            for corpus in self.other_corpora.values():
                corpus.add_training_pairs(counts.hashes)

    def require_pairs(self) -> None:
        """Raise a UserError with the reasons if no pairs were kept."""
        counts = self.counts
        if not counts.pairs:
            reasons = ", ".join(f"{dropped.pairs:,} {reason}" for reason, dropped in counts.dropped.items())
            raise UserError(
                f"none of {counts.pairs_read:,} pairs can be used to {self.purpose} ({reasons or 'no text'}): "
                "check the files, and raise data.max_length if the texts have more tokens"
            )

    def report(self, memory: MemoryEstimate | None = None) -> Preflight:
        """Return the preflight report (statistics of the corpus) after all pairs were added.

        `memory` is the estimated memory of the training, if it is part of the report.
        """
        counts = self.counts
        source, target = counts.source.report(), counts.target.report()
        assert source is not None  # there is at least one pair
        return Preflight(
            pairs_read=counts.pairs_read,
            pairs=counts.pairs,
            source=source,
            target=target,
            ratio=target.tokens.total / source.tokens.total if target else None,
            duplicates=self.duplicates.count(),
            identical=counts.identical,
            length_mismatch=counts.length_mismatch,
            dropped=counts.dropped,
            overlaps=[corpus.overlap(name) for name, corpus in self.other_corpora.items()],
            samples=counts.samples,
            memory=memory,
        )


class DuplicateCounter:
    """Counts how many of a stream of evenly distributed 64-bit hashes repeat an earlier one.

    External sorting: full buffers are sorted and appended to an unnamed temporary file; at the end, each range of
    values is read from all buffers and sorted. Up to 2³⁴ hashes, memory stays below three times MAX_HASHES_IN_MEMORY.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Start without hashes; the temporary file is created in `folder` when it is needed."""
        self.folder = folder
        self.buffer: list[_Hashes] = []
        self.buffered = self.written = 0  # hashes in the buffer and in the file
        self.file: IO[bytes] | None = None
        # for each sorted buffer in the file: where each range of values starts, and the end
        self.range_positions: list[NDArray[np.int64]] = []

    def add(self, hashes: _Hashes) -> None:
        """Add hashes to the buffer, which is sorted and written to the temporary file when it is full."""
        self.buffer.append(hashes)
        self.buffered += len(hashes)
        if self.buffered >= MAX_HASHES_IN_MEMORY:
            self._write_sorted_buffer()

    def count(self) -> int:
        """Return the number of duplicates; no more hashes can be added afterwards.

        Equal hashes are in the same range of values, so the ranges are read from all sorted buffers one by one.
        """
        if self.file is None:  # the buffer has never been full
            return _count_duplicates(self.buffer)
        self._write_sorted_buffer()
        with self.file:
            return sum(
                _count_duplicates([self._read_range(positions, index) for positions in self.range_positions])
                for index in range(NUM_RANGES)
            )

    def _write_sorted_buffer(self) -> None:
        """Sort the buffer and append it to the temporary file; note where each of NUM_RANGES value ranges starts.

        The file has `self.written` hashes so far; the ranges divide the 64-bit numbers evenly. The buffer is emptied.
        """
        self.file = self.file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (closed in count)
        hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *self.buffer]))
        range_starts = np.arange(NUM_RANGES, dtype=np.uint64) * np.uint64(2**64 // NUM_RANGES)
        self.range_positions.append(self.written + np.append(np.searchsorted(hashes, range_starts), len(hashes)))
        self.file.seek(8 * self.written)  # a hash has 8 bytes
        self.file.write(hashes.data)
        self.written += len(hashes)
        self.buffer, self.buffered = [], 0

    def _read_range(self, positions: NDArray[np.int64], index: int) -> _Hashes:
        """Read the hashes of one sorted buffer that are in the value range with this index from the temporary file.

        `positions` says where the ranges of this buffer start, in hashes from the beginning of the file.
        """
        assert self.file is not None
        self.file.seek(8 * int(positions[index]))  # a hash has 8 bytes
        return np.frombuffer(self.file.read(8 * int(positions[index + 1] - positions[index])), np.uint64)


def _count_duplicates(arrays: list[_Hashes]) -> int:
    """Return how many hashes in the arrays repeat another one: n equal hashes count n − 1 times."""
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *arrays]))
    return int((hashes[1:] == hashes[:-1]).sum())


class _OtherCorpus:
    """A corpus (valid, test) that the training corpus should not contain, as hashes of its sources and its pairs."""

    def __init__(self, pairs: Iterable[SentencePair]) -> None:
        """Hash the sources and pairs of the corpus; no training pairs have been compared with it yet."""
        hashes = _hash_pairs(pairs)
        self.pairs = len(hashes.pairs)
        # Each list has an element for sources and one for pairs: the different hashes, sorted, with their counts, …
        self.hashes = [np.unique(column, return_counts=True) for column in hashes]
        # … which of them are in the training corpus, …
        self.in_training = [np.zeros(len(distinct), bool) for distinct, _ in self.hashes]
        self.training_matches = [0, 0]  # … and the number of training sources and pairs that are in this corpus

    def add_training_pairs(self, hashes: PairHashes) -> None:
        """Record which sources and pairs of this corpus occur among some training pairs, which are given as hashes."""
        for column, ((distinct, _), training) in enumerate(zip(self.hashes, hashes)):  # sources, then pairs
            if len(distinct):
                # where each training hash is among the sorted hashes of this corpus, if it is one of them
                positions = np.minimum(np.searchsorted(distinct, training), len(distinct) - 1)
                matches = positions[distinct[positions] == training]
                self.in_training[column][matches] = True
                self.training_matches[column] += len(matches)

    def overlap(self, name: str) -> CorpusOverlap:
        """Return how many pairs and sources of this corpus are in the training corpus, and the reverse.

        `name` is that of this corpus in the report.
        """
        # for sources and for pairs: how often each different one occurs here, and whether it is in the training corpus
        sources_in_training, pairs_in_training = (
            int(counts[in_training].sum()) for (_, counts), in_training in zip(self.hashes, self.in_training)
        )
        training_sources, training_pairs = self.training_matches  # numbers of those that are in this corpus
        return CorpusOverlap(
            name,
            pairs=self.pairs,
            pairs_in_train=pairs_in_training,
            sources_in_train=sources_in_training,
            train_pairs=training_pairs,
            train_sources=training_sources,
        )


def _drop_reason(encoded: EncodedPair, max_length: int) -> str:
    """Return why a pair cannot be used, such as "target empty"; "" if it can.

    A side is empty if its text is blank or it has no tokens, and overlong with more than `max_length` tokens.
    """
    pair = encoded.pair
    for name, text, ids in (("source", pair.source, encoded.source), ("target", pair.target, encoded.target)):
        if ids is None:  # monolingual data has no target
            continue
        # Both are checked, as some tokenizers make tokens of a blank text, and others make none of some characters.
        # The target of a dialogue, its labels, has no text of its own (None).
        is_blank = text is not None and not text.strip()
        if is_blank or not len(ids):
            return f"{name} empty"
        if len(ids) > max_length:
            return f"{name} longer than {max_length:,} tokens"
    return ""


def _segmentation_sample(
    encoded: EncodedPair, encoding: Encoding, tag_ids: Sequence[int], has_features: bool
) -> SampleSegmentation:
    """Return the tokens of a pair and the text that they decode to, for the report.

    `encoding` has the tokenizers; `tag_ids` are prepended to the source. Feature vectors (`has_features`) are shown by
    their description, which `pair.source` has in place of text.
    """
    pair, source, target, _ = encoded  # pair, token ids of source and target, flags
    source_tokens, decoded = [pair.source], pair.source
    if not has_features:
        tokenizer = encoding.source_tokenizer
        source_tokens, decoded = tokenizer.tokens([*tag_ids, *source]), tokenizer.decode(source)
    tokenizer = encoding.target_tokenizer
    return SampleSegmentation(
        source=pair.source,
        source_tokens=source_tokens,
        source_decoded=decoded,
        target=pair.target,
        target_tokens=[] if target is None else tokenizer.tokens(target),
        target_decoded=None if target is None else tokenizer.decode(target),
    )


def _hash_pairs(pairs: Iterable[SentencePair]) -> PairHashes:
    """Compute 64-bit hashes of the sources, and of source and target together."""
    sources, targets = bytearray(), bytearray()
    for pair in pairs:
        sources += blake2b(pair.source_with_features.encode(), digest_size=8).digest()
        targets += blake2b((pair.target or "").encode(), digest_size=8).digest()
    source, target = np.frombuffer(sources, np.uint64), np.frombuffer(targets, np.uint64)
    # without the (odd) factor, the pairs (x, y) and (y, x) would have the same hash
    return PairHashes(source, source * np.uint64(0x9E3779B97F4A7C15) + target)
