"""What a corpus is read as, and the ids that it becomes."""

from __future__ import annotations

from dragoman.data import DATA_FORMATS, Encoding, SentencePair
from dragoman.data.data_formats import align_tags, encode_text_lists
from dragoman.text import DECODER_ONLY_FRAMING, ENCODER_ONLY_FRAMING, learn_tokenizer

WORDS = learn_tokenizer(["a b c d e f g h", "X-1 Y"], "word", 100)


def pair(source: str, target: str | None = None) -> SentencePair:
    return SentencePair(source, target, "corpus", 1)


def test_a_long_line_is_split_into_rows() -> None:
    rows = DATA_FORMATS["text"].encode(
        [pair("a b c d e f g"), pair("h")], Encoding(WORDS, WORDS, 3, ENCODER_ONLY_FRAMING)
    )
    assert [row.pair.source for row in rows] == ["a b c", "d e f", "g", "h"]
    assert [WORDS.decode(row.source) for row in rows] == ["a b c", "d e f", "g", "h"]
    assert all(row.target is None for row in rows)


def test_a_tag_labels_the_first_token_of_its_word() -> None:
    pieces = learn_tokenizer(["lowest lower low"], "character", 300)
    assert [len(word) for word in encode_text_lists([["low", "lower"]], pieces)[0]] == [3, 5]
    assert align_tags([[8, 9, 10], [11]], [20, 21], pad=0) == ([8, 9, 10, 11], [20, 0, 0, 21])
    tags = learn_tokenizer(["B-X O"], "label", 100)
    [example] = DATA_FORMATS["tags"].encode(
        [pair("low  lower", "B-X O")], Encoding(pieces, tags, 99, ENCODER_ONLY_FRAMING)
    )
    assert example.target is not None
    assert tags.decode([tag for tag in example.target if tag]) == "B-X O"
    assert len(example.source) == len(example.target) == 8


def test_a_dialogue_is_one_sequence_with_labels_for_the_replies() -> None:
    [example] = DATA_FORMATS["turns"].encode([pair("a b\tc\td")], Encoding(WORDS, WORDS, 99, DECODER_ONLY_FRAMING))
    a, b, c, d = WORDS.encode("a b c d")
    start, end, separator = 2, 3, 5
    assert example.source == [start, a, b, separator, c, end, d]
    assert example.target == [0, 0, 0, c, end, 0, 0]
