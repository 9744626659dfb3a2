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
from dragoman.text.documents.preserved_text import Preserve, find_literals
from dragoman.text.word_splitting import alignment_spans

if TYPE_CHECKING:
    from dragoman.run.run import Run

MAX_CALIBRATION_PAIRS = 100  # of the validation set, whose scores show which scores are usual
SCORE_QUANTILE = 0.01  # of the mean log p per token of these pairs: a lower one is suspicious
UNCALIBRATED_MEAN_SCORE = math.log(0.1)  # the lowest usual mean log p per token, without a validation set
MAX_SUSPICIOUS_SCORE = math.log(0.5)  # a mean log p above this is never suspicious
MIN_TRIGRAMS = 8  # of a text whose language is checked
MIN_KNOWN_SHARE = 0.5  # of letter trigrams that occurred in the training sentences
MIN_LANGUAGE_DISTANCE = 0.2  # by which the share of known trigrams must be higher in the target language
MAX_REPEATED_WORDS = 6  # words of a phrase whose repetition is noticed
MIN_SPELLED_TOKENS, MAX_LETTERS_PER_TOKEN = 4, 1.5  # of a word that is split into about one token per letter
MAX_SPELLED_SHARE = 0.01  # of such words in the training data: if there are more, they are not reported
MAX_REPETITION_PAIRS = 2000  # training pairs in which usual repetitions are counted
LETTER_LOOP = re.compile(r"([^\s\d]{1,8}?)\1{3,}")  # letters or marks that occur four times or more within a word

Span = tuple[int, int]  # begin and end in a text, in characters


@dataclass(frozen=True)
class TranslationWarning:
    """What is suspicious about a translation.

    Attributes:
        kind: uncovered, language, probability, repetition, number, placeholder, unknown, empty, truncated or unfinished
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
        """Create a checker of the translations of `run`; what is usual is learned by the first check."""
        self.run = run
        self._lock = threading.Lock()  # one thread learns what is usual, others wait

    def check(
        self, source: str, translation: Translation, names: LanguageNames | None = None
    ) -> list[TranslationWarning]:
        """Return warnings about the translation of a sentence, the most serious first.

        `names` are the names of the two languages in messages, by default "the source language" and "the target
        language". A source without letters, which is copied instead of translated, has no warnings.
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
            *_check_literals(source, translation.text),
            *self._check_unknown(source, source_ids),
            *self._check_score(translation),
        ]
        if translation.text.strip():
            return warnings
        # of an empty translation, only the warnings that explain it
        return [warning for warning in warnings if warning.kind in ("empty", "truncated", "language")]

    def learn_what_is_usual(self) -> None:
        """Compute what is usual from the training and validation data in the run folder, if not done yet.

        This takes a second or two. Threads that call it at the same time wait for the first one.
        """
        with self._lock:
            # cached properties: reading them computes them
            _ = self._coverage, self._detector, self._min_mean_score, self._spelled_share, self._usual_repetitions

    # ---- what is usual

    def _store(self, name: str) -> TokenStore | None:
        """Return the tokenized pairs of the run's training ("train") or validation data ("valid").

        None if the run folder does not have them any more, or if they are not pairs of texts.
        """
        try:  # in the run's folder; of an ensemble, that of its first run
            store = TokenStore(self.run.member_folders[0] / "data" / name)
        except (UserError, OSError):
            return None
        is_text = not store.monolingual and not any(column.features for column in store.columns)
        return store if is_text and len(store) else None

    @cached_property
    def _coverage(self) -> LexicalCoverage | None:
        """A lexical model of the training pairs, which finds source tokens that have no translation in a target.

        None if the run folder has no training pairs.
        """
        store, run = self._store("train"), self.run
        sizes = (run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size)
        return None if store is None else LexicalCoverage(store, sizes)

    @cached_property
    def _detector(self) -> LanguageDetector:
        """A detector of the languages "source" and "target", learned from the training pairs.

        That of a multilingual run has learned nothing, since its pairs may be in many languages.
        """
        detector = LanguageDetector()
        if not self.run.languages:
            detector.learn_from_run(self.run, source="source", target="target")
        return detector

    @cached_property
    def _min_mean_score(self) -> float:
        """The mean log p per token below which a translation is suspicious.

        It is a low quantile of the mean log p of references of the validation set, or a constant if there is none.
        """
        run, store = self.run, self._store("valid")
        if store is None or run.languages:  # pairs of a multilingual run may be in many languages
            return UNCALIBRATED_MEAN_SCORE
        rows = spread_rows(store, MAX_CALIBRATION_PAIRS)
        sources = [run.source_tokenizer.decode(store.source(row).tolist()) for row in rows]
        targets = [run.target_tokenizer.decode(store.target(row).tolist()) for row in rows]
        scored = run.score(sources, targets)
        means = [text.score / len(text.token_scores) for text in scored if text.token_scores]
        if not means:
            return UNCALIBRATED_MEAN_SCORE
        return min(MAX_SUSPICIOUS_SCORE, float(np.quantile(means, SCORE_QUANTILE)))

    @cached_property
    def _spelled_share(self) -> float:
        """The share (0 to 1) of source words of the training data that are split into tokens of about one letter.

        Without training pairs it is 1, so that no such word is reported as unknown.
        """
        store = self._store("train")
        if store is None:
            return 1.0
        num_words = num_spelled = 0
        for row in spread_rows(store, MAX_CALIBRATION_PAIRS):
            ids = store.source(row).tolist()
            text = self.run.source_tokenizer.decode(ids)
            num_words += len(alignment_spans(text))
            num_spelled += len(self._spelled_words(text, ids))
        return num_spelled / max(1, num_words)

    @cached_property
    def _usual_repetitions(self) -> frozenset[tuple[str, ...]] | None:
        """Phrases (tuples of words) that occur twice in a row in the training targets, such as 'die die' in German.

        None if the run folder has no training pairs.
        """
        store, decode = self._store("train"), self.run.target_tokenizer.decode
        if store is None:
            return None
        texts = (decode(store.target(row).tolist()) for row in spread_rows(store, MAX_REPETITION_PAIRS))
        return frozenset(repetition.phrase for text in texts for repetition in _repetitions(text))

    # ---- checks

    def _check_limits(self, translation: Translation) -> Iterator[TranslationWarning]:
        """Yield warnings if the source was truncated, or the translation is empty or cut off at the length limit."""
        if translation.truncated_source:
            yield TranslationWarning("truncated", "The sentence is too long: only its beginning was translated.")
        if not translation.text.strip():
            yield TranslationWarning("empty", "The translation is empty.")
        if not translation.finished:
            yield TranslationWarning("unfinished", "The translation was cut off at the length limit.")

    def _check_language(self, source: str, names: LanguageNames) -> Iterator[TranslationWarning]:
        """Yield a warning if the source seems to be in the target language, or in an unknown one.

        This is decided by the share of its letter trigrams that occur in the training sentences of each language. Texts
        with few trigrams are not checked. `names` are those of the two languages in the message.
        """
        if len(trigrams(source)) < MIN_TRIGRAMS:
            return
        in_source_language = self._detector.known_share("source", source)
        in_target_language = self._detector.known_share("target", source)
        if in_source_language is None or in_target_language is None:
            return
        whole_source = ((0, len(source)),)
        if in_target_language - in_source_language > MIN_LANGUAGE_DISTANCE:
            message = f"The text looks like {names.target}, but this run translates from {names.source}."
            yield TranslationWarning("language", message, source_spans=whole_source)
        elif in_source_language < MIN_KNOWN_SHARE:
            message = (
                f"Only {100 * in_source_language:.0f} % of the letter sequences occur in the training sentences: the "
                f"text may not be in {names.source}, or is about something that the run has not learned."
            )
            yield TranslationWarning("language", message, source_spans=whole_source)

    def _check_repetition(self, source: str, text: str) -> Iterator[TranslationWarning]:
        """Yield a warning if a phrase of the translation `text` occurs several times in a row, unlike in the source.

        No warning if a phrase of the source is repeated as often, or if the phrase occurs just twice and also does so
        in the training targets (`_usual_repetitions`), or these are not known (None).
        """
        max_times_in_source = max((repetition.times for repetition in _repetitions(source)), default=1)
        usual = self._usual_repetitions

        def is_unusual(repetition: Repetition) -> bool:
            """Whether a phrase is repeated more often than any in the source, and than is usual in training targets."""
            if repetition.times <= max_times_in_source:
                return False
            return repetition.times > 2 or (usual is not None and repetition.phrase not in usual)

        unusual = [repetition for repetition in _repetitions(text) if is_unusual(repetition)]
        if unusual:
            worst = max(unusual, key=lambda repetition: repetition.times)
            message = f"“{' '.join(worst.phrase)}” occurs {worst.times} times in a row."
            yield TranslationWarning("repetition", message, target_spans=(worst.span,))

    def _check_coverage(
        self, source: str, source_ids: Sequence[int], translation: Translation
    ) -> Iterator[TranslationWarning]:
        """Yield a warning if words of the source have no translation in the target, by a lexical model p(t|s).

        `source_ids` are the token ids of the source.
        """
        if self._coverage is None:
            return
        target_ids = self.run.target_tokenizer.encode(normalize_text(self.run, translation.text))
        uncovered = self._coverage.uncovered(source_ids, target_ids)
        tokens = self.run.source_tokenizer.tokens(source_ids)

        def is_uncovered(token_indices: list[int]) -> bool:
            """Whether a word, given by the indices of its tokens, has letters, and no token with letters is covered."""
            with_letters = [index for index in token_indices if any(map(str.isalpha, tokens[index]))]
            return bool(with_letters) and all(uncovered[index] for index in with_letters)

        if spans := self._word_spans(source, source_ids, is_uncovered):
            message = f"{_quoted(source, spans)} may be missing from the translation."
            yield TranslationWarning("uncovered", message, source_spans=spans)

    def _check_unknown(self, source: str, source_ids: Sequence[int]) -> Iterator[TranslationWarning]:
        """Yield a warning if words of the source have unknown tokens, or are split into tokens of about one letter.

        The latter only if no word has unknown tokens, and if such words are rare in the training data (`_spelled_share`
        is below MAX_SPELLED_SHARE). `source_ids` are the token ids of the source.
        """
        unknown = set(self.run.source_tokenizer.unknown_ids)
        spans = self._word_spans(source, source_ids, lambda tokens: any(source_ids[i] in unknown for i in tokens))
        if not spans and self._spelled_share < MAX_SPELLED_SHARE:
            spans = self._spelled_words(source, source_ids)
        if spans:
            message = f"{_quoted(source, spans)} did not occur in the training data: the translation is a guess."
            yield TranslationWarning("unknown", message, source_spans=spans)

    def _check_score(self, translation: Translation) -> Iterator[TranslationWarning]:
        """Yield a warning if the mean log p per token is unusually low; EOS counts as a token if it was generated."""
        num_tokens = len(translation.tokens) + translation.finished  # EOS is not among `tokens`
        mean = translation.score / num_tokens if num_tokens else 0.0
        if mean < self._min_mean_score:
            message = (
                f"The run is unusually unsure: {100 * math.exp(mean):.0f} % probability per token; less than "
                f"{100 * math.exp(self._min_mean_score):.0f} % is rare."
            )
            yield TranslationWarning("probability", message, target_spans=((0, len(translation.text)),))

    # ---- words

    def _spelled_words(self, text: str, ids: Sequence[int]) -> tuple[Span, ...]:
        """Return the spans (start and end in characters) of words that are split into many tokens of about one letter.

        `ids` are the token ids of `text`, a source.
        """
        tokens = self.run.source_tokenizer.tokens(ids)

        def is_spelled(token_indices: list[int]) -> bool:
            """Whether a word, given by the indices of its tokens, has many tokens with few letters."""
            num_tokens = len(token_indices)
            num_letters = sum(character.isalpha() for index in token_indices for character in tokens[index])
            return num_tokens >= MIN_SPELLED_TOKENS and 0 < num_letters <= MAX_LETTERS_PER_TOKEN * num_tokens

        return self._word_spans(text, ids, is_spelled)

    def _word_spans(self, text: str, ids: Sequence[int], condition: Callable[[list[int]], bool]) -> tuple[Span, ...]:
        """Return the spans (start and end in characters) of the words of a source that satisfy a condition.

        `ids` are the token ids of the text; `condition` gets the indices of the tokens of a word.
        """
        token_indices: dict[int, list[int]] = {}  # index of a word → indices of its tokens
        for index, word in enumerate(self.run.source_tokenizer.word_ids(ids)):
            if word >= 0:  # −1: the token is not part of a word
                token_indices.setdefault(word, []).append(index)
        spans = alignment_spans(text)
        return tuple(spans[word] for word, tokens in token_indices.items() if word < len(spans) and condition(tokens))


def _check_literals(source: str, text: str) -> Iterator[TranslationWarning]:
    """Yield warnings if the translation `text` lacks what it should contain unchanged (literals).

    These are placeholders, URLs and e-mail addresses of the source, and its numbers of several digits, whose separators
    may be others.
    """
    missing = [literal for literal in find_literals(source, Preserve.NUMBERS) if not literal.find_all(text)]
    numbers = [literal for literal in missing if literal.is_number and sum(map(str.isdigit, literal.text)) > 1]
    others = [literal for literal in missing if not literal.is_number]
    for kind, literals in (("placeholder", others), ("number", numbers)):
        if spans := tuple((literal.start, literal.end) for literal in literals):
            message = f"{_quoted(source, spans)} may be missing from the translation."
            yield TranslationWarning(kind, message, source_spans=spans)


class Repetition(NamedTuple):
    """A phrase that occurs several times in a row, or some letters within a word."""

    phrase: tuple[str, ...]  # its words, or the letters
    times: int  # how often it occurs
    span: Span  # of all occurrences together


def _repetitions(text: str) -> list[Repetition]:
    """Return phrases of up to MAX_REPEATED_WORDS words that occur several times in a row, ignoring punctuation.

    Letters or marks within a word count as well: “haushaushaushaus”, “........”.
    """
    spans = alignment_spans(text)  # of words, in characters
    words = [re.sub(r"\W+", "", text[begin:end]) for begin, end in spans]  # without punctuation
    loops = LETTER_LOOP.finditer(text)  # group 1: the letters that are repeated
    repetitions = [Repetition((loop[1],), len(loop[0]) // len(loop[1]), loop.span()) for loop in loops]
    for size in range(1, MAX_REPEATED_WORDS + 1):
        begin = 0
        while begin + 2 * size <= len(words):
            phrase, times = words[begin : begin + size], 1
            while words[begin + times * size : begin + (times + 1) * size] == phrase:
                times += 1
            if times > 1 and any(map(str.isalpha, phrase)):  # not of numbers only
                end = begin + times * size
                (first_character, _), (_, last_character) = spans[begin], spans[end - 1]
                repetitions.append(Repetition(tuple(phrase), times, (first_character, last_character)))
            begin += max(1, (times - 1) * size)  # to the last occurrence, with which others may overlap
    return repetitions


def _quoted(text: str, spans: Sequence[Span]) -> str:
    """Return the words at some spans (start and end in characters) of a text for a message: “old” and “man”."""
    words = [f"“{text[begin:end].strip('.,;:!?…。！？')}”" for begin, end in spans]
    if len(words) > 4:
        return f"{', '.join(words[:3])} and {len(words) - 3} more words"
    *first_words, last_word = words
    return f"{', '.join(first_words)} and {last_word}" if first_words else last_word


_checkers_lock = threading.Lock()


def checker_of(run: Run) -> TranslationChecker:
    """Return the checker of a run's translations, created by the first call; copies of the run share it."""
    with _checkers_lock:
        if not run.translation_checkers:
            run.translation_checkers.append(TranslationChecker(run))
        return run.translation_checkers[0]
