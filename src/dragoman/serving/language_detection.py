"""Which language a text is in, told by the letters that stand together in what the runs were trained on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.serving.languages import LanguagePair

SENTENCES = 2000  # of each side of a run that are learned from
LETTERS = 1000  # of a text that are looked at


def trigrams(text: str) -> list[str]:
    """Three letters each, words between spaces; what is no letter is left out."""
    words = "".join(letter if letter.isalpha() else " " for letter in text[:LETTERS].lower()).split()
    return [padded[i : i + 3] for word in words for padded in [f" {word} "] for i in range(len(padded) - 2)]


class LanguageDetector:
    """A naive Bayes classifier of trigrams, p(language | text) ∝ Π p(trigram | language)."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def learn(self, language: str, texts: Iterable[str]) -> None:
        counts = self._counts.setdefault(language, Counter())
        for text in texts:
            counts.update(trigrams(text))

    def learn_from_run(self, run: Run, pair: LanguagePair) -> None:
        """From the data that a run was trained on, where its folder still holds it."""
        try:
            store = TokenStore(run.folder / "data" / "train")
        except (UserError, OSError):
            return
        if store.monolingual or any(side.features for side in store.columns):
            return
        for language, row, tokenizer in (
            (pair.source, store.source, run.source_tokenizer),
            (pair.target, store.target, run.target_tokenizer),
        ):
            self.learn(language, (tokenizer.decode(row(i).tolist()) for i in range(min(SENTENCES, len(store)))))

    def __call__(self, text: str) -> list[tuple[str, float]]:
        """Languages with a confidence of 0 to 100, the likeliest first; a share of what no language has is doubt."""
        found = trigrams(text)
        known = {language: counts for language, counts in self._counts.items() if counts}
        if not found or not known:
            return []
        kinds = len(set().union(*known.values())) + 1
        scores, seen = {}, {}
        for language, counts in known.items():
            total = counts.total()
            scores[language] = sum(math.log((counts[three] + 0.1) / (total + 0.1 * kinds)) for three in found)
            seen[language] = sum(three in counts for three in found) / len(found)
        best = max(scores.values())
        weights = {language: math.exp(score - best) for language, score in scores.items()}
        share = 100 / sum(weights.values())
        sure = {language: round(share * weight * seen[language], 1) for language, weight in weights.items()}
        return sorted(sure.items(), key=lambda item: -item[1])
