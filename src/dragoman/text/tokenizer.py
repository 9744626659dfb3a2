"""Tokenizers: text to numbers and back, exactly.

A text is any string; it is not normalised, and tabs, newlines and repeated spaces are characters like others, so that
``decode(encode(text)) == text``. Two exceptions: a lone surrogate, which no encoding of Unicode can write, becomes
U+FFFD, and a tokenizer of whole words gives ``<unk>`` for a word that it does not know. Every other kind writes the
characters it does not know in bytes. Special symbols are never found in a text: a literal ``</s>`` is four characters.

Before it is cut into pieces, a text is cut into words, in the sense of ``words``, each with the space before it (marker
``initial``: ▁house) or after it (marker ``final``: house▁), and no piece is longer than such a word. Combining marks
stay with their letters. So that the first word looks like the others, one space is put before the text (or after it),
and ``decode`` takes it away. The space itself is the marker; ▁ is only how ``pieces`` shows it, so a literal ▁ is safe.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from dragoman.errors import UserError, unknown_name
from dragoman.text import tokenizer_learning as vocabulary
from dragoman.text.special_tokens import BOS, BYTE_TOKENS, CLS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from dragoman.text.word_splitting import alignment_spans

TOKENIZER_FORMAT_VERSION = 1

TOKENIZER_TYPES = {
    "bpe": vocabulary.byte_pair,
    "unigram": vocabulary.unigram,
    "word": vocabulary.word,
    "character": vocabulary.character,
    "byte": vocabulary.byte,
}
LABEL_TYPE = "label"  # whatever stands between two spaces is one piece: for tags, not for text
REMAPPED_TYPE = "adopted"  # learned elsewhere, with Dragoman's special symbols: see `adopted`
WORD_LEVEL_TYPES = (
    "word",
    LABEL_TYPE,
)  # the kinds whose pieces are whole words, so that there is nothing to spell others with
UNMARKED_TYPES = ("character", "byte")  # the kinds in which a space is a piece of its own

# Chunks that are remembered in encoding: so many, and none longer (a sentence without spaces is seldom seen again).
_MEMORY_SIZE, _MEMORY_LENGTH = 1 << 18, 32

_LETTER = r"\p{L}\p{M}\p{N}_"
WORD_MARKERS = {
    "initial": rf" ?[{_LETTER}]+| ?[^\s{_LETTER}]|\s",
    "final": rf"[{_LETTER}]+ ?|[^\s{_LETTER}] ?|\s",
}


class Tokenizer:
    """Cuts texts into pieces and numbers them; ``learn`` makes one, ``load`` reads one."""

    mask: int | None  # these three are None in a tokenizer from elsewhere that does not have them
    sep: int | None
    cls: int | None

    #: the numbers of the symbols by which a source says from which corpus it comes
    tags: Mapping[str, int] = MappingProxyType({})

    def __init__(self, library: tokenizers.Tokenizer, kind: str, marker: str, tags: Sequence[str] = ()) -> None:
        self.kind, self.marker = kind, marker
        self.pad, self.unk, self.bos, self.eos = PAD, UNK, BOS, EOS
        self.mask, self.sep, self.cls = MASK, SEP, CLS
        self._library = library
        library.encode_special_tokens = True  # the library's way to say: do not look for special symbols in a text
        numbers = library.get_vocab()
        self._pieces = sorted(numbers, key=numbers.__getitem__)
        self._bytes = [piece.encode() for piece in self._pieces]
        self.tags = {name: numbers[_symbol(name)] for name in tags}
        for number in (*map(numbers.get, SPECIAL_TOKENS), *self.tags.values()):
            if number is not None:
                self._bytes[number] = b""
        for byte, piece in enumerate(BYTE_TOKENS):
            if piece in numbers:
                self._bytes[numbers[piece]] = bytes([byte])
        # An unknown word stands for itself and its space.
        self._bytes[self.unk] = {"initial": b" <unk>", "final": b"<unk> "}[marker]
        self._numbers: dict[str, int] = {}
        self._known = {"": library.encode(" ", add_special_tokens=False).ids[:1]}  # a space is one piece in every kind

    def with_tags(self, names: Sequence[str]) -> Tokenizer:
        """The same tokenizer with a symbol for each of some tags, numbered after all pieces."""
        check_tags(names)
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        library.add_special_tokens([AddedToken(_symbol(name), normalized=False, special=True) for name in names])
        return Tokenizer(library, self.kind, self.marker, list(dict.fromkeys([*self.tags, *names])))

    def __reduce__(self) -> tuple[Callable[[str], Tokenizer], tuple[str]]:
        return Tokenizer.from_json, (self.to_json(),)  # how it is sent to another process

    @property
    def vocab_size(self) -> int:
        """How many pieces there are, special symbols and bytes included."""
        return len(self._pieces)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, size={self.vocab_size}, marker={self.marker!r})"

    def encode(self, text: str) -> list[int]:
        """The numbers of the text's pieces, without start and end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """``encode`` for many texts at once.

        No piece reaches over a space, so what lies between two spaces is encoded once and remembered: on ordinary text
        that is far faster than the library, which is left what is new and works on all cores.
        """
        known = self._known
        cut = [text.split(" ") if text else [] for text in texts]
        new = self._encode_chunks({chunk: None for chunks in cut for chunk in chunks if chunk not in known})
        skip = self.kind in UNMARKED_TYPES  # there only the chunks after the first have a space before them
        ids = [
            list(chain.from_iterable([new[chunk] if chunk in new else known[chunk] for chunk in chunks]))[skip:]
            for chunks in cut
        ]
        known.update((chunk, numbers) for chunk, numbers in new.items() if len(chunk) <= _MEMORY_LENGTH)
        if len(known) > _MEMORY_SIZE:
            self._known = {"": known[""]}  # a new one, because other threads may be reading the old one
        return ids

    def encode_masked(self, text: str, gap: str) -> list[int]:
        """``encode`` with a mask for every ``mark``, a control character that is no part of any word.

        The mask takes the mark's space with it, as the piece that begins a word would.
        """
        if self.kind in WORD_LEVEL_TYPES:  # the mark would be but one unknown word among others
            parts = self.encode_batch([part.strip(" ") for part in text.split(gap)])
            return list(chain.from_iterable([part if n == 0 else [MASK, *part] for n, part in enumerate(parts)]))
        marked = self.encode(gap)
        alone = marked[1:] if self.marker == "initial" and len(marked) > 1 else marked[:1]
        ids, result, place = self.encode(text), [], 0
        while place < len(ids):
            found = next((m for m in (marked, alone) if ids[place : place + len(m)] == m), None)
            result.append(MASK if found else ids[place])
            place += len(found) if found else 1
        return result

    def _encode_chunks(self, chunks: Iterable[str]) -> dict[str, list[int]]:
        """The numbers of each chunk together with the one space that is before or after it."""
        space = " " if self.kind in UNMARKED_TYPES else ""  # elsewhere the library adds it
        marked = {chunk: space + _sound(chunk) for chunk in chunks}
        encodings = self._library.encode_batch_fast(list(marked.values()), add_special_tokens=False)
        return {chunk: encoding.ids for chunk, encoding in zip(marked, encodings)}

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the pieces make up, special symbols left out: the inverse of ``encode``.

        Bytes that are no character, as a model may put them together, become U+FFFD; an unknown word becomes ``<unk>``.
        """
        text = b"".join([self._bytes[number] for number in ids]).decode(errors="replace")
        if self.kind in UNMARKED_TYPES:
            return text
        return text.removeprefix(" ") if self.marker == "initial" else text.removesuffix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces as people read them, with ▁ where there is a space."""
        return [self._pieces[number].replace(" ", "▁") for number in ids]

    def tokens_to_ids(self, pieces: Iterable[str]) -> list[int]:
        """The inverse of ``pieces``."""
        if not self._numbers:
            self._numbers.update((piece.replace(" ", "▁"), number) for number, piece in enumerate(self._pieces))
        return [self._numbers[piece] for piece in pieces]

    def surface_forms(self) -> list[bytes]:
        """What each piece adds to a text, in UTF-8: nothing where it is a special symbol, perhaps half a character."""
        return list(self._bytes)

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """For each piece the index of its word in ``alignment_words(decode(ids))``, −1 for white space and symbols.

        Its word is the one in which its first character lies that is not its space.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        places: list[int | None] = []
        for part in [self._bytes[number] for number in ids]:
            if part and part[0] & 0xC0 != 0x80:  # a character begins: bytes that wait for others will not get them
                text += decoder.decode(b"", True)
            # The first byte of several adds nothing to the text yet, so that the others find the same place.
            places.append(len(text) + (len(part) > 1 and part.startswith(b" ")) if part else None)
            text += decoder.decode(part)
        text += decoder.decode(b"", True)
        word_at = [-1] * len(text)
        for index, (begin, end) in enumerate(alignment_spans(text)):
            word_at[begin:end] = [index] * (end - begin)
        return [-1 if place is None else word_at[place] for place in places]

    def to_json(self) -> str:
        """One JSON document, which the ``tokenizers`` library can read as well."""
        document = json.loads(self._library.to_str())
        # The library refuses a field of ours at the top, and passes over it in here.
        ours = {"version": TOKENIZER_FORMAT_VERSION, "kind": self.kind, "marker": self.marker}
        document["model"]["dragoman"] = ours | ({"tags": list(self.tags)} if self.tags else {})
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, origin: str = "the tokenizer") -> Tokenizer:
        """The tokenizer of a document that ``to_json`` wrote; errors call it ``origin``."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise UserError(f"{origin} is damaged, it is not JSON: {error}") from None
        try:
            ours = document["model"].pop("dragoman")
            version, kind, marker = ours["version"], str(ours["kind"]), str(ours["marker"])
            tags = [str(name) for name in ours.get("tags", ())]
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{origin} was not written by dragoman: its model has no field 'dragoman'") from None
        if version != TOKENIZER_FORMAT_VERSION:
            raise UserError(
                f"{origin} has format version {version}, but only {TOKENIZER_FORMAT_VERSION} is known here: update dragoman"
            )
        if kind == "foreign":
            from dragoman.text.imported_tokenizer import ImportedTokenizer  # which is a Tokenizer

            return ImportedTokenizer.from_document(document, ours, origin)
        if kind == REMAPPED_TYPE:
            from dragoman.text.remapped_tokenizer import RemappedTokenizer  # which is a Tokenizer

            return RemappedTokenizer.from_document(document, ours, origin)
        _check(kind, marker)
        try:
            library = tokenizers.Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"{origin} is damaged: {error}") from None
        first = SPECIAL_TOKENS if kind in WORD_LEVEL_TYPES else SPECIAL_TOKENS + BYTE_TOKENS
        if any(library.id_to_token(number) != piece for number, piece in enumerate(first)):
            raise UserError(
                f"{origin} is damaged: it does not begin with the special symbols{' and bytes' * (kind not in WORD_LEVEL_TYPES)}"
            )
        if library.id_to_token(library.get_vocab_size() - 1) is None:
            raise UserError(f"{origin} is damaged: its pieces are not numbered one after the other")
        if any(library.token_to_id(_symbol(name)) is None for name in tags):
            raise UserError(f"{origin} is damaged: one of its tags has no number")
        return cls(library, kind, marker, tags)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is damaged, it is not UTF-8") from None
        return cls.from_json(text, str(path))


def learn_tokenizer(
    texts: Iterable[str],
    kind: str = "bpe",
    size: int = 8000,
    marker: str = "initial",
    min_count: int = 1,
    coverage: float = 0.9995,
) -> Tokenizer:
    """A tokenizer with the vocabulary of the texts.

    Args:
        kind: ``bpe``, ``unigram``, ``word``, ``character`` or ``byte``; ``label`` for tags parted by spaces.
        size: the most pieces there may be; the 7 special symbols and (but for ``word``) the 256 bytes count. A small
            text may not fill it, and ``byte`` has always 263.
        marker: on which side of a word its space is: ``initial`` (▁house) or ``final`` (house▁, the textbook's
            ``</w>``).
        min_count: how often a word (``word``) or a pair that is merged (``bpe``, never under 2) must have been seen.
        coverage: the share of the text whose characters are in the vocabulary; rarer characters are written in bytes.
    """
    _check(kind, marker)
    if not 0 < coverage <= 1:
        raise UserError(f"the coverage of characters must be above 0 and at most 1, not {coverage}")
    words = {} if kind == "byte" else _count_words(texts, kind, marker)
    if not words and kind != "byte":
        raise UserError(f"there is no text to learn a tokenizer of kind {kind!r} from")
    model = (vocabulary.word if kind == LABEL_TYPE else TOKENIZER_TYPES[kind])(
        words, vocabulary.VocabularyLimits(size, min_count, coverage)
    )
    return Tokenizer(_assemble(model, kind, marker), kind, marker)


def _assemble(model: models.Model, kind: str, marker: str) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    if kind in UNMARKED_TYPES:
        # One character after the other: whole lines would only fill the library's cache.
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    else:
        initial = marker == "initial"
        library.normalizer = normalizers.Prepend(" ") if initial else normalizers.Replace(Regex(r"\z"), " ")
        library.pre_tokenizer = _splitter(kind, marker)
        strip = decoders.Replace(Regex(r"\A " if initial else r" \z"), "")
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), strip])
    library.add_special_tokens([AddedToken(symbol, normalized=False, special=True) for symbol in SPECIAL_TOKENS])
    return library


def _splitter(kind: str, marker: str) -> pre_tokenizers.PreTokenizer:
    pattern = r" ?\S+|\s" if kind == LABEL_TYPE else WORD_MARKERS[marker]
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _count_words(texts: Iterable[str], kind: str, marker: str) -> Counter[str]:
    """How often each word was seen, with its marker, in the order in which they were first seen."""
    chunks: Counter[str] = Counter()
    for text in texts:
        if text:
            chunks.update(text.split(" "))
    splitter = _splitter(kind, marker)
    words: Counter[str] = Counter()
    # What lies between two spaces is cut once however often it was seen: that is several times faster.
    for chunk, count in chunks.items():
        marked = f" {_sound(chunk)}" if marker == "initial" else f"{_sound(chunk)} "
        for word, _ in splitter.pre_tokenize_str(marked):
            words[word] += count
    return words


def check_tags(names: Sequence[str]) -> None:
    if wrong := [name for name in names if not re.fullmatch(r"[\w.+-]+", name)]:
        raise UserError(f"a tag is a name of letters, digits, '_', '.', '+' and '-', but {wrong[0]!r} was given")


def _symbol(tag: str) -> str:
    return f"<tag:{tag}>"  # no piece of a text is so written: letters and brackets are never in one piece


def _check(kind: str, marker: str) -> None:
    if kind not in TOKENIZER_TYPES and kind != LABEL_TYPE:
        raise unknown_name("kind of tokenizer", kind, TOKENIZER_TYPES)
    if marker not in WORD_MARKERS:
        raise unknown_name("marker", marker, WORD_MARKERS)


def _sound(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _quiet_forks() -> None:
    """Forked processes do without the library's threads, which cannot be forked, instead of being warned about them."""
    variable, ours = "TOKENIZERS_PARALLELISM", []

    def before() -> None:
        if variable not in os.environ:
            os.environ[variable] = "false"
            ours.append(variable)

    def after_in_parent() -> None:
        while ours:
            os.environ.pop(ours.pop(), None)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent)


_quiet_forks()
