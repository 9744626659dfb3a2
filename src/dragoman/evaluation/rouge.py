"""ROUGE of summaries (Lin 2004), computed by the package rouge-score."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from statistics import fmean

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, References, reference_lists
from dragoman.text.sentences import split_sentences

ROUGE_NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
_CJK = "\u3040-\u30ff\u3400-\u9fff"  # scripts without spaces, in which every character counts as a word


def rouge(hypotheses: Sequence[str], references: References, *, kind: str, stem: bool = False) -> MetricScore:
    """Mean F₁ of shared words (`rouge1`), word pairs (`rouge2`) or the longest common subsequence (`rougeL`) in %.

    F₁ = 2 P R / (P + R),   P, R: share of the hypothesis, of the reference, that the other one contains

    Of several references the one with the highest F₁ counts. Case and punctuation are ignored. `stem` compares the
    stems of English words (Porter). The signature says which tokenizer was used; see `rouge_by_sentence`.
    """
    scores, tokenizer = rouge_by_sentence(hypotheses, references, kind=kind, stem=stem)
    version = importlib.metadata.version("rouge-score")
    signature = f"measure:f1|stem:{'porter' if stem else 'no'}|tok:{tokenizer}|package:rouge-score {version}"
    return MetricScore(ROUGE_NAMES[kind], fmean(scores), better="higher", signature=signature)


def rouge_by_sentence(
    hypotheses: Sequence[str], references: References, *, kind: str, stem: bool = False
) -> tuple[list[float], str]:
    """Return the F₁ of each hypothesis in %, and the name of the tokenizer: "default" or "unicode".

    The package's own tokenizer drops every letter outside a–z. It is used for references in ASCII, so that scores of
    English are comparable with published ones, and with `stem`; otherwise words are runs of Unicode letters and digits.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise UserError("ROUGE needs the package rouge-score: pip install 'dragoman[rouge]'") from None

    lists = reference_lists(hypotheses, references)
    ascii_only = stem or all(reference.isascii() for its_references in lists for reference in its_references)
    scorer = RougeScorer([kind], use_stemmer=stem, tokenizer=None if ascii_only else UnicodeTokenizer())
    scores = [
        100 * float(scorer.score_multi(its_references, hypothesis)[kind].fmeasure)
        for hypothesis, its_references in zip(hypotheses, lists)
    ]
    return scores, "default" if ascii_only else "unicode"


def lead_sentences(texts: Sequence[str]) -> list[str]:
    """Return the first sentence of each text: the usual baseline of summarization."""
    splits = [split_sentences(text, count_tokens=len, max_tokens=len(text)) for text in texts]  # at any length
    return [split.sentences[0] if split.sentences else "" for split in splits]


class UnicodeTokenizer:
    """Splits text of any script into lower-case words; Chinese and Japanese characters are words of their own."""

    _word = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])[^\W_])+")

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text, without punctuation."""
        return self._word.findall(text.lower())
