"""The SentencePiece library cuts a text; so do we, from the same file."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.text.imported_tokenizer import ImportedTokenizer, tokenizers_from_folder
from dragoman.text.rewriting import Rewriter, Rewriting, Rules
from dragoman.text.sentencepiece_model import BYTE_PAIRS, CONTROL, UNKNOWN, Model, Piece, cutter, parse, read

sentencepiece = pytest.importorskip("sentencepiece")

CORPUS = [
    "The old lighthouse keeper counts the ships, one by one, and writes them down (in blue ink).",
    "Nobody has counted the keeper's lighthouses; nobody writes down an old ship!",
    "Der alte Wärter zählt die Schiffe: 1, 2, 3 ... 40. Größere Schiffe zählt er zweimal.",
    "Смотритель считает корабли. 守灯人数船。 दीपक जलता है, שומר המגדלור",
    "down  by the \tharbour 👩‍👩‍👧 – naïve cafe\u0301 ▁ x_1",
    "aaa aaaa abab ababa bababa aa ba ab",
] * 10

SYMBOLS = ["<sep>", "ship", "①", "\n", "[X]"]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": SYMBOLS, "control_symbols": ["<ctrl>"]},
    "across words": {"split_by_whitespace": False, "split_by_unicode_script": False, "split_by_number": False},
    "no prefix": {"add_dummy_prefix": False, "normalization_rule_name": "nfkc_cf"},
    "spaces": {"allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False},
}
ODD = [
    *(
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
        "aba",
    ),
    *(
        "<s>",
        "</s>",
        "<unk>",
        "<0x41>",
        "<ctrl>",
        "<sep>",
        "[X]",
        "e\u0301",
        "e\u0302\u0301",
        "Ａ\u0301",
        "\u0301",
        "ｶﾞ",
    ),
    *(
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
        "xyz",
        "\ufffd",
    ),
]
REPEATED = ["…", "aaaa", "....", "!!!!!"]  # equally good cuts, between which the rounding of sums decides


def train(**settings: Any) -> bytes:
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=content, minloglevel=2, hard_vocab_limit=False, **settings
    )
    return content.getvalue()


def texts(parts: list[str], count: int) -> list[str]:
    rng = random.Random(7)
    letters = ["".join(rng.choice("ab a") for _ in range(rng.randrange(14))) for _ in range(count // 4)]
    return CORPUS[:6] + letters + ["".join(rng.choices(parts, k=rng.randrange(12))) for _ in range(count)]


def opened(content: bytes, folder: Path) -> tuple[Any, ImportedTokenizer]:
    (folder / "tokenizer.model").write_bytes(content)
    return sentencepiece.SentencePieceProcessor(model_proto=content), tokenizers_from_folder(folder)[0]


@pytest.mark.parametrize("in_bytes", [False, True], ids=["unknown", "bytes"])
@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_texts_are_cut_and_joined_as_by_the_library(
    variant: str, algorithm: str, in_bytes: bool, tmp_path: Path
) -> None:
    settings = VARIANTS[variant] | {"model_type": algorithm, "byte_fallback": in_bytes, "character_coverage": 0.98}
    theirs, ours = opened(train(vocab_size=600 if in_bytes else 330, **settings), tmp_path)
    # With symbols, sums of scores begin anew after each of them, and rounding may decide otherwise.
    for text in texts(ODD if variant == "symbols" else ODD + REPEATED, 400):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.tokens(ids) == [theirs.id_to_piece(number) for number in ids]
        if theirs.unk_id() not in ids and "▁" not in text:
            assert ours.decode(ids) == theirs.decode(ids), text


def test_every_character_is_rewritten_as_by_the_library() -> None:
    content = train(vocab_size=300, normalization_rule_name="nmt_nfkc_cf")
    theirs, rewrite = sentencepiece.SentencePieceProcessor(model_proto=content), Rewriter(parse(content).rewriting)
    for code in (*range(1, 0x3400), *range(0xF900, 0x10000), *range(0x1D400, 0x1D800), *range(0x2F800, 0x2FA20)):
        text = f"a{chr(code)}b e{chr(code)}\u0301"
        assert rewrite(text) == theirs.normalize(text), hex(code)


def test_the_space_may_go_after_words(tmp_path: Path) -> None:
    theirs, ours = opened(train(vocab_size=300, treat_whitespace_as_suffix=True), tmp_path)
    for text in ("the old  ship ", "ship", "", " "):
        assert ours.encode(text) == theirs.encode(text)


def test_pieces_without_a_number_are_unknown() -> None:
    model = Model(
        [Piece("<unk>", kind=UNKNOWN), Piece("<s>", kind=CONTROL), *(Piece(p, -1.0) for p in ("▁", "a", "b"))]
    )
    cut = cutter(model, numbers=[7, None, 2, None, 3], size=8)
    assert cut.encode_batch(["ab", "a c", "ba"]) == [[2, 7, 3], [2, 7, 2, 7], [2, 3, 7]]


def test_what_the_model_does_not_know_may_be_in_the_vocabulary() -> None:
    for algorithm in (1, BYTE_PAIRS):
        model = Model([Piece("<unk>", kind=UNKNOWN), Piece("▁", -1.0), Piece("a", -2.0)], algorithm)
        cut = cutter(model, size=9, others={"é": 5, "éß": 6})
        assert cut.encode_batch(["é", "aßé", "éßa", "éé"]) == [[1, 5], [1, 2, 0], [1, 6, 2], [1, 0]]


def test_pairs_are_joined_by_score_from_the_left() -> None:
    pieces = [Piece("<unk>", kind=UNKNOWN), *(Piece(p, -float(n)) for n, p in enumerate(["aa", "aaa", "▁", "a"]))]
    cut = cutter(Model(pieces, BYTE_PAIRS))
    assert cut.encode_batch(["aaaa", "aaa"]) == [[3, 1, 1], [3, 2]]  # aa aa, in which no aaa is left; aa a


# ---- strangers' files


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def piece(text: str, score: float = -1.0, kind: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


GOOD = piece("<unk>", 0.0, 2) + piece("▁") + piece("a")


def table(units: list[int], pool: bytes = b"x\0") -> bytes:
    return field(3, field(2, struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + pool))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "one piece for what is unknown"),
        (b"hello, this is a text", "damaged"),
        (b'{"model": {}}', "damaged"),
        (GOOD[:-1], "middle of a"),
        (GOOD + b"\x0a\xff\xff\xff\xff\xff\x7f", "middle of a field"),
        (GOOD + b"\x0a" + b"\xff" * 11, "64 bits"),
        (GOOD + b"\x0b", "wire type 3"),
        (GOOD + piece("b", float("nan")), "score"),
        (GOOD + piece("b", float("inf")), "score"),
        (GOOD + piece(""), "0 characters"),
        (GOOD + piece("b" * 5000), "5,000 characters"),
        (GOOD + piece("a"), "twice"),
        (GOOD + piece("<unk2>", 0.0, 2), "not 2"),
        (piece("<unk>", 0.0, 2), "no pieces"),
        (GOOD + field(1, field(1, b"\xff\xfe")), "utf-8"),
        (GOOD + field(2, b"\x18\x03"), "words or characters"),
        (GOOD + field(2, b"\x98\x02\x01"), "256"),
        (GOOD + field(2, field(3, b"x")), "a number is expected"),
        (GOOD + b"\x10\x05", "text is expected"),
        (GOOD + field(3, field(2, b"\xff\xff\xff\xff")), "table"),
        (GOOD + field(3, field(2, struct.pack("<I", 1 << 31) + b"\0" * 64)), "table"),
        (GOOD + table([0] * 97 + [ord("a") | 1 << 8 | 5000 << 10]), "table"),  # its replacement is beyond the end
    ],
)
def test_a_damaged_file_is_answered_in_a_sentence(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged") as caught:
        read(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_small_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(GOOD)
    assert cutter(read(path)).encode_batch(["a  a", "b"]) == [[1, 2, 1, 2], [1, 0]]


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "no.model")
    path = tmp_path / "large.model"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="too large"):
        read(path)


def test_files_that_are_cut_short_or_scratched_are_read_or_refused(tmp_path: Path) -> None:
    content, path, rng = train(vocab_size=300, model_type="bpe"), tmp_path / "tokenizer.model", random.Random(3)
    for _ in range(60):
        scratched = bytearray(content)
        for _ in range(rng.choice((1, 3, 30))):
            scratched[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(scratched[: rng.choice((len(content), rng.randrange(len(content))))])
        with contextlib.suppress(UserError):
            cutter(read(path)).encode_batch(["Größe e\u0301 ﬁ ▁ abab 守"])


def test_rules_that_run_in_circles_end() -> None:
    """The unit of a letter is its own child by that letter, so that a, aa, aaa, … are all replaced."""
    letter = ord("a")
    units = [0] * 97 + [letter | 1 << 8 | letter << 10]  # labelled a, ends a rule, and leads back to the beginning
    found = Rules(struct.pack("<I98I", 4 * 98, *units) + b"x\0")
    assert found.alone == found.later == {"a"}
    assert set(found.apply("a" * 5000)) == {"x"}


def test_a_text_without_rules_stays() -> None:
    rewrite = Rewriter(Rewriting(prefix=False, collapse=False, escape=False))
    assert rewrite("ﬁ  e\u0301 \t") == "ﬁ  e\u0301 \t"
