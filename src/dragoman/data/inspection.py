"""The pass over the data that the preflight reports on: it counts everything and drops what cannot be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import SentencePair
from dragoman.data.duplicates import DuplicateCounter
from dragoman.data.examples import EncodedPair, encode_pairs
from dragoman.data.preflight import (
    MAX_SHOWN,
    ColumnReport,
    LengthStats,
    MemoryEstimate,
    Occurrences,
    Overlap,
    Preflight,
    SampleSegmentation,
)
from dragoman.errors import UserError
from dragoman.text.special_tokens import UNK

if TYPE_CHECKING:
    from dragoman.text.tokenizer import Tokenizer

_Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class PairLimits:
    """Which pairs are kept: `longest` counts the tokens of a side without start and end; `ratio` only warns."""

    max_length: int = 256
    max_ratio: float = 4.0


def inspect_pairs(
    pairs: Iterable[SentencePair],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    limits: PairLimits | None = None,
    others: Mapping[str, Iterable[SentencePair]] | None = None,
) -> Preflight:
    """The report on a corpus, in one pass over it."""
    inspector = PairInspector(source_tokenizer, target_tokenizer, limits, others)
    for _ in inspector.filter(encode_pairs(pairs, source_tokenizer, target_tokenizer)):
        pass
    return inspector.report()


@dataclass
class InspectionCounts:
    """What was counted in some examples: plain values, so that processes can send it to each other."""

    columns: tuple[ColumnCounts, ColumnCounts]
    read: int = 0
    pairs: int = 0
    dropped: dict[str, Occurrences] = field(default_factory=dict)
    identical: Occurrences = field(default_factory=Occurrences)
    lopsided: Occurrences = field(default_factory=Occurrences)
    samples: list[SampleSegmentation] = field(default_factory=list)
    hashes: tuple[_Hashes, _Hashes] | None = None  # of sources and of pairs

    def add(self, other: InspectionCounts) -> None:
        """Count in what was seen after it, the hashes aside."""
        self.read += other.read
        self.pairs += other.pairs
        for side, more in zip(self.columns, other.columns):
            side.merge(more)
        for reason, found in other.dropped.items():
            self.dropped.setdefault(reason, Occurrences()).merge(found)
        self.identical.merge(other.identical)
        self.lopsided.merge(other.lopsided)
        self.samples += other.samples[: MAX_SHOWN - len(self.samples)]


class PairInspector:
    """Stands in the stream of examples on its way into the token store, and drops what cannot be trained on.

    Empty sides and over-long sentences are dropped; duplicates, untranslated and lopsided pairs are only counted.
    `others` are the corpora that train should not contain, by name (valid, test). Of the text nothing is kept but 64
    bits a pair, and those in a nameless file in `folder` once there are many.

    Several may share the work: they `look`, and one of them `add`s what they have seen, in order.
    """

    def __init__(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        limits: PairLimits | None = None,
        others: Mapping[str, Iterable[SentencePair]] | None = None,
        purpose: str = "train on",
        folder: Path | None = None,
    ) -> None:
        self.purpose = purpose
        self.tokenizers = (source_tokenizer, target_tokenizer or source_tokenizer)
        self.limits = limits or PairLimits()
        self.others = {name: _Other(pairs) for name, pairs in (others or {}).items()}
        self.repeats = DuplicateCounter(folder)
        self.counts = self._nothing()

    def _nothing(self) -> InspectionCounts:
        return InspectionCounts((ColumnCounts(), ColumnCounts()))

    def filter(self, chunks: Iterable[list[EncodedPair]]) -> Iterator[list[EncodedPair]]:
        """The chunks without the pairs that are dropped; if none is left, the error says why."""
        for chunk in chunks:
            kept, seen = self.inspect_chunk(chunk)
            self.merge(seen)
            if kept:
                yield kept
        self.require_pairs()

    def inspect_chunk(
        self, chunk: list[EncodedPair], tag: Sequence[int] = ()
    ) -> tuple[list[EncodedPair], InspectionCounts]:
        """Those that are kept, and what was seen; `tag` will stand before their sources."""
        seen = self._nothing()
        seen.read = len(chunk)
        kept = [example for example in chunk if self._fits(example, seen)]
        if kept:
            self._count(kept, seen, tag)
        return kept, seen

    def merge(self, seen: InspectionCounts) -> None:
        """Count in what was seen after all before it."""
        self.counts.add(seen)
        if seen.hashes is not None:
            self.repeats.add(seen.hashes[1])
            for other in self.others.values():
                other.meet(seen.hashes)

    def require_pairs(self) -> None:
        """Refuse a corpus of which nothing is left."""
        if not self.counts.pairs:
            reasons = ", ".join(f"{found.pairs:,} {reason}" for reason, found in self.counts.dropped.items())
            raise UserError(
                f"no pair of {self.counts.read:,} is left to {self.purpose} ({reasons or 'nothing was read'})"
            )

    def _fits(self, example: EncodedPair, seen: InspectionCounts) -> bool:
        reason = self._flaw("source", example.pair.source, example.source)
        if example.target is not None:
            reason = reason or self._flaw("target", example.pair.target or "", example.target)
        if reason:
            seen.dropped.setdefault(reason, Occurrences()).add(example.pair)
        return not reason

    def _flaw(self, side: str, text: str, ids: Any) -> str:
        if len(ids) == 0 or text.isspace():
            return f"{side} empty"
        return f"{side} longer than {self.limits.max_length:,} tokens" if len(ids) > self.limits.max_length else ""

    def _count(self, chunk: list[EncodedPair], seen: InspectionCounts, tag: Sequence[int]) -> None:
        seen.pairs += len(chunk)
        pairs = [example.pair for example in chunk]
        seen.hashes = _hashes(pairs)
        seen.columns[0].add([pair.source for pair in pairs], [example.source for example in chunk])
        if pairs[0].target is not None:
            seen.columns[1].add([pair.target or "" for pair in pairs], [example.target or [] for example in chunk])
            for example in chunk:
                pair, source, target = example[:3]
                if pair.source == pair.target:
                    seen.identical.add(pair)
                lengths = len(source) + 1, len(target or ()) + 1  # with the end, which lets short pairs off
                if max(lengths) > self.limits.max_ratio * min(lengths):
                    seen.lopsided.add(pair)
        seen.samples += [self._sample(example, tag) for example in chunk[:MAX_SHOWN]]

    def _sample(self, example: EncodedPair, tag: Sequence[int]) -> SampleSegmentation:
        pair, source, target = example[:3]
        writes = self.tokenizers[1]
        pieces, decoded = self._source(pair, source)
        return SampleSegmentation(
            source=pair.source,
            source_pieces=[*self.tokenizers[0].tokens(tag), *pieces],
            source_decoded=decoded,
            target=pair.target,
            target_pieces=[] if target is None else writes.tokens(target),
            target_decoded=None if target is None else writes.decode(target),
        )

    def _source(self, pair: SentencePair, ids: Any) -> tuple[list[str], str]:
        """What the model sees of a source, and what it decodes to."""
        return self.tokenizers[0].tokens(ids), self.tokenizers[0].decode(ids)

    def report(self, memory: MemoryEstimate | None = None) -> Preflight:
        """What was seen, once the stream has run through."""
        seen = self.counts
        source = seen.columns[0].report()
        target = seen.columns[1].report() if seen.columns[1].tokens else None
        return Preflight(
            read=seen.read,
            pairs=seen.pairs,
            source=source,
            target=target,
            ratio=target.tokens.total / source.tokens.total if target else None,
            duplicates=self.repeats.count(),
            identical=seen.identical,
            lopsided=seen.lopsided,
            dropped=seen.dropped,
            overlaps=[other.report(name) for name, other in self.others.items()],
            samples=seen.samples,
            memory=memory,
        )


class FeatureInspector(PairInspector):
    """The same where sources are vectors: they have no words, and are mostly much longer than what is said of them."""

    def __init__(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        limits: PairLimits | None = None,
        others: Mapping[str, Iterable[SentencePair]] | None = None,
        purpose: str = "train on",
        folder: Path | None = None,
    ) -> None:
        super().__init__(source_tokenizer, target_tokenizer, limits, others, purpose, folder)
        self.limits = replace(self.limits, max_ratio=np.inf)

    def _nothing(self) -> InspectionCounts:
        return InspectionCounts((_VectorCount(), ColumnCounts()))

    def _source(self, pair: SentencePair, ids: Any) -> tuple[list[str], str]:
        return [pair.source], pair.source


class ColumnCounts:
    def __init__(self) -> None:
        self.words: Counter[int] = Counter()
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.unknown = 0

    def add(self, texts: list[str], ids: list[Any]) -> None:
        self.words.update([len(text.split()) for text in texts])
        self.characters.update(map(len, texts))
        self.tokens.update(map(len, ids))
        self.unknown += sum(row.count(UNK) for row in ids)

    def merge(self, other: ColumnCounts) -> None:
        self.words.update(other.words)
        self.characters.update(other.characters)
        self.tokens.update(other.tokens)
        self.unknown += other.unknown

    def report(self) -> ColumnReport:
        words, characters, tokens = (
            LengthStats.from_histogram(counts) for counts in (self.words, self.characters, self.tokens)
        )
        return ColumnReport(words, characters, tokens, self.unknown / tokens.total)


class _VectorCount(ColumnCounts):
    """Of vectors there is nothing to be known but how many there are."""

    def add(self, texts: list[str], ids: list[Any]) -> None:
        self.tokens.update(map(len, ids))

    def report(self) -> ColumnReport:
        return ColumnReport(None, None, LengthStats.from_histogram(self.tokens), 0.0)


def _hashes(pairs: Iterable[SentencePair]) -> tuple[_Hashes, _Hashes]:
    """64 bits for each source, and for each pair."""
    sources, targets = bytearray(), bytearray()
    for pair in pairs:
        sources += blake2b(pair.source.encode(), digest_size=8).digest()
        targets += blake2b((pair.target or "").encode(), digest_size=8).digest()
    source, target = np.frombuffer(sources, np.uint64), np.frombuffer(targets, np.uint64)
    return source, source * np.uint64(0x9E3779B97F4A7C15) + target  # odd factor: (x, y) and (y, x) differ


class _Other:
    """A corpus that train should not contain, and what of it was met there: by its sources, and by its pairs."""

    def __init__(self, pairs: Iterable[SentencePair]) -> None:
        hashes = _hashes(pairs)
        self.pairs = len(hashes[0])
        self.known = [np.unique(side, return_counts=True) for side in hashes]
        self.found = [np.zeros(len(values), bool) for values, _ in self.known]
        self.in_train = [0, 0]  # how many of train stand here

    def meet(self, train: tuple[_Hashes, _Hashes]) -> None:
        for number, ((values, _), hashes) in enumerate(zip(self.known, train)):
            places = np.minimum(np.searchsorted(values, hashes), len(values) - 1)
            met = places[values[places] == hashes] if len(values) else places[:0]
            self.found[number][met] = True
            self.in_train[number] += len(met)

    def report(self, name: str) -> Overlap:
        sources, pairs = (int(counts[found].sum()) for (_, counts), found in zip(self.known, self.found))
        return Overlap(name, self.pairs, pairs, sources, self.in_train[1], self.in_train[0])
