"""SentencePiece models (Kudo and Richardson 2018), read and applied by the `sentencepiece` library.

The library is an optional dependency: `pip install 'dragoman[sentencepiece]'`. It segments text exactly as the model's
authors did, and refuses damaged files.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import decoders

from dragoman.errors import UserError
from dragoman.text.special_tokens import BYTE_TOKENS

SPACE = "▁"  # how SentencePiece writes a space
MAX_MODEL_BYTES = 1 << 24  # larger files are refused before they are read

# Types of pieces in SentencePiece's protocol buffer, and its numbers of training algorithms.
NORMAL, UNKNOWN, USER_DEFINED, BYTE = 1, 2, 4, 6
UNIGRAM, BPE = 1, 2


class SentencePieceModel:
    """A serialized SentencePiece model with the library's processor for it; `origin` names it in error messages."""

    def __init__(self, serialized: bytes, origin: str) -> None:
        """Load the bytes of a .model file; `origin` names it in error messages."""
        try:
            import sentencepiece
        except ImportError:
            raise UserError(
                f"{origin} is a SentencePiece model, which needs the package sentencepiece: install it with pip "
                "install 'dragoman[sentencepiece]'"
            ) from None
        self.serialized, self.origin = serialized, origin
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            if not serialized:
                raise RuntimeError("it is empty")
            self.processor.LoadFromSerializedProto(serialized)
            self.pieces: list[str] = [self.processor.IdToPiece(index) for index in range(self.processor.GetPieceSize())]
        except (RuntimeError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{origin} is not a SentencePiece model, or it is damaged ({reason}): use another file"
            ) from None

    @classmethod
    def read(cls, path: Path) -> SentencePieceModel:
        """Read a `.model` or `.spm` file; a UserError if it is too large, unreadable or damaged."""
        try:
            if (size := path.stat().st_size) > MAX_MODEL_BYTES:
                raise UserError(
                    f"{path} has {size:,} bytes, but a SentencePiece model may have at most {MAX_MODEL_BYTES:,}: use "
                    "another file"
                )
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise UserError(
                f"the SentencePiece model {path} cannot be read ({error.strerror}): check its path"
            ) from None

    @property
    def unk_piece(self) -> str:
        """The piece that stands for unknown characters, such as <unk>."""
        return self.pieces[self.processor.unk_id()]

    @property
    def special_pieces(self) -> list[str]:
        """The pieces that no text is segmented into: the unknown piece, and control symbols such as <s>."""
        is_unknown, is_control = self.processor.IsUnknown, self.processor.IsControl
        return [piece for index, piece in enumerate(self.pieces) if is_unknown(index) or is_control(index)]

    def decoder(self) -> decoders.Decoder:
        """The decoder of the `tokenizers` library that joins pieces as SentencePiece does."""
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self.processor.Normalize("a  a").replace(" ", SPACE) != f"a{SPACE}{SPACE}a":
            # The model adds a space before a text or collapses spaces: decoding removes one space at the beginning.
            steps.append(decoders.Strip(" ", 1, 0))
        return decoders.Sequence(steps)

    def with_user_defined(self, symbols: Sequence[str]) -> SentencePieceModel:
        """Return the model with more symbols, which are single tokens wherever they occur in a text.

        Symbols that are pieces already are left out; if none remain, this object is returned.
        """
        # Protocol buffers are merged by concatenation: repeated fields are appended.
        added = b"".join(
            _piece(symbol, score=0.0, kind=USER_DEFINED) for symbol in symbols if symbol not in self.pieces
        )
        return SentencePieceModel(self.serialized + added, self.origin) if added else self

    def with_prefix_space(self, enabled: bool) -> SentencePieceModel:
        """Return the model with or without the space that it adds before each text."""
        # Of a repeated setting in a protocol buffer, the last value counts. The normalizer is field 3 of the model, and
        # the prefix space is field 3 of the normalizer.
        normalizer = _number(field=3, value=enabled)
        return SentencePieceModel(self.serialized + _message(field=3, content=normalizer), self.origin)


class SentencePieceSegmenter:
    """Encodes texts with a model whose pieces have the ids of `vocabulary`; other pieces become `unk`.

    A run of characters that the model does not know is one piece, which the vocabulary may contain (Marian).
    """

    def __init__(self, model: SentencePieceModel, vocabulary: Mapping[str, int], unk: int) -> None:
        """Combine a model with the ids of its pieces (`vocabulary`) and that of all other pieces (`unk`)."""
        self.model, self.vocabulary, self.unk = model, vocabulary, unk

    @classmethod
    def without_special(
        cls, model: SentencePieceModel, names: Mapping[int, str], special: Iterable[str], unk: int
    ) -> SentencePieceSegmenter:
        """Build a segmenter that never produces special tokens from a text, such as EOS from "</s>".

        Args:
            model: segments text into pieces.
            names: the tokens of the vocabulary, by id.
            special: names of special tokens; those that are also normal pieces of the model can be produced.
            unk: id of pieces that are not in the vocabulary.
        """
        special_pieces = {*model.special_pieces}
        normal_pieces = {*model.pieces} - special_pieces
        excluded = {*special, *special_pieces} - normal_pieces
        return cls(model, {name: token_id for token_id, name in names.items() if name not in excluded}, unk)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts; pieces that are not in the vocabulary get the id `unk`."""
        lookup, unk = self.vocabulary.get, self.unk
        return [[lookup(piece, unk) for piece in row] for row in self.model.processor.EncodeAsPieces(list(texts))]

    def to_dict(self) -> dict[str, Any]:
        """Return the model, in base 64, and the id `unk` of unknown pieces, for a tokenizer file."""
        return {"model": base64.b64encode(self.model.serialized).decode(), "unk": self.unk}


def model_from_version_1(document: Mapping[str, Any], fields: Mapping[str, Any], origin: str) -> SentencePieceModel:
    """Rebuild the SentencePiece model of a tokenizer file that stored its contents separately (format version 1).

    Args:
        document: model of the `tokenizers` library (JSON), which has the pieces, with scores or BPE merges.
        fields: has user-defined `symbols`, `bytes` (whether unknown characters are encoded as bytes), and the rules of
            normalization: `table` (replacements of characters), and `rewriting`, four flags.
        origin: names the file in error messages.

    The bytes follow SentencePiece's protocol buffer, whose field numbers are the first arguments of `_number` and
    `_message`.
    """
    vocabulary, is_bpe = document["vocab"], "merges" in document
    if is_bpe:  # a merge has the score of the piece that it makes; the score of a single character has no effect
        merges = [left + right for left, right in document["merges"]]
        scores = {piece: -float(rank) for rank, piece in enumerate(dict.fromkeys(merges))}
        pieces = {piece: scores.get(piece, 0.0) for piece in vocabulary}
    else:
        pieces = {piece: float(score) for piece, score in vocabulary}
    symbols, byte_fallback = fields["symbols"], bool(document.get("byte_fallback") or fields["bytes"])
    special = {*symbols, *BYTE_TOKENS} if byte_fallback else {*symbols}
    content = _piece("<unk>", score=0.0, kind=UNKNOWN)
    content += b"".join(
        _piece(piece, score=score, kind=NORMAL)
        for piece, score in pieces.items()
        if piece not in special and not piece.startswith("\uffff")  # the beginning of hidden names of special tokens
    )
    content += b"".join(_piece(symbol, score=0.0, kind=USER_DEFINED) for symbol in symbols)
    content += b"".join(_piece(token, score=0.0, kind=BYTE) for token in BYTE_TOKENS if byte_fallback)
    add_prefix_space, collapse_spaces, escape_spaces, space_after_words = map(bool, fields["rewriting"])
    # TrainerSpec: model_type, treat_whitespace_as_suffix and byte_fallback; then NormalizerSpec
    trainer = _number(3, BPE if is_bpe else UNIGRAM) + _number(24, space_after_words) + _number(35, byte_fallback)
    normalizer = _message(2, base64.b64decode(fields["table"])) + _number(3, add_prefix_space)
    normalizer += _number(4, collapse_spaces) + _number(5, escape_spaces)
    return SentencePieceModel(content + _message(2, trainer) + _message(3, normalizer), origin)


def _piece(text: str, score: float, kind: int) -> bytes:
    """Serialize a piece of a SentencePiece model (protocol buffer): text, score (log probability) and kind.

    `kind` is the number of the type: NORMAL, UNKNOWN, USER_DEFINED or BYTE.
    """
    score_field = b"\x15" + struct.pack("<f", score)  # field 2, a 32-bit float
    return _message(1, _message(1, text.encode()) + score_field + _number(3, kind))


def _message(field: int, content: bytes) -> bytes:
    """Serialize field number `field` of a protocol buffer, which holds bytes, a string or another message."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content  # wire type 2: with a length


def _number(field: int, value: int) -> bytes:
    """Serialize field number `field` of a protocol buffer, which holds an integer."""
    return _varint(field << 3) + _varint(int(value))  # wire type 0: integer


def _varint(value: int) -> bytes:
    """Serialize an integer from 0 on in groups of seven bits, lowest first; each group is a byte.

    The top bit of a byte says that another group follows.
    """
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
