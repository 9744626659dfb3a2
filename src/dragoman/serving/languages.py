"""Languages: the language pair of a run, and detection of the language of a text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from dragoman.data import TokenStore
from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.text.language_names import LANGUAGE_NAMES

#: two-letter codes: many three-letter ones are words (run, hat, war), which names of files and folders contain
TWO_LETTER_CODES = {code for code in LANGUAGE_NAMES if len(code) == 2}
CODE = "[a-zA-Z]{2,3}(?:[-_](?:[a-zA-Z]{4}|[A-Z]{2}))?"  # a language, optionally with a script or region
PAIR = re.compile(rf"({CODE})[-_>:]({CODE})")
MAX_TRAINING_SENTENCES = 2000  # per language, for language detection
MAX_DETECTED_CHARACTERS = 1000  # of a text, for language detection
SMOOTHING = 0.1  # added to trigram counts


class LanguagePair(NamedTuple):
    """Codes of the source and the target language."""

    source: str
    target: str

    def __str__(self) -> str:
        """Return the pair as text: en-de."""
        return f"{self.source}-{self.target}"


def parse_run_argument(argument: str) -> tuple[Path, LanguagePair | None]:
    """Parse an argument of the command line, RUN or RUN=en-de: the run folder, and its languages or None."""
    folder, equals, pair = argument.rpartition("=")
    if not equals or Path(argument).exists():
        return Path(argument), None
    if not (match := PAIR.fullmatch(pair)):
        raise UserError(f"{argument!r} should name a run folder and its languages, such as {folder or 'runs/my'}=en-de")
    return Path(folder), LanguagePair(*(code.lower() for code in match.groups()))


def infer_language_pair(run: Run) -> LanguagePair | None:
    """Infer the languages of a run from the extensions of its training files (train.en, train.de) or its folder name.

    A UserError if neither names two languages; None for a multilingual run, which has codes of its own.
    """
    codes = run.model_framing.languages
    if codes is not None and codes.reads_source_code:
        return None
    data = run.config.data
    if data.source_language in TWO_LETTER_CODES and data.target_language in TWO_LETTER_CODES:
        return LanguagePair(data.source_language, data.target_language)
    extensions = [
        {without_compression_suffix(file.lower()).rpartition(".")[2] for file in files}
        for files in (data.source, data.target)
    ]
    if all(len(codes) == 1 and codes <= TWO_LETTER_CODES for codes in extensions):
        return LanguagePair(*(next(iter(codes)) for codes in extensions))
    parts = re.split(r"[-_.]", run.folder.resolve().name.lower())
    for source, target in reversed(list(pairwise(parts))):  # the last pair, as in opus-mt-en-de
        if source in TWO_LETTER_CODES and target in TWO_LETTER_CODES:
            return LanguagePair(source, target)
    raise UserError(
        f"the languages of the run {run.folder} are unknown: give source and target language, as in {run.folder}=en-de"
    )


def trigrams(text: str) -> list[str]:
    """Return the letter trigrams of words padded with spaces; characters other than letters separate words."""
    letters = (letter if letter.isalpha() else " " for letter in text[:MAX_DETECTED_CHARACTERS].lower())
    words = "".join(letters).split()
    return [padded[i : i + 3] for word in words for padded in [f" {word} "] for i in range(len(padded) - 2)]


class LanguageDetector:
    """A naive Bayes classifier of letter trigrams: p(language | text) ∝ Π p(trigram | language)."""

    def __init__(self) -> None:
        """Create a detector that knows no language yet."""
        self._counts: dict[str, Counter[str]] = {}

    def learn(self, language: str, texts: Iterable[str]) -> None:
        """Count the letter trigrams of texts in a language."""
        counts = self._counts.setdefault(language, Counter())
        for text in texts:
            counts.update(trigrams(text))

    def learn_from_run(self, run: Run, pair: LanguagePair) -> None:
        """Learn both languages from the training data of a run, if its folder still has it."""
        try:
            store = TokenStore(run.member_folders[0] / "data" / "train")
        except (UserError, OSError):
            return
        if store.monolingual or any(column.features for column in store.columns):  # not pairs of texts
            return
        rows = range(min(MAX_TRAINING_SENTENCES, len(store)))
        self.learn(pair.source, (run.source_tokenizer.decode(store.source(i).tolist()) for i in rows))
        self.learn(pair.target, (run.target_tokenizer.decode(store.target(i).tolist()) for i in rows))

    def __call__(self, text: str) -> list[tuple[str, float]]:
        """Return languages with a confidence from 0 to 100, most probable first.

        The confidence is the posterior probability times the share of trigrams that the language knows.
        """
        text_trigrams = trigrams(text)
        languages = {language: counts for language, counts in self._counts.items() if counts}
        if not text_trigrams or not languages:
            return []
        # different trigrams of all languages, and one for all unseen ones
        num_trigrams = len(set().union(*languages.values())) + 1
        log_likelihood, known = {}, {}
        for language, counts in languages.items():
            total = counts.total() + SMOOTHING * num_trigrams
            log_likelihood[language] = sum(math.log((counts[trigram] + SMOOTHING) / total) for trigram in text_trigrams)
            known[language] = sum(trigram in counts for trigram in text_trigrams) / len(text_trigrams)
        best = max(log_likelihood.values())
        weights = {language: math.exp(score - best) for language, score in log_likelihood.items()}
        scale = 100 / sum(weights.values())
        confidence = {language: round(scale * weight * known[language], 1) for language, weight in weights.items()}
        return sorted(confidence.items(), key=lambda item: -item[1])
