"""SentencePiece models: the file read, and text cut as the SentencePiece library cuts it.

Kudo and Richardson 2018, “SentencePiece: a simple and language independent subword tokenizer and detokenizer for neural
text processing”. A text is rewritten (``rewriting``) and then cut as a whole, by unigram scores (Kudo 2018) or byte
pairs (Sennrich et al. 2016), for which the ``tokenizers`` library is used. The file is a stranger's: every length in it
is checked before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models

from dragoman.errors import UserError
from dragoman.text.cutting import HIDDEN, Cutter
from dragoman.text.rewriting import SPACE, Rewriting, rules
from dragoman.text.special_tokens import BYTE_TOKENS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BYTE_PAIRS = 1, 2

# No model in use comes near these; a file that goes beyond them is damaged or meant to do harm.
_LONGEST_FILE = 1 << 24
_MOST_PIECES = 1 << 20
_LONGEST_PIECE = 512


class Piece(NamedTuple):
    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class Model:
    """What a SentencePiece file holds, as far as it is needed; ids are places in `pieces`."""

    pieces: list[Piece]
    algorithm: int = UNIGRAM
    in_bytes: bool = False  # an unknown character is written in bytes
    rewriting: Rewriting = field(default_factory=Rewriting)

    @property
    def unknown(self) -> int:
        return next(place for place, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)


def read(path: Path) -> Model:
    """The model of a ``.model`` or ``.spm`` file."""
    try:
        if path.stat().st_size > _LONGEST_FILE:
            raise UserError(f"{path} is too large for a SentencePiece model: {path.stat().st_size:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the SentencePiece model {path}: {error.strerror}") from None
    try:
        model = parse(content)
        rules(model.rewriting.table)
    except ValueError as error:
        raise UserError(f"{path} is not a SentencePiece model, or it is damaged: {error}") from None
    return model


def parse(content: bytes) -> Model:
    """The model that a file's bytes describe; a ValueError says what is wrong with them.

    A message of protocol buffers is a list of numbered fields; those that are not asked for are passed over.
    """
    pieces: list[Piece] = []
    trainer = normalizer = b""
    for number, value in _fields(content):
        if number == 1:
            pieces.append(_piece(_bytes(value)))
            if len(pieces) > _MOST_PIECES:
                raise ValueError(f"it has more than {_MOST_PIECES:,} pieces")
        elif number == 2:
            trainer = _bytes(value)
        elif number == 3:
            normalizer = _bytes(value)
    training, normalising = dict(_fields(trainer)), dict(_fields(normalizer))
    rewriting = Rewriting(
        _bytes(normalising.get(2, b"")),
        prefix=bool(_number(normalising.get(3, 1))),
        collapse=bool(_number(normalising.get(4, 1))),
        escape=bool(_number(normalising.get(5, 1))),
        suffix=bool(_number(training.get(24, 0))),
    )
    model = Model(pieces, _number(training.get(3, UNIGRAM)), bool(_number(training.get(35, 0))), rewriting)
    _check(model)
    return model


def _check(model: Model) -> None:
    kinds = [piece.kind for piece in model.pieces]
    if kinds.count(UNKNOWN) != 1:
        raise ValueError(f"it must have one piece for what is unknown, not {kinds.count(UNKNOWN)}")
    if NORMAL not in kinds:
        raise ValueError("it has no pieces of text")
    if model.algorithm not in (UNIGRAM, BYTE_PAIRS):
        raise ValueError("it cuts by words or characters, and only unigram and byte-pair models are known here")
    if model.algorithm == BYTE_PAIRS and UNUSED in kinds:
        raise ValueError("some of its byte pairs are switched off, which is not known here")
    for some in ((NORMAL, USER_DEFINED, UNUSED), (UNKNOWN, CONTROL, BYTE)):
        texts = [piece.text for piece in model.pieces if piece.kind in some]
        if len(set(texts)) < len(texts):
            raise ValueError("a piece is in it twice")
    if model.in_bytes and {piece.text for piece in model.pieces if piece.kind == BYTE} != {*BYTE_TOKENS}:
        raise ValueError("it writes unknown characters in bytes, but has not a piece for each of the 256")


def _piece(content: bytes) -> Piece:
    fields = dict(_fields(content))
    text, score = _bytes(fields.get(1, b"")).decode(), fields.get(2, b"\0\0\0\0")
    if not 0 < len(text) <= _LONGEST_PIECE or text.startswith(HIDDEN):
        raise ValueError(f"a piece has {len(text):,} characters")
    if not isinstance(score, bytes) or len(score) != 4 or not math.isfinite(value := struct.unpack("<f", score)[0]):
        raise ValueError(f"the score of {text!r} is not a number")
    return Piece(text, value, _number(fields.get(3, NORMAL)))


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their number, and an int (wire type 0) or the bytes of anything else."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        wire = key & 7
        if wire == 0:
            value, place = _varint(content, place)
            yield key >> 3, value
            continue
        if wire == 2:
            length, place = _varint(content, place)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"there is no field of wire type {wire}")
        if length > len(content) - place:
            raise ValueError("it ends in the middle of a field")
        yield key >> 3, content[place : place + length]
        place += length


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            raise ValueError("it ends in the middle of a number")
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number in it has more than 64 bits")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("there is a number where text is expected")
    return value


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("there is text where a number is expected")
    return value


def cutter(
    model: Model,
    numbers: Sequence[int | None] | None = None,
    size: int | None = None,
    symbols: Mapping[str, int] = MappingProxyType({}),
    others: Mapping[str, int] = MappingProxyType({}),
) -> Cutter:
    """Cuts as the model does, into numbers below `size`.

    `numbers` has one for each of the model's pieces, None for those that the vocabulary leaves out; without it pieces
    are numbered as in the model. `symbols` are found in a text besides those of the model, `others` where the model
    knows nothing.
    """
    numbers = range(len(model.pieces)) if numbers is None else numbers
    size = len(model.pieces) if size is None else size
    more = iter(range(size, size + len(model.pieces)))
    placed = [(piece, next(more) if number is None else number) for piece, number in zip(model.pieces, numbers)]
    unknown = placed[model.unknown][1]
    build = _unigram if model.algorithm == UNIGRAM else _byte_pairs
    library = tokenizers.Tokenizer(build(model, placed, unknown, size))
    how = model.rewriting
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if how.prefix or how.collapse:
        steps.append(decoders.Strip(" ", 1, 0))
    library.decoder = decoders.Sequence(steps)
    symbols = {piece.text: number for piece, number in placed if piece.kind == USER_DEFINED} | {**symbols}
    byte = {piece.text: number for piece, number in placed if piece.kind == BYTE}
    spell = model.in_bytes and model.algorithm == UNIGRAM
    return Cutter(library, how, unknown, size, symbols, others, [byte[piece] for piece in BYTE_TOKENS] if spell else ())


def _unigram(model: Model, placed: list[tuple[Piece, int]], unknown: int, size: int) -> models.Model:
    last = max(size - 1, *(number for _, number in placed))
    vocabulary = [(f"{HIDDEN}{number}", 0.0) for number in range(last + 1)]
    for piece, number in placed:
        if piece.kind == NORMAL:
            vocabulary[number] = (piece.text, piece.score)
    return models.Unigram(vocabulary, unknown)


def _byte_pairs(model: Model, placed: list[tuple[Piece, int]], unknown: int, size: int) -> models.Model:
    """Pairs are joined in the order of the scores of what they make, whichever two pieces make it."""
    normal = [(piece, number) for piece, number in placed if piece.kind == NORMAL]
    numbers = {piece.text: number for piece, number in normal}
    merges = []
    for (text, _, _), _ in sorted(normal, key=lambda one: -one[0].score):
        halves = ((text[:place], text[place:]) for place in range(len(text) - 1, 0, -1))
        merges += [(left, right) for left, right in halves if left in numbers and right in numbers]
    numbers |= {piece.text: number for piece, number in placed if piece.kind == BYTE}
    numbers[nobody := f"{HIDDEN}{unknown}"] = unknown
    return models.BPE(numbers, merges, unk_token=nobody, fuse_unk=True, byte_fallback=model.in_bytes)
