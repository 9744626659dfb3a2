"""Detection of the language of a text, learned from the training data of runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dragoman.data import TokenStore
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.run.run import Run

MAX_TRAINING_SENTENCES = 2000  # per language
MAX_DETECTED_CHARACTERS = 1000  # of a text
TRIGRAM_SMOOTHING = 0.1  # added to trigram counts


def trigrams(text: str) -> list[str]:
    """Return the letter trigrams of a text in lower case: for “dog” these are “ do”, “dog” and “og ”.

    Characters other than letters separate words. Only the first MAX_DETECTED_CHARACTERS characters are read.
    """
    letters = (letter if letter.isalpha() else " " for letter in text[:MAX_DETECTED_CHARACTERS].lower())
    words = "".join(letters).split()
    return [padded[i : i + 3] for word in words for padded in [f" {word} "] for i in range(len(padded) - 2)]


class LanguageDetector:
    """A naive Bayes classifier of letter trigrams: p(language | text) ∝ Π p(trigram | language)."""

    def __init__(self) -> None:
        """Create a detector that has not learned any language yet."""
        self._counts: dict[str, Counter[str]] = {}  # of letter trigrams, by language

    def learn(self, language: str, texts: Iterable[str]) -> None:
        """Learn a language from texts, by counting their letter trigrams; `language` is its name in results."""
        counts = self._counts.setdefault(language, Counter())
        for text in texts:
            counts.update(trigrams(text))

    def learn_from_run(self, run: Run, source: str, target: str) -> None:
        """Learn the source and the target language of a run from its training data, if its folder still has them.

        `source` and `target` are the names of the two languages in results.
        """
        try:  # the run's folder; of an ensemble, that of its first run
            store = TokenStore(run.member_folders[0] / "data" / "train")
        except (UserError, OSError):
            return
        # not pairs of texts: columns with features are vectors of speech or images
        if store.monolingual or any(column.features for column in store.columns):
            return
        rows = range(min(MAX_TRAINING_SENTENCES, len(store)))
        self.learn(source, (run.source_tokenizer.decode(store.source(i).tolist()) for i in rows))
        self.learn(target, (run.target_tokenizer.decode(store.target(i).tolist()) for i in rows))

    def known_share(self, language: str, text: str) -> float | None:
        """Return the share (0 to 1) of a text's letter trigrams that occurred in the training texts of a language.

        None if the language was not learned, or the text has no letters.
        """
        counts, text_trigrams = self._counts.get(language), trigrams(text)
        if not counts or not text_trigrams:
            return None
        return sum(trigram in counts for trigram in text_trigrams) / len(text_trigrams)

    def __call__(self, text: str) -> list[tuple[str, float]]:
        """Return pairs (language, confidence from 0 to 100) for a text, most probable first.

        The confidence is the posterior probability times the share of the text's letter trigrams that occurred in the
        training texts of the language. Empty if no language was learned, or the text has no letters.
        """
        text_trigrams = trigrams(text)
        languages = {language: counts for language, counts in self._counts.items() if counts}
        if not text_trigrams or not languages:
            return []
        # different trigrams of all languages, and one for all unseen ones
        num_trigrams = len(set().union(*languages.values())) + 1
        log_likelihood, known_share = {}, {}
        for language, counts in languages.items():
            total = counts.total() + TRIGRAM_SMOOTHING * num_trigrams
            log_likelihood[language] = sum(
                math.log((counts[trigram] + TRIGRAM_SMOOTHING) / total) for trigram in text_trigrams
            )
            known_share[language] = sum(trigram in counts for trigram in text_trigrams) / len(text_trigrams)
        best = max(log_likelihood.values())  # subtracted, so that not all numbers underflow to 0
        likelihood = {language: math.exp(score - best) for language, score in log_likelihood.items()}  # relative
        scale = 100 / sum(likelihood.values())
        confidence = {
            language: round(scale * value * known_share[language], 1) for language, value in likelihood.items()
        }
        return sorted(confidence.items(), key=lambda pair: -pair[1])
