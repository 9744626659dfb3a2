from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.text import (
    BOS,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    TOKENIZER_TYPES,
    UNK,
    WORD_MARKERS,
    Tokenizer,
    alignment_words,
    learn_tokenizer,
    split_words,
)

TEXTS = [
    "The old lighthouse keeper counts the ships, one by one, and writes them down (in blue ink).",
    "Nobody has counted the keeper's lighthouses; nobody writes down an old ship!",
    "Der alte Wärter zählt die Schiffe: 1, 2, 3 ... 40. Größere Schiffe zählt er zweimal.",
    "Смотритель считает корабли. 守灯人数船。 दीपक जलता है, שומר המגדלור",
    "down  by the \tharbour 👩‍👩‍👧 – naïve cafe\u0301 ▁ x_1",
] * 3
FIXED = len(SPECIAL_TOKENS) + 256

KIND_AND_MARKER = [(kind, marker) for kind in TOKENIZER_TYPES for marker in TOKENIZER_TYPES[kind].markers]
LEARNED = {(kind, marker): learn_tokenizer(TEXTS, kind, 500, marker, coverage=0.99) for kind, marker in KIND_AND_MARKER}
OPEN = [tokenizer for tokenizer in LEARNED.values() if not tokenizer.has_unknown_words]
PIECED = [LEARNED[kind, marker] for kind, marker in KIND_AND_MARKER if kind in ("bpe", "unigram")]

AWKWARD = [
    " ",
    "  ",
    "\t",
    "\n",
    "\x00",
    "\x1c",
    "\u3000",
    "\u00a0",
    "▁",
    "<s>",
    "</s>",
    "<unk>",
    "<0x41>",
    "e\u0301",
    "न्दी",
]
awkward_text = st.lists(st.sampled_from([*AWKWARD, "👩‍👩‍👧", "שלום", "守灯", "ship", "s.", "'"])).map("".join)
any_text = st.text() | awkward_text


def composed(text: str) -> str:
    """Return the canonical composition by the library, whose version of Unicode may differ from Python's."""
    return tokenizers.normalizers.NFC().normalize_str(text)


@pytest.mark.parametrize("tokenizer", OPEN, ids=repr)
def test_decode_is_the_inverse_of_encode(tokenizer: Tokenizer) -> None:
    @given(any_text)
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == (composed(text) if tokenizer.decomposes else text)

    check()


@pytest.mark.parametrize("tokenizer", LEARNED.values(), ids=repr)
def test_the_tokenizers_library_reads_the_file_and_gives_the_same_ids(tokenizer: Tokenizer) -> None:
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    library.encode_special_tokens = True

    @given(any_text)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert library.encode(text).ids == ids
        if UNK not in ids:
            decoded = library.decode(ids)
            assert (composed(decoded) if tokenizer.decomposes else decoded) == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("tokenizer", LEARNED.values(), ids=repr)
def test_special_tokens_are_never_found_in_a_text(tokenizer: Tokenizer) -> None:
    for text in (*SPECIAL_TOKENS, "".join(SPECIAL_TOKENS), "a </s> b"):
        assert not ({*range(len(SPECIAL_TOKENS))} - {UNK}) & {*tokenizer.encode(text)}


@pytest.mark.parametrize("tokenizer", LEARNED.values(), ids=repr)
def test_decoding_leaves_special_tokens_out(tokenizer: Tokenizer) -> None:
    ids = [BOS, *tokenizer.encode("Nobody writes down"), EOS, PAD, PAD]
    assert tokenizer.decode(ids) == "Nobody writes down"
    assert (tokenizer.pad, tokenizer.unk, tokenizer.bos, tokenizer.eos) == (PAD, UNK, BOS, EOS)


@pytest.mark.parametrize("tokenizer", LEARNED.values(), ids=repr)
def test_an_empty_text_has_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == tokenizer.encode_batch([]) == tokenizer.tokens([]) == tokenizer.word_ids([]) == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("tokenizer", OPEN, ids=repr)
def test_a_lone_surrogate_becomes_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(["a", "x\ud800 y"]) == [tokenizer.encode("a"), tokenizer.encode("x\ufffd y")]


@pytest.mark.parametrize("tokenizer", OPEN, ids=repr)
def test_invalid_utf_8_is_replaced(tokenizer: Tokenizer) -> None:
    ids = [len(SPECIAL_TOKENS) + 0xE4, *tokenizer.encode("ship"), len(SPECIAL_TOKENS) + 0xFF]
    assert tokenizer.decode(ids).split() in (["\ufffdship\ufffd"], ["\ufffd", "ship\ufffd"], ["\ufffdship", "\ufffd"])
    assert len(tokenizer.word_ids(ids)) == len(ids)


def test_bpe_segments_a_new_word_as_in_the_textbook() -> None:
    text = " ".join(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3)
    letters, merges = len(set("low lower newest widest")), 5
    tokenizer = learn_tokenizer([text], size=FIXED + letters + merges, marker="final", coverage=1.0)
    assert tokenizer.vocab_size == FIXED + letters + merges
    assert tokenizer.tokens(tokenizer.encode("lowest")) == ["low", "est▁"]


def test_byte_tokens_follow_the_special_tokens() -> None:
    tokenizer = learn_tokenizer([], "byte")
    assert tokenizer.vocab_size == FIXED
    assert tokenizer.encode("é A") == [len(SPECIAL_TOKENS) + byte for byte in "é A".encode()]


def test_character_tokens_are_single_characters() -> None:
    tokenizer = learn_tokenizer(["abc é"], "character", coverage=1.0)
    assert tokenizer.tokens(tokenizer.encode("é cab")) == ["é", "▁", "c", "a", "b"]
    assert tokenizer.vocab_size == FIXED + 5


def test_rare_characters_are_encoded_as_bytes() -> None:
    texts = ["a" * 9999 + "é"]
    in_bytes = [len(SPECIAL_TOKENS) + byte for byte in "é".encode()]
    assert learn_tokenizer(texts, "character", coverage=0.9995).encode("é") == in_bytes
    assert len(learn_tokenizer(texts, "character", coverage=0.99999).encode("é")) == 1


def test_known_words_round_trip_and_others_are_unknown() -> None:
    for marker in WORD_MARKERS:
        tokenizer = learn_tokenizer(
            ["The ship, the (blue) harbour.", "blue ship", "the  ship ."], "word", marker=marker
        )
        assert tokenizer.decode(tokenizer.encode("the (blue) harbour.")) == "the (blue) harbour."
        assert tokenizer.decode(tokenizer.encode("the  ship .")) == "the  ship ."
        ids = tokenizer.encode("the green ship .")
        assert ids[1] == UNK
        assert tokenizer.decode(ids) == "the <unk> ship ."


def test_words_below_the_minimum_count_are_unknown() -> None:
    tokenizer = learn_tokenizer(["red red red blue blue green"], "word", min_count=2)
    assert [number == UNK for number in tokenizer.encode("red blue green")] == [False, False, True]
    smaller = learn_tokenizer(
        ["red red red blue blue green"], "word", size=len(SPECIAL_TOKENS) + 2
    )  # room for the space and one word
    assert [number == UNK for number in smaller.encode("red blue green")] == [False, True, True]


@pytest.mark.parametrize(("kind", "marker"), KIND_AND_MARKER)
def test_a_vocabulary_never_exceeds_its_size(kind: str, marker: str) -> None:
    for size in (FIXED + 100, FIXED + 130, 1000):
        assert learn_tokenizer(TEXTS, kind, size, marker).vocab_size <= size


def test_learning_a_unigram_vocabulary_is_deterministic() -> None:
    assert learn_tokenizer(TEXTS, "unigram", 500, coverage=0.99).to_json() == LEARNED["unigram", "initial"].to_json()


def test_unigram_learns_a_frequent_word_that_begins_no_other() -> None:
    tokenizer = learn_tokenizer(["ships sail und und und und und boats"] * 30, "unigram", 400)
    assert tokenizer.tokens(tokenizer.encode("und")) == ["▁und"]


@pytest.mark.parametrize("tokenizer", PIECED, ids=repr)
def test_no_token_crosses_a_word_boundary(tokenizer: Tokenizer) -> None:
    learned = tokenizer.tokens(range(FIXED, tokenizer.vocab_size))
    spoken = (
        piece.replace("▁", " ") for piece in learned if not any("\u0900" <= letter <= "\u097f" for letter in piece)
    )
    assert all(len(split_words(piece)) <= 1 for piece in spoken)


def test_word_ids_by_hand() -> None:
    tokenizer = LEARNED["character", "initial"]
    assert tokenizer.word_ids([BOS, *tokenizer.encode("an ox."), EOS]) == [-1, 0, 0, -1, 1, 1, 1, -1]
    byte = LEARNED["byte", "initial"]
    assert byte.word_ids(byte.encode("é 守!")) == [0, 0, -1, 1, 1, 1, 1]


@pytest.mark.parametrize("tokenizer", OPEN, ids=repr)
def test_the_tokens_of_a_word_spell_the_word(tokenizer: Tokenizer) -> None:
    # Marks stay with their letters in a piece but are words of their own; unassigned ones may be marks to the library.
    plain = st.text(st.characters(exclude_categories=("Cs", "Cn", "Mn", "Mc", "Me"))) | st.sampled_from(TEXTS[:3])

    @given(plain)
    def check(text: str) -> None:
        text = composed(text) if tokenizer.decomposes else text
        ids = tokenizer.encode(text)
        owners = tokenizer.word_ids(ids)
        for index, word in enumerate(alignment_words(text)):
            own = [number for number, owner in zip(ids, owners) if owner == index]
            assert tokenizer.decode(own).strip(" ") == word
        rest = [number for number, owner in zip(ids, owners) if owner == -1]
        assert tokenizer.decode(rest).strip() == ""

    check()


@pytest.mark.parametrize("tokenizer", LEARNED.values(), ids=repr)
def test_a_saved_tokenizer_equals_the_original(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.marker, loaded.vocab_size) == (tokenizer.kind, tokenizer.marker, tokenizer.vocab_size)
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    whole = LEARNED["bpe", "initial"].to_json()
    document = json.loads(whole)

    def changed(**fields: object) -> str:
        return json.dumps({**document, "model": {**document["model"], **fields}})

    gap = {**document["model"]["vocab"], "extra": 99_999}
    damaged = {
        "not JSON": whole[: len(whole) // 2],
        "not written by dragoman": "[]",
        "no field 'dragoman'": tokenizers.Tokenizer.from_str(whole).to_str(),
        "version 99": changed(dragoman={"version": 99, "kind": "bpe", "marker": "initial"}),
        "unknown type of tokenizer": changed(dragoman={"version": 1, "kind": "bpee", "marker": "initial"}),
        "unknown space marker": changed(dragoman={"version": 1, "kind": "bpe", "marker": "middle"}),
        "is damaged .Token": changed(merges=[["no", "such"]]),
        "begin with": changed(vocab={"a": 0}, merges=[]),
        "not consecutive": changed(vocab=gap),
    }
    for message, text in damaged.items():
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=message) as caught:
            Tokenizer.load(tmp_path / "tokenizer.json")
        assert "tokenizer.json" in str(caught.value) or "unknown" in message
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        Tokenizer.load(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="No such file"):
        Tokenizer.load(tmp_path / "missing.json")


def test_invalid_arguments_of_learning_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'unigram'"):
        learn_tokenizer(TEXTS, "unigramm")
    with pytest.raises(UserError, match="did you mean 'final'"):
        learn_tokenizer(TEXTS, marker="finale")
    with pytest.raises(UserError, match=f"3 most frequent characters of the text need {FIXED + 3}"):  # the space, a, b
        learn_tokenizer(["ab ab"], size=FIXED + 2)
    with pytest.raises(UserError, match="at least 9"):
        learn_tokenizer(["ab ab"], "word", size=8)
    with pytest.raises(UserError, match="no text"):
        learn_tokenizer(["", ""])
    with pytest.raises(UserError, match="coverage"):
        learn_tokenizer(TEXTS, coverage=0)


@pytest.mark.parametrize("kind", TOKENIZER_TYPES)
def test_the_smallest_texts_can_be_learned_from(kind: str) -> None:
    for texts in (["a"], [" "], ["\x00"], ["a\x00b \x00"] * 20, ["\ud800"], ["…"], ["a" * 50]):
        tokenizer = learn_tokenizer(texts, kind)
        assert tokenizer.has_unknown_words or tokenizer.decode(tokenizer.encode("ab \x00…")) == "ab \x00…"


def test_threads_share_a_tokenizer() -> None:
    tokenizer = Tokenizer.from_json(LEARNED["bpe", "initial"].to_json())
    expected = LEARNED["bpe", "initial"].encode_batch(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        assert all(ids == expected for ids in threads.map(tokenizer.encode_batch, [TEXTS] * 50))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_are_not_warned_and_can_encode() -> None:
    program = """
import os
from dragoman.text import learn_tokenizer
tokenizer = learn_tokenizer(["a ship", "two ships"])
tokenizer.encode_batch([str(number) for number in range(1000)])
child = os.fork()
if child == 0:
    tokenizer.encode_batch([str(number) for number in range(1000, 2000)])
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.environ.get("TOKENIZERS_PARALLELISM"))
"""
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["7", "None"]
    assert "tokenizers" not in done.stderr


def test_text_needs_no_torch() -> None:
    program = "import sys, dragoman.text; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("marker", ["initial", "final"])
def test_unknown_words_get_the_token_of_their_hash(marker: str) -> None:
    tokenizer = learn_tokenizer(["the house is in the city"], "word", 30, marker).with_unknown_words(100)
    text = "the Brux is in Zolmar the Brux"
    ids = tokenizer.encode(text)
    names = ["the", "<unk:97>", "is", "in", "<unk:48>", "the", "<unk:97>"]  # CRC-32 of the words, modulo 100
    assert [name.strip("▁") for name in tokenizer.tokens(ids)] == names
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    read = Tokenizer.from_json(tokenizer.to_json()).with_tags(["news"])
    assert read.encode(text) == ids
    assert len(read.unknown_ids) == 101


def test_decomposed_characters_are_letters_and_marks() -> None:
    tokenizer = learn_tokenizer(["한국 값", "Phở ế"], "decomposed", coverage=1.0)
    ids = tokenizer.encode("한글")  # 글 does not occur in the text, but its letters ㄱ and ㄹ …
    assert tokenizer.tokens(tokenizer.encode("한 ở")) == ["ᄒ", "ᅡ", "ᆫ", "▁", "o", "\u031b", "\u0309"]
    assert tokenizer.decode(ids) == "한글"
    assert tokenizer.word_ids(tokenizer.encode("한 ế")) == [0, 0, 0, -1, 1, 1, 1]
    # a syllable may get a final consonant, and a letter an accent
    certain = [tokenizer.decode_certain(tokenizer.encode("값 e\u0302")[:end]) for end in range(7)]
    assert certain == ["", "", "", "", "값", "값 ", "값 "]


def test_words_of_decomposed_text_are_those_of_the_decoded_text() -> None:
    tokenizer = learn_tokenizer(["がぎ"], "decomposed", coverage=1.0)
    ids = tokenizer.encode("がぎか")  # without spaces, each composed character is a word
    assert tokenizer.word_ids(ids) == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("marker", WORD_MARKERS)
def test_symbols_are_what_stands_between_spaces(marker: str) -> None:
    tokenizer = learn_tokenizer(["t͡ʃː a˥ p' (S I_RUN", "$0 <unk> ▁"], "symbol", marker=marker)
    for text in ("(S t͡ʃː a˥", "p' I_RUN $0", "▁ ▁"):
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.split())
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("I_RUN I")[1] == UNK


@pytest.mark.parametrize("tokenizer", [LEARNED["bpe", "initial"], LEARNED["word", "initial"]])
def test_every_gap_needs_a_sentinel(tokenizer: Tokenizer) -> None:
    text, sentinels = "the \x01 old \x01 ship", [1001, 1002, 1003]
    ids = tokenizer.encode_with_sentinels(text, "\x01", sentinels)
    assert [token_id for token_id in ids if token_id > 1000] == [1001, 1002]
    with pytest.raises(UserError, match="a text has 2 gaps, but the model can fill at most 1 gaps of one text: split"):
        tokenizer.encode_with_sentinels(text, "\x01", sentinels[:1])


def test_features_follow_all_tokens_and_are_kept() -> None:
    """Feature symbols have ids of their own after all tokens, also if more are added; no text contains them."""
    tokenizer = learn_tokenizer(["walk walked PST <feature:PST>"], "character")
    size = tokenizer.vocab_size
    first = tokenizer.with_features(["PST", "V"], ";")
    assert dict(first.features.ids) == {"PST": size, "V": size + 1, "": size + 2}
    assert first.features.encode(" V;PST;;NEW ") == [size + 1, size, size + 2]
    assert first.features.unknown("V;NEW") == ["NEW"]
    assert first.features.decode([5, size, 6, size + 2]) == "PST;?"
    assert first.encode("<feature:PST>") == tokenizer.encode("<feature:PST>")
    assert first.decode([size, *first.encode("walk")]) == "walk"
    more = Tokenizer.from_json(first.with_features(["N", "V"], ",").to_json())
    assert (more.features.id_range, more.features.separator) == (range(size, size + 4), ",")
    assert more.features.ids["N"] == size + 3
    tagged = first.with_tags(["news"])
    assert tagged.features == first.features
    with pytest.raises(UserError, match="of an earlier run between them"):
        _ = tagged.with_features(["N"], ";").features.id_range
