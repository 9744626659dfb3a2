"""What is wrong with the translation of one sentence: repetition, omission, copying, length, search errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from dragoman.data import TokenStore
from dragoman.lens.diagnosis.content_coverage import missing_words, repeated_words, unaligned_words
from dragoman.lens.diagnosis.hallucination import content_words, copied_words, find_loop
from dragoman.run import Alignment, Run, Translation
from dragoman.text import split_words

#: kinds of errors with their explanation, in the order in which they are listed
ERROR_KINDS = {
    "repetition": "words are repeated for one source word, or a phrase is repeated four times in a row",
    "omission": "source words have no aligned word, and their reference words are missing",
    "copied": "source words are copied that are not in the reference",
    "unknown": "the translation contains an unknown word",
    "too short": "the translation has less than half of the words of the reference",
    "too long": "the translation has more than twice the words of the reference",
    "unfinished": "the translation reached the length limit",
    "search error": "the reference is more probable than the translation: the search has not found it",
}
MIN_LOG_RATIO = 0.01  # difference in log p by which the reference must be more probable for a search error
MAX_RARE_OCCURRENCES = 1  # occurrences in the training text up to which a word is rare
MAX_COUNTED_PAIRS = 50_000  # training pairs in which words are counted


@dataclass(frozen=True)
class SentenceError:
    """An error of a translation, and what shows it: the words, or numbers."""

    kind: str  # one of ERROR_KINDS
    detail: str = ""


@dataclass(frozen=True)
class TranslatedPair:
    """A translated sentence of a test set, with what is needed to judge it."""

    source: str
    reference: str
    translation: Translation
    reference_alignment: Alignment | None = None  # of source and reference; None without cross-attention
    reference_score: float | None = None  # log p of the reference


def find_errors(
    pair: TranslatedPair, shared_words: Collection[str] = (), unknown: str = "<unk>"
) -> list[SentenceError]:
    """Return the errors of a translation, at most one of each of ERROR_KINDS and in that order.

    Args:
        pair: the source, its reference and its translation. The kinds repetition and omission need word alignments,
            search error needs log p of the reference; where these are None, the kind is not tested.
        shared_words: words of both languages; to copy one of them from the source is no error.
        unknown: the text of the unknown token.
    """
    text, links = pair.translation.text, pair.translation.alignment
    details: dict[str, str] = {}  # kind of error → the words or numbers that show it
    if links is not None and (repeated := repeated_words(text, links, pair.reference)):
        details["repetition"] = ", ".join(dict.fromkeys(repeated))
    if (loop := find_loop(text)) is not None and find_loop(pair.reference) is None:  # a phrase four times in a row
        details["repetition"] = loop
    if links is not None and pair.reference_alignment is not None:
        unaligned = unaligned_words(pair.source, links)
        if omitted := missing_words(unaligned, text, pair.reference, pair.reference_alignment):
            details["omission"] = ", ".join(omitted)
    if copied := copied_words(pair.source, text, pair.reference, shared_words):
        details["copied"] = ", ".join(dict.fromkeys(copied))
    if unknown in text and unknown not in pair.reference:
        details["unknown"] = unknown
    num_words, num_reference_words = len(split_words(text)), len(split_words(pair.reference))
    if 2 * num_words < num_reference_words:
        details["too short"] = f"{num_words} words for {num_reference_words}"
    if num_words > 2 * num_reference_words:
        details["too long"] = f"{num_words} words for {num_reference_words}"
    if not pair.translation.finished:
        details["unfinished"] = ""
    score = pair.reference_score
    if score is not None and pair.translation.finished and score > pair.translation.score + MIN_LOG_RATIO:
        details["search error"] = f"log p {score:.2f} instead of {pair.translation.score:.2f}"
    return [SentenceError(kind, details[kind]) for kind in ERROR_KINDS if kind in details]


def training_word_counts(run: Run) -> Counter[str]:
    """Count how often each lower-case word occurs in the sources of the first MAX_COUNTED_PAIRS training pairs.

    The training data of the run folder are token ids, which are decoded; the result is empty if it has none.
    """
    counts: Counter[str] = Counter()
    folder = run.member_folders[0] / "data" / "train"
    if folder.is_dir():
        store = TokenStore(folder)
        for n in range(min(MAX_COUNTED_PAIRS, len(store))):
            counts.update(word.lower() for word in content_words(run.decode_source(store.source(n))))
    return counts


def rare_words(source: str, counts: Counter[str]) -> list[str]:
    """Return the distinct words of a source that occur at most MAX_RARE_OCCURRENCES times in the training text.

    `counts` are those of `training_word_counts`; if it is empty (no training text), no word is rare.
    """
    if not counts:
        return []
    return [word for word in dict.fromkeys(content_words(source)) if counts[word.lower()] <= MAX_RARE_OCCURRENCES]
