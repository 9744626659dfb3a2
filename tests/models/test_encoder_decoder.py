"""The encoder–decoder: what it shares, what it begins a search with, what cannot be put together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dragoman.errors import UserError
from dragoman.models import DecoderOnly, EncoderDecoder, Model
from dragoman.parts.attention import CrossAttention
from dragoman.parts.stack import Stack
from dragoman.systems import SYSTEMS, VocabularySizes


def spec_of(name: str, vocabulary: VocabularySizes, tied: bool = True) -> EncoderDecoder:
    return SYSTEMS[name].spec(vocabulary, "tiny", model_dim=8, tied_embeddings=tied)


def test_a_joint_vocabulary_has_one_table_of_embeddings() -> None:
    model = spec_of("transformer", VocabularySizes(9, 9, joint=True)).build()
    assert model.source_embedding is model.target_embedding
    assert model.output.weight is model.target_embedding.weight
    apart = spec_of("transformer", VocabularySizes(9, 12), tied=False).build()
    assert apart.source_embedding.weight.shape == (9, 8)
    assert apart.target_embedding.weight.shape == apart.output.weight.shape == (12, 8)
    assert apart.output.weight is not apart.target_embedding.weight


def test_shared_embeddings_need_one_vocabulary() -> None:
    with pytest.raises(UserError, match="9 source and 12 target tokens: train a joint tokenizer"):
        spec_of("transformer", VocabularySizes(9, 12, joint=True)).build()


def test_a_decoder_that_starts_from_the_last_state_needs_a_recurrent_encoder() -> None:
    transformer, sutskever = (spec_of(name, VocabularySizes(9, 9)) for name in ("transformer", "sutskever"))
    model = replace(sutskever, encoder=transformer.encoder).build()
    with pytest.raises(UserError, match="use a recurrent encoder"):
        model.start_decoding(torch.ones(1, 2, dtype=torch.long), torch.tensor([2]), 1, 3, 2)


def test_a_decoder_that_starts_from_the_last_state_needs_its_shape() -> None:
    sutskever, luong = spec_of("sutskever", VocabularySizes(9, 9)), spec_of("luong", VocabularySizes(9, 9))
    model = replace(sutskever, encoder=luong.encoder).build()  # two layers and one
    with pytest.raises(UserError, match="needs the same cell, number of layers and width"):
        model.start_decoding(torch.ones(1, 2, dtype=torch.long), torch.tensor([2]), 1, 3, 2)


def test_from_context_needs_a_fixed_context() -> None:
    cho, bahdanau = spec_of("cho", VocabularySizes(9, 9)), spec_of("bahdanau", VocabularySizes(9, 9))
    decoder = replace(cho.decoder.block[0], context=bahdanau.decoder.block[0].context)  # type: ignore[attr-defined,type-var]
    model = replace(cho, decoder=replace(cho.decoder, block=(decoder,))).build()
    with pytest.raises(UserError, match="that is the same at every step: use FixedContext"):
        model.start_decoding(torch.ones(1, 2, dtype=torch.long), torch.tensor([2]), 1, 3, 2)


@pytest.mark.parametrize(("name", "packs"), [("transformer", True), ("sutskever", False), ("bahdanau", False)])
def test_recurrence_cannot_read_packed_rows(name: str, packs: bool) -> None:
    assert spec_of(name, VocabularySizes(9, 9)).build().supports_packing == packs


def as_read(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """Tokens as they are, or, for a model that reads vectors, a vector in the place of each."""
    features = model.source_features
    return tokens if features is None else tokens[..., None].expand(-1, -1, features) * torch.ones(features)


def kind(name: str) -> str:
    return type(SYSTEMS[name].spec(VocabularySizes(9, 9), "tiny")).__name__


@pytest.mark.parametrize("name", [name for name in SYSTEMS if kind(name) == "EncoderDecoder"])
def test_decoding_start_has_one_memory_per_source(name: str) -> None:
    model = spec_of(name, VocabularySizes(9, 9)).build().eval()
    source = as_read(model, torch.ones(2, 4, dtype=torch.long))
    begin = model.start_decoding(source, torch.tensor([4, 3]), beam=3, max_length=5, first=2)
    assert begin.memory is not None
    columns = {"bytenet": 5}.get(name, 4 // model.source_embedding.stride)  # the source of bytenet grows by a fifth
    assert begin.memory.states.shape == (2, columns, 8)
    assert begin.tokens.tolist() == [2] * 6
    assert begin.positions.tolist() == [0] * 6


@pytest.mark.parametrize("name", [name for name in SYSTEMS if kind(name) == "DecoderOnly"])
def test_decoder_only_starts_after_the_source(name: str) -> None:
    model = spec_of(name, VocabularySizes(9, 9)).build().eval()
    begin = model.start_decoding(
        torch.ones(2, 4, dtype=torch.long), torch.tensor([4, 3]), beam=3, max_length=5, first=2
    )
    assert begin.memory is None
    assert begin.tokens.tolist() == [2] * 6
    assert begin.positions.tolist() == [4, 4, 4, 3, 3, 3]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if kind(name) in ("EncoderOnly", "ReplacedTokens")])
def test_encoder_only_cannot_decode(name: str) -> None:
    model = SYSTEMS[name].spec(VocabularySizes(9, 9, True), "tiny", model_dim=8).build()
    with pytest.raises(UserError, match="labels its source and cannot generate text"):
        model.start_decoding(torch.ones(1, 2, dtype=torch.long), torch.tensor([2]), 1, 3, 2)


def test_dropout_only_in_training() -> None:
    tokens, lengths = torch.tensor([[4, 5, 6]]), torch.tensor([3])
    for name in SYSTEMS:
        model = SYSTEMS[name].spec(VocabularySizes(9, 9), "tiny", model_dim=8, dropout=0.5).build()
        pair = (as_read(model, tokens), lengths, tokens, lengths)
        model.eval()
        assert torch.equal(model(*pair), model(*pair)), name
        model.train()
        assert not torch.equal(model(*pair), model(*pair)), name


def test_a_layer_that_reads_the_source_needs_an_encoder() -> None:
    model = DecoderOnly(8, 20, Stack((CrossAttention(2),))).build()
    with pytest.raises(UserError, match="a layer that attends to the source needs an encoder"):
        model(torch.zeros(1, 0, dtype=torch.long), torch.tensor([0]), torch.tensor([[3, 4]]), torch.tensor([2]))
