"""Measures that count what is right and what is wrong: exact match, accuracy, and the error rates by edit distance.

Two communities say "word error rate" and mean different things, so both are here under different names. In speech
recognition it is the edit distance between sentences, counted in words: `word_error_rate`. In spelling-to-sound
conversion an item is one word, and it is the share of words that are not exactly right: `item_error_rate`; the edit
distance, counted in phonemes, is then the `phoneme_error_rate`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import eq

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, References, reference_lists


def exact_match(hypotheses: Sequence[str], references: References) -> MetricScore:
    """The share of hypotheses that equal one of their references, character by character, in %."""
    right, items = _right(hypotheses, references)
    return MetricScore("exact match", 100 * right / items, "higher", unit="%", detail={"right": right, "items": items})


def item_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """The share of items that equal none of their references, in %: 100 − exact match.

    This is what the spelling-to-sound literature calls word error rate (Yao and Zweig 2015), its items being words.
    """
    right, items = _right(hypotheses, references)
    wrong = items - right
    return MetricScore(
        "item error rate", 100 * wrong / items, "lower", unit="%", detail={"wrong": wrong, "items": items}
    )


def token_accuracy(hypotheses: Sequence[str], references: References) -> MetricScore:
    """The share of tokens that stand at their place, in %: tag accuracy where there is one tag a word.

        accuracy = 100 · Σ |{i : hᵢ = rᵢ}| / Σ max(|h|, |r|)

    Tokens are separated by white space. Missing and surplus tokens count as wrong, so that 100 % means equality.
    """
    wrong, tokens = _nearest(hypotheses, references, _misplaced, "tokens")
    return MetricScore(
        "token accuracy",
        100 * (tokens - wrong) / tokens,
        "higher",
        unit="%",
        detail={"right": tokens - wrong, "tokens": tokens},
    )


def word_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Words to insert, delete and substitute, in % of the reference words; it can exceed 100.

        WER = 100 · Σ edit distance(h, r) / Σ |r|

    Words are separated by white space. Of several references the nearest counts, and the longest of equally near ones.
    """
    errors, words = _nearest(hypotheses, references, _edits, "words")
    detail = {"errors": errors, "words": words}
    return MetricScore("word error rate", 100 * errors / words, "lower", unit="%", detail=detail)


def phoneme_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """The word error rate's formula over phonemes, written with white space between them: "K AE T".

    Of several pronunciations the nearest counts, and the longest of equally near ones.
    """
    errors, phonemes = _nearest(hypotheses, references, _edits, "phonemes")
    detail = {"errors": errors, "phonemes": phonemes}
    return MetricScore("phoneme error rate", 100 * errors / phonemes, "lower", unit="%", detail=detail)


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein 1966).

        D(i, j) = min(D(i−1, j) + 1, D(i, j−1) + 1, D(i−1, j−1) + [aᵢ ≠ bⱼ])

    Neighbours in a column of this table differ by −1, 0 or 1, so a column is two bit sets, and one step to the next is
    a handful of operations on whole integers: Myers (1999), in the form of Hyyrö (2003).
    """
    if a == b:
        return 0
    if not a:
        return len(b)
    where: dict[Hashable, int] = {}  # symbol → bit set of its positions in a
    for i, symbol in enumerate(a):
        where[symbol] = where.get(symbol, 0) | 1 << i
    column, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    plus, minus, distance = column, 0, len(a)  # column 0: D(i, 0) = i, every step down adds 1
    for symbol in b:
        same = where.get(symbol, 0)
        # Bit i: D(i, j) = D(i−1, j−1). The addition carries a match down through the run of +1 steps below it.
        diagonal = (((same & plus) + plus) ^ plus) | same | minus
        right_plus, right_minus = minus | ~(diagonal | plus), plus & diagonal  # D(i, j) − D(i, j−1)
        distance += bool(right_plus & last) - bool(right_minus & last)
        right_plus, right_minus = right_plus << 1 | 1, right_minus << 1  # row 0: D(0, j) = j
        plus, minus = (right_minus | ~(diagonal | right_plus)) & column, right_plus & diagonal & column
    return distance


def _right(hypotheses: Sequence[str], references: References) -> tuple[int, int]:
    lists = reference_lists(hypotheses, references)
    return sum(hypothesis in among for hypothesis, among in zip(hypotheses, lists)), len(lists)


def _edits(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
    return edit_distance(hypothesis, reference), len(reference)


def _misplaced(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
    places = max(len(hypothesis), len(reference))
    return places - sum(map(eq, hypothesis, reference)), places


def _nearest(
    hypotheses: Sequence[str],
    references: References,
    count: Callable[[list[str], list[str]], tuple[int, int]],
    what: str,
) -> tuple[int, int]:
    """Errors, and the number of tokens they are a share of, summed over items, each against its nearest reference."""
    errors = size = 0
    for hypothesis, among in zip(hypotheses, reference_lists(hypotheses, references)):
        tokens = hypothesis.split()
        counts = (count(tokens, reference.split()) for reference in among)
        item_errors, item_size = min(counts, key=lambda pair: (pair[0], -pair[1]))
        errors, size = errors + item_errors, size + item_size
    if not size:
        raise UserError(f"the references have no {what}: an error rate is a share of them")
    return errors, size
