"""Helpers for tests: encoding and inspection of pairs in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dragoman.data import DATA_FORMATS, CorpusInspection, EncodedPair, Encoding, MemoryEstimate, Preflight, SentencePair
from dragoman.data.corpus_passes import HoldoutSampler, HoldoutSplit, source_hashes
from dragoman.data.inspection import inspect_chunk
from dragoman.text.framing import ENCODER_DECODER_FRAMING


def encode_pairs(pairs: Sequence[SentencePair], tokenizer: Any) -> Iterator[list[EncodedPair]]:
    data_format = DATA_FORMATS["pairs" if pairs and pairs[0].target is not None else "text"]
    encoding = Encoding(tokenizer, tokenizer, 256, ENCODER_DECODER_FRAMING)
    return (data_format.encode(chunk, encoding) for chunk in data_format.chunks(pairs))


def inspect_encoded(
    chunks: Iterable[list[EncodedPair]],
    tokenizer: Any,
    references: Mapping[str, Iterable[SentencePair]] | None = None,
    max_length: int = 256,
    memory: MemoryEstimate | None = None,
    data_format: str = "pairs",
) -> tuple[list[EncodedPair], Preflight]:
    """Return the pairs that are kept, and the report."""
    encoding = Encoding(tokenizer, tokenizer, max_length, ENCODER_DECODER_FRAMING)
    inspection = CorpusInspection(references)
    kept: list[EncodedPair] = []
    for chunk in chunks:
        usable, counts = inspect_chunk(chunk, DATA_FORMATS[data_format], encoding)
        kept += usable
        inspection.add(counts)
    inspection.require_pairs()
    return kept, inspection.report(memory)


def inspect_pairs(
    pairs: Sequence[SentencePair], tokenizer: Any, references: Mapping[str, Iterable[SentencePair]] | None = None
) -> Preflight:
    return inspect_encoded(encode_pairs(pairs, tokenizer), tokenizer, references)[1]


def choose_holdout(pairs: Iterable[SentencePair], size: int | None = None) -> HoldoutSplit:
    """Choose about `size` pairs to hold out."""
    sampler = HoldoutSampler(size)
    sampler.add(source_hashes(pairs))
    return sampler.choose()


def held_out(split: HoldoutSplit, pairs: Iterable[SentencePair]) -> list[SentencePair]:
    return [pair for pair in pairs if pair in split]
