"""The result of a diagnosis: findings, each with a value, an explanation and examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.evaluation.text_metrics import LengthBucket
from dragoman.lens.inspection_types import to_jsonable
from dragoman.run import Translation

MAX_EXAMPLES = 5  # of a finding


@dataclass(frozen=True)
class TranslatedSet:
    """Sentences, their translations by the run, and their references if there are any."""

    sources: Sequence[str]
    translations: Sequence[Translation]
    references: Sequence[str] | None

    @property
    def texts(self) -> list[str]:
        """The text of each translation, in the order of the sources."""
        return [translation.text for translation in self.translations]

    def example(self, index: int, remark: str) -> DiagnosisExample:
        """Return sentence number `index` (from 0) as an example; `remark` says what is wrong with its translation."""
        return DiagnosisExample(self.sources[index], self.translations[index].text, remark)


@dataclass(frozen=True)
class DiagnosisExample:
    """A translation that shows a failure, and what is wrong with it."""

    source: str
    translation: str
    remark: str = ""


@dataclass(frozen=True)
class GenderChoice:
    """The gender that the translations of a subject without gender have.

    Attributes:
        subject: an occupation or a sentence of the source language.
        meaning: its meaning in English, if it is known.
        words: words that show the gender, such as “she”, with the number of translations; "" for none.
    """

    subject: str
    meaning: str
    words: dict[str, int]

    @property
    def label(self) -> str:
        """The subject of the source sentence, with its meaning in English if there is one: jururawat (nurse)."""
        return f"{self.subject} ({self.meaning})" if self.meaning else self.subject

    @property
    def formatted_words(self) -> str:
        """The words that show a gender, most frequent first; of several translations with counts: she 2, he 1.

        `self.words` maps such a word to a number of translations; – is written for its key "" (no such word).
        """
        words = [(word or "–", count) for word, count in Counter(self.words).most_common()]
        if sum(self.words.values()) == 1:  # a single translation needs no count
            return words[0][0]
        return ", ".join(f"{word} {count}" for word, count in words)


@dataclass(frozen=True)
class Finding:
    """The measurement of one known failure of translation systems."""

    name: str
    title: str
    explanation: str
    value: float | None = None  # the main metric; None if it cannot be measured
    unit: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    examples: tuple[DiagnosisExample, ...] = ()
    bands: tuple[LengthBucket, ...] = ()  # quality by source length
    choices: tuple[GenderChoice, ...] = ()  # gender by occupation

    @property
    def formatted_value(self) -> str:
        """The value with its unit and one decimal (12.5 %), without a unit two decimals; “not measured” for None."""
        if self.value is None:
            return "not measured"
        return f"{self.value:.1f} {self.unit}" if self.unit else f"{self.value:.2f}"


@dataclass(frozen=True)
class Diagnosis:
    """All findings about a run."""

    run: str
    system: str
    checkpoint: str
    sentences: int
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict that `json.dumps` accepts, by field name."""
        return to_jsonable(self)


def percentage(count: int, total: int) -> float:
    """Return `count` in percent of `total`, of which it is a part; 0 if both are 0."""
    return 100 * count / max(1, total)
