"""Warnings about translations that are probably bad: what is suspicious about them, and where."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dragoman.data import TokenStore
from dragoman.data.lexical_coverage import LexicalCoverage
from dragoman.data.lexical_model import spread_rows
from dragoman.errors import UserError
from dragoman.run.language_detection import LanguageDetector, trigrams
from dragoman.run.results import Translation
from dragoman.run.sources import normalize_text
from dragoman.text.word_splitting import alignment_spans

if TYPE_CHECKING:
    from dragoman.run.run import Run

MAX_CALIBRATION_PAIRS = 100  # of the validation set, whose scores show what the run usually gives
SCORE_QUANTILE = 0.01  # of these: a lower mean log p per token is suspicious
UNCALIBRATED_MEAN_SCORE = math.log(0.1)  # the bound where the run folder has no validation set
MAX_SUSPICIOUS_SCORE = math.log(0.5)  # a mean log p above this is never suspicious
MIN_TRIGRAMS = 8  # of a text whose language is checked
MIN_KNOWN_SHARE = 0.5  # of letter trigrams that occurred in the training sentences
MIN_LANGUAGE_DISTANCE = 0.2  # by which the other language knows more of the trigrams
MAX_REPEATED_WORDS = 6  # of a phrase that is repeated at once
MIN_SPELLED_TOKENS, MAX_LETTERS_PER_TOKEN = 4, 1.5  # of a word that is read letter by letter
MAX_SPELLED_SHARE = 0.01  # of the training words: above, reading letter by letter is normal
MAX_REPETITION_PAIRS = 2000  # training pairs in which usual repetitions are looked up
NUMBER = re.compile(r"\d+(?:[.,'\u202f\u00a0]\d+)*")

Span = tuple[int, int]  # begin and end in a text, in characters


@dataclass(frozen=True)
class TranslationWarning:
    """What is suspicious about a translation.

    Attributes:
        kind: uncovered, language, probability, repetition, number, unknown, empty, truncated or unfinished
        message: a sentence for the reader
        source_spans: where in the source, as begin and end in characters; empty: nowhere in particular
        target_spans: where in the translation
    """

    kind: str
    message: str
    source_spans: tuple[Span, ...] = ()
    target_spans: tuple[Span, ...] = ()


class LanguageNames(NamedTuple):
    """How messages call the languages of a run."""

    source: str = "the source language"
    target: str = "the target language"


class TranslationChecker:
    """Checks the translations of a run.

    What is unusual is learned from the data of the run folder, when the first translation is checked: the lexical
    coverage and the letter trigrams of training pairs, and the scores of validation pairs. Checks that need data which
    is no longer there are left out.
    """

    def __init__(self, run: Run) -> None:
        """Check translations of `run`; nothing is learned yet."""
        self.run = run
        self._lock = threading.Lock()  # one thread learns, the others wait

    def check(
        self, source: str, translation: Translation, names: LanguageNames | None = None
    ) -> list[TranslationWarning]:
        """Return what is suspicious about the translation of a sentence, the most serious first.

        `names` are those of the two languages, for the messages. A source without letters, which is copied instead of
        translated, has no warnings.
        """
        if translation.copied or not source.strip():
            return []
        self.learn_what_is_usual()
        source_ids = self.run.source_tokenizer.encode(normalize_text(self.run, source))
        warnings = [
            *self._check_limits(translation),
            *self._check_language(source, names or LanguageNames()),
            *self._check_repetition(source, translation.text),
            *self._check_coverage(source, source_ids, translation),
            *_check_numbers(source, translation.text),
            *self._check_unknown(source, source_ids),
            *self._check_score(translation),
        ]
        is_empty = not translation.text.strip()  # then only what explains it is of interest
        return [warning for warning in warnings if not is_empty or warning.kind in ("empty", "truncated", "language")]

    def learn_what_is_usual(self) -> None:
        """Learn from the data in the run folder what is usual, unless that has been done; it takes a second or two."""
        with self._lock:
            # cached properties: reading them computes them
            _ = self._coverage, self._detector, self._min_mean_score, self._spelled_share, self._usual_repetitions

    # ---- what is usual

    def _store(self, name: str) -> TokenStore | None:
        """Return the pairs "train" or "valid" of the run; None if its folder does not have them, or no texts."""
        try:
            store = TokenStore(self.run.member_folders[0] / "data" / name)
        except (UserError, OSError):
            return None
        is_text = not store.monolingual and not any(column.features for column in store.columns)
        return store if is_text and len(store) else None

    @cached_property
    def _coverage(self) -> LexicalCoverage | None:
        """Finds the source tokens that no token of a translation translates; None without training pairs."""
        store, run = self._store("train"), self.run
        sizes = (run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size)
        return None if store is None else LexicalCoverage(store, sizes)

    @cached_property
    def _detector(self) -> LanguageDetector:
        """A detector of the source and the target language of the training pairs."""
        detector = LanguageDetector()
        if not self.run.languages:  # a multilingual run may have others
            detector.learn_from_run(self.run, "source", "target")
        return detector

    @cached_property
    def _min_mean_score(self) -> float:
        """The bound for mean log p per token: a low quantile of those of the references of the validation set."""
        run, store = self.run, self._store("valid")
        if store is None or run.languages:
            return UNCALIBRATED_MEAN_SCORE
        rows = spread_rows(store, MAX_CALIBRATION_PAIRS)
        sources = [run.source_tokenizer.decode(store.source(row).tolist()) for row in rows]
        targets = [run.target_tokenizer.decode(store.target(row).tolist()) for row in rows]
        scored = run.score(sources, targets)
        means = [text.score / len(text.token_scores) for text in scored if text.token_scores]
        return (
            min(MAX_SUSPICIOUS_SCORE, float(np.quantile(means, SCORE_QUANTILE))) if means else UNCALIBRATED_MEAN_SCORE
        )

    @cached_property
    def _spelled_share(self) -> float:
        """The share of training words that are split into tokens of about one letter.

        Without training pairs it is 1, so that no such word is reported as unknown.
        """
        store = self._store("train")
        if store is None:
            return 1.0
        tokenizer, words, spelled = self.run.source_tokenizer, 0, 0
        for row in spread_rows(store, MAX_CALIBRATION_PAIRS):
            ids = store.source(row).tolist()
            text = tokenizer.decode(ids)
            words, spelled = words + len(alignment_spans(text)), spelled + len(self._spelled_words(text, ids))
        return spelled / max(1, words)

    @cached_property
    def _usual_repetitions(self) -> frozenset[tuple[str, ...]] | None:
        """Phrases that occur twice in a row in the training targets, such as 'die' in German; None without targets."""
        store, decode = self._store("train"), self.run.target_tokenizer.decode
        if store is None:
            return None
        texts = (decode(store.target(row).tolist()) for row in spread_rows(store, MAX_REPETITION_PAIRS))
        return frozenset(repetition.phrase for text in texts for repetition in _repetitions(text))

    # ---- checks

    def _check_limits(self, translation: Translation) -> Iterator[TranslationWarning]:
        """Yield warnings about a truncated source, an empty translation and one that reached the length limit."""
        if translation.truncated_source:
            yield TranslationWarning("truncated", "The sentence is too long: only its beginning was translated.")
        if not translation.text.strip():
            yield TranslationWarning("empty", "The translation is empty.")
        if not translation.finished:
            yield TranslationWarning("unfinished", "The translation was cut off at the length limit.")

    def _check_language(self, source: str, names: LanguageNames) -> Iterator[TranslationWarning]:
        """Yield a warning if the other language, or neither, knows the letter trigrams of the source."""
        if len(trigrams(source)) < MIN_TRIGRAMS:
            return
        known, known_target = (self._detector.known_share(language, source) for language in ("source", "target"))
        if known is None or known_target is None:
            return
        whole = ((0, len(source)),)  # the span of the whole source
        if known_target - known > MIN_LANGUAGE_DISTANCE:
            message = f"The text looks like {names.target}, but this run translates from {names.source}."
            yield TranslationWarning("language", message, source_spans=whole)
        elif known < MIN_KNOWN_SHARE:
            message = (
                f"Only {100 * known:.0f} % of the letter sequences occur in the training sentences: the text may not "
                f"be in {names.source}, or is about something that the run has not learned."
            )
            yield TranslationWarning("language", message, source_spans=whole)

    def _check_repetition(self, source: str, text: str) -> Iterator[TranslationWarning]:
        """Yield a warning if a phrase occurs several times in a row, but no phrase of the source as often.

        A phrase that occurs just twice counts only if it never does in the training targets (`_usual_repetitions`).
        """
        in_source = max((repetition.times for repetition in _repetitions(source)), default=1)
        usual = self._usual_repetitions
        unusual = [
            repetition
            for repetition in _repetitions(text)
            if repetition.times > in_source
            and (repetition.times > 2 or (usual is not None and repetition.phrase not in usual))
        ]
        if unusual:
            worst = max(unusual, key=lambda repetition: repetition.times)
            message = f"“{' '.join(worst.phrase)}” occurs {worst.times} times in a row."
            yield TranslationWarning("repetition", message, target_spans=(worst.span,))

    def _check_coverage(
        self, source: str, source_ids: Sequence[int], translation: Translation
    ) -> Iterator[TranslationWarning]:
        """Yield a warning if words of the source have no translation in the target, by the lexical model p(t|s)."""
        if self._coverage is None:
            return
        target_ids = self.run.target_tokenizer.encode(normalize_text(self.run, translation.text))
        uncovered = self._coverage.uncovered(source_ids, target_ids)
        tokens = self.run.source_tokenizer.tokens(source_ids)

        def is_uncovered(word: list[int]) -> bool:
            """Whether all tokens of a word with letters are uncovered."""
            with_letters = [n for n in word if any(map(str.isalpha, tokens[n]))]
            return bool(with_letters) and all(uncovered[n] for n in with_letters)

        if spans := self._word_spans(source, source_ids, is_uncovered):
            message = f"{_quoted(source, spans)} may be missing from the translation."
            yield TranslationWarning("uncovered", message, source_spans=spans)

    def _check_unknown(self, source: str, source_ids: Sequence[int]) -> Iterator[TranslationWarning]:
        """Yield a warning if words of the source have unknown tokens, or are read letter by letter."""
        unknown = set(self.run.source_tokenizer.unknown_ids)
        spans = self._word_spans(source, source_ids, lambda word: any(source_ids[n] in unknown for n in word))
        if not spans and self._spelled_share < MAX_SPELLED_SHARE:
            spans = self._spelled_words(source, source_ids)
        if spans:
            message = f"{_quoted(source, spans)} did not occur in the training data: the translation is a guess."
            yield TranslationWarning("unknown", message, source_spans=spans)

    def _check_score(self, translation: Translation) -> Iterator[TranslationWarning]:
        """Yield a warning if the mean log p per token is unusually low; EOS counts if it was generated."""
        num_tokens = len(translation.tokens) + translation.finished
        mean = translation.score / num_tokens if num_tokens else 0.0
        if mean < self._min_mean_score:
            message = (
                f"The run is unusually unsure: {100 * math.exp(mean):.0f} % probability per token; less than "
                f"{100 * math.exp(self._min_mean_score):.0f} % is rare."
            )
            yield TranslationWarning("probability", message, target_spans=((0, len(translation.text)),))

    # ---- words

    def _spelled_words(self, text: str, ids: Sequence[int]) -> tuple[Span, ...]:
        """Return where the words are that are split into many tokens of hardly more than a letter."""
        tokens = self.run.source_tokenizer.tokens(ids)

        def is_spelled(word: list[int]) -> bool:
            """Whether the tokens of a word have few letters."""
            letters = sum(character.isalpha() for n in word for character in tokens[n])
            return len(word) >= MIN_SPELLED_TOKENS and 0 < letters <= MAX_LETTERS_PER_TOKEN * len(word)

        return self._word_spans(text, ids, is_spelled)

    def _word_spans(self, text: str, ids: Sequence[int], applies: Callable[[list[int]], bool]) -> tuple[Span, ...]:
        """Return where the words are to which a condition on the indices of their tokens applies."""
        words: dict[int, list[int]] = {}
        for index, word in enumerate(self.run.source_tokenizer.word_ids(ids)):
            if word >= 0:
                words.setdefault(word, []).append(index)
        spans = alignment_spans(text)
        return tuple(spans[word] for word, tokens in words.items() if word < len(spans) and applies(tokens))


def _check_numbers(source: str, text: str) -> Iterator[TranslationWarning]:
    """Yield a warning if a number of several digits is missing from the translation; separators do not count."""
    digits = {re.sub(r"\D", "", number) for number in NUMBER.findall(text)}
    spans = tuple(
        match.span()
        for match in NUMBER.finditer(source)
        if len(number := re.sub(r"\D", "", match.group())) > 1 and number not in digits
    )
    if spans:
        message = f"{_quoted(source, spans)} may be missing from the translation."
        yield TranslationWarning("number", message, source_spans=spans)


class Repetition(NamedTuple):
    """A phrase that is repeated at once: its words, how often it occurs, and where."""

    phrase: tuple[str, ...]
    times: int
    span: Span


def _repetitions(text: str) -> list[Repetition]:
    """Return the phrases of up to MAX_REPEATED_WORDS words that occur several times in a row, without punctuation."""
    spans = alignment_spans(text)
    words = [re.sub(r"\W+", "", text[begin:end]) for begin, end in spans]
    repetitions = []
    for size in range(1, MAX_REPEATED_WORDS + 1):
        begin = 0
        while begin + 2 * size <= len(words):
            phrase, times = words[begin : begin + size], 1
            while words[begin + times * size : begin + (times + 1) * size] == phrase:
                times += 1
            if times > 1 and any(map(str.isalpha, phrase)):
                end = begin + times * size
                (first_character, _), (_, last_character) = spans[begin], spans[end - 1]
                repetitions.append(Repetition(tuple(phrase), times, (first_character, last_character)))
            begin += max(1, (times - 1) * size)
    return repetitions


def _quoted(text: str, spans: Sequence[Span]) -> str:
    """Return words of a text for a message: “old” and “man”."""
    words = [f"“{text[begin:end].strip('.,;:!?…。！？')}”" for begin, end in spans]
    if len(words) > 4:
        return f"{', '.join(words[:3])} and {len(words) - 3} more words"
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_checkers_lock = threading.Lock()


def checker_of(run: Run) -> TranslationChecker:
    """Return the checker of a run; copies of a run share it, and it is freed with them."""
    with _checkers_lock:
        if not run.translation_checkers:
            run.translation_checkers.append(TranslationChecker(run))
        return run.translation_checkers[0]
