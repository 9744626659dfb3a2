"""BLEU worked by hand; chrF and TER equal to sacreBLEU, called the way its own documentation calls it."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import sacrebleu

from dragoman.errors import UserError
from dragoman.evaluation import bleu, chrf, ter

HYPOTHESES = ["The cat sat on a mat.", "Yesterday it rained all day long.", "He reads books, mostly."]
FIRST = ["The cat sat on the mat.", "It rained all day yesterday.", "Mostly, he reads books."]
SECOND = ["A cat was sitting on the mat.", "Yesterday it rained all day.", "He mostly reads books."]


def test_bleu_of_a_sentence_worked_by_hand() -> None:
    hypothesis = "the cat sat on the the mat"
    reference = "the cat sat on the mat by a door"
    # Words: three "the", of which two are allowed, and cat, sat, on, mat: 6 of 7.
    # Pairs: the-cat, cat-sat, sat-on, on-the, the-mat, but not the-the: 5 of 6.
    # Triples: the-cat-sat, cat-sat-on, sat-on-the, neither of those with the-the: 3 of 5.
    # Fours: the-cat-sat-on, cat-sat-on-the: 2 of 4.
    precisions = [6 / 7, 5 / 6, 3 / 5, 2 / 4]
    brevity_penalty = math.exp(1 - 9 / 7)

    score = bleu([hypothesis], [reference])

    assert score.value == pytest.approx(100 * brevity_penalty * math.prod(precisions) ** (1 / 4))
    assert [score.detail[f"precision_{n}"] for n in (1, 2, 3, 4)] == pytest.approx([100 * p for p in precisions])
    assert score.detail["brevity_penalty"] == pytest.approx(brevity_penalty)
    assert (score.detail["hypothesis_length"], score.detail["reference_length"]) == (7, 9)


def test_bleu_counts_over_the_corpus_and_does_not_average_sentences() -> None:
    score = bleu(["a b c d", "e f g x"], ["a b c d", "e f g h"])
    # 7 of 8 words, 5 of 6 pairs, 3 of 4 triples, 1 of 2 fours; lengths are equal, so there is no penalty.
    assert score.value == pytest.approx(100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** (1 / 4))


def test_effective_order_is_for_sentences_too_short_for_four_words() -> None:
    assert bleu(["two words"], ["two words"]).value == pytest.approx(0)
    assert bleu(["two words"], ["two words"], effective_order=True).value == pytest.approx(100)


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_equals_sacrebleu(tokenize: str, lowercase: bool) -> None:
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [FIRST], tokenize=tokenize, lowercase=lowercase)
    score = bleu(HYPOTHESES, FIRST, tokenize=tokenize, lowercase=lowercase)
    assert score.value == expected.score
    assert f"case:{'lc' if lowercase else 'mixed'}" in score.signature
    assert f"tok:{tokenize}" in score.signature


def test_chrf_and_ter_equal_sacrebleu() -> None:
    assert chrf(HYPOTHESES, FIRST).value == sacrebleu.corpus_chrf(HYPOTHESES, [FIRST]).score
    plus_plus = chrf(HYPOTHESES, FIRST, word_order=2)
    assert plus_plus.name == "chrF++"
    assert plus_plus.value == sacrebleu.corpus_chrf(HYPOTHESES, [FIRST], word_order=2).score
    assert ter(HYPOTHESES, FIRST).value == sacrebleu.corpus_ter(HYPOTHESES, [FIRST]).score
    assert ter(HYPOTHESES, FIRST, normalized=True).value == sacrebleu.corpus_ter(HYPOTHESES, [FIRST], True).score


def test_ter_of_one_moved_block_is_one_edit() -> None:
    score = ter(["c d a b"], ["a b c d"])
    assert (score.value, score.detail["edits"]) == (25, 1)


def test_ter_ignores_case_by_default() -> None:
    assert ter(["The cat"], ["the cat"]).value == 0
    assert ter(["The cat"], ["the cat"], lowercase=False).value == 50


def test_several_references_belong_to_their_sentence() -> None:
    references = list(zip(FIRST, SECOND))
    for ours, theirs in (
        (bleu, sacrebleu.corpus_bleu),
        (chrf, sacrebleu.corpus_chrf),
        (ter, sacrebleu.corpus_ter),
    ):
        score = ours(HYPOTHESES, references)
        assert score.value == theirs(HYPOTHESES, [FIRST, SECOND]).score
        assert "nrefs:2" in score.signature


def test_sentences_may_have_different_numbers_of_references() -> None:
    # With all words shared between sentence 1 and its second reference, only sentence 2's counts can be imperfect.
    score = bleu(["a b c d", "e f g x"], [["a b c y", "a b c d"], ["e f g h"]])
    assert score.value == pytest.approx(100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** (1 / 4))
    assert "nrefs:var" in score.signature


def test_bleu_prints_with_its_signature() -> None:
    assert str(bleu(FIRST, FIRST)).startswith("BLEU 100.00 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2")


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(UserError, match="unknown BLEU tokenizer '13b': did you mean '13a'"):
        bleu(["a"], ["a"], tokenize="13b")


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
def test_a_tokenizer_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"'ja-mecab' is not available .*install"):
        bleu(["a"], ["a"], tokenize="ja-mecab")


def test_text_declared_as_tokenized_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    sentences = ["a sentence , tokenized ."] * 100
    bleu(sentences, sentences)
    assert "forgot to detokenize" in caplog.text
    caplog.clear()
    bleu(sentences, sentences, tokenize="none")
    assert not caplog.records
