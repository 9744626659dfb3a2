"""What a diagnosis consists of: findings, each a number with a sentence that explains it and examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dragoman.lens.inspection_types import to_jsonable

MAX_EXAMPLES = 5  # examples


@dataclass(frozen=True)
class DiagnosisExample:
    source: str
    translation: str
    remark: str = ""


@dataclass(frozen=True)
class LengthQuality:
    """One point of the curve of quality by length."""

    words: str
    sentences: int
    exact_match: float
    bleu: float


@dataclass(frozen=True)
class Finding:
    """One known failure: how much of it there is. `value` is None where it could not be measured.

    `numbers` are all that was counted, by name; `value` is the one to look at first.
    """

    name: str
    title: str
    explanation: str
    value: float | None = None
    unit: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    examples: tuple[DiagnosisExample, ...] = ()
    bands: tuple[LengthQuality, ...] = ()

    @property
    def formatted_value(self) -> str:
        """The value as people read it."""
        return "not measured" if self.value is None else f"{self.value:.{1 if self.unit else 2}f} {self.unit}".rstrip()


@dataclass(frozen=True)
class Diagnosis:
    """What a run does wrong, as far as it is known how to look for it."""

    run: str
    system: str
    checkpoint: str
    sentences: int
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        return to_jsonable(self)


def percentage(count: int, of: int) -> float:
    """In per cent."""
    return 100 * count / max(1, of)
