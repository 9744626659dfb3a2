"""Exact match, token accuracy, error rates by edit distance, and the error rate of word alignments.

Each rate is a sum of errors divided by a sum of lengths. The `…_counts` functions return the two numbers of each
sentence, which significance tests resample.

"Word error rate" has two meanings. In speech recognition it is the edit distance in words: `word_error_rate`. In
grapheme-to-phoneme conversion an item is one word, and it is the percentage of words with an error: `item_error_rate`;
the edit distance in phonemes is the `phoneme_error_rate`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from operator import eq

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, References, check_equal_counts, reference_lists

Counts = list[tuple[int, int]]
"""Errors (or matches) and length of each hypothesis, compared with its closest reference."""


def exact_match(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Percentage of hypotheses ("items") that equal one of their references, character by character."""
    right, items = _sum_counts(exact_match_counts(hypotheses, references), "items")
    return MetricScore(
        "exact match", 100 * right / items, better="higher", unit="%", detail={"right": right, "items": items}
    )


def item_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Percentage of hypotheses that equal none of their references: 100 − exact match.

    The word error rate of grapheme-to-phoneme conversion, whose items are words (Yao and Zweig 2015).
    """
    right, items = _sum_counts(exact_match_counts(hypotheses, references), "items")
    detail = {"wrong": items - right, "items": items}
    return MetricScore("item error rate", 100 * (items - right) / items, better="lower", unit="%", detail=detail)


def token_accuracy(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Percentage of tokens that equal the reference token at the same position: tag accuracy for one tag per word.

        accuracy = 100 · Σ |{i : hᵢ = rᵢ}| / Σ max(|h|, |r|)

    Tokens are separated by white space. Missing and surplus tokens count as errors, so that 100 % means equality.
    """
    errors, tokens = _sum_counts(mismatch_counts(hypotheses, references), "tokens")
    detail = {"right": tokens - errors, "tokens": tokens}
    return MetricScore("token accuracy", 100 * (tokens - errors) / tokens, better="higher", unit="%", detail=detail)


def span_f1(hypotheses: Sequence[str], references: References) -> MetricScore:
    """F₁ of the spans that B and I tags mark ("O B I O"), in %: a span counts if its label and both ends are right.

    As in the CoNLL shared tasks (Tjong Kim Sang and De Meulder 2003): F₁ = 2 · right / (predicted + gold spans). A tag
    may carry a label ("B-PER"); an I that continues no span of its label begins one.
    """
    return _f1("span F1", unit="spans", counts=span_f1_counts(hypotheses, references))


def bracket_f1(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Labeled bracketing F₁ of trees such as "(S (NP (Det the) (N dog)) (VP …))" in %: PARSEVAL (Black et al. 1991).

    A constituent counts if its label, its first and its last word are right. Brackets around a single word (parts of
    speech) do not count. Brackets that are never closed or opened are ignored.
    """
    return _f1("bracket F1", unit="constituents", counts=bracket_f1_counts(hypotheses, references))


def word_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Insertions, deletions and substitutions of words in % of the reference words; it can exceed 100.

        WER = 100 · Σ edit distance(h, r) / Σ |r|

    Words are separated by white space. Of several references the closest counts; of equally close ones the longest.
    """
    return _edit_rate("word error rate", "words", hypotheses, references)


def symbol_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Insertions, deletions and substitutions of symbols ("WALK TURN WALK") in % of the reference symbols.

    Symbols are separated by white space. The same rate is called WER for words and PER for phonemes.
    """
    return _edit_rate("symbol error rate", "symbols", hypotheses, references)


def character_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Insertions, deletions and substitutions of characters in % of the reference characters.

    Spaces are characters, except at the ends of a text. Of several references the closest counts.
    """
    errors, characters = _sum_counts(character_edit_counts(hypotheses, references), "characters")
    detail = {"errors": errors, "characters": characters}
    return MetricScore("character error rate", 100 * errors / characters, better="lower", unit="%", detail=detail)


def phoneme_error_rate(hypotheses: Sequence[str], references: References) -> MetricScore:
    """Insertions, deletions and substitutions of phonemes ("K AE T") in % of the reference phonemes."""
    return _edit_rate("phoneme error rate", "phonemes", hypotheses, references)


def edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance: the fewest insertions, deletions and substitutions that turn a into b.

        D(i, j) = min(D(i−1, j) + 1, D(i, j−1) + 1, D(i−1, j−1) + [aᵢ ≠ bⱼ])

    Neighbors in a column of this table differ by −1, 0 or 1. A column is therefore represented by two bit sets, and the
    step to the next column is a constant number of operations on integers (Myers 1999, in the form of Hyyrö 2003).
    """
    if a == b:
        return 0
    if not a:  # there is no last row below
        return len(b)
    positions: dict[Hashable, int] = {}  # symbol → bit set of its positions in a
    for i, symbol in enumerate(a):
        positions[symbol] = positions.get(symbol, 0) | 1 << i
    all_rows, last_row = (1 << len(a)) - 1, 1 << (len(a) - 1)  # all bits of a column, and that of its last row
    # bit sets of the rows i with D(i, j) − D(i−1, j) = +1 and −1
    plus, minus, distance = all_rows, 0, len(a)  # column 0: D(i, 0) = i, every step down adds 1
    for symbol in b:
        matches = positions.get(symbol, 0)  # rows i with aᵢ = bⱼ
        # bit i: D(i, j) = D(i−1, j−1). The addition carries a match down through the run of +1 steps below it.
        diagonal = (((matches & plus) + plus) ^ plus) | matches | minus
        right_plus, right_minus = minus | ~(diagonal | plus), plus & diagonal  # D(i, j) − D(i, j−1)
        distance += bool(right_plus & last_row) - bool(right_minus & last_row)
        right_plus, right_minus = right_plus << 1 | 1, right_minus << 1  # row 0: D(0, j) = j
        plus, minus = (right_minus | ~(diagonal | right_plus)) & all_rows, right_plus & diagonal & all_rows
    return distance


def exact_match_counts(hypotheses: Sequence[str], references: References) -> Counts:
    """For each hypothesis, return 1 if it equals a reference, else 0, and the length 1."""
    lists = reference_lists(hypotheses, references)
    return [(int(hypothesis in its_references), 1) for hypothesis, its_references in zip(hypotheses, lists)]


def mismatch_counts(hypotheses: Sequence[str], references: References) -> Counts:
    """For each hypothesis, return the number of wrong, missing and surplus tokens, and the length of the longer text.

    Tokens are compared position by position, with the closest reference.
    """

    def mismatches(hypothesis: list[str], reference: list[str]) -> tuple[int, int]:
        """Return the number of wrong, missing and surplus tokens, and the length of the longer text."""
        length = max(len(hypothesis), len(reference))
        return length - sum(map(eq, hypothesis, reference)), length

    return _closest_counts(hypotheses, references, mismatches)


def edit_counts(hypotheses: Sequence[str], references: References) -> Counts:
    """For each hypothesis, return its edit distance in words to the closest reference, and the reference's length.

    Words are separated by white space. Of equally close references the longest counts.
    """
    return _closest_counts(
        hypotheses, references, lambda hypothesis, reference: (edit_distance(hypothesis, reference), len(reference))
    )


def character_edit_counts(hypotheses: Sequence[str], references: References) -> Counts:
    """For each hypothesis, return its edit distance in characters to the closest reference, and that one's length.

    White space at the ends of texts does not count. Of equally close references the longest counts.
    """
    return _closest_counts(
        hypotheses,
        references,
        lambda hypothesis, reference: (edit_distance(hypothesis, reference), len(reference)),
        split=lambda text: list(text.strip()),
    )


def span_f1_counts(hypotheses: Sequence[str], references: References) -> Counts:
    """For each hypothesis, return 2 · right spans, and the number of predicted plus gold spans; F₁ is their ratio.

    Spans are marked by B and I tags; one is right if its label and both ends are those of a gold span. Of several
    references the one with the highest F₁ counts.
    """
    return _f1_counts(hypotheses, references, _tagged_spans)


def bracket_f1_counts(hypotheses: Sequence[str], references: References) -> Counts:
    """For each hypothesis, return 2 · right constituents, and the number of predicted plus gold ones.

    F₁ is the ratio of the two numbers. Constituents are the brackets of a tree, except around a single word; one is
    right if its label, first and last word are those of a gold one. Of several references the one with the highest F₁
    counts.
    """
    return _f1_counts(hypotheses, references, _constituents)


def _f1(name: str, unit: str, counts: Counts) -> MetricScore:
    """Return the F₁ score called `name` in %, from (2 · matches, predicted + gold items) of each sentence.

    `unit` is the plural name of the items, such as "spans".
    """
    twice_matched, items = _sum_counts(counts, unit)
    detail = {"right": twice_matched // 2, f"predicted_and_gold_{unit}": items}
    return MetricScore(name, 100 * twice_matched / items, better="higher", unit="%", detail=detail)


def _f1_counts(
    hypotheses: Sequence[str], references: References, count_items: Callable[[str], Counter[Hashable]]
) -> Counts:
    """Return (2 · matches, items of both texts) of each hypothesis and the reference with the highest F₁.

    F₁ is the ratio of the two numbers. `count_items` returns the items of a text, such as its tagged spans.
    """
    counts = []
    for hypothesis, its_references in zip(hypotheses, reference_lists(hypotheses, references)):
        predicted = count_items(hypothesis)
        candidates = []  # (2 · matches, items of both) for each reference
        for gold in map(count_items, its_references):
            candidates.append((2 * (predicted & gold).total(), (predicted + gold).total()))
        # the highest F₁; without items in both texts it is 0
        counts.append(max(candidates, key=lambda candidate: candidate[0] / max(candidate[1], 1)))
    return counts


def _tagged_spans(tags: str) -> Counter[Hashable]:
    """Count the spans of a sequence of BIO tags ("O B-PER I-PER"): (label, first position, position after the last)."""
    spans: Counter[Hashable] = Counter()
    label: str | None = None  # of the span that has begun and not ended; None if there is none
    start = 0  # its first position
    for position, tag in enumerate([*tags.split(), "O"]):  # the last tag ends the last span
        prefix, _, tag_label = tag.partition("-")  # B or I, and the label, which is empty without a hyphen
        continues = prefix == "I" and label == tag_label
        if label is not None and not continues:
            spans[label, start, position] += 1
            label = None
        if prefix in ("B", "I") and not continues:
            label, start = tag_label, position
    return spans


def _constituents(text: str) -> Counter[Hashable]:
    """Count the constituents of a bracketed tree: (label, index of the first word, index after the last word).

    Parts of speech, which are brackets around nothing but a single word, are left out.
    """
    constituents: Counter[Hashable] = Counter()
    open_brackets: list[tuple[str, int, int]] = []  # label, index of the first word, number among all brackets (from 1)
    words = brackets = 0  # numbers of words and opening brackets so far
    for token in re.findall(r"\([^()\s]*|\)|[^()\s]+", text):
        if token.startswith("("):
            brackets += 1
            open_brackets.append((token[1:], words, brackets))
        elif token != ")":
            words += 1
        elif open_brackets:
            label, start, number = open_brackets.pop()
            # unless it is a part of speech: it has several words (or none), or contains other brackets
            if words - start != 1 or brackets > number:
                constituents[label, start, words] += 1
    return constituents


def _edit_rate(name: str, unit: str, hypotheses: Sequence[str], references: References) -> MetricScore:
    """Return the score called `name`: the edit distance in % of the length of the references.

    Tokens are separated by white space; `unit` is their plural name, such as "words".
    """
    errors, tokens = _sum_counts(edit_counts(hypotheses, references), unit)
    return MetricScore(name, 100 * errors / tokens, better="lower", unit="%", detail={"errors": errors, unit: tokens})


def _closest_counts(
    hypotheses: Sequence[str],
    references: References,
    count: Callable[[list[str], list[str]], tuple[int, int]],
    split: Callable[[str], list[str]] = str.split,
) -> Counts:
    """Return (errors, length) of each hypothesis, compared with its closest reference.

    `split` divides a text into tokens, by default into words; `count` returns the two numbers for the tokens of a
    hypothesis and of a reference. The closest reference has the fewest errors; of several such, it is the longest.
    """
    counts = []
    for hypothesis, its_references in zip(hypotheses, reference_lists(hypotheses, references)):
        tokens = split(hypothesis)
        candidates = (count(tokens, split(reference)) for reference in its_references)
        errors, negative_length = min((errors, -length) for errors, length in candidates)
        counts.append((errors, -negative_length))
    return counts


def _sum_counts(counts: Counts, unit: str) -> tuple[int, int]:
    """Return the sum of the errors (or matches) and the sum of the lengths of all sentences.

    `unit` is the plural name of what is counted, for the error that is raised if the sum of the lengths is 0.
    """
    errors, length = (sum(column) for column in zip(*counts))
    if not length:
        raise UserError(f"the references have no {unit}, so the metric cannot be computed: check the reference file")
    return errors, length


# ---- word alignments

Link = tuple[int, int]
"""Positions of a source word and a target word that translate each other, counted from 0."""


def alignment_error_rate(
    predicted: Sequence[Collection[Link]],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
) -> MetricScore:
    """Alignment error rate, from 0 (no error) to 1 (Och and Ney 2003).

        AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|),   precision = |A ∩ P| / |A|,   recall = |A ∩ S| / |S|

    with predicted links A, sure links S and possible links P ⊇ S, summed over sentences. `possible` need not repeat the
    sure links; without it P = S, and AER = 1 − F₁. Different numbers of sentences, and no links at all, are a
    UserError.
    """
    check_equal_counts(len(predicted), "predicted alignments", len(sure), "gold alignments")
    if possible is not None:
        check_equal_counts(len(predicted), "predicted alignments", len(possible), "possible alignments")
    links = sure_links = sure_found = possible_found = 0
    for sentence in zip(predicted, sure, possible or sure):
        a, s, p = map(set, sentence)  # the links A, S and P of a sentence
        links += len(a)
        sure_links += len(s)
        sure_found += len(a & s)
        possible_found += len(a & (p | s))
    if not links + sure_links:
        raise UserError(
            "word alignments cannot be evaluated, because neither the predicted nor the gold ones link any words: "
            "check the files"
        )
    detail = {
        "precision": possible_found / max(links, 1),
        "recall": sure_found / max(sure_links, 1),
        "predicted_links": links,
        "sure_links": sure_links,
    }
    value = 1 - (sure_found + possible_found) / (links + sure_links)
    return MetricScore("AER", value, better="lower", detail=detail, decimals=4)


def parse_pharaoh(line: str, where: str = "alignment") -> frozenset[Link]:
    """Return all links of a line: sure ("0-0") and possible ("1?2") pairs of source and target word, from 0.

    `where` names the line in error messages.
    """
    return parse_sure_and_possible(line, where)[1]


def parse_sure_and_possible(line: str, where: str = "alignment") -> tuple[frozenset[Link], frozenset[Link]]:
    """Return the sure links ("0-0") and the possible links ("1?2" or "1p2", and all sure ones) of a line.

    A link is a pair of positions, of a source and a target word, counted from 0; anything else is a UserError, in which
    `where` names the line: "gold.align, line 3".
    """
    sure, possible = set(), set()
    for item in line.split():
        match = re.fullmatch(r"([0-9]+)([-?p])([0-9]+)", item)
        if match is None:
            raise UserError(
                f"{where}: {item!r} is not an alignment link: expected the positions of a source and a target "
                "word, counted from 0, as in '0-0 1-2', or '1?2' for a possible link"
            )
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return frozenset(sure), frozenset(possible)
