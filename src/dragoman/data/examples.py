"""Sentence pairs as token ids, made in chunks: one pass serves the preflight and the token store alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from dragoman.data.corpus import SentencePair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dragoman.text.tokenizer import Tokenizer

# Flags of a row of text: it follows the row before it in its document; it begins, or ends, in the middle of a line.
FOLLOWS_PREVIOUS_ROW, STARTS_MID_LINE, ENDS_MID_LINE = 1, 2, 4

MAX_CHUNK_PAIRS = 10_000
MAX_CHUNK_CHARACTERS = 2**22  # bounds a chunk of long documents, as CHUNK_PAIRS bounds one of sentences


class EncodedPair(NamedTuple):
    """A pair and its token ids, without start and end; the target is None where the pair has none.

    The source is vectors, S F, where the pair has them in the place of text.
    """

    pair: SentencePair
    source: list[int] | NDArray[Any]
    target: list[int] | None
    flags: int | None = None  # of a row of text: FOLLOWS, CONTINUES, CUT


def encode_pairs(
    pairs: Iterable[SentencePair], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer | None = None
) -> Iterator[list[EncodedPair]]:
    """Tokenises a stream of pairs chunk by chunk; one joint tokenizer serves both sides if no other is given."""
    target_tokenizer = target_tokenizer or source_tokenizer
    for chunk in chunk_pairs(pairs):
        source = source_tokenizer.encode_batch([pair.source for pair in chunk])
        target: Iterable[list[int] | None] = [None] * len(chunk)
        if chunk[0].target is not None:
            target = target_tokenizer.encode_batch([pair.target or "" for pair in chunk])
        yield list(map(EncodedPair, chunk, source, target))


def chunk_pairs(pairs: Iterable[SentencePair], max_pairs: int | None = None) -> Iterator[list[SentencePair]]:
    """Some pairs at a time, no more than a bounded amount of text."""
    chunk: list[SentencePair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target or "")
        if len(chunk) == (max_pairs or MAX_CHUNK_PAIRS) or characters >= MAX_CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
