"""The pass over the data that the preflight reports on: it counts everything and drops what cannot be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Pair
from dragoman.data.examples import Example, encode
from dragoman.data.preflight import SHOWN, Found, Lengths, Memory, Overlap, Preflight, Sample, SideReport
from dragoman.errors import UserError
from dragoman.text.symbols import UNKNOWN

if TYPE_CHECKING:
    from dragoman.text.tokenizer import Tokenizer

_Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Limits:
    """Which pairs are kept: `longest` counts the tokens of a side without start and end; `ratio` only warns."""

    longest: int = 256
    ratio: float = 4.0


def inspect(
    pairs: Iterable[Pair],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    limits: Limits | None = None,
    others: Mapping[str, Iterable[Pair]] | None = None,
) -> Preflight:
    """The report on a corpus, in one pass over it."""
    inspector = Inspector(source_tokenizer, target_tokenizer, limits, others)
    for _ in inspector.keep(encode(pairs, source_tokenizer, target_tokenizer)):
        pass
    return inspector.report()


class Inspector:
    """Watches a stream of examples on its way into the token store, and drops what cannot be trained on.

    Empty sides and over-long sentences are dropped; duplicates, untranslated and lopsided pairs are only counted.
    `others` are the corpora that train should not contain, by name (valid, test). Of the text nothing is kept but 64
    bits a sentence.
    """

    def __init__(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        limits: Limits | None = None,
        others: Mapping[str, Iterable[Pair]] | None = None,
        what: str = "train on",
    ) -> None:
        self.what = what
        self.tokenizers = (source_tokenizer, target_tokenizer or source_tokenizer)
        self.limits = limits or Limits()
        self.others = {name: _hashes(pairs) for name, pairs in (others or {}).items()}
        self.read = self.pairs = 0
        self.sides = (_SideCount(), _SideCount())
        self.dropped: dict[str, Found] = {}
        self.identical, self.lopsided = Found(), Found()
        self.samples: list[Sample] = []
        self.hashes: list[tuple[_Hashes, _Hashes]] = []

    def keep(self, chunks: Iterable[list[Example]]) -> Iterator[list[Example]]:
        """The chunks without the pairs that are dropped; if none is left, the error says why."""
        for chunk in chunks:
            self.read += len(chunk)
            if kept := [example for example in chunk if self._fits(example)]:
                self._count(kept)
                yield kept
        if not self.pairs:
            reasons = ", ".join(f"{found.pairs:,} {reason}" for reason, found in self.dropped.items())
            raise UserError(f"no pair of {self.read:,} is left to {self.what} ({reasons or 'nothing was read'})")

    def _fits(self, example: Example) -> bool:
        reason = self._flaw("source", example.pair.source, example.source)
        if example.target is not None:
            reason = reason or self._flaw("target", example.pair.target or "", example.target)
        if reason:
            self.dropped.setdefault(reason, Found()).add(example.pair)
        return not reason

    def _flaw(self, side: str, text: str, ids: Any) -> str:
        if len(ids) == 0 or text.isspace():
            return f"{side} empty"
        return f"{side} longer than {self.limits.longest:,} tokens" if len(ids) > self.limits.longest else ""

    def _count(self, chunk: list[Example]) -> None:
        self.pairs += len(chunk)
        pairs = [example.pair for example in chunk]
        self.hashes.append(_hashes(pairs))
        self.sides[0].add([pair.source for pair in pairs], [example.source for example in chunk])
        if pairs[0].target is not None:
            self.sides[1].add([pair.target or "" for pair in pairs], [example.target or [] for example in chunk])
            for example in chunk:
                pair, source, target = example
                if pair.source == pair.target:
                    self.identical.add(pair)
                lengths = len(source) + 1, len(target or ()) + 1  # with the end, which lets short pairs off
                if max(lengths) > self.limits.ratio * min(lengths):
                    self.lopsided.add(pair)
        self.samples += [self._sample(example) for example in chunk[: SHOWN - len(self.samples)]]

    def _sample(self, example: Example) -> Sample:
        pair, source, target = example
        writes = self.tokenizers[1]
        pieces, decoded = self._source(pair, source)
        return Sample(
            source=pair.source,
            source_pieces=pieces,
            source_decoded=decoded,
            target=pair.target,
            target_pieces=[] if target is None else writes.pieces(target),
            target_decoded=None if target is None else writes.decode(target),
        )

    def _source(self, pair: Pair, ids: Any) -> tuple[list[str], str]:
        """What the model sees of a source, and what it decodes to."""
        return self.tokenizers[0].pieces(ids), self.tokenizers[0].decode(ids)

    def report(self, memory: Memory | None = None) -> Preflight:
        """What was seen, once the stream has run through."""
        sources, pairs = (np.sort(np.concatenate(hashes)) for hashes in zip(*self.hashes))
        source = self.sides[0].report()
        target = self.sides[1].report() if self.sides[1].tokens else None
        return Preflight(
            read=self.read,
            pairs=self.pairs,
            source=source,
            target=target,
            ratio=target.tokens.total / source.tokens.total if target else None,
            duplicates=int((pairs[1:] == pairs[:-1]).sum()),
            identical=self.identical,
            lopsided=self.lopsided,
            dropped=self.dropped,
            overlaps=[_overlap(name, (sources, pairs), hashes) for name, hashes in self.others.items()],
            samples=self.samples,
            memory=memory,
        )


class SignalInspector(Inspector):
    """The same where sources are vectors: they have no words, and are mostly much longer than what is said of them."""

    def __init__(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        limits: Limits | None = None,
        others: Mapping[str, Iterable[Pair]] | None = None,
        what: str = "train on",
    ) -> None:
        super().__init__(source_tokenizer, target_tokenizer, limits, others, what)
        self.limits = replace(self.limits, ratio=np.inf)
        self.sides = (_VectorCount(), _SideCount())

    def _source(self, pair: Pair, ids: Any) -> tuple[list[str], str]:
        return [pair.source], pair.source


class _SideCount:
    def __init__(self) -> None:
        self.words: Counter[int] = Counter()
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.unknown = 0

    def add(self, texts: list[str], ids: list[Any]) -> None:
        self.words.update([len(text.split()) for text in texts])
        self.characters.update(map(len, texts))
        self.tokens.update(map(len, ids))
        self.unknown += sum(row.count(UNKNOWN) for row in ids)

    def report(self) -> SideReport:
        words, characters, tokens = (Lengths.of(counts) for counts in (self.words, self.characters, self.tokens))
        return SideReport(words, characters, tokens, self.unknown / tokens.total)


class _VectorCount(_SideCount):
    """Of vectors there is nothing to be known but how many there are."""

    def add(self, texts: list[str], ids: list[Any]) -> None:
        self.tokens.update(map(len, ids))

    def report(self) -> SideReport:
        return SideReport(None, None, Lengths.of(self.tokens), 0.0)


def _hashes(pairs: Iterable[Pair]) -> tuple[_Hashes, _Hashes]:
    """64 bits for each source, and for each pair."""
    sources, targets = bytearray(), bytearray()
    for pair in pairs:
        sources += blake2b(pair.source.encode(), digest_size=8).digest()
        targets += blake2b((pair.target or "").encode(), digest_size=8).digest()
    source, target = np.frombuffer(sources, np.uint64), np.frombuffer(targets, np.uint64)
    return source, source * np.uint64(0x9E3779B97F4A7C15) + target  # odd factor: (x, y) and (y, x) differ


def _overlap(name: str, train: tuple[_Hashes, _Hashes], other: tuple[_Hashes, _Hashes]) -> Overlap:
    (sources, train_sources), (pairs, train_pairs) = (_meet(*sides) for sides in zip(train, other))
    return Overlap(name, len(other[0]), pairs, sources, train_pairs, train_sources)


def _meet(train: _Hashes, other: _Hashes) -> tuple[int, int]:
    """How many of `other` stand in `train`, which is sorted, and how many of `train` in `other`."""
    values, counts = np.unique(other, return_counts=True)
    found = np.searchsorted(train, values, side="right") - np.searchsorted(train, values)
    return int(counts[found > 0].sum()), int(found.sum())
