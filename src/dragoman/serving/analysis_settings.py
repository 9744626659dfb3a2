"""What the service analyzes: a test set, and whether analyses are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NamedTestSet:
    """Sentences with references, and how the set is called."""

    name: str
    sources: Sequence[str]
    references: Sequence[str]


@dataclass(frozen=True)
class AnalysisSettings:
    """Whether analyses are allowed, and the test sets by the name of the run; default: its validation sentences."""

    enabled: bool = True
    test_sets: Mapping[str, NamedTestSet] = field(default_factory=dict)
