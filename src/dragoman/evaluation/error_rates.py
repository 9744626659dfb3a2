"""Exact match, token accuracy, and error rates by edit distance.

"Word error rate" has two meanings. In speech recognition it is the edit distance in words: `word_error_rate`. In
grapheme-to-phoneme conversion an item is one word, and it is the percentage of words with an error: `item_error_rate`;
the edit distance in phonemes is the `phoneme_error_rate`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import eq

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, References, reference_lists


def exact_match(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Percentage of hypotheses that equal one of their references, character by character."""
    right, items = _count_exact(hypotheses, references)
    return MetricScore("exact match", 100 * right / items, "higher", unit="%", detail={"right": right, "items": items})


def item_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Percentage of hypotheses that equal none of their references: 100 − exact match.

    The word error rate of grapheme-to-phoneme conversion, whose items are words (Yao and Zweig 2015).
    """
    right, items = _count_exact(hypotheses, references)
    detail = {"wrong": items - right, "items": items}
    return MetricScore("item error rate", 100 * (items - right) / items, "lower", unit="%", detail=detail)


def token_accuracy(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Percentage of tokens that equal the reference token at the same position: tag accuracy for one tag per word.

        accuracy = 100 · Σ |{i : hᵢ = rᵢ}| / Σ max(|h|, |r|)

    Tokens are separated by white space. Missing and surplus tokens count as errors, so that 100 % means equality.
    """
    errors, tokens = _count_errors(hypotheses, references, _mismatches, "tokens")
    detail = {"right": tokens - errors, "tokens": tokens}
    return MetricScore("token accuracy", 100 * (tokens - errors) / tokens, "higher", unit="%", detail=detail)


def word_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Insertions, deletions and substitutions of words in % of the reference words; it can exceed 100.

        WER = 100 · Σ edit distance(h, r) / Σ |r|

    Words are separated by white space. Of several references the closest counts; of equally close ones the longest.
    """
    errors, words = _count_errors(hypotheses, references, _edits, "words")
    detail = {"errors": errors, "words": words}
    return MetricScore("word error rate", 100 * errors / words, "lower", unit="%", detail=detail)


def phoneme_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Insertions, deletions and substitutions of phonemes in % of the reference phonemes.

    Phonemes are separated by white space: "K AE T". Of several pronunciations the closest counts; of equally close
    ones the longest.
    """
    errors, phonemes = _count_errors(hypotheses, references, _edits, "phonemes")
    detail = {"errors": errors, "phonemes": phonemes}
    return MetricScore("phoneme error rate", 100 * errors / phonemes, "lower", unit="%", detail=detail)


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions that turn a into b.

        D(i, j) = min(D(i−1, j) + 1, D(i, j−1) + 1, D(i−1, j−1) + [aᵢ ≠ bⱼ])

    Neighbors in a column of this table differ by −1, 0 or 1. A column is therefore represented by two bit sets, and the
    step to the next column is a constant number of operations on integers (Myers 1999, in the form of Hyyrö 2003).
    """
    if a == b:
        return 0
    if not a:
        return len(b)
    positions: dict[Hashable, int] = {}  # symbol → bit set of its positions in a
    for i, symbol in enumerate(a):
        positions[symbol] = positions.get(symbol, 0) | 1 << i
    column, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    plus, minus, distance = column, 0, len(a)  # column 0: D(i, 0) = i, every step down adds 1
    for symbol in b:
        same = positions.get(symbol, 0)
        # bit i: D(i, j) = D(i−1, j−1). The addition carries a match down through the run of +1 steps below it.
        diagonal = (((same & plus) + plus) ^ plus) | same | minus
        right_plus, right_minus = minus | ~(diagonal | plus), plus & diagonal  # D(i, j) − D(i, j−1)
        distance += bool(right_plus & last) - bool(right_minus & last)
        right_plus, right_minus = right_plus << 1 | 1, right_minus << 1  # row 0: D(0, j) = j
        plus, minus = (right_minus | ~(diagonal | right_plus)) & column, right_plus & diagonal & column
    return distance


def _count_exact(hypotheses: Sequence[str], references: References) -> tuple[int, int]:
    """Return the number of hypotheses that equal a reference, and the number of hypotheses."""
    lists = reference_lists(hypotheses, references)
    return sum(hypothesis in of_hypothesis for hypothesis, of_hypothesis in zip(hypotheses, lists)), len(lists)


def _edits(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
    return edit_distance(hypothesis, reference), len(reference)


def _mismatches(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
    length = max(len(hypothesis), len(reference))
    return length - sum(map(eq, hypothesis, reference)), length


def _count_errors(
    hypotheses: Sequence[str],
    references: References,
    count: Callable[[list[str], list[str]], tuple[int, int]],
    unit: str,
) -> tuple[int, int]:
    """Sum errors and lengths over hypotheses, each against its closest reference.

    `count` returns the errors and the length of a hypothesis and a reference; `unit` names the tokens in messages.
    """
    errors = length = 0
    for hypothesis, of_hypothesis in zip(hypotheses, reference_lists(hypotheses, references)):
        tokens = hypothesis.split()
        counts = (count(tokens, reference.split()) for reference in of_hypothesis)
        item_errors, item_length = min(counts, key=lambda pair: (pair[0], -pair[1]))
        errors, length = errors + item_errors, length + item_length
    if not length:
        raise UserError(f"the references have no {unit}: an error rate is a percentage of them")
    return errors, length
