"""ROUGE of summaries (Lin 2004)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, References, reference_lists
from dragoman.text.sentences import split_sentences

ROUGE_NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
_CJK = "\u3040-\u30ff\u3400-\u9fff"  # scripts without spaces, in which every character counts as a word
_ASCII_WORD = re.compile("[a-z0-9]+")
_UNICODE_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")

Words = list[str]


def rouge(hypotheses: Sequence[str], references: References, *, kind: str, stem: bool = False) -> MetricScore:
    """Mean F₁ of shared words (`rouge1`), word pairs (`rouge2`) or the longest common subsequence (`rougeL`) in %.

    F₁ = 2 P R / (P + R),   P, R: share of the hypothesis, of the reference, that the other one contains

    Of several references the one with the highest F₁ counts. Case and punctuation are ignored. `stem` compares the
    stems of English words (Porter), by the package rouge-score. The scores equal those of that package. The signature
    says which tokenizer was used; see `rouge_by_sentence`.
    """
    scores, tokenizer = rouge_by_sentence(hypotheses, references, kind=kind, stem=stem)
    signature = f"measure:f1|stem:{'porter' if stem else 'no'}|tok:{tokenizer}"
    return MetricScore(ROUGE_NAMES[kind], fmean(scores), better="higher", signature=signature)


def rouge_by_sentence(
    hypotheses: Sequence[str], references: References, *, kind: str, stem: bool = False
) -> tuple[list[float], str]:
    """Return the F₁ of each hypothesis in %, and the name of the tokenizer: "default" or "unicode".

    The default tokenizer, that of the package rouge-score, drops every letter outside a–z. It is used for references in
    ASCII, so that scores of English are comparable with published ones, and with `stem`; otherwise words are runs of
    Unicode letters and digits.
    """
    lists = reference_lists(hypotheses, references)
    ascii_only = stem or all(reference.isascii() for its_references in lists for reference in its_references)
    tokenize = _stemming_tokenizer() if stem else _ascii_words if ascii_only else unicode_words
    scores = []
    for its_references, hypothesis in zip(lists, hypotheses):
        words = tokenize(hypothesis)
        scores.append(100 * max(_f1(words, tokenize(reference), kind) for reference in its_references))
    return scores, "default" if ascii_only else "unicode"


def _f1(hypothesis: Words, reference: Words, kind: str) -> float:
    """Return the F₁ (0 to 1) of two texts, given as words: of shared words, word pairs, or the words of the LCS.

    `kind` is rouge1, rouge2 or rougeL (longest common subsequence).
    """
    if kind == "rougeL":
        shared, total = common_subsequence_length(hypothesis, reference), len(hypothesis) + len(reference)
    else:
        ngrams: Callable[[Words], Any] = Counter if kind == "rouge1" else lambda words: Counter(pairwise(words))
        first, second = ngrams(hypothesis), ngrams(reference)
        shared, total = (first & second).total(), first.total() + second.total()
    return 2 * shared / total if total else 0.0  # 2 P R / (P + R); 0 if both texts have no words


def common_subsequence_length(first: Words, second: Words) -> int:
    """Return the length of the longest common subsequence of two texts, with bit vectors (Hyyrö 2004).

    Bit i of `row` is 0 if a common subsequence of first[:i + 1] and the words of `second` so far is longer than that of
    first[:i].
    """
    positions: dict[str, int] = {}  # word → bit set of its positions in `first`
    for index, word in enumerate(first):
        positions[word] = positions.get(word, 0) | 1 << index
    row = all_ones = (1 << len(first)) - 1
    for word in second:
        matches = row & positions.get(word, 0)
        row = (row + matches | row - matches) & all_ones
    return len(first) - row.bit_count()


def _ascii_words(text: str) -> Words:
    """Return the lower-case words of a text that consist of a–z and digits, as the package rouge-score does."""
    return _ASCII_WORD.findall(text.lower())


def unicode_words(text: str) -> Words:
    """Return the lower-case words of a text in any script; Chinese and Japanese characters are words of their own."""
    return _UNICODE_WORD.findall(text.lower())


def _stemming_tokenizer() -> Callable[[str], Words]:
    """Return the tokenizer of the package rouge-score that stems English words."""
    try:
        from rouge_score.tokenizers import DefaultTokenizer
    except ImportError:
        raise UserError(
            "ROUGE of stems needs the package rouge-score: install it with pip install 'dragoman[rouge]'"
        ) from None
    tokenize: Callable[[str], Words] = DefaultTokenizer(use_stemmer=True).tokenize
    return tokenize


def lead_sentences(texts: Sequence[str]) -> list[str]:
    """Return the first sentence of each text: the usual baseline of summarization."""
    # the limit, in characters, is the length of the text, so that no sentence is cut
    splits = [split_sentences(text, count_tokens=len, max_tokens=len(text)) for text in texts]
    return [split.sentences[0] if split.sentences else "" for split in splits]
