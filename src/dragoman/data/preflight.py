"""The look at the data before the first step: what is in it, what was dropped and why, what the model will see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dragoman.data.corpus import SentencePair

POOR_FIT = 1.5  # times the tokens per character of the text that a tokenizer was learned from
MANY_TOKENS = 0.6  # per character, where that text is not known
LONG_WORDS = 15  # characters per word, from which on a text is written without spaces

MAX_SHOWN = 3  # places and samples that are kept of each kind
WORTH_A_WARNING = 0.05


@dataclass(frozen=True)
class LengthStats:
    """A distribution of lengths; quantiles are the smallest length that covers the share."""

    total: int
    mean: float
    median: int
    p95: int
    max: int

    @classmethod
    def from_histogram(cls, counts: Mapping[int, int]) -> LengthStats:
        """From a histogram: how many sentences there are of each length."""
        lengths = np.array(sorted(counts))
        covered = np.cumsum([counts[length] for length in lengths])
        sentences = int(covered[-1])
        total = sum(length * count for length, count in counts.items())
        median, p95 = (int(lengths[np.searchsorted(covered, -(-sentences * share // 100))]) for share in (50, 95))
        return cls(total, total / sentences, median, p95, int(lengths[-1]))


@dataclass(frozen=True)
class ColumnReport:
    """One side of the corpus; `unknown` is the share of its tokens that the vocabulary does not know.

    Vectors, which may stand in the place of tokens, have neither words nor characters.
    """

    words: LengthStats | None
    characters: LengthStats | None
    tokens: LengthStats
    unknown: float

    @property
    def fertility(self) -> float | None:
        """Tokens per character."""
        return self.tokens.total / max(1, self.characters.total) if self.characters else None


@dataclass
class Occurrences:
    """How many pairs show something, and the places of the first few."""

    pairs: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, pair: SentencePair) -> None:
        self.pairs += 1
        if self.pairs <= MAX_SHOWN:
            self.first.append(f"{pair.corpus}:{pair.line}")

    def merge(self, later: Occurrences) -> None:
        self.pairs += later.pairs
        self.first += later.first[: MAX_SHOWN - len(self.first)]


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
class SampleSegmentation:
    """A sentence as the model will see it: its pieces, and the text that they decode to."""

    source: str
    source_pieces: list[str]
    source_decoded: str
    target: str | None
    target_pieces: list[str]
    target_decoded: str | None


@dataclass(frozen=True)
class MemoryEstimate:
    """An estimate of training memory in bytes: weights, gradients and two Adam moments in float32, and activations."""

    parameters: int
    model: int
    activations: int
    total: int

    @classmethod
    def for_adam(cls, parameters: int, activations: int) -> MemoryEstimate:
        return cls(parameters, 16 * parameters, activations, 16 * parameters + activations)


@dataclass(frozen=True)
class Preflight:
    """The report: plain values, of the pairs that were kept unless it says otherwise."""

    read: int
    pairs: int
    source: ColumnReport
    target: ColumnReport | None
    ratio: float | None  # target tokens a source token
    duplicates: int
    identical: Occurrences
    lopsided: Occurrences
    dropped: dict[str, Occurrences]
    overlaps: list[Overlap]
    samples: list[SampleSegmentation]
    memory: MemoryEstimate | None
    #: tokens per character of the text that the tokenizers of source and target were learned from, if it is known
    fertility: tuple[float | None, float | None] = (None, None)
    learned: bool = True  # from this text

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"warnings": self.warnings}

    @property
    def warnings(self) -> list[str]:
        """What looks wrong, a sentence each."""
        return list(_warnings(self))

    def lines(self) -> list[str]:
        """The report as plain text."""
        out = [f"{self.pairs:,} pairs are kept of {self.read:,} read"]
        out += [f"  dropped {_found(reason, found)}" for reason, found in self.dropped.items()]
        out.append(f"  {'':18}{'total':>14} {'mean':>8} {'median':>7} {'95 %':>7} {'most':>7}")
        for name, side in (("source", self.source), ("target", self.target)):
            for unit in ("words", "characters", "tokens") if side else ():
                of: LengthStats | None = getattr(side, unit)
                if of is None:
                    continue
                row = f"{of.total:14,} {of.mean:8.1f} {of.median:7,} {of.p95:7,} {of.max:7,}"
                out.append(f"  {name} {unit:11}{row}")
        if self.ratio is not None:
            out.append(f"  {self.ratio:.2f} target tokens a source token")
        out.append(f"  {self.duplicates:,} repeat an earlier pair")
        remarks = {"identical source and target": self.identical, "very unequal lengths": self.lopsided}
        out += [f"  {_found(what, found)}" for what, found in remarks.items() if found.pairs]
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


def _warnings(report: Preflight) -> Iterator[str]:
    for other in report.overlaps:
        for count, what in ((other.pairs_in_train, "stands"), (other.sources_in_train, "has its source")):
            if count:
                share = _percent(count / other.pairs)
                yield f"{share} of {other.name} also {what} in train: scores will flatter the model"
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
    if not report.learned:
        for name, side, usual in zip(("source", "target"), (report.source, report.target), report.fertility):
            if side:
                yield from _misfit(name, side, usual)
    if report.pairs < 1_000:
        yield f"only {report.pairs:,} pairs: expect them to be learned by heart rather than understood"


def _misfit(name: str, side: ColumnReport, usual: float | None) -> Iterator[str]:
    """A warning if a tokenizer splits a text into much smaller pieces than the text that it was learned from."""
    found, words = side.fertility, side.words
    if found is None or words is None or side.characters is None:
        return
    spaced = side.characters.total < LONG_WORDS * max(1, words.total)
    if found <= (MANY_TOKENS if usual is None else POOR_FIT * usual) or (usual is None and not spaced):
        return
    beside = "" if usual is None else f" ({usual:.2f} in the text that it was learned from)"
    yield (
        f"the tokenizer splits the {name} into small pieces, {found:.2f} tokens per character{beside}: it was not "
        "learned from such text. Learn it from both languages: pretrain on text of both (--source may be repeated)"
    )


def training_fertility(values: Mapping[str, Any], joint: bool) -> tuple[float | None, float | None]:
    """Tokens per character of the text that a run's tokenizers were learned from, by its preflight.json."""
    if not values.get("learned", True):
        source, target = values["fertility"]
        return source, target
    sides = [values["source"], values["target"] or values["source"]]
    counts = [
        (side["tokens"]["total"], side["characters"]["total"]) if side["characters"] else (0, 0) for side in sides
    ]
    if joint:
        counts = [(counts[0][0] + counts[1][0], counts[0][1] + counts[1][1])] * 2
    source, target = (tokens / characters if characters else None for tokens, characters in counts)
    return source, target


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 else "less than 1 %"


def _found(what: str, found: Occurrences) -> str:
    more = ", …" if found.pairs > len(found.first) else ""
    return f"{found.pairs:,}: {what} ({', '.join(found.first)}{more})"


def _bytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
