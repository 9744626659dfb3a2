"""BPE dropout makes rows longer, but no batch larger than its budget and no row longer than the longest."""

from __future__ import annotations

import itertools

import pytest
import torch

from dragoman.data import DATA_FORMATS, Batches, Encoding, SentencePair, TokenStore, phrasebook, write_store
from dragoman.objectives import Objective, TaskContext, build_objective
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import ENCODER_DECODER_FRAMING, Tokenizer, learn_tokenizer

TOKENS = 256


@pytest.fixture(scope="module")
def pairs() -> list[SentencePair]:
    made = itertools.islice(phrasebook.sentences(1), 300)
    return [SentencePair(one.source, one.target, "phrasebook", line) for line, one in enumerate(made, 1)]


@pytest.fixture(scope="module")
def tokenizer(pairs: list[SentencePair]) -> Tokenizer:
    return learn_tokenizer([text for pair in pairs for text in (pair.source, pair.target or "")], "bpe", 600)


@pytest.fixture(scope="module")
def store(pairs: list[SentencePair], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    chunks = [DATA_FORMATS["pairs"].encode(pairs, Encoding(tokenizer, tokenizer, 256, ENCODER_DECODER_FRAMING))]
    return write_store(tmp_path_factory.mktemp("data") / "store", chunks, tokenizer.vocab_size)


def objective_of(system: str, name: str, tokenizer: Tokenizer, dropout: float) -> Objective:
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, True)
    model = SYSTEMS[system].spec(vocabulary, "tiny", model_dim=16, layers=1, heads=2).build()
    return build_objective(
        name, TaskContext(model, tokenizer, tokenizer, model.spec.default_framing, bpe_dropout=dropout), {}
    )


def batches_of(objective: Objective, store: TokenStore, packed: bool) -> Batches:
    return Batches(
        store,
        TOKENS,
        seed=1,
        rows=objective.row_format,
        packed=packed,
    )


@pytest.mark.parametrize(
    ("system", "name", "packed"),
    [
        ("gpt", "translation", False),
        ("llama", "translation", False),
        ("llama", "translation", True),
        ("transformer", "translation", False),
        ("transformer-d", "concatenation", False),
    ],
)
def test_batches_keep_their_token_limit(
    system: str, name: str, packed: bool, store: TokenStore, tokenizer: Tokenizer
) -> None:
    plain, dropped = (objective_of(system, name, tokenizer, dropout) for dropout in (0.0, 0.3))
    known = store.length_counts()
    widest = int(plain.row_length(known.source, known.target).max())
    batches = batches_of(dropped, store, packed)
    usual = sum(
        batch.source_tokens + batch.target_tokens for batch in batches_of(plain, store, packed).iterate_epoch(0)
    )
    total, seen = 0, 0
    for epoch in (0, 1):
        for batch in batches.iterate_epoch(epoch):
            source, target = batch.source_lengths, batch.target_lengths
            lengths = source + target if dropped.task.model.is_decoder_only else torch.maximum(source, target)
            if packed:
                assert batches.packed_shape is not None
                assert batch.source.shape[1] == batches.packed_shape.row_lengths[0]
            else:
                assert len(batch) * int(lengths.max()) <= TOKENS
                assert int(lengths.max()) <= widest
            total += batch.source_tokens + batch.target_tokens
            seen += len(batch)
    assert seen == 2 * len(store)
    assert total > 2 * 1.2 * usual  # it is in effect
