"""SentencePiece models give the segmentation of the SentencePiece library, and damaged files a clear error."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.text import Tokenizer
from dragoman.text.hf_tokenizers import tokenizers_from_folder
from dragoman.text.imported_tokenizer import ImportedTokenizer
from dragoman.text.sentencepiece_model import SentencePieceModel, SentencePieceSegmenter

sentencepiece = pytest.importorskip("sentencepiece")

CORPUS = [
    "The old lighthouse keeper counts the ships, one by one, and writes them down (in blue ink).",
    "Nobody has counted the keeper's lighthouses; nobody writes down an old ship!",
    "Der alte Wärter zählt die Schiffe: 1, 2, 3 ... 40. Größere Schiffe zählt er zweimal.",
    "Смотритель считает корабли. 守灯人数船。 दीपक जलता है, שומר המגדלור",
    "down  by the \tharbour 👩‍👩‍👧 – naïve cafe\u0301 ▁ x_1",
    "aaa aaaa abab ababa bababa aa ba ab",
] * 10

USER_DEFINED = ["<sep>", "ship", "①", "\n", "[X]"]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": USER_DEFINED, "control_symbols": ["<ctrl>"]},
    "across words": {"split_by_whitespace": False, "split_by_unicode_script": False, "split_by_number": False},
    "no prefix": {"add_dummy_prefix": False, "normalization_rule_name": "nfkc_cf"},
    "spaces": {"allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False},
    "suffix": {"treat_whitespace_as_suffix": True},
}
PARTS = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\x00",
    "\x01",
    "\u3000",
    "\u00a0",
    "\u200b",
    "▁",
    "x y",
    "ship",
    "a",
    "b",
    "ab",
]
PARTS += ["<s>", "</s>", "<unk>", "<0x41>", "<ctrl>", "<sep>", "[X]", "e\u0301", "e\u0302\u0301", "Ａ\u0301", "ｶﾞ"]
PARTS += [
    "\u1112\u1161\u11ab",
    "ﬁ",
    "①",
    "\ufdfa",
    "न्दी",
    "👩‍👩‍👧",
    "שלום",
    "守灯",
    "s.",
    "'",
    "lighthouse",
    "Größe",
    "\ufffd",
]
PARTS += ["s.", "'", "lighthouse", "Größe", "\ufffd", "…", "aaaa", "....", "!!!!!"]


def train(**settings: Any) -> bytes:
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=content, minloglevel=2, hard_vocab_limit=False, **settings
    )
    return content.getvalue()


def random_texts(count: int) -> list[str]:
    rng = random.Random(7)
    return CORPUS[:6] + ["".join(rng.choices(PARTS, k=rng.randrange(12))) for _ in range(count)]


def opened(content: bytes, folder: Path) -> tuple[Any, ImportedTokenizer]:
    (folder / "tokenizer.model").write_bytes(content)
    return sentencepiece.SentencePieceProcessor(model_proto=content), tokenizers_from_folder(folder)[0]


@pytest.mark.parametrize("byte_fallback", [False, True], ids=["unknown", "bytes"])
@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_texts_are_segmented_and_joined_as_by_the_library(
    variant: str, algorithm: str, byte_fallback: bool, tmp_path: Path
) -> None:
    settings = VARIANTS[variant] | {"model_type": algorithm, "byte_fallback": byte_fallback}
    theirs, ours = opened(
        train(vocab_size=600 if byte_fallback else 330, character_coverage=0.98, **settings), tmp_path
    )
    saved = Tokenizer.from_json(ours.to_json())
    for text in random_texts(100):
        ids = theirs.encode(text)
        assert ours.encode(text) == saved.encode(text) == ids, text
        assert ours.tokens(ids) == [theirs.id_to_piece(number) for number in ids]
        if theirs.unk_id() not in ids and "▁" not in text and variant != "suffix":
            assert ours.decode(ids) == theirs.decode(ids), text


def test_word_and_character_models_are_supported(tmp_path: Path) -> None:
    for algorithm in ("word", "char"):
        theirs, ours = opened(train(vocab_size=90, model_type=algorithm), tmp_path)
        assert ours.encode(CORPUS[0]) == theirs.encode(CORPUS[0])


def test_a_missing_library_is_answered_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.model").write_bytes(GOOD)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"pip install 'dragoman\[sentencepiece\]'"):
        tokenizers_from_folder(tmp_path)


# ---- small models made by hand


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded, value = encoded + bytes([value & 0x7F | 0x80]), value >> 7
    return encoded + bytes([value])


def piece(text: str, score: float = -1.0, kind: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


GOOD = piece("<unk>", 0.0, 2) + piece("▁") + piece("a")
BPE = field(2, b"\x18\x02")


def test_pieces_without_an_id_are_unknown() -> None:
    model = SentencePieceModel(GOOD + piece("b"), "a model")
    segmenter = SentencePieceSegmenter(model, {"▁": 2, "b": 3}, unk=7)
    assert segmenter.encode_batch(["ab", "a c", "ba"]) == [[2, 7, 3], [2, 7, 2, 7], [2, 3, 7]]


@pytest.mark.parametrize("algorithm", [b"", BPE], ids=["unigram", "bpe"])
def test_a_run_of_unknown_characters_may_be_in_the_vocabulary(algorithm: bytes) -> None:
    model = SentencePieceModel(GOOD + algorithm, "a model")
    segmenter = SentencePieceSegmenter(model, {"▁": 1, "a": 2, "é": 5, "éß": 6}, unk=0)
    assert segmenter.encode_batch(["é", "aßé", "éßa", "éé"]) == [[1, 5], [1, 2, 0], [1, 6, 2], [1, 0]]


def test_symbols_can_be_added_and_the_prefix_space_removed() -> None:
    model = SentencePieceModel(GOOD, "a model").with_user_defined(["(!)", "a"]).with_prefix_space(False)
    assert model.pieces == ["<unk>", "▁", "a", "(!)"]
    assert model.processor.encode("a(!) a(!)") == [2, 3, 1, 2, 3]
    assert model.decoder().decode(["▁", "a"]) == "a"  # runs of spaces are still collapsed


# ---- untrusted files


def table(units: list[int], pool: bytes = b"x\0") -> bytes:
    return field(3, field(2, struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + pool))


DAMAGED = {
    "empty": b"",
    "text": b"hello, this is a text",
    "JSON": b'{"model": {}}',
    "cut short": GOOD[:-1],
    "a length beyond the end": GOOD + b"\x0a\xff\xff\xff\xff\xff\x7f",
    "a number of more than 64 bits": GOOD + b"\x0a" + b"\xff" * 11,
    "an unknown wire type": GOOD + b"\x0b",
    "a score that is not a number": GOOD + piece("b", float("nan")),
    "an empty piece": GOOD + piece(""),
    "a piece twice": GOOD + piece("a"),
    "two unknown pieces": GOOD + piece("<unk2>", 0.0, 2),
    "no pieces of text": piece("<unk>", 0.0, 2),
    "bytes without 256 pieces": GOOD + field(2, b"\x98\x02\x01"),
    "a short table of characters": GOOD + field(3, field(2, b"\xff\xff\xff\xff")),
    "a table with a wrong length": GOOD + field(3, field(2, struct.pack("<I", 1 << 31) + b"\0" * 64)),
    "a table that points beyond its end": GOOD + table([0] * 97 + [ord("a") | 1 << 8 | 5000 << 10]),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_answered_in_a_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged") as caught:
        SentencePieceModel.read(path)
    assert "\n" not in str(caught.value)


def test_a_missing_or_too_large_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        SentencePieceModel.read(tmp_path / "no.model")
    path = tmp_path / "large.model"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="a SentencePiece model may have at most 16,777,216"):
        SentencePieceModel.read(path)


def test_files_with_random_damage_are_read_or_refused(tmp_path: Path) -> None:
    content, path, rng = train(vocab_size=300, model_type="bpe"), tmp_path / "tokenizer.model", random.Random(3)
    for _ in range(60):
        scratched = bytearray(content)
        for _ in range(rng.choice((1, 3, 30))):
            scratched[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(scratched[: rng.choice((len(content), rng.randrange(len(content))))])
        with contextlib.suppress(UserError):
            SentencePieceModel.read(path).processor.encode("Größe e\u0301 ﬁ ▁ abab 守")


# ---- files of format version 1, which stored pieces and normalization rules apart


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_tokenizer_files_of_version_1_give_the_same_ids(algorithm: str) -> None:
    """The expected ids are those of the SentencePiece library with the model that the file was made from."""
    tokenizer = Tokenizer.load(Path(__file__).parent / f"sentencepiece_{algorithm}_version_1.json")
    assert isinstance(tokenizer, ImportedTokenizer)
    assert {text: tokenizer.encode(text) for text in VERSION_1[algorithm]} == VERSION_1[algorithm]
    assert Tokenizer.from_json(tokenizer.to_json()).encode("a shipabab <sep>") == tokenizer.encode("a shipabab <sep>")
    assert tokenizer.decode(tokenizer.encode("the old ab ship")) == "the old ab ship"


VERSION_1: dict[str, dict[str, list[int]]] = {
    "unigram": {
        "the old ships": [14, 13, 5, 4, 8],
        "a shipabab <sep> Ω": [5, 7, 5, 4, 39, 20, 5, 3, 5, 0],
        "  two   spaces ": [5, 23, 0, 11, 5, 8, 27, 7, 32, 6, 8],
        "bababab aaaaaaa": [16, 19, 20, 17, 7, 37],
        "": [],
    },
    "bpe": {
        "the old ships": [17, 16, 42, 4, 51],
        "a shipabab <sep> Ω": [5, 42, 4, 41, 29, 42, 3, 42, 0],
        "  two   spaces ": [42, 49, 0, 45, 42, 51, 57, 41, 53, 44, 51],
        "bababab aaaaaaa": [42, 9, 29, 15, 7, 7],
        "": [],
    },
}
