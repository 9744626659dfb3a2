"""Imported tokenizers for training new models: their tokens get ids after Dragoman's special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.text.hf_tokenizers import tokenizer_from_file, tokenizers_from_folder
from dragoman.text.imported_tokenizer import IMPORTED_TYPE, MISSING_TOKEN_ID, ImportedTokenizer
from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from dragoman.text.tokenizer import REMAPPED_TYPE, Tokenizer, check_tags, tag_token

ID_OFFSET = len(SPECIAL_TOKENS)
TOKENIZER_SUFFIXES = (".model", ".spm", ".json")


class RemappedTokenizer(Tokenizer):
    """An imported tokenizer whose ids are shifted, so that PAD, BOS, EOS, MASK … have Dragoman's ids.

    An imported tokenizer may lack some of these tokens, or use one for two purposes; a remapped one can train every
    system and objective. The imported special tokens keep an id, but no text contains them.
    """

    def __init__(self, inner: ImportedTokenizer, tags: Sequence[str] = ()) -> None:
        self.kind, self.marker, self.inner = REMAPPED_TYPE, inner.marker, inner
        self.pad, self.unk, self.bos, self.eos = PAD, UNK, BOS, EOS
        self.mask, self.sep, self.cls = MASK, SEP, CLS
        self.tags = {name: ID_OFFSET + inner.vocab_size + n for n, name in enumerate(tags)}

    @property
    def vocab_size(self) -> int:
        return ID_OFFSET + self.inner.vocab_size + len(self.tags)

    def __repr__(self) -> str:
        return f"RemappedTokenizer(vocab_size={self.vocab_size})"

    def with_tags(self, names: Sequence[str]) -> RemappedTokenizer:
        check_tags(names)
        return RemappedTokenizer(self.inner, list(dict.fromkeys([*self.tags, *names])))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        unk, rows = self.inner.unk, self.inner.encode_batch(texts)
        return [[UNK if token_id == unk else token_id + ID_OFFSET for token_id in row] for row in rows]

    def encode_masked(self, text: str, gap: str) -> list[int]:
        first, *others = self.encode_batch(text.split(gap))
        return [*first, *chain.from_iterable([MASK, *ids] for ids in others)]

    def _inner_id(self, token_id: int) -> int:
        """Return the id in the imported tokenizer; `MISSING_TOKEN_ID` for Dragoman's special tokens and tags."""
        return token_id - ID_OFFSET if ID_OFFSET <= token_id < ID_OFFSET + self.inner.vocab_size else MISSING_TOKEN_ID

    def decode(self, ids: Iterable[int]) -> str:
        text = self.inner.decode(map(self._inner_id, ids))
        return text.removeprefix(" ") if self._keeps_prefix_space else text

    @cached_property
    def _keeps_prefix_space(self) -> bool:
        """Whether the imported tokenizer adds a space before each text and does not remove it in decoding."""
        return self.inner.decode(self.inner.encode("a")) == " a"

    def tokens(self, ids: Iterable[int]) -> list[str]:
        names = {token_id: tag_token(name) for name, token_id in self.tags.items()} | dict(enumerate(SPECIAL_TOKENS))
        return [names.get(token_id) or self.inner.tokens([self._inner_id(token_id)])[0] for token_id in ids]

    def surface_forms(self) -> list[bytes]:
        return [*[b""] * ID_OFFSET, *self.inner.surface_forms(), *[b""] * len(self.tags)]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        return self.inner.word_ids(map(self._inner_id, ids))

    def to_json(self) -> str:
        document = json.loads(self.inner.to_json())
        document["model"]["dragoman"] |= {"kind": REMAPPED_TYPE, "tags": list(self.tags)}
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], fields: Mapping[str, Any], origin: str) -> RemappedTokenizer:
        """Read a document of `to_json`; `fields` is its field `dragoman`, `origin` names it in error messages."""
        inner = ImportedTokenizer.from_document(document, {**fields, "kind": IMPORTED_TYPE}, origin)
        return cls(inner, [str(name) for name in fields.get("tags", ())])


def with_own_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with Dragoman's special tokens; learned tokenizers have them already."""
    return RemappedTokenizer(tokenizer) if isinstance(tokenizer, ImportedTokenizer) else tokenizer


def open_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Open the source's and the target's tokenizer for training.

    Args:
        path: a SentencePiece model (`.model`, `.spm`), a `tokenizer.json`, or a Hugging Face folder
    """
    expected = "name a run, a SentencePiece .model or a Hugging Face tokenizer.json"
    if not path.exists():
        raise UserError(f"{path} does not exist: {expected}")
    if path.is_dir():
        source, target = tokenizers_from_folder(path)
        first = with_own_special_tokens(source)
        return first, first if target is source else with_own_special_tokens(target)
    if path.suffix not in TOKENIZER_SUFFIXES:
        raise UserError(f"{path} is not a tokenizer: {expected}")
    tokenizer = with_own_special_tokens(tokenizer_from_file(path))
    return tokenizer, tokenizer
