"""The result of a diagnosis: findings, each with a value, an explanation and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dragoman.evaluation.text_metrics import LengthBucket
from dragoman.lens.inspection_types import to_jsonable
from dragoman.run import Translation

MAX_EXAMPLES = 5


@dataclass(frozen=True)
class TranslatedSet:
    """Sentences, their translations by the run, and their references if there are any."""

    sources: Sequence[str]
    translations: Sequence[Translation]
    references: Sequence[str] | None

    @property
    def texts(self) -> list[str]:
        """The texts of the translations."""
        return [translation.text for translation in self.translations]

    def example(self, index: int, remark: str) -> DiagnosisExample:
        """Return a sentence of the set as an example, with a remark about its translation."""
        return DiagnosisExample(self.sources[index], self.translations[index].text, remark)


@dataclass(frozen=True)
class DiagnosisExample:
    """A translation that shows a failure, and what is wrong with it."""

    source: str
    translation: str
    remark: str = ""


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

    @property
    def formatted_value(self) -> str:
        """The value with its unit: 12.5 %."""
        return "not measured" if self.value is None else f"{self.value:.{1 if self.unit else 2}f} {self.unit}".rstrip()


@dataclass(frozen=True)
class Diagnosis:
    """All findings about a run."""

    run: str
    system: str
    checkpoint: str
    sentences: int
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON document."""
        return to_jsonable(self)


def percentage(count: int, total: int) -> float:
    """Return `count` in percent of `total`; 0 if the total is 0."""
    return 100 * count / max(1, total)
