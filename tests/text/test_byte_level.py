"""Byte-level BPE against a plain implementation of GPT-2's algorithm that uses bytes and no library."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from dragoman.errors import UserError
from dragoman.text import SPECIAL_TOKENS, learn_tokenizer
from dragoman.text.byte_level import BYTE_LETTERS

TEXTS = [
    "The miller's daughters don't mill 1998 or 2000 mills, they'll say: naïve café!!",
    "Die Müllerin zählt 2000 Säcke;  守灯人数船 守灯  👩‍👩‍👧",
] * 3
SIZE = 360
TOKENIZER = learn_tokenizer(TEXTS, "byte-bpe", SIZE)
FIRST_BYTE = len(SPECIAL_TOKENS)
ENDINGS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
SPACES = {*"\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000", *map(chr, range(0x2000, 0x200B))}

some_text = st.text(st.characters(exclude_categories=("Cs", "Cn"))) | st.lists(
    st.sampled_from(
        [" ", "  ", "\t", "\n ", "'", "'t", "'them", "don't", "mill", "2000", "é", "守", "!!", "👩‍👩‍👧", "\x1c"]
    )
).map("".join)


def character_class(character: str) -> str:
    if character in SPACES:
        return "space"
    return {"L": "letter", "N": "digit"}.get(unicodedata.category(character)[0], "other")


def split_into_words(text: str) -> list[str]:
    """GPT-2's words, read from left to right."""
    words, start = [], 0
    while start < len(text):
        ending = next((ending for ending in ENDINGS if text.startswith(ending, start)), None)
        end = start + len(ending) if ending else start
        if not ending:
            first = start + (text[start] == " " and start + 1 < len(text) and text[start + 1] not in SPACES)
            kind = character_class(text[first])
            end = first
            while end < len(text) and character_class(text[end]) == kind:
                end += 1
            if kind == "space" and end < len(text) and end - start > 1:
                end -= 1  # the last one may belong to the next word
        words.append(text[start:end])
        start = end
    return words


def merge(symbols: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    merged: list[bytes] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def learn_by_definition(texts: list[str], num_tokens: int) -> list[tuple[bytes, bytes]]:
    """Merge the most frequent pair of bytes, the first in the text among equals, until there are enough tokens."""
    counts = Counter(word for text in texts for word in split_into_words(f" {text}"))
    words = {word: [bytes([byte]) for byte in word.encode()] for word in counts}
    merges: list[tuple[bytes, bytes]] = []
    tokens = {bytes([byte]) for byte in range(256)}
    while len(tokens) < num_tokens:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, symbols in words.items():
            for pair in pairwise(symbols):
                pairs[pair] += counts[word]
        best = max(pairs, key=pairs.__getitem__)
        if pairs[best] < 2:
            break
        words = {word: merge(symbols, best) for word, symbols in words.items()}
        merges.append(best)
        tokens.add(b"".join(best))
    return merges


MERGES = learn_by_definition(TEXTS, SIZE - len(SPECIAL_TOKENS))


def test_bytes_are_written_as_in_gpt_2() -> None:
    assert sorted(BYTE_LETTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert [BYTE_LETTERS[byte] for byte in b" A\n\x00"] == ["Ġ", "A", "Ċ", "Ā"]


def test_merges_are_those_of_the_definition() -> None:
    learned = json.loads(TOKENIZER.to_json())["model"]["merges"]
    letters = [["".join(BYTE_LETTERS[byte] for byte in symbol) for symbol in pair] for pair in MERGES]
    assert [list(pair) for pair in learned] == letters
    assert TOKENIZER.vocab_size == SIZE


@given(some_text)
def test_segmentation_is_that_of_the_definition(text: str) -> None:
    expected: list[bytes] = []
    for word in split_into_words(f" {text}") if text else ():
        symbols = [bytes([byte]) for byte in word.encode()]
        for pair in MERGES:
            symbols = merge(symbols, pair)
        expected += symbols
    forms = TOKENIZER.surface_forms()
    assert [forms[token_id] for token_id in TOKENIZER.encode(text)] == expected


@given(st.binary())
def test_every_byte_sequence_round_trips(content: bytes) -> None:
    forms = TOKENIZER.surface_forms()
    assert b"".join(forms[FIRST_BYTE + byte] for byte in content) == content
    for text in (content.decode("latin-1"), content.decode(errors="replace")):
        ids = TOKENIZER.encode(text)
        assert TOKENIZER.unk not in ids
        assert TOKENIZER.decode(ids) == text
        assert b"".join(forms[token_id] for token_id in ids) == (f" {text}".encode() if text else b"")


def test_tokens_are_readable() -> None:
    ids = TOKENIZER.encode("mills 守灯 ß")
    assert TOKENIZER.tokens(ids) == ["▁mills", "▁守灯", "▁", "<0xC3>", "<0x9F>"]
    assert TOKENIZER.tokens_to_ids(TOKENIZER.tokens(ids)) == ids
    assert TOKENIZER.word_ids(ids) == [0, 1, -1, 2, 2]


def test_the_space_is_always_before_the_word() -> None:
    with pytest.raises(UserError, match=r"text\.space_marker=initial"):
        learn_tokenizer(TEXTS, "byte-bpe", marker="final")
    with pytest.raises(UserError, match="256 bytes need 263"):
        learn_tokenizer(TEXTS, "byte-bpe", size=262)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_learning_stops_at_a_compression_ratio(kind: str) -> None:
    def ratio(size: int = 5000, wanted: float | None = None, text: str = " ".join(TEXTS)) -> tuple[float, int, str]:
        """Symbols per token of the text that was learned from, the size of the vocabulary, and the report."""
        log: list[str] = []
        tokenizer = learn_tokenizer([text], kind, size, coverage=0.98, compression_ratio=wanted, log=log.append)
        symbols = len(f" {text}" if kind == "bpe" else f" {text}".encode())
        return symbols / len(tokenizer.encode(text)), tokenizer.vocab_size, " ".join(log)

    reached, size, report = ratio(wanted=2)
    assert reached >= 2
    assert "because the compression ratio is reached" in report
    assert f"{size:,} tokens (at most 5,000), compression ratio {reached:.3f} (wanted: 2)" in report
    assert ratio(size - 1)[0] < 2  # one merge less would not do
    reached, _, report = ratio(size - 1, wanted=2)
    assert f"because the vocabulary size is reached: {size - 1} tokens" in report
    assert f"compression ratio {reached:.3f}" in report
    assert "no pair of tokens occurs more than once" in ratio(wanted=1000)[2]
    assert ratio()[2] == ""
