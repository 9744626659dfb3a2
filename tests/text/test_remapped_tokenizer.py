"""Imported tokenizers are used for training with Dragoman's special tokens."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dragoman.errors import UserError
from dragoman.text import EOS, MASK, SPECIAL_TOKENS, Tokenizer, learn_tokenizer
from dragoman.text.hf_tokenizers import open_tokenizers
from dragoman.text.imported_tokenizer import ID_OFFSET

TEXT = ["the old man reads the book.", "a dog sees the lighthouse", "low lower newest widest"] * 10


def byte_level(path: Path) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXT, trainer)
    library.save(str(path))
    return library


def check(ours: Tokenizer, tmp_path: Path) -> None:
    """What every tokenizer promises."""
    ours.save(tmp_path / "saved.json")
    again = Tokenizer.load(tmp_path / "saved.json")
    for text in ("the old dog", "lower", "the widest book."):
        ids = ours.encode(text)
        assert min(ids) >= ID_OFFSET
        assert max(ids) < ours.vocab_size
        assert ours.decode([*ids, EOS]) == text
        assert again.encode(text) == ids
        assert len(ours.word_ids(ids)) == len(ids)
        assert {*ours.word_ids(ids)} - {-1} == {*range(len(text.split()))}
    assert ours.tokens(range(ID_OFFSET)) == list(SPECIAL_TOKENS)
    assert len(ours.surface_forms()) == ours.vocab_size
    assert ours.encode_masked("the \x01 dog", "\x01").count(MASK) == 1
    tagged = ours.with_tags(["news"])
    assert tagged.tags == {"news": ours.vocab_size}
    assert tagged.vocab_size == ours.vocab_size + 1
    assert Tokenizer.from_json(tagged.to_json()).tags == tagged.tags


def test_a_hugging_face_document_can_be_used_for_training(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    ours, target = open_tokenizers(tmp_path / "tokenizer.json")
    assert ours is target
    expected = library.encode("the old dog", add_special_tokens=False).ids
    assert ours.encode("the old dog") == [number + ID_OFFSET for number in expected]
    check(ours, tmp_path)


def test_a_sentencepiece_model_can_be_used_for_training(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=content, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    (tmp_path / "joint.model").write_bytes(content.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content.getvalue())
    ours, _ = open_tokenizers(tmp_path / "joint.model")
    assert ours.encode("the old dog") == [number + ID_OFFSET for number in theirs.encode("the old dog")]
    check(ours, tmp_path)


def test_a_tokenizer_of_a_run_is_used_unchanged(tmp_path: Path) -> None:
    own = learn_tokenizer(TEXT, "bpe", 300)
    own.save(tmp_path / "tokenizer.json")
    assert open_tokenizers(tmp_path / "tokenizer.json")[0].to_json() == own.to_json()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a\n")
    with pytest.raises(UserError, match="does not have the suffix of a tokenizer"):
        open_tokenizers(tmp_path / "text.txt")
    with pytest.raises(UserError, match="does not exist"):
        open_tokenizers(tmp_path / "none.model")
