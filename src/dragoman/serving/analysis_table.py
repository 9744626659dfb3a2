"""The table of a test set: rows of one run, or of two runs side by side, filtered, sorted and cut into pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from dragoman.lens.test_set_analysis import AnalyzedSentence
from dragoman.serving.schemas import ApiRequest

SCORE_TOLERANCE = 1e-6  # within which two scores are equal
SortName = Literal[
    "index", "source", "reference", "translation", "words", "chrf", "bleu", "score", "errors", "difference"
]
OutcomeName = Literal["any", "better", "worse", "equal", "different"]
Row = Sequence[AnalyzedSentence]  # a sentence as translated by the run, and by a second one if two are compared

#: by what rows are sorted; texts without regard to case
SORT_KEYS: dict[str, Callable[[Row], Any]] = {
    "index": lambda row: row[0].index,
    "source": lambda row: row[0].source.casefold(),
    "reference": lambda row: row[0].reference.casefold(),
    "translation": lambda row: row[0].translation.casefold(),
    "words": lambda row: row[0].source_words,
    "chrf": lambda row: row[0].chrf,
    "bleu": lambda row: row[0].bleu,
    "score": lambda row: row[0].score_per_token,
    "errors": lambda row: len(row[0].errors),
    "difference": lambda row: row[0].chrf - row[-1].chrf,
}


class AnalysisRequest(ApiRequest):
    """Which rows of the table are returned, and in which order."""

    model_config = ConfigDict(extra="forbid")

    source: str | None = Field(None, description="Source language, for a multilingual run.")
    target: str | None = Field(None, description="Target language.")
    compare: str | None = Field(None, description="Another run, whose translations are shown beside those of the run.")
    sort: SortName = Field("chrf", description="score: log p per token; difference: of the chrF of both runs.")
    descending: bool = False
    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=200)
    min_words: int = Field(0, ge=0, description="Minimum number of words of the source.")
    max_words: int | None = Field(None, ge=0, description="Maximum number of words of the source.")
    error: str = Field("", description="Kind of error that a translation must have; 'any' or 'none'.")
    rare: bool = Field(False, description="Only sources with a word that occurs at most once in the training text.")
    contains: str = Field("", description="Text that source, reference or a translation contains.")
    outcome: OutcomeName = Field("any", description="Compared with the other run, by chrF, or only different ones.")

    @property
    def texts(self) -> list[str]:
        """The text that is searched for."""
        return [self.contains]


def outcome(row: Row) -> str:
    """Return "better", "worse" or "equal": how the first run translated a sentence compared with the second, by chrF.

    Scores that differ by less than SCORE_TOLERANCE are equal. A row has the sentence as translated by the first run,
    and by the second one if two runs are compared.
    """
    first, second = row[0], row[-1]
    difference = first.chrf - second.chrf
    return "equal" if abs(difference) < SCORE_TOLERANCE else "better" if difference > 0 else "worse"


def outcome_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Count the sentences (rows) that the first of two runs translated better or worse than the second, or equally."""
    counts = dict.fromkeys(("better", "worse", "equal"), 0)
    for row in rows:
        counts[outcome(row)] += 1
    return counts


def select_rows(rows: Sequence[Row], request: AnalysisRequest) -> list[Row]:
    """Return the rows that pass the filters of a request, in the order that it asks for.

    A row is a sentence as translated by one or two runs. Equal rows stay in the order of the test set.
    """
    text = request.contains.casefold()
    max_words = math.inf if request.max_words is None else request.max_words

    def is_selected(row: Row) -> bool:
        """Whether a sentence passes all filters; `row` has it as translated by the first and by the second run."""
        first, second = row[0], row[-1]  # the same if there is only one run
        error_kinds = {error.kind for sentence in row for error in sentence.errors}
        texts = (first.source, first.reference, *(sentence.translation for sentence in row))
        # the values of a filter that this sentence passes
        errors = {"", "any" if error_kinds else "none", *error_kinds}
        outcomes = {"any", outcome(row), "different" if first.translation != second.translation else "any"}
        return (
            request.min_words <= first.source_words <= max_words
            and request.error in errors
            and (bool(first.rare_words) or not request.rare)
            and (not text or any(text in other.casefold() for other in texts))
            and request.outcome in outcomes
        )

    selected = sorted(filter(is_selected, rows), key=lambda row: row[0].index)  # the order of the test set
    return sorted(selected, key=SORT_KEYS[request.sort], reverse=request.descending)  # stable: ties keep that order


def row_values(row: Row) -> dict[str, Any]:
    """Return a sentence of the test set as JSON values: what all runs share, and the `results` of each run.

    `score` is log p of the translation, `reference_score` of the reference; `exact`: the translation equals it.
    """
    first = row[0]
    return {
        "index": first.index,
        "source": first.source,
        "reference": first.reference,
        "words": first.source_words,
        "rare_words": list(first.rare_words),
        "results": [
            {
                "translation": sentence.translation,
                "score": sentence.score,
                "score_per_token": sentence.score_per_token,
                "reference_score": sentence.reference_score,
                "bleu": sentence.bleu,
                "chrf": sentence.chrf,
                "exact": sentence.exact,
                "errors": [{"kind": error.kind, "detail": error.detail} for error in sentence.errors],
            }
            for sentence in row
        ],
    }
