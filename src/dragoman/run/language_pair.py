"""The language pair of a run."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError
from dragoman.text.language_names import LANGUAGE_NAMES, parse_language

if TYPE_CHECKING:
    from dragoman.run.run import Run

#: two-letter codes: many three-letter ones are words (run, hat, war), which names of files and folders contain
TWO_LETTER_CODES = {code for code in LANGUAGE_NAMES if len(code) == 2}
CODE = "[a-zA-Z]{2,3}(?:[-_](?:[a-zA-Z]{4}|[A-Z]{2}))?"  # a language, optionally with a script or region
PAIR = re.compile(rf"({CODE})[-_>:]({CODE})")  # of language codes, such as en-de


class LanguagePair(NamedTuple):
    """Codes of the source and the target language."""

    source: str
    target: str

    def __str__(self) -> str:
        """Return the pair as text: en-de."""
        return f"{self.source}-{self.target}"


def parse_run_argument(argument: str) -> tuple[Path, LanguagePair | None]:
    """Parse a command-line argument of the form RUN or RUN=en-de; return the run folder, and its languages or None.

    What follows the last “=” must be a language pair, or it is a UserError, unless a folder has the whole name.
    """
    folder, equals, pair = argument.rpartition("=")
    if not equals or Path(argument).exists():  # the name of a folder may contain “=”
        return Path(argument), None
    if not (match := PAIR.fullmatch(pair)):
        raise UserError(
            f"{argument!r} is not of the form RUN=SOURCE-TARGET: give the run folder and its language pair, such as "
            "'runs/my-run=en-de'"
        )
    return Path(folder), LanguagePair(*(code.lower() for code in match.groups()))


def infer_language_pair(run: Run) -> LanguagePair | None:
    """Infer the language pair of a run from its settings, the extensions of its training files, or its folder name.

    These are `data.source_language` and `data.target_language`, such as 'en' and 'de'; the files train.en and train.de;
    a folder en-de. If none of them names two languages, it is a UserError. None for a multilingual run whose model
    reads a code of the source language: it has no single pair.
    """
    languages = run.model_framing.languages  # the language codes among its special tokens
    if languages is not None and languages.reads_source_code:  # sources of several languages, each with its code
        return None
    data = run.config.data
    if data.source_language in TWO_LETTER_CODES and data.target_language in TWO_LETTER_CODES:
        return LanguagePair(data.source_language, data.target_language)
    source_extensions, target_extensions = (
        {without_compression_suffix(file.lower()).rpartition(".")[2] for file in files}
        for files in (data.source, data.target)
    )
    if len(source_extensions) == len(target_extensions) == 1:  # all files of a side have the same one
        (source,), (target,) = source_extensions, target_extensions
        if source in TWO_LETTER_CODES and target in TWO_LETTER_CODES:
            return LanguagePair(source, target)
    name_parts = re.split(r"[-_.]", run.folder.resolve().name.lower())
    for source, target in reversed(list(pairwise(name_parts))):  # the last two neighbors that are codes: opus-mt-en-de
        if source in TWO_LETTER_CODES and target in TWO_LETTER_CODES:
            return LanguagePair(source, target)
    raise UserError(
        f"the source and target language of the run {run.folder} are unknown: append them to the run folder, as in "
        f"{run.folder}=en-de"
    )


def target_language_code(run: Run) -> str:
    """Return the code of the language into which a run translates, such as de; '' if it cannot be inferred."""
    _, target = run.language_pair
    if target:  # a multilingual run, of which a target language was chosen
        return parse_language(target).language
    try:
        pair = infer_language_pair(run)
    except UserError:
        return ""
    return "" if pair is None else pair.target
