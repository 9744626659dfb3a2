from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dragoman.data import EncodedPair, SentencePair, TokenStore, write_store
from dragoman.text.feature_symbols import FeatureSymbols


class ByteTokenizer:
    """One token a byte, after the four special symbols; a tilde is unknown."""

    vocab_size = 260
    features = FeatureSymbols()

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[1 if byte == ord("~") else byte + 4 for byte in text.encode()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(id - 4 for id in ids if id >= 4).decode()

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return ["<unk>" if id == 1 else chr(id - 4) for id in ids]


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


Rows = Sequence[Sequence[int]]


def examples(sources: Rows, targets: Rows | None = None) -> list[EncodedPair]:
    pair = SentencePair("x", None if targets is None else "y", "corpus", 1)
    rows = [None] * len(sources) if targets is None else [list(row) for row in targets]
    return [EncodedPair(pair, list(source), target) for source, target in zip(sources, rows)]


@pytest.fixture
def store_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TokenStore]:
    """Makes a store of rows of ids in a fresh folder."""

    def make(sources: Rows, targets: Rows | None = None, vocabulary: int = 260) -> TokenStore:
        folder: Path = tmp_path_factory.mktemp("data") / "store"
        return write_store(folder, [examples(sources, targets)], vocabulary)

    return make
