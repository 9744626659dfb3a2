"""Odd white space, lines without letters, and several sentences on a line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from untrained_runs import untrained

from dragoman.errors import UserError
from dragoman.lens.gradients import measure_gradient_reach
from dragoman.lens.word_attention import word_attention
from dragoman.run import Run, Translation
from dragoman.run.translator import join_sentences
from dragoman.text.sentences import split_sentences

CLEAN = "the dog sleeps ."
NOISY = [f" {CLEAN}", f"{CLEAN} ", CLEAN.replace(" ", "\u00a0"), CLEAN.replace(" ", "\t"), f"\ufeff{CLEAN}\r"]


def run_with(
    *, normalize_whitespace: bool | None = True, copy_untranslatable: bool | None = True, **settings: Any
) -> Run:
    run = untrained("bpe")
    text = replace(run.config.text, normalize_whitespace=normalize_whitespace, **settings)
    search = replace(run.config.search, copy_untranslatable=copy_untranslatable)
    run.config = replace(run.config, text=text, search=search)
    return run


@pytest.mark.parametrize("text", NOISY)
def test_odd_white_space_does_not_change_a_translation(text: str) -> None:
    run = run_with()
    assert run.translate([text]) == run.translate([CLEAN])
    assert [piece.text for piece in run.stream(text)] == [piece.text for piece in run.stream(CLEAN)]
    assert run.score([text], [text]) == run.score([CLEAN], [CLEAN])
    assert run.encode_sources([text]) == run.encode_sources([CLEAN])


def test_letters_are_normalized_in_translation_scoring_and_constraints() -> None:
    text = "Ｔｈｅ　Ｄｏｇ SLEEPS ."
    run = run_with(lowercase=True, unicode_normalization="NFKC")
    assert run.translate([text]) == run.translate([CLEAN])
    assert run.score([text], [text]) == run.score([CLEAN], [CLEAN])
    assert [piece.text for piece in run.stream(text)] == [piece.text for piece in run.stream(CLEAN)]
    phrases = {"prefixes": ["The"], "include": [["DOG"]]}
    assert run.translate([text], **phrases) == run.translate([CLEAN], prefixes=["the"], include=[["dog"]])
    assert run.translate([text], exclude=["THE"]) == run.translate([CLEAN], exclude=["the"])


def test_targets_are_normalized_in_inspections() -> None:
    run = run_with(lowercase=True, unicode_normalization="NFKC")
    text = "Ｔｈｅ　Ｄｏｇ SLEEPS ."
    assert run.lens(text, text).score == pytest.approx(run.score([CLEAN], [CLEAN])[0].score, abs=1e-4)
    found, expected = (word_attention(run, one, one) for one in (text, CLEAN))
    assert found.target == expected.target == ["the", "dog", "sleeps", "."]
    found_reach, expected_reach = (measure_gradient_reach(run, [one], [one]) for one in (text, CLEAN))
    assert found_reach == expected_reach


def test_references_of_an_evaluation_are_normalized_and_the_signature_says_so() -> None:
    run = run_with(lowercase=True, unicode_normalization="NFKC")
    result = run.evaluate([CLEAN], ["ＤＥＲ Hund schläft jetzt ."], ["bleu", "chrf", "ter", "exact"])
    assert result.references == [["der hund schläft jetzt ."]]
    hypotheses, references = result.hypotheses or [], [["DER Hund schläft jetzt ."]]
    for name, metric in (("bleu", BLEU(lowercase=True)), ("chrf", CHRF(lowercase=True)), ("ter", TER())):
        assert result[name] == pytest.approx(metric.corpus_score(hypotheses, references).score)
        assert result.scores[name].signature == f"{metric.get_signature()}|norm:NFKC"
    assert result.scores["exact"].signature == "case:lc|norm:NFKC"
    assert "case:mixed" in run_with().evaluate([CLEAN], [CLEAN], ["bleu"]).scores["bleu"].signature


@pytest.mark.parametrize("setting", [False, None])
def test_without_the_setting_white_space_is_not_normalized(setting: bool | None) -> None:
    run = run_with(normalize_whitespace=setting)
    assert run.encode_sources([" \ta"]) == [[*run.source_tokenizer.encode(" \ta"), run.framing.eos]]
    assert run.source_tokenizer.decode(run.encode_sources([" \ta"])[0]) == " \ta"


@pytest.mark.parametrize("text", [".", "123", "https://example.org/x", "a@example.org", " 3,5 % "])
def test_lines_without_letters_are_copied(text: str) -> None:
    first, second = run_with().translate([text, CLEAN], token_scores=True)
    assert (first.text, first.score, first.copied) == (text.strip(), 0.0, True)
    assert first.alignment == [(n, n) for n in range(len(text.split()))]
    assert not second.copied
    assert [piece.text for piece in run_with().stream(text)] == [text.strip()]


def test_lines_without_letters_are_translated_if_copying_is_off() -> None:
    for setting in (False, None):
        assert not run_with(copy_untranslatable=setting).translate(["123"])[0].copied


def test_constraints_take_precedence_over_copying() -> None:
    run = run_with()
    assert run.translate(["123"], prefixes=["the"])[0].text.startswith("the")
    assert "dog" in run.translate(["123"], include=[["dog"]])[0].text
    assert run.translate(["12 3"], exclude=["3"])[0].text != "12 3"


def test_sentences_of_a_line_are_translated_separately() -> None:
    run = run_with()
    one, two = "The dog sleeps.", "A cat sees 5 houses!"
    alone = run.translate([one, two])
    both, empty, numbers = run.translate([f" {one}  {two}\n{one}", " ", "1. 23!"], split_sentences=True)
    assert both.text == f" {alone[0].text}  {alone[1].text}\n{alone[0].text}"
    assert both.score == pytest.approx(2 * alone[0].score + alone[1].score)
    assert both.tokens == [*alone[0].tokens, *alone[1].tokens, *alone[0].tokens]
    assert (empty.text, numbers.text, numbers.copied) == (" ", "1. 23!", True)


def test_alignments_of_split_text_count_words_of_the_whole_text() -> None:
    text = split_sentences("Ja. Der Hund schläft.", len, 100)
    found = [Translation("Oh yes.", -1.0, alignment=[(0, 0), (0, 1)]), Translation("It", -2.0, alignment=[(2, 0)])]
    assert join_sentences(text, found).alignment == [(0, 0), (0, 1), (3, 2)]
    text = split_sentences("你好。再见。", len, 100)  # without spaces characters count
    found = [Translation("Hello.", -1.0, alignment=[(0, 0)]), Translation("Bye.", -2.0, alignment=[(1, 0)])]
    assert join_sentences(text, found).alignment == [(0, 0), (3, 1)]


def test_alternatives_of_split_text_combine_sentences_of_the_same_rank() -> None:
    text = split_sentences("Ja. Nein.", len, 100)
    found = [Translation("a", -1.0, alternatives=[Translation("b", -2.0)]), Translation("c", -4.0)]
    assert [(one.text, one.score) for one in join_sentences(text, found).alternatives] == [("b c", -6.0)]


def test_prefixes_cannot_be_combined_with_sentence_splitting() -> None:
    with pytest.raises(UserError, match="leave them out, or --split-sentences"):
        run_with().translate(["a. b."], prefixes=["x"], split_sentences=True)
