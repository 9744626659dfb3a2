from __future__ import annotations

import pytest
import torch

from dragoman.lens.text_view import alignment_lines, attention_heatmap_lines
from dragoman.lens.word_attention import merge_to_words, word_attention, word_labels
from dragoman.run import Run, SentenceAttention


def test_alignment_shows_source_words_and_positions() -> None:
    links = [(0, 0), (1, 1), (3, 2), (4, 3), (2, 4)]
    assert alignment_lines("I have seen the dog.", "Ich habe den Hund gesehen.", links) == [
        "source     I have seen the dog.",
        "target     Ich  habe  den  Hund  gesehen.",
        "from       I    have  the  dog.  seen",
        "word       1    2     4    5     3",
    ]


def test_alignment_of_several_and_of_no_words() -> None:
    assert alignment_lines("do not go", "gehe nicht ja", [(2, 0), (0, 0), (1, 1)])[1:] == [
        "target     gehe   nicht  ja",
        "from       do go  not    –",
        "word       1 3    2      –",
    ]


def test_alignment_without_links() -> None:
    assert alignment_lines("a b", "c d", []) == ["source     a b", "target     c d"]
    assert alignment_lines("", "", []) == ["source     ", "target     "]


def test_wide_characters_take_two_cells() -> None:
    assert alignment_lines("man sees", "人間 見る", [(0, 0), (1, 1)])[1:] == [
        "target     人間  見る",
        "from       man   sees",
        "word       1     2",
    ]


def test_long_alignments_are_wrapped() -> None:
    links = [(i, i) for i in range(30)]
    lines = alignment_lines("source " * 30, "target " * 30, links, width=60)
    assert all(len(line) <= 60 for line in lines[1:])
    assert [place for line in lines if line.startswith("word") for place in line.split()[1:]] == [
        str(n) for n in range(1, 31)
    ]


def test_control_characters_are_replaced() -> None:
    lines = alignment_lines("a\x1b[31m\nb", "c\x1b]0;x\x07", [(0, 0)])
    assert not any(ord(letter) < 32 or ord(letter) == 127 for line in lines for letter in line)


def test_text_heatmap_has_target_rows_and_source_columns() -> None:
    cross = torch.tensor([[0.9, 0.06, 0.04], [0.3, 0.6, 0.1]])
    assert attention_heatmap_lines(SentenceAttention(["▁the", "人間", "x"], ["▁der", "e\u0301"], {}, cross, []))[
        :-1
    ] == [
        "      ▁the  人間  x",
        "▁der  ████  ░░░░  ··",
        "e\u0301     ▒▒▒▒  ▓▓▓▓  ░░",
        "",
    ]


def test_wide_text_heatmap_is_wrapped() -> None:
    attention = SentenceAttention(["piece"] * 40, ["a", "b"], {}, torch.full((2, 40), 1 / 40), [])
    lines = attention_heatmap_lines(attention, width=50)
    assert all(len(line) <= 50 for line in lines[:-1])
    assert sum(line.split().count("piece") for line in lines) == 40
    assert attention_heatmap_lines(SentenceAttention(["a"], ["b"], {}, None, [])) == [
        "this system has no cross-attention"
    ]


def test_word_weights_are_sums_over_source_and_means_over_target_tokens() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.6, 0.1], [0.3, 0.4, 0.1, 0.2], [0.5, 0.1, 0.2, 0.2]])
    merged = merge_to_words(weights, source_words=[0, 0, 1, -1], target_words=[0, 1, 1])
    assert merged.tolist() == [
        [pytest.approx(0.3), pytest.approx(0.6), pytest.approx(0.1)],
        [pytest.approx(0.65), pytest.approx(0.15), pytest.approx(0.2)],
    ]


def test_word_labels_cover_their_tokens() -> None:
    assert word_labels("a <unk> b.", [0, 1, 2, 2, -1]) == ["a", "<unk>", "b."]
    assert word_labels("हिन्दी है", [0, 0, 1]) == ["हिन्दी", "है"]
    assert word_labels("", [-1]) == []


def test_word_attention_sums_to_one(run: Run) -> None:
    attention = word_attention(run, "The man sees the dog.", "DER man SIEHT DEN dog.")
    assert attention.source == ["The", "man", "sees", "the", "dog.", "(end)"]
    assert attention.target == ["DER", "man", "SIEHT", "DEN", "dog."]
    assert attention.cross is not None
    assert attention.cross.sum(1).tolist() == pytest.approx([1.0] * 5, abs=1e-4)
    assert word_attention(run, "The dog.", "").target == []
    untrained = " DER   man  SIEHT DEN dog. "  # spaces as a model that has learned little writes them
    assert word_attention(run, "The man sees the dog.", untrained).target == attention.target
