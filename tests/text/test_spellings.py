"""What each piece adds to a text: joined, it is what ``decode`` gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_foreign_tokenizer import FAMILIES, TEXTS

from dragoman.errors import UserError
from dragoman.text import learn
from dragoman.text.foreign import from_folder


@pytest.mark.parametrize("family", [family for family in FAMILIES if not family.startswith("bert")])
def test_pieces_from_elsewhere_spell_the_text_that_they_decode_to(family: str, tmp_path: Path) -> None:
    tokenizer = from_folder(tmp_path, FAMILIES[family](tmp_path))[1]
    spelled = tokenizer.spellings()
    assert len(spelled) == tokenizer.size
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert b"".join(spelled[n] for n in ids).decode().strip() == tokenizer.decode(ids).strip()


def test_word_pieces_do_not_say_what_they_add(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="WordPiece"):
        from_folder(tmp_path, FAMILIES["bert"](tmp_path))[0].spellings()


@pytest.mark.parametrize("kind", ["bpe", "word", "byte"])
def test_pieces_learned_here_spell_the_text_that_they_decode_to(kind: str) -> None:
    tokenizer = learn(TEXTS, kind=kind, size=400)
    spelled = tokenizer.spellings()
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert b"".join(spelled[n] for n in ids).decode().removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")
