"""Which metrics and which BLEU tokenizer are chosen for which references; names, titles and aliases of metrics."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import sacrebleu

from dragoman.config import SelectionMetric
from dragoman.errors import UserError
from dragoman.evaluation import (
    TEXT_METRICS,
    bleu,
    choose_bleu_tokenizer,
    choose_metrics,
    error_rate_for,
    evaluate,
    metric_choice,
    metric_key,
    metric_name,
    metrics_around,
    score_by_length,
    text_metric,
)

SENTENCES = ["Der alte Mann liest das Buch.", "Sie schläft noch.", "Wir sehen heute den Hund im Garten."]
JAPANESE = ["猫が好きです。", "東京に住んでいます。", "今日は雨が降っていますか。"]
CHINESE = ["我喜欢猫。", "他住在北京，他是老师。"]
THAI = ["ผมชอบแมวมาก", "เขาอาศัยอยู่ในกรุงเทพ"]
KOREAN = ["나는 고양이를 아주 좋아한다.", "그는 지금 서울에 살고 있습니다."]
HINDI = ["मुझे बिल्लियाँ बहुत पसंद हैं।", "वह अभी दिल्ली में रहता है।"]
ACTIONS = [f"I_TURN_LEFT {'I_JUMP I_WALK ' * n}I_LOOK".replace("  ", " ") for n in range(1, 30)]
FORMS = ["* cookie ( x _ 3 ) ; bake . agent ( x _ 1 , Emma )", "( lambda $0 e ( and ( flight $0 ) ( from $0 ci0 ) ) )"]
QUERIES = ["SELECT population FROM city WHERE name = 'Bonn'", "SELECT area FROM lake", "SELECT river_id FROM rivers"]
NUMERALS = [f"{tens}-{n % 9} thousand {n % 19} hundred {tens}" for n in range(500) for tens in ("forty", "fifty")]
CODE = ["if isinstance(x, list): return sorted(x)", "for i in range(10): print(i + 1)", "x = [y for y in z if y > 1]"]
LONG = " ".join(f"word{n}" for n in range(60)) + "."

TRANSLATION = ("bleu", "chrf", "ter", "exact-match")
WORDS, SYMBOLS, PRONUNCIATION = ("exact-match", "cer"), ("exact-match", "ser"), ("exact-match", "ier", "per")


@pytest.mark.parametrize(
    ("references", "sources", "metrics"),
    [
        (SENTENCES, (), TRANSLATION),
        (["Sie schläft.", "Er geht.", "Wir lachen."], (), TRANSLATION),  # short, but sentences
        (HINDI, (), TRANSLATION),
        (KOREAN, (), TRANSLATION),
        (["gehst", "ging weg", "ist gegangen"], (), WORDS),
        (["हिन्दी", "दिल्ली"], ("Hindi", "Delhi"), WORDS),
        (["answer(capital(loc_2(stateid('texas'))))"] * 3, (), WORDS),
        (["b ɔ̃ ʒ u ʁ", "m e z ɔ̃", "s a l y t e"], ("bonjour", "maison", "salut"), PRONUNCIATION),
        (["M AE1 N D AH0", "K AE1 T S T"], ("manda", "catst"), PRONUNCIATION),
        (["a b c d e", "b c d e a"], ("e d c b a", "a e d c b"), SYMBOLS),
        (ACTIONS, ["jump twice and turn left"] * len(ACTIONS), SYMBOLS),
        (FORMS, (), SYMBOLS),
        (CODE, (), SYMBOLS),
        (QUERIES, (), SYMBOLS),
        (SENTENCES, [4 * form for form in FORMS], TRANSLATION),  # logical forms are long, but are not summarized
        (NUMERALS, (), SYMBOLS),
        (JAPANESE, (), ("bleu", "chrf", "exact-match")),
        (THAI, (), ("bleu", "chrf", "exact-match")),
        (["ネコ", "東京"], (), WORDS),
        (["コンピューター", "インターネット"], ("computer", "internet"), WORDS),
        (SENTENCES, [LONG] * 3, ("rouge-l", "rouge-1", "rouge-2", "chrf")),
        (SENTENCES[:1] * 1000, SENTENCES[:1] * 1000, TRANSLATION),  # equal lines are no closed inventory
        (["", " "], (), TRANSLATION),
    ],
)
def test_metrics_suit_the_references(
    references: Sequence[str], sources: Sequence[str], metrics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_choice, "find_spec", lambda package: True)
    assert choose_metrics(references, sources).metrics == metrics


def test_metrics_around_the_metric_of_a_run() -> None:
    words, sentences = choose_metrics(["gehst", "ging"]), choose_metrics(SENTENCES)
    assert metrics_around("bleu", words) == TRANSLATION  # the test set is short, but the task is translation
    assert metrics_around("exact-match", words) == WORDS
    assert metrics_around("ter", sentences) == ("ter", "bleu", "chrf", "exact-match")
    assert metrics_around("span-f1", sentences) == ("span-f1",)


def test_error_rate_of_symbols_or_characters() -> None:
    assert error_rate_for(["b ɔ̃ ʒ u ʁ", "m e z ɔ̃"]) == "ser"
    assert error_rate_for(["gehst", "ging weg"]) == "cer"
    assert error_rate_for(JAPANESE) == "cer"
    assert error_rate_for(SENTENCES) == "ser"


@pytest.mark.parametrize(
    ("references", "installed", "tokenizer"),
    [
        (SENTENCES, False, "13a"),
        (HINDI, False, "13a"),
        (CHINESE, False, "zh"),
        (["我 喜欢 猫 。"], False, "zh"),
        (JAPANESE, False, "char"),
        (JAPANESE, True, "ja-mecab"),
        (KOREAN, False, "char"),
        (KOREAN, True, "ko-mecab"),
        (THAI, True, "char"),
        (["gehst", "ging"], False, "char"),
        (["Er geht weg."], False, "13a"),  # four tokens with the full stop
        ([], False, "13a"),
    ],
)
def test_bleu_tokenizer_suits_the_script(
    references: list[str], installed: bool, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_choice, "find_spec", lambda package: True if installed else None)
    assert choose_bleu_tokenizer(references).tokenizer == tokenizer


def test_reasons_say_how_to_get_another_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_choice, "find_spec", lambda package: None)
    assert "pip install 'sacrebleu[ja]'" in choose_bleu_tokenizer(JAPANESE).reason
    assert "training.bleu_tokenizer=flores200" in choose_bleu_tokenizer(THAI).reason


def test_bleu_by_name_is_that_of_sacrebleu_with_the_chosen_tokenizer() -> None:
    hypotheses = ["我喜欢狗。", "他住在上海，他是老师。"]
    expected = sacrebleu.corpus_bleu(hypotheses, [CHINESE], tokenize="zh")
    assert 0 < expected.score < 100
    score = evaluate(["bleu"], hypotheses, CHINESE)["bleu"]
    assert score.value == expected.score
    assert "tok:zh" in score.signature
    statistics = text_metric("bleu").sentence_statistics(hypotheses, CHINESE)
    assert statistics.corpus_score(statistics.table.sum(0)) == pytest.approx(expected.score)
    by_character = sacrebleu.corpus_bleu(hypotheses, [CHINESE], tokenize="char").score
    assert evaluate(["bleu=char"], hypotheses, CHINESE)["bleu=char"].value == by_character
    assert bleu(hypotheses, CHINESE).signature != score.signature  # 13a unless another one is named
    (bucket,) = score_by_length(["a", "b"], CHINESE, CHINESE)
    assert bucket.bleu == pytest.approx(100)


@pytest.mark.skipif(find_spec("MeCab") is None or find_spec("ipadic") is None, reason="needs sacrebleu[ja]")
def test_bleu_of_japanese_words() -> None:
    assert "tok:ja-mecab" in evaluate(["bleu"], JAPANESE, JAPANESE)["bleu"].signature


def test_models_of_tokenizers_are_never_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a download")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"flores200 needs a SentencePiece model, which is not in .*: download it once"):
        bleu(THAI, THAI, tokenize="flores200")


def test_metrics_have_one_set_of_names() -> None:
    assert metric_name("exact_match") == metric_name("exact") == metric_name("exact-match") == "exact-match"
    assert metric_name("rouge_l") == "rouge-l"
    assert metric_name("bleu=ja-mecab") == "bleu=ja-mecab"
    assert metric_key("rouge-1-stem") == "rouge_1_stem"
    selectable = {metric_key(name) for name, metric in TEXT_METRICS.items() if not metric.needs_sources}
    assert set(typing.get_args(SelectionMetric)) == selectable | {"auto", "loss"}
    with pytest.raises(UserError, match="exact-match"):
        text_metric("exact-mach")
    with pytest.raises(UserError, match="unknown metric"):
        text_metric("chrf=char")


def test_titles_and_units_are_those_of_the_scores() -> None:
    sample = ["B (S a b c d)"]  # words, a tagged span and a tree
    for name, metric in TEXT_METRICS.items():
        if not metric.needs_sources and "rouge" not in name:  # its package takes seconds to import
            score = metric(sample, sample)
            assert (metric.title, metric.unit, metric.better) == (score.name, score.unit, score.better)
            assert metric.meaning
