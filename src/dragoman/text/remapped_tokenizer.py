"""Tokenizers learned elsewhere, for training: their pieces are numbered after Dragoman's own special symbols."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.text import hf_tokenizers as families
from dragoman.text.imported_tokenizer import IMPORTED_TYPE, NO_TOKEN, ImportedTokenizer, tokenizers_from_folder
from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from dragoman.text.tokenizer import REMAPPED_TYPE, Tokenizer, check_tags

ID_OFFSET = len(SPECIAL_TOKENS)
SENTENCEPIECE_SUFFIXES = (".model", ".spm")


class RemappedTokenizer(Tokenizer):
    """The pieces of a foreign tokenizer, renumbered so that padding, START, END, MASK … have Dragoman's numbers.

    A foreign tokenizer may lack some of these symbols or use one for two purposes; every system and objective can be
    trained with an adopted one. Its own special symbols keep a number, but no text contains them.
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
        return f"AdoptedTokenizer(size={self.vocab_size})"

    def with_tags(self, names: Sequence[str]) -> RemappedTokenizer:
        check_tags(names)
        return RemappedTokenizer(self.inner, list(dict.fromkeys([*self.tags, *names])))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = self.inner.unk
        rows = self.inner.encode_batch(texts)
        return [[UNK if number == unknown else number + ID_OFFSET for number in row] for row in rows]

    def encode_masked(self, text: str, gap: str) -> list[int]:
        """``encode`` with a mask for every ``mark``."""
        first, *others = self.encode_batch(text.split(gap))
        return [*first, *chain.from_iterable([MASK, *ids] for ids in others)]

    def _inner(self, number: int) -> int:
        """The foreign number of a piece; a number without a piece for our own symbols."""
        return number - ID_OFFSET if ID_OFFSET <= number < ID_OFFSET + self.inner.vocab_size else NO_TOKEN

    def decode(self, ids: Iterable[int]) -> str:
        text = self.inner.decode(map(self._inner, ids))
        return text.removeprefix(" ") if self._prefixes else text

    @cached_property
    def _prefixes(self) -> bool:
        """Whether a space that is put before every text comes back."""
        return self.inner.decode(self.inner.encode("a")) == " a"

    def tokens(self, ids: Iterable[int]) -> list[str]:
        names = {number: f"<tag:{name}>" for name, number in self.tags.items()} | dict(enumerate(SPECIAL_TOKENS))
        return [names.get(number) or self.inner.tokens([self._inner(number)])[0] for number in ids]

    def surface_forms(self) -> list[bytes]:
        return [*[b""] * ID_OFFSET, *self.inner.surface_forms(), *[b""] * len(self.tags)]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        return self.inner.word_ids(map(self._inner, ids))

    def to_json(self) -> str:
        document = json.loads(self.inner.to_json())
        document["model"]["dragoman"] |= {"kind": REMAPPED_TYPE, "tags": list(self.tags)}
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], ours: Mapping[str, Any], origin: str) -> RemappedTokenizer:
        """The tokenizer of a document that ``to_json`` wrote, and of the field in it that is ours."""
        inner = ImportedTokenizer.from_document(document, {**ours, "kind": IMPORTED_TYPE}, origin)
        return cls(inner, [str(name) for name in ours.get("tags", ())])


def with_own_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with Dragoman's special symbols: itself, if it was learned here."""
    return RemappedTokenizer(tokenizer) if isinstance(tokenizer, ImportedTokenizer) else tokenizer


def open_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target from a file (`.model`, `tokenizer.json`) or a Hugging Face folder."""
    if path.is_dir():
        source, target = tokenizers_from_folder(path)
        first = with_own_special_tokens(source)
        return first, first if target is source else with_own_special_tokens(target)
    if not path.exists():
        raise UserError(f"{path} does not exist: name a run, a SentencePiece .model or a Hugging Face tokenizer.json")
    if path.suffix in SENTENCEPIECE_SUFFIXES:
        tokenizer = with_own_special_tokens(ImportedTokenizer(families.read_sentencepiece(path)))
    elif path.suffix == ".json":
        tokenizer = with_own_special_tokens(_read_json(path))
    else:
        raise UserError(f"{path} is no tokenizer: name a run, a SentencePiece .model or a Hugging Face tokenizer.json")
    return tokenizer, tokenizer


def _read_json(path: Path) -> Tokenizer:
    document = families.read_document(path)
    model = document.get("model")
    if isinstance(model, dict) and "dragoman" in model:
        return Tokenizer.load(path)
    return ImportedTokenizer(families.from_document(path, document))
