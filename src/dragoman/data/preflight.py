"""The look at the data before the first step: what is in it, what was dropped and why, what the model will see."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import Pair
from dragoman.data.examples import Example, encode
from dragoman.errors import UserError
from dragoman.text.symbols import UNKNOWN

if TYPE_CHECKING:
    from dragoman.text import Tokenizer

EXAMPLES = 3  # line numbers and samples that are shown of each kind
WORTH_A_WARNING = 0.05

_Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Limits:
    """Which pairs are kept: `longest` counts the tokens of a side without start and end; `ratio` only warns."""

    longest: int = 256
    ratio: float = 4.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths; quantiles are the smallest length that covers the share."""

    total: int
    mean: float
    median: int
    p95: int
    max: int


@dataclass(frozen=True)
class SideReport:
    """One side of the corpus; `unknown` is the share of its tokens that the vocabulary does not know."""

    words: Lengths
    characters: Lengths
    tokens: Lengths
    unknown: float


@dataclass(frozen=True)
class Found:
    """How many pairs show something, and the places of the first few."""

    pairs: int = 0
    first: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Overlap:
    """What of another corpus (of `pairs` pairs) stands in train, and what of train stands there: pairs or sources."""

    name: str
    pairs: int
    pairs_in_train: int
    sources_in_train: int
    train_pairs: int
    train_sources: int


@dataclass(frozen=True)
class Sample:
    """A sentence as the model will see it: its pieces, and the text that they decode to."""

    source: str
    source_pieces: list[str]
    source_decoded: str
    target: str | None
    target_pieces: list[str]
    target_decoded: str | None


@dataclass(frozen=True)
class Memory:
    """An estimate of training memory in bytes: weights, gradients and two Adam moments in float32, and activations."""

    parameters: int
    model: int
    activations: int
    total: int

    @classmethod
    def of(cls, parameters: int, activations: int) -> Memory:
        return cls(parameters, 16 * parameters, activations, 16 * parameters + activations)


@dataclass(frozen=True)
class Preflight:
    """The report: plain values, of the pairs that were kept unless it says otherwise."""

    read: int
    pairs: int
    source: SideReport
    target: SideReport | None
    ratio: float | None  # target tokens a source token
    duplicates: int
    identical: Found
    lopsided: Found
    dropped: dict[str, Found]
    overlaps: list[Overlap]
    samples: list[Sample]
    memory: Memory | None
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The report as plain text."""
        out = [f"{self.pairs:,} pairs are kept of {self.read:,} read"]
        out += [f"  dropped {_found(reason, found)}" for reason, found in self.dropped.items()]
        out.append(f"  {'':18}{'total':>14} {'mean':>8} {'median':>7} {'95 %':>7} {'most':>7}")
        for name, side in (("source", self.source), ("target", self.target)):
            for unit in ("words", "characters", "tokens") if side else ():
                of: Lengths = getattr(side, unit)
                row = f"{of.total:14,} {of.mean:8.1f} {of.median:7,} {of.p95:7,} {of.max:7,}"
                out.append(f"  {name} {unit:11}{row}")
        if self.ratio is not None:
            out.append(f"  {self.ratio:.2f} target tokens a source token")
        out.append(f"  {self.duplicates:,} repeat an earlier pair")
        out += [f"  {_found(what, found)}" for what, found in self._remarks().items() if found.pairs]
        for other in self.overlaps:
            out.append(
                f"  of {other.name}'s {other.pairs:,} pairs {other.pairs_in_train:,} stand in train as they are, and "
                f"{other.sources_in_train:,} with their source"
            )
        for sample in self.samples:
            out.append(f"  {' '.join(sample.source_pieces)}")
            out += [f"    → {' '.join(sample.target_pieces)}"] * (sample.target is not None)
        if self.memory:
            parts = [_bytes(size) for size in (self.memory.total, self.memory.model, self.memory.activations)]
            out.append(f"  about {parts[0]} of memory: {parts[1]} model and optimiser, {parts[2]} activations")
        return out + [f"warning: {warning}" for warning in self.warnings]

    def _remarks(self) -> dict[str, Found]:
        return {"identical source and target": self.identical, "very unequal lengths": self.lopsided}


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
    ) -> None:
        self.tokenizers = (source_tokenizer, target_tokenizer or source_tokenizer)
        self.limits = limits or Limits()
        self.others = {name: _hashes(pairs) for name, pairs in (others or {}).items()}
        self.read = self.pairs = 0
        self.sides = (_SideCount(), _SideCount())
        self.dropped: dict[str, _Finding] = {}
        self.identical, self.lopsided = _Finding(), _Finding()
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
            reasons = ", ".join(f"{finding.pairs:,} {reason}" for reason, finding in self.dropped.items())
            raise UserError(f"no pair of {self.read:,} is left to train on ({reasons or 'nothing was read'})")

    def _fits(self, example: Example) -> bool:
        reason = self._flaw("source", example.pair.source, example.source)
        if example.target is not None:
            reason = reason or self._flaw("target", example.pair.target or "", example.target)
        if reason:
            self.dropped.setdefault(reason, _Finding()).add(example.pair)
        return not reason

    def _flaw(self, side: str, text: str, ids: list[int]) -> str:
        if not ids or text.isspace():
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
        self.samples += [self._sample(example) for example in chunk[: EXAMPLES - len(self.samples)]]

    def _sample(self, example: Example) -> Sample:
        (source, target), (pair, *ids) = self.tokenizers, example
        return Sample(
            source=pair.source,
            source_pieces=source.pieces(ids[0]),
            source_decoded=source.decode(ids[0]),
            target=pair.target,
            target_pieces=[] if ids[1] is None else target.pieces(ids[1]),
            target_decoded=None if ids[1] is None else target.decode(ids[1]),
        )

    def report(self, memory: Memory | None = None) -> Preflight:
        """What was seen, once the stream has run through."""
        sources, pairs = (np.sort(np.concatenate(hashes)) for hashes in zip(*self.hashes))
        source, target = (side.report() if side.tokens else None for side in self.sides)
        overlaps = [_overlap(name, (sources, pairs), hashes) for name, hashes in self.others.items()]
        report = Preflight(
            read=self.read,
            pairs=self.pairs,
            source=source or self.sides[0].report(),
            target=target,
            ratio=target.tokens.total / source.tokens.total if source and target else None,
            duplicates=int((pairs[1:] == pairs[:-1]).sum()),
            identical=self.identical.found(),
            lopsided=self.lopsided.found(),
            dropped={reason: finding.found() for reason, finding in self.dropped.items()},
            overlaps=overlaps,
            samples=self.samples,
            memory=memory,
            warnings=[],
        )
        report.warnings.extend(_warnings(report))
        return report


class _SideCount:
    def __init__(self) -> None:
        self.words: Counter[int] = Counter()
        self.characters: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.unknown = 0

    def add(self, texts: list[str], ids: list[list[int]]) -> None:
        self.words.update([len(text.split()) for text in texts])
        self.characters.update(map(len, texts))
        self.tokens.update(map(len, ids))
        self.unknown += sum(row.count(UNKNOWN) for row in ids)

    def report(self) -> SideReport:
        words, characters, tokens = (_lengths(counts) for counts in (self.words, self.characters, self.tokens))
        return SideReport(words, characters, tokens, self.unknown / tokens.total)


class _Finding:
    def __init__(self) -> None:
        self.pairs = 0
        self.first: list[str] = []

    def add(self, pair: Pair) -> None:
        self.pairs += 1
        if self.pairs <= EXAMPLES:
            self.first.append(f"{pair.corpus}:{pair.line}")

    def found(self) -> Found:
        return Found(self.pairs, list(self.first))


def _lengths(counts: Mapping[int, int]) -> Lengths:
    values = np.array(sorted(counts))
    covered = np.cumsum([counts[value] for value in values])
    sentences = int(covered[-1])
    total = sum(value * count for value, count in counts.items())
    median, p95 = (int(values[np.searchsorted(covered, math.ceil(share * sentences))]) for share in (0.5, 0.95))
    return Lengths(total, total / sentences, median, p95, int(values[-1]))


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


def _warnings(report: Preflight) -> Iterator[str]:
    for other in report.overlaps:
        for count, what in ((other.pairs_in_train, ""), (other.sources_in_train, "'s source sentences")):
            if count:
                share = _percent(count / other.pairs)
                yield f"{share} of {other.name}{what} also stands in train: scores will flatter the model"
                break
    shares = {
        "was dropped": 1 - report.pairs / report.read,
        "repeats an earlier pair": report.duplicates / report.pairs,
        "has the same text on both sides, which teaches copying": report.identical.pairs / report.pairs,
        "differs very much in length between the sides, so it may be misaligned": report.lopsided.pairs / report.pairs,
    }
    yield from (f"{_percent(share)} of train {what}" for what, share in shares.items() if share > WORTH_A_WARNING)
    for name, side in (("source", report.source), ("target", report.target)):
        if side and side.unknown > 0.01:
            yield f"{_percent(side.unknown)} of the {name} tokens are unknown: the vocabulary does not fit the text"
    if report.pairs < 1_000:
        yield f"only {report.pairs:,} pairs: expect them to be learned by heart rather than understood"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 else "less than 1 %"


def _found(what: str, found: Found) -> str:
    more = ", …" if found.pairs > len(found.first) else ""
    return f"{found.pairs:,}: {what} ({', '.join(found.first)}{more})"


def _bytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
