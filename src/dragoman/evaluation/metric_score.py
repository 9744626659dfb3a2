"""What a measure gives back, and how hypotheses and references are paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dragoman.errors import UserError

References = Sequence[str] | Sequence[Sequence[str]]
"""For each hypothesis its reference, or the list of its references.

This is one entry per sentence; sacreBLEU's own interface has one entry per reference translator, the transpose of it.
"""


@dataclass(frozen=True)
class MetricScore:
    """One number in the unit people quote it in, with all that is needed to quote it.

    `unit` is "%" for shares and rates, and empty for BLEU and chrF (0 to 100) and for plain numbers such as perplexity.
    """

    name: str
    value: float
    better: Literal["higher", "lower"]
    unit: str = ""
    signature: str = ""
    detail: Mapping[str, float] = field(default_factory=dict)
    decimals: int = 2

    @property
    def formatted(self) -> str:
        """The value with the decimals it is quoted with: "38.10"."""
        return f"{self.value:.{self.decimals}f}"

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        signature = f" ({self.signature})" if self.signature else ""
        return f"{self.name} {self.formatted}{unit}{signature}"


def reference_lists(hypotheses: Sequence[str], references: References) -> list[Sequence[str]]:
    """The references of each hypothesis as a list of at least one, or a UserError if the two do not pair up."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise UserError("hypotheses and references must be lists of sentences, not one string")
    check_equal_counts(len(hypotheses), "hypotheses", len(references), "references")
    lists = [[reference] if isinstance(reference, str) else reference for reference in references]
    for number, among in enumerate(lists, 1):
        if not among:
            raise UserError(f"hypothesis {number:,} has no reference: every one needs at least one")
    return lists


def check_equal_counts(count: int, what: str, other_count: int, other: str) -> None:
    """Refuse two lists that cannot be read side by side."""
    if count != other_count:
        raise UserError(f"there are {count:,} {what} but {other_count:,} {other}: there must be one for each")
    if not count:
        raise UserError(f"there is nothing to evaluate: both {what} and {other} are empty")
