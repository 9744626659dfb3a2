"""Tokenizers learned elsewhere, for training: their pieces are numbered after Dragoman's own special symbols."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.text import families
from dragoman.text.foreign import FOREIGN, NONE, ForeignTokenizer, from_folder
from dragoman.text.symbols import CLASS, END, MASK, PAD, SEPARATOR, START, SYMBOLS, UNKNOWN
from dragoman.text.tokenizer import ADOPTED, Tokenizer, check_tags

SHIFT = len(SYMBOLS)
SENTENCEPIECE = (".model", ".spm")


class AdoptedTokenizer(Tokenizer):
    """The pieces of a foreign tokenizer, renumbered so that padding, START, END, MASK … have Dragoman's numbers.

    A foreign tokenizer may lack some of these symbols or use one for two purposes; every system and objective can be
    trained with an adopted one. Its own special symbols keep a number, but no text contains them.
    """

    def __init__(self, inner: ForeignTokenizer, tags: Sequence[str] = ()) -> None:
        self.kind, self.marker, self.inner = ADOPTED, inner.marker, inner
        self.pad, self.unknown, self.start, self.end = PAD, UNKNOWN, START, END
        self.mask, self.separator, self.cls = MASK, SEPARATOR, CLASS
        self.tags = {name: SHIFT + inner.size + n for n, name in enumerate(tags)}

    @property
    def size(self) -> int:
        return SHIFT + self.inner.size + len(self.tags)

    def __repr__(self) -> str:
        return f"AdoptedTokenizer(size={self.size})"

    def with_tags(self, names: Sequence[str]) -> AdoptedTokenizer:
        check_tags(names)
        return AdoptedTokenizer(self.inner, list(dict.fromkeys([*self.tags, *names])))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = self.inner.unknown
        rows = self.inner.encode_batch(texts)
        return [[UNKNOWN if number == unknown else number + SHIFT for number in row] for row in rows]

    def encode_masked(self, text: str, mark: str) -> list[int]:
        """``encode`` with a mask for every ``mark``."""
        first, *others = self.encode_batch(text.split(mark))
        return [*first, *chain.from_iterable([MASK, *ids] for ids in others)]

    def _inner(self, number: int) -> int:
        """The foreign number of a piece; a number without a piece for our own symbols."""
        return number - SHIFT if SHIFT <= number < SHIFT + self.inner.size else NONE

    def decode(self, ids: Iterable[int]) -> str:
        text = self.inner.decode(map(self._inner, ids))
        return text.removeprefix(" ") if self._prefixes else text

    @cached_property
    def _prefixes(self) -> bool:
        """Whether a space that is put before every text comes back."""
        return self.inner.decode(self.inner.encode("a")) == " a"

    def pieces(self, ids: Iterable[int]) -> list[str]:
        names = {number: f"<tag:{name}>" for name, number in self.tags.items()} | dict(enumerate(SYMBOLS))
        return [names.get(number) or self.inner.pieces([self._inner(number)])[0] for number in ids]

    def spellings(self) -> list[bytes]:
        return [*[b""] * SHIFT, *self.inner.spellings(), *[b""] * len(self.tags)]

    def word_of_piece(self, ids: Iterable[int]) -> list[int]:
        return self.inner.word_of_piece(map(self._inner, ids))

    def to_json(self) -> str:
        document = json.loads(self.inner.to_json())
        document["model"]["dragoman"] |= {"kind": ADOPTED, "tags": list(self.tags)}
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], ours: Mapping[str, Any], origin: str) -> AdoptedTokenizer:
        """The tokenizer of a document that ``to_json`` wrote, and of the field in it that is ours."""
        inner = ForeignTokenizer.from_document(document, {**ours, "kind": FOREIGN}, origin)
        return cls(inner, [str(name) for name in ours.get("tags", ())])


def adopted(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with Dragoman's special symbols: itself, if it was learned here."""
    return AdoptedTokenizer(tokenizer) if isinstance(tokenizer, ForeignTokenizer) else tokenizer


def open_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target from a file (`.model`, `tokenizer.json`) or a Hugging Face folder."""
    if path.is_dir():
        source, target = from_folder(path)
        first = adopted(source)
        return first, first if target is source else adopted(target)
    if not path.exists():
        raise UserError(f"{path} does not exist: name a run, a SentencePiece .model or a Hugging Face tokenizer.json")
    if path.suffix in SENTENCEPIECE:
        tokenizer = adopted(ForeignTokenizer(families.read_sentencepiece(path)))
    elif path.suffix == ".json":
        tokenizer = adopted(_read_json(path))
    else:
        raise UserError(f"{path} is no tokenizer: name a run, a SentencePiece .model or a Hugging Face tokenizer.json")
    return tokenizer, tokenizer


def _read_json(path: Path) -> Tokenizer:
    document = families.read_document(path)
    model = document.get("model")
    if isinstance(model, dict) and "dragoman" in model:
        return Tokenizer.load(path)
    return ForeignTokenizer(families.from_document(path, document))
