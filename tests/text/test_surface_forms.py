"""Surface forms: the bytes of each token; joined, they are the decoded text."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_imported_tokenizer import FAMILIES, TEXTS

from dragoman.errors import UserError
from dragoman.text import learn_tokenizer
from dragoman.text.hf_tokenizers import tokenizers_from_folder


@pytest.mark.parametrize("family", [family for family in FAMILIES if "bert" not in family or family == "roberta"])
def test_surface_forms_of_imported_tokenizers_spell_the_decoded_text(family: str, tmp_path: Path) -> None:
    tokenizer = tokenizers_from_folder(tmp_path, FAMILIES[family](tmp_path))[1]
    spelled = tokenizer.surface_forms()
    assert len(spelled) == tokenizer.vocab_size
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert b"".join(spelled[n] for n in ids).decode().strip() == tokenizer.decode(ids).strip()
        assert tokenizer.tokens_to_ids(tokenizer.tokens(ids)) == ids


def test_word_piece_tokens_have_no_surface_form(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="WordPiece"):
        tokenizers_from_folder(tmp_path, FAMILIES["bert"](tmp_path))[0].surface_forms()


@pytest.mark.parametrize("kind", ["bpe", "word", "byte"])
def test_surface_forms_of_learned_tokenizers_spell_the_decoded_text(kind: str) -> None:
    tokenizer = learn_tokenizer(TEXTS, kind=kind, size=400)
    spelled = tokenizer.surface_forms()
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert b"".join(spelled[n] for n in ids).decode().removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")
