"""BPE dropout makes rows longer, but no batch larger than its budget and no row longer than the longest."""

from __future__ import annotations

import itertools

import pytest
import torch

from dragoman.data import Batches, Pair, TokenStore, encode, phrasebook, write_store
from dragoman.objectives import Material, Objective, make
from dragoman.run import FRAMINGS
from dragoman.systems import SYSTEMS, Vocabulary
from dragoman.text import Tokenizer, learn

TOKENS = 256


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    made = itertools.islice(phrasebook.sentences(1), 300)
    return [Pair(one.source, one.target, "phrasebook", line) for line, one in enumerate(made, 1)]


@pytest.fixture(scope="module")
def tokenizer(pairs: list[Pair]) -> Tokenizer:
    return learn([text for pair in pairs for text in (pair.source, pair.target or "")], "bpe", 600)


@pytest.fixture(scope="module")
def store(pairs: list[Pair], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return write_store(tmp_path_factory.mktemp("data") / "store", encode(pairs, tokenizer), tokenizer.size)


def objective_of(system: str, name: str, tokenizer: Tokenizer, dropout: float) -> Objective:
    vocabulary = Vocabulary(tokenizer.size, tokenizer.size, True)
    model = SYSTEMS[system].spec(vocabulary, "tiny", width=16, layers=1, heads=2).build()
    return make(name, Material(model, tokenizer, tokenizer, FRAMINGS[type(model.spec)], dropout=dropout), {})


def batches_of(objective: Objective, store: TokenStore, packed: bool) -> Batches:
    return Batches(
        store,
        TOKENS,
        seed=1,
        framing=objective.material.framing,
        rows=objective.rows,
        aligned=objective.aligned,
        width=objective.width,
        sizes=objective.sizes if packed else None,
        segments=objective.segments,
    )


@pytest.mark.parametrize(
    ("system", "name", "packed"),
    [
        ("gpt", "translation", False),
        ("llama", "translation", False),
        ("llama", "translation", True),
        ("transformer", "translation", False),
        ("transformer-d", "one-sequence", False),
    ],
)
def test_batches_keep_their_budget(
    system: str, name: str, packed: bool, store: TokenStore, tokenizer: Tokenizer
) -> None:
    plain, dropped = (objective_of(system, name, tokenizer, dropout) for dropout in (0.0, 0.3))
    known = store.length_counts()
    widest = int(plain.width(known.source, known.target).max())
    batches = batches_of(dropped, store, packed)
    usual = sum(batch.source_tokens + batch.target_tokens for batch in batches_of(plain, store, packed).epoch(0))
    total, seen = 0, 0
    for epoch in (0, 1):
        for batch in batches.epoch(epoch):
            source, target = batch.source_lengths, batch.target_lengths
            lengths = source + target if dropped.material.model.joins else torch.maximum(source, target)
            if packed:
                assert batches.packing is not None
                assert batch.source.shape[1] == batches.packing.widths[0]
            else:
                assert len(batch) * int(lengths.max()) <= TOKENS
                assert int(lengths.max()) <= widest
            total += batch.source_tokens + batch.target_tokens
            seen += len(batch)
    assert seen == 2 * len(store)
    assert total > 2 * 1.2 * usual  # it is in effect
