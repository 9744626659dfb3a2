"""Tokenizers that were learned elsewhere, and come with a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.text import hf_tokenizers as families
from dragoman.text.cutting import HIDDEN, Cutter
from dragoman.text.hf_tokenizers import SpecialToken, TokenizerComponents
from dragoman.text.special_tokens import BYTE_TOKENS
from dragoman.text.tokenizer import TOKENIZER_FORMAT_VERSION, Tokenizer
from dragoman.text.word_splitting import alignment_spans

IMPORTED_TYPE = "foreign"
NO_TOKEN = -1  # the number of a symbol that there is not

_WINDOW = 16  # pieces


def tokenizers_from_folder(
    folder: str | Path, config: Mapping[str, Any] | None = None
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """The tokenizers of the source and the target from a checkpoint's folder; they are one where they do not differ.

    `config` is what the checkpoint's ``config.json`` says.
    """
    source, target = families.read(Path(folder), config or {})
    first = ImportedTokenizer(source)
    return first, first if target is source else ImportedTokenizer(target)


class ImportedTokenizer(Tokenizer):
    """Cuts and numbers texts as the library that a checkpoint comes from does; ``from_folder`` makes one.

    ``encode`` gives the pieces alone, without the symbols that stand around a text, and special symbols are found in a
    text only where that is asked for. `roles` are the numbers of the symbols ``pad``, ``unk``, ``bos``, ``eos``,
    ``cls``, ``sep``, ``mask`` and ``decoder_start``, as far as there are such; `symbols` are those of all special
    symbols by name, languages included. ``decode`` leaves special symbols out, the unknown one among them.
    """

    def __init__(self, parts: TokenizerComponents) -> None:
        self.kind, self.marker = IMPORTED_TYPE, "initial"
        self._parts, self._library, self._names = parts, parts.library, parts.names
        self._library.encode_special_tokens = True  # the library's way to say: do not look for special symbols
        self.role_ids = parts.roles
        self.pad, self.unk = self._first("pad", "eos"), self._first("unk")
        self.bos, self.eos = self._first("decoder_start", "bos", "cls", "eos"), self._first("eos", "sep")
        self.mask, self.sep, self.cls = (self.role_ids.get(role) for role in ("mask", "sep", "cls"))
        self.special_token_ids = {symbol.name: symbol.number for symbol in parts.symbols}
        self.all_special_ids = frozenset(self.special_token_ids.values())
        self._symbol = re.compile(f"({'|'.join(map(_pattern, sorted(parts.symbols, key=_longest_first)))})")
        self._decoder = self._library.decoder
        self._in_letters = self._join(["Ġa"]) == " a"  # GPT-2's way to write bytes

    def _first(self, *roles: str) -> int:
        return next((self.role_ids[role] for role in roles if role in self.role_ids), NO_TOKEN)

    @property
    def vocab_size(self) -> int:
        """The highest number and one more."""
        return max(self._names) + 1

    def __repr__(self) -> str:
        return f"ForeignTokenizer(size={self.vocab_size})"

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """The numbers of the text's pieces; special symbols that are written out are found if `symbols` says so."""
        if not parse_special or not self.special_token_ids:
            return self.encode_batch([text])[0]
        parts = self._symbol.split(text)
        numbers = [
            self.special_token_ids.get(name, self.special_token_ids.get(name.strip(), NO_TOKEN)) for name in parts[1::2]
        ]
        return self._encode_around(parts[::2], numbers)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` for many texts at once."""
        begun = [self._begin(_sound(text)) for text in texts]
        rest = [text for _, text in begun]
        if self._parts.cutter:
            rows = self._parts.cutter.encode_batch(rest)
        else:
            rows = [encoding.ids for encoding in self._library.encode_batch_fast(rest, add_special_tokens=False)]
        return [[*code, *ids] for (code, _), ids in zip(begun, rows)]

    def encode_masked(self, text: str, gap: str) -> list[int]:
        """``encode`` with a mask for every ``mark``."""
        if self.mask is None:
            raise UserError("this tokenizer has no symbol for a mask")
        flags = next(
            (symbol for symbol in self._parts.symbols if symbol.number == self.mask), SpecialToken("", self.mask)
        )
        texts = re.split(_pattern(replace(flags, name=gap)), text)
        return self._encode_around(texts, [self.mask] * (len(texts) - 1))

    def _encode_around(self, texts: Sequence[str], numbers: Sequence[int]) -> list[int]:
        """The numbers of some texts, with one of `numbers` between each two."""
        first, *others = self.encode_batch(texts)
        return [*first, *chain.from_iterable([number, *ids] for number, ids in zip(numbers, others))]

    def _begin(self, text: str) -> tuple[list[int], str]:
        """A code such as >>deu<< at the beginning of a text, by which Marian is told what to translate into."""
        if self._parts.codes and text.startswith(">>"):
            code, mark, rest = text.partition("<<")
            if (number := self._parts.codes.get(code + mark)) is not None:
                return [number], rest
        return [], text

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the pieces make up, special symbols and numbers without a piece left out."""
        return self._join([self._names[n] for n in ids if n in self._names and n not in self.all_special_ids])

    def _join(self, pieces: list[str]) -> str:
        return self._decoder.decode(pieces) if self._decoder else " ".join(pieces)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces as people read them, with ▁ where there is a space."""
        return [self._shown(self._names.get(number, f"<{number}>")) for number in ids]

    def _shown(self, piece: str) -> str:
        if not self._in_letters or piece in self.special_token_ids or "\ufffd" in (text := self._join([piece])):
            return piece
        return text.replace(" ", "▁")

    def surface_forms(self) -> list[bytes]:
        """What each piece adds to a text, in UTF-8: nothing where it is a special symbol, perhaps half a character."""
        names = [
            self._names[n] if n in self._names and n not in self.all_special_ids else "" for n in range(self.vocab_size)
        ]
        if self._in_letters:  # what is no such letter stands for itself
            letters = {letter: byte for byte, letter in enumerate(_byte_letters())}
            return [bytes(letters[c] for c in n) if letters.keys() >= {*n} else n.encode() for n in names]
        if self._decoder is None:
            return [f" {name}".encode() if name else b"" for name in names]
        kinds = _kinds(json.loads(self._library.to_str())["decoder"])
        if other := kinds - {"Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
            raise UserError(
                f"this tokenizer joins its pieces in a way ({', '.join(sorted(other))}) that does not say what each of "
                "them adds to a text"
            )
        single = {piece: bytes([byte]) for byte, piece in enumerate(BYTE_TOKENS)} if "ByteFallback" in kinds else {}
        return [single.get(name, name.replace("▁", " ").encode()) for name in names]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """For each piece the index of its word in ``alignment_words(decode(ids))``, −1 for white space and symbols.

        Its word is the one in which its first character lies that is not white space. A piece begins where the text of
        the pieces before it ends; one that is but a part of a character belongs to that character.
        """
        ids = list(ids)
        text = self.decode(ids)
        word_at = [-1] * (len(text) + 1)
        for index, (begin, end) in enumerate(alignment_spans(text)):
            word_at[begin:end] = [index] * (end - begin)
        words, place = [], 0
        window: list[str] = []  # the last pieces; the text of all of them, joined again and again, would take too long
        start = 0  # where the text of the window begins
        for number in ids:
            if number in self.all_special_ids or number not in self._names:
                words.append(-1)
                continue
            window.append(self._names[number])
            joined, alone = self._join(window), self._join(window[-1:])
            end = max(place, start + _shared(joined, text[start : start + len(joined)]))
            spaces = end - place - len(text[place:end].lstrip())
            words.append(word_at[place + spaces] if alone.strip() else -1)
            place = end
            whole = alone.strip() and "\ufffd" not in alone and joined.endswith(alone)
            if len(window) > _WINDOW and whole and text[start:end] == joined:
                window, start = window[-1:], end - len(alone)
        return words

    def to_json(self) -> str:
        """One JSON document: the ``tokenizers`` library's, and what it cannot hold in a field of ours."""
        document, parts = json.loads(self._library.to_str()), self._parts
        document["model"]["dragoman"] = {
            "version": TOKENIZER_FORMAT_VERSION,
            "kind": self.kind,
            "marker": self.marker,
            "names": {n: name for n, name in self._names.items() if self._library.id_to_token(n) != name},
            "symbols": [asdict(symbol) for symbol in parts.symbols],
            "roles": parts.roles,
            "codes": parts.codes,
            "cutter": parts.cutter.to_dict() if parts.cutter else None,
        }
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], ours: Mapping[str, Any], origin: str) -> ImportedTokenizer:
        """The tokenizer of a document that ``to_json`` wrote, and of the field in it that is ours."""
        library = families.load_library(document, origin)
        try:
            cutter = Cutter.from_dict(library, ours["cutter"]) if ours["cutter"] else None
            names = {n: name for name, n in library.get_vocab().items() if not name.startswith(HIDDEN)}
            names = {n: name for n, name in names.items() if not cutter or n < cutter.size}
            names |= {int(n): str(name) for n, name in ours["names"].items()}
            if not names:
                raise ValueError("it has no pieces")
            symbols = [
                SpecialToken(str(one["name"]), int(one["number"]), bool(one["left"]), bool(one["right"]))
                for one in ours["symbols"]
            ]
            roles, codes = ({str(k): int(n) for k, n in ours[key].items()} for key in ("roles", "codes"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{origin} is damaged: {error!r}") from None
        return cls(TokenizerComponents(library, names, symbols, roles, cutter, codes))


def _kinds(decoder: Mapping[str, Any]) -> set[str]:
    """The kinds of steps that a decoder of the library takes."""
    return {str(decoder["type"])}.union(*map(_kinds, decoder.get("decoders", ())))


def _byte_letters() -> list[str]:
    """The letters that GPT-2 writes bytes with: a byte's own character, or, if that cannot be seen, one from 256 on."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (chr(number) for number in range(256, 512))
    return [chr(byte) if byte in seen else next(others) for byte in range(256)]


def _shared(left: str, right: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return next((n for n, (one, other) in enumerate(zip(left, right)) if one != other), min(len(left), len(right)))


def _pattern(symbol: SpecialToken) -> str:
    return (r"\s*" * symbol.left) + re.escape(symbol.name) + (r"\s*" * symbol.right)


def _longest_first(symbol: SpecialToken) -> int:
    return -len(symbol.name)


def _sound(text: str) -> str:
    """Without lone surrogates, which no encoding can write, and without what hidden names begin with."""
    return re.sub(f"[\ud800-\udfff{HIDDEN}]", "\ufffd", text)
