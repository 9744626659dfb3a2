"""Identification of the language of a text, by the package lingua, which brings its models along."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

MIN_IDENTIFIED_CHARACTERS = 20  # shorter texts are too often mistaken
MIN_RELATIVE_DISTANCE = 0.1  # between the two most probable languages


def can_identify() -> bool:
    """Whether the package lingua, which identifies languages, is installed."""
    return importlib.util.find_spec("lingua") is not None


def identify_language(text: str) -> str:
    """Return the two-letter code of the language of a text, such as en.

    It is "" for texts of fewer than MIN_IDENTIFIED_CHARACTERS, and if two languages are about equally probable.
    """
    if len(text) < MIN_IDENTIFIED_CHARACTERS:
        return ""
    language = _detector().detect_language_of(text)
    return "" if language is None else language.iso_code_639_1.name.lower()  # None: not certain enough


@cache
def known_languages() -> frozenset[str]:
    """Return the two-letter codes of the languages that can be identified."""
    from lingua import Language

    return frozenset(language.iso_code_639_1.name.lower() for language in Language.all())


@cache
def _detector() -> Any:
    """Return the detector of all languages; building it takes seconds, so that every process does it once."""
    from lingua import LanguageDetectorBuilder

    builder = LanguageDetectorBuilder.from_all_languages()
    return builder.with_minimum_relative_distance(MIN_RELATIVE_DISTANCE).build()
