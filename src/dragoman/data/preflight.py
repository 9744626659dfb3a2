"""The preflight report: statistics of a corpus, dropped pairs with reasons, and samples of the segmentation.

The field names are part of `preflight.json`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman.data.corpus import SentencePair
from dragoman.data.text_profile import CONTROL_CHARACTER, CorpusProfile
from dragoman.legacy import translate_preflight
from dragoman.text.scripts import EAST_ASIAN_SCRIPTS

if TYPE_CHECKING:
    from dragoman.data.cleaning import CleaningReport

PREFLIGHT_FILE = "preflight.json"

MAX_RATIO_TO_USUAL = 1.5  # warn above this multiple of the tokens per character of the tokenizer's own training text
MAX_TOKENS_PER_CHARACTER = 0.6  # warn above, if the tokens per character of that text are not known
MIN_UNSPACED_WORD_LENGTH = 15  # characters per whitespace-separated word in scripts without spaces

MAX_SHOWN = 3  # locations and samples of each kind
MAX_SHOWN_TOKENS = 60  # of a sample; the rest of a long text is not printed
WARNING_SHARE = 0.05
MAX_EXCEPTION_SHARE = 0.3  # of pairs with very different lengths; more are a property of the task, and no errors
MAX_REPEATED_SHARE = 0.9  # of pairs with equal sides, where targets repeat their sources by nature
MAX_OTHER_SCRIPTS = 0.1  # of the letters of a side; more is a mixture of languages, or a mistake


@dataclass(frozen=True)
class LengthStats:
    """A distribution of lengths."""

    total: int
    mean: float
    median: int
    p95: int
    max: int

    @classmethod
    def from_histogram(cls, counts: Mapping[int, int]) -> LengthStats:
        """Compute statistics from the number of sentences of each length."""
        lengths = np.array(sorted(counts))
        cumulative = np.cumsum([counts[length] for length in lengths])
        sentences = int(cumulative[-1])
        total = sum(length * count for length, count in counts.items())
        # the shortest length that 50 % and 95 % of the sentences (their number rounded up) do not exceed
        median, p95 = (int(lengths[np.searchsorted(cumulative, -(-sentences * share // 100))]) for share in (50, 95))
        return cls(total=total, mean=total / sentences, median=median, p95=p95, max=int(lengths[-1]))


@dataclass(frozen=True)
class ColumnReport:
    """Statistics of the source or the target; feature vectors have no words and characters."""

    words: LengthStats | None
    characters: LengthStats | None
    tokens: LengthStats
    unknown: float  # share of UNK tokens

    @property
    def tokens_per_character(self) -> float | None:
        """Tokens per character: how finely text is split; None for feature vectors, which have no characters."""
        return self.tokens.total / max(1, self.characters.total) if self.characters else None


@dataclass
class Occurrences:
    """The number of pairs with some property, and the locations of the first ones."""

    pairs: int = 0
    locations: list[str] = field(default_factory=list)

    def add(self, pair: SentencePair) -> None:
        """Count a pair; of the first MAX_SHOWN also keep file and line."""
        self.pairs += 1
        if self.pairs <= MAX_SHOWN:
            self.locations.append(f"{pair.corpus}:{pair.line}")

    def merge(self, later: Occurrences) -> None:
        """Add the occurrences in later pairs."""
        self.pairs += later.pairs
        self.locations += later.locations[: MAX_SHOWN - len(self.locations)]

    def describe(self, name: str) -> str:
        """Return a line for the report: the count, what was counted (`name`), and where the first ones are.

        An ellipsis stands for the locations of the other ones, which are not kept.
        """
        more = ", …" if self.pairs > len(self.locations) else ""
        return f"{self.pairs:,}: {name} ({', '.join(self.locations)}{more})"


@dataclass(frozen=True)
class CorpusOverlap:
    """The overlap between the training data and another corpus: equal pairs, and equal sources."""

    name: str
    pairs: int  # of the other corpus
    pairs_in_train: int  # pairs of the other corpus that are in the training data
    sources_in_train: int
    train_pairs: int  # training pairs that are in the other corpus
    train_sources: int


@dataclass(frozen=True)
class SampleSegmentation:
    """A sentence pair, its tokens, and the text that they decode to."""

    source: str
    source_tokens: list[str]
    source_decoded: str
    target: str | None
    target_tokens: list[str]
    target_decoded: str | None


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated training memory in bytes."""

    parameters: int  # number of parameters
    model: int  # weights, gradients and two Adam moments in float32
    activations: int
    total: int

    @classmethod
    def for_adam(cls, parameters: int, trained: int, activations: int) -> MemoryEstimate:
        """Estimate from the number of parameters, of those that are trained, and the bytes of activations.

        All numbers are float32, 4 bytes.
        """
        model = 4 * parameters + 12 * trained  # bytes: weights; gradients and two moments of the trained ones
        return cls(parameters, model=model, activations=activations, total=model + activations)


@dataclass(frozen=True)
class Preflight:
    """The preflight report; all values are about the pairs that were kept unless stated otherwise."""

    pairs_read: int  # before filtering
    pairs: int
    source: ColumnReport
    target: ColumnReport | None
    ratio: float | None  # target tokens per source token
    duplicates: int
    identical: Occurrences  # equal source and target
    length_mismatch: Occurrences  # very different lengths
    dropped: dict[str, Occurrences]  # by reason
    overlaps: list[CorpusOverlap]
    samples: list[SampleSegmentation]
    memory: MemoryEstimate | None
    #: tokens per character of the text that the source and target tokenizers were learned from, if known
    usual_tokens_per_character: tuple[float | None, float | None] = (None, None)
    learned: bool = True  # whether the tokenizers were learned from this corpus
    text: CorpusProfile | None = None  # of all pairs, before filtering
    cleaning: CleaningReport | None = None  # what was removed before everything else

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and `warnings` about the data, as JSON values."""
        return asdict(self) | {"warnings": self.warnings}

    @property
    def warnings(self) -> list[str]:
        """Return what the user should check in the data, one sentence each."""
        return list(_warnings(self))

    def lines(self) -> list[str]:
        """Format the report as lines of plain text; the warnings are the last ones."""
        out = self.cleaning.lines() if self.cleaning else []
        out += [f"Kept {self.pairs:,} of {self.pairs_read:,} pairs"]
        out += [f"  dropped {pairs.describe(reason)}" for reason, pairs in self.dropped.items()]
        out.append(f"  {'':18}{'total':>14} {'mean':>8} {'median':>7} {'95 %':>7} {'max':>7}")
        for name, column in (("source", self.source), ("target", self.target)):
            for unit in ("words", "characters", "tokens") if column else ():
                stats: LengthStats | None = getattr(column, unit)
                if stats is not None:
                    row = f"{stats.total:14,} {stats.mean:8.1f} {stats.median:7,} {stats.p95:7,} {stats.max:7,}"
                    out.append(f"  {name} {unit:11}{row}")
        if self.ratio is not None:
            out.append(f"  {self.ratio:.2f} target tokens per source token")
        out += self.text.lines() if self.text else []
        out.append(f"  {self.duplicates:,} duplicates of an earlier pair")
        remarks = {"identical source and target": self.identical, "very different lengths": self.length_mismatch}
        out += [f"  {pairs.describe(remark)}" for remark, pairs in remarks.items() if pairs.pairs]
        for overlap in self.overlaps:
            shared = f"{overlap.pairs_in_train:,} of {overlap.pairs:,} pairs and {overlap.sources_in_train:,} sources"
            out.append(f"  {overlap.name}: {shared} are also in train")
        for sample in self.samples:
            out.append(f"  {_format_tokens(sample.source_tokens)}")
            out += [f"    → {_format_tokens(sample.target_tokens)}"] * (sample.target is not None)
        if self.memory:
            parts = (self.memory.total, self.memory.model, self.memory.activations)
            total, model, activations = map(_format_bytes, parts)
            out.append(f"  about {total} of memory: {model} model and optimizer, {activations} activations")
        return out + [f"warning: {warning}" for warning in self.warnings]


def _format_tokens(tokens: list[str]) -> str:
    """Join the tokens of a sample with spaces; of more than MAX_SHOWN_TOKENS show how many others there are.

    Control characters, which a terminal would execute, are shown as U+FFFD.
    """
    hidden = len(tokens) - MAX_SHOWN_TOKENS
    shown = CONTROL_CHARACTER.sub("\ufffd", " ".join(tokens[:MAX_SHOWN_TOKENS]))
    return shown + (f" … ({hidden:,} more)" if hidden > 0 else "")


def _warnings(report: Preflight) -> Iterator[str]:
    """Yield a sentence for everything in the report of a corpus that the user should check."""
    for overlap in report.overlaps:
        # pairs of another corpus (valid, test) that are in the training data; its sources only where no pair is
        if count := overlap.pairs_in_train or overlap.sources_in_train:
            percent = _format_percent(count / overlap.pairs)
            unit = "pairs" if overlap.pairs_in_train else "sources"
            yield f"{percent} of the {unit} of {overlap.name} are also in train: scores will be too optimistic"
    different_lengths = "have very different lengths on both sides and may be misaligned"
    shares = {
        "were dropped": 1 - report.pairs / report.pairs_read,
        "are duplicates of an earlier pair": report.duplicates / report.pairs,
        different_lengths: report.length_mismatch.pairs / report.pairs,
    }
    identical = report.identical.pairs / report.pairs
    # `repeats_words`: targets repeat much of their sources by nature, as in the correction of spelling
    if report.text is None or not report.text.repeats_words or identical > MAX_REPEATED_SHARE:
        shares["have the same text on both sides, which teaches copying"] = identical
    for problem, share in shares.items():
        is_usual = problem is different_lengths and share > MAX_EXCEPTION_SHARE  # a property of the task, no error
        if share > WARNING_SHARE and not is_usual:
            yield f"{_format_percent(share)} of the training pairs {problem}"
    remedy = "cleaning.identify_language (needs --from and --to)" if report.cleaning else "--clean"
    yield from _character_warnings(report.text, remedy)
    columns = (report.source, report.target)
    for name, column, usual in zip(("source", "target"), columns, report.usual_tokens_per_character):
        if column and column.unknown > 0.01:
            yield f"{_format_percent(column.unknown)} of the {name} tokens are unknown: the vocabulary does not fit"
        if column and not report.learned:  # the tokenizers were learned from other text
            yield from _short_token_warnings(name, column, usual)
    if report.pairs < 1_000:
        yield f"only {report.pairs:,} pairs: expect the model to memorize them rather than to generalize"


def _character_warnings(text: CorpusProfile | None, remedy: str) -> Iterator[str]:
    """Warn if the source or the target has control characters, or is written in several scripts.

    It is if the most frequent one has less than 1 − MAX_OTHER_SCRIPTS of the letters; Han and kana count as one. The
    two most frequent ones are named, and `remedy`, the option that removes texts in others. Without statistics of the
    text (None) there is no warning.
    """
    for name, profile in (("source", text.source), ("target", text.target)) if text else ():
        if profile and profile.control_characters:
            yield (
                f"the {name} has {profile.control_characters:,} control characters or replacements of wrongly decoded "
                "ones (U+FFFD): correct the file, or remove such lines with --clean"
            )
        shares: Counter[str] = Counter()
        for script, share in profile.scripts.items() if profile else ():
            shares["Han and kana" if script in EAST_ASIAN_SCRIPTS else script] += share  # type: ignore[assignment]
        main_scripts = shares.most_common(2)  # with their shares, the most frequent first
        if main_scripts and max(shares.values()) < 1 - MAX_OTHER_SCRIPTS:
            mixture = ", ".join(f"{_format_percent(share)} {script}" for script, share in main_scripts)
            yield (
                f"the {name} mixes scripts ({mixture} of the letters): check that all lines are in the same language, "
                f"or remove others with {remedy}"
            )


def _short_token_warnings(name: str, column: ColumnReport, usual: float | None) -> Iterator[str]:
    """Warn if a tokenizer splits this text into much smaller tokens than the text that it was learned from.

    `name` is "source" or "target"; `usual` are the tokens per character of that text, None if unknown. Feature vectors,
    which have no words and characters, are not checked.
    """
    if column.tokens_per_character is None or column.words is None or column.characters is None:
        return
    if usual is not None:
        limit, comparison = MAX_RATIO_TO_USUAL * usual, f" ({usual:.2f} on the text that it was learned from)"
    else:
        # without spaces between words, tokens are short in any case, so that there is no limit
        has_spaces = column.characters.total < MIN_UNSPACED_WORD_LENGTH * max(1, column.words.total)
        limit, comparison = MAX_TOKENS_PER_CHARACTER if has_spaces else math.inf, ""
    if column.tokens_per_character > limit:
        yield (
            f"the tokenizer splits the {name} into short tokens, {column.tokens_per_character:.2f} per character"
            f"{comparison}: it was not learned from such text. Learn the tokenizer from both languages: pretrain on "
            "text of both (repeat --source)"
        )


def load_preflight(folder: Path) -> dict[str, Any]:
    """Read the preflight report (statistics of the training data) of a run folder.

    Fields that had other names in earlier versions get their present ones. Imported runs have no report, which is a
    FileNotFoundError.
    """
    return translate_preflight(json.loads((folder / PREFLIGHT_FILE).read_text(encoding="utf-8")))


def usual_tokens_per_character(values: Mapping[str, Any], joint: bool) -> tuple[float | None, float | None]:
    """Return tokens per character of the text that a run's source and target tokenizers were learned from.

    Args:
        values: contents of the run's `preflight.json`.
        joint: whether source and target share the tokenizer.

    Returns the numbers of source and target, None for feature vectors.
    """
    if not values.get("learned", True):  # learned from text of an earlier run, of which the report has the numbers
        source, target = values["usual_tokens_per_character"]
        return source, target
    columns = [values["source"], values["target"] or values["source"]]  # monolingual text has no target
    counts = [  # of tokens and characters; none for feature vectors
        (column["tokens"]["total"], column["characters"]["total"]) if column["characters"] else (0, 0)
        for column in columns
    ]
    if joint:
        tokens, characters = map(sum, zip(*counts))
        counts = [(tokens, characters)] * 2
    source, target = (tokens / characters if characters else None for tokens, characters in counts)
    return source, target


def _format_percent(share: float) -> str:
    """Format a share from 0 to 1 in percent."""
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 else "less than 1 %"


def _format_bytes(size: float) -> str:
    """Format a number of bytes in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
