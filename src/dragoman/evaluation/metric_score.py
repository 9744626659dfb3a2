"""The result of a metric, and the pairing of hypotheses with references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dragoman.errors import UserError

References = Sequence[str] | Sequence[Sequence[str]]
"""For each hypothesis its reference, or the list of its references.

One entry per sentence; sacreBLEU's reference streams are the transpose, one entry per reference translator.
"""


@dataclass(frozen=True)
class MetricScore:
    """A score with what is needed to quote it.

    `unit` is "%" for rates, and empty for BLEU and chrF (0 to 100) and for plain numbers such as perplexity.
    `signature` is sacreBLEU's; `detail` holds the counts that the score is computed from.
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
        """The value with `decimals` digits after the point: "38.10"."""
        return f"{self.value:.{self.decimals}f}"

    def __str__(self) -> str:
        """Return name, value, unit and signature: "word error rate 12.30 %"."""
        unit = f" {self.unit}" if self.unit else ""
        signature = f" ({self.signature})" if self.signature else ""
        return f"{self.name} {self.formatted}{unit}{signature}"


def reference_lists(hypotheses: Sequence[str], references: References) -> list[Sequence[str]]:
    """Return the list of references of each hypothesis, where a single string is a list of one.

    Different numbers of hypotheses and references, and a hypothesis without reference, are a UserError.
    """
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise UserError(
            "hypotheses and references must be lists of sentences, not one string: pass a list, such as ['one "
            "sentence']"
        )
    check_equal_counts(len(hypotheses), "hypotheses", len(references), "references")
    lists = [[reference] if isinstance(reference, str) else reference for reference in references]
    for number, its_references in enumerate(lists, 1):
        if not its_references:
            raise UserError(
                f"hypothesis {number:,} has no reference, but each hypothesis needs at least one: add a reference"
            )
    return lists


def check_equal_counts(count: int, name: str, other_count: int, other_name: str) -> None:
    """Raise a UserError unless two lists have the same number of entries, which is not 0."""
    if count != other_count:
        raise UserError(
            f"there are {count:,} {name} but {other_count:,} {other_name}: the numbers must be equal, so check "
            "the two files"
        )
    if not count:
        raise UserError(f"there are no {name} and no {other_name} to evaluate: check that the files are not empty")
