"""Errors of single translations, each of which is made by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from dragoman.lens.sentence_errors import ERROR_KINDS, TranslatedPair, find_errors, rare_words
from dragoman.run import Translation

SOURCE, REFERENCE = "the old dog sleeps now", "der alte Hund schläft jetzt"
DIAGONAL = [(n, n) for n in range(5)]


def errors(text: str, links: list[tuple[int, int]] | None = None, **fields: object) -> dict[str, str]:
    score, finished = float(fields.pop("score", -1.0)), bool(fields.pop("finished", True))  # type: ignore[arg-type]
    translation = Translation(text, score, alignment=links, finished=finished)
    pair = TranslatedPair(SOURCE, REFERENCE, translation, DIAGONAL, **fields)  # type: ignore[arg-type]
    return {error.kind: error.detail for error in find_errors(pair)}


def test_a_correct_translation_has_no_errors() -> None:
    assert errors(REFERENCE, DIAGONAL, reference_score=-1.0) == {}


@pytest.mark.parametrize(
    ("text", "links", "fields", "kind", "detail"),
    [
        ("der alte Hund schläft schläft jetzt", [*DIAGONAL[:4], (3, 4), (4, 5)], {}, "repetition", "schläft"),
        ("der der der der alte", None, {}, "repetition", "der"),
        ("der Hund schläft jetzt", [(0, 0), (2, 1), (3, 2), (4, 3)], {}, "omission", "old"),
        ("der alte dog schläft jetzt", DIAGONAL, {}, "copied", "dog"),
        ("der alte <unk> schläft jetzt", DIAGONAL, {}, "unknown", "<unk>"),
        ("der Hund", None, {}, "too short", "2 words for 5"),
        ("der alte Hund " * 4, None, {}, "too long", "12 words for 5"),
        (REFERENCE, DIAGONAL, {"finished": False}, "unfinished", ""),
        ("der alte Hund schläft", None, {"score": -3.0, "reference_score": -2.5}, "search error", "log p -2.50"),
    ],
)
def test_each_kind_of_error(text: str, links: object, fields: dict[str, object], kind: str, detail: str) -> None:
    found = errors(text, links, **fields)  # type: ignore[arg-type]
    assert kind in ERROR_KINDS
    assert found[kind].startswith(detail)


def test_words_of_the_reference_are_not_copied() -> None:
    translation = Translation("Berlin", -1.0)
    pair = TranslatedPair("Berlin", "Berlin", translation)
    assert find_errors(pair) == []


def test_rare_words_occur_at_most_once_in_the_training_text() -> None:
    counts = Counter({"the": 9, "dog": 2, "zebra": 1})
    assert rare_words("The dog and the zebra", counts) == ["and", "zebra"]
    assert rare_words("The zebra", Counter()) == []
