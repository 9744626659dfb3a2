"""What the service analyzes: a test set, and whether analyses are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NamedTestSet:
    """Sentences with references, and how the set is called."""

    name: str
    sources: Sequence[str]
    references: Sequence[str]


@dataclass(frozen=True)
class AnalysisSettings:
    """What may be analyzed: `test_set` is None for the validation sentences of each run."""

    enabled: bool = True
    test_set: NamedTestSet | None = None
