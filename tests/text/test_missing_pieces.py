"""Tokenizers are extended by pieces and language codes; everything that they had keeps its id."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.text.hf_tokenizers import open_tokenizers, tokenizer_from_file

TEXT = ["the old man reads the book.", "a dog sees the lighthouse", "low lower newest widest"] * 10
GREEK = ["τηε ηουσε", "τηε δογ"] * 3


def metaspace_bpe(path: Path) -> Path:
    """A tokenizer of the `tokenizers` library; its last token is none of its model."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>"], show_progress=False)
    library.train_from_iterator(TEXT, trainer)
    library.add_special_tokens([AddedToken("<mask>", special=True)])
    library.save(str(path))
    return path


def check_extension(tokenizer: Tokenizer, has_new_pieces: bool) -> None:
    """Add pieces, a language code, and another language: all old ids stay, also after saving."""
    old_size, old_tokens = tokenizer.vocab_size, tokenizer.tokens(range(tokenizer.vocab_size))
    first, pieces = tokenizer.with_missing_pieces(GREEK, limit=10, first_id=old_size)
    assert list(pieces) == list(range(old_size, old_size + len(pieces)))
    assert bool(pieces) is has_new_pieces
    for piece in pieces.values():  # a new piece was spelled by old tokens, or unknown
        assert all(token_id < old_size for token_id in tokenizer.piece_ids(piece))
    code = first.vocab_size
    assert first.can_assign_ids_from(code)
    second = first.with_language_code("el", code)
    third, others = second.with_missing_pieces(["жжж жж"] * 3, limit=3, first_id=code + 1)
    assert bool(others) is has_new_pieces
    for extended in (third, Tokenizer.from_json(third.to_json())):
        assert extended.vocab_size == code + 1 + len(others)
        assert len(extended.vocabulary()) == len(extended.surface_forms()) == extended.vocab_size
        assert extended.tokens(range(old_size)) == old_tokens
        assert extended.tags == tokenizer.tags
        assert extended.features.ids == tokenizer.features.ids
        assert "el" in extended.tokens([code])[0]
        assert code not in extended.encode("el <2el> a")
        assert extended.encode_batch(TEXT[:3]) == tokenizer.encode_batch(TEXT[:3])
        if has_new_pieces:
            assert extended.decode(extended.encode("τηε")) == "τηε"


@pytest.mark.parametrize("has_prefix", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "word", "character"])
def test_learned_tokenizers_are_extended(kind: str, has_prefix: bool) -> None:
    tokenizer = learn_tokenizer(TEXT, kind, 300)
    if has_prefix:
        tokenizer = tokenizer.with_tags(["news", "web"]).with_features(["V", "PST"], ";")
    check_extension(tokenizer, has_new_pieces=kind in ("bpe", "word", "character"))


def test_imported_tokenizers_are_extended(tmp_path: Path) -> None:
    tokenizer = tokenizer_from_file(metaspace_bpe(tmp_path / "tokenizer.json"))
    check_extension(tokenizer, has_new_pieces=True)


@pytest.mark.parametrize("has_prefix", [False, True])
def test_remapped_tokenizers_are_extended(tmp_path: Path, has_prefix: bool) -> None:
    tokenizer, _ = open_tokenizers(metaspace_bpe(tmp_path / "tokenizer.json"))
    if has_prefix:
        tokenizer = tokenizer.with_tags(["news", "web"]).with_features(["V", "PST"], ";")
    check_extension(tokenizer, has_new_pieces=True)
