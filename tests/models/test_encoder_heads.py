"""The output layers of encoders: none, narrower than the model, or shared by two networks."""

from __future__ import annotations

import torch

from dragoman.models import EncoderOnly, ReplacedTokens, ReplacedTokensModel
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned
from dragoman.parts.stack import PostNorm, Stack
from dragoman.parts.visibility import Full
from dragoman.systems import SYSTEMS, VocabularySizes

SOURCE, LENGTHS = torch.tensor([[5, 7, 8, 6], [9, 4, 0, 0]]), torch.tensor([4, 2])
BLOCK = (PostNorm(SelfAttention(2, visibility=Full())),)


def encoder(**settings: object) -> EncoderOnly:
    stack = Stack(BLOCK, 1, Learned(6), input_norm=LayerNorm(), input_dim=4)
    return EncoderOnly(8, 13, stack, Embedding(width=4), **settings)  # type: ignore[arg-type]


def test_model_without_output_layer_returns_states() -> None:
    model = encoder(num_labels=0, tied_embeddings=False).build().eval()
    torch.testing.assert_close(
        model(SOURCE, LENGTHS), model.forward_features(SOURCE, SequenceLayout.padded(4, LENGTHS))[0]
    )
    assert model.vocab_size == 8
    assert [name for name, _ in model.named_parameters() if name.startswith("output")] == []


def test_a_matrix_of_its_own_may_be_as_narrow_as_the_embeddings() -> None:
    model = encoder(tied_embeddings=False, transform=Transform(width=4)).build()
    assert model.output.weight.shape == (13, 4)
    assert model(SOURCE, LENGTHS).shape == (2, 4, 13)
    assert encoder(tied_embeddings=False, transform=Transform()).build().output.weight.shape == (13, 8)


def test_generator_and_discriminator_read_the_same_embeddings() -> None:
    spec = SYSTEMS["electra"].spec(
        VocabularySizes(13, 13), "tiny", model_dim=16, layers=1, heads=4, embedding_dim=6, generator_divisor=2
    )
    assert isinstance(spec, ReplacedTokens)
    model = spec.build()
    assert isinstance(model, ReplacedTokensModel)
    one, other = model.discriminator, model.generator
    assert other.source_embedding is one.source_embedding
    assert other.output.weight is one.source_embedding.weight
    assert other.encoder.position is one.encoder.position
    assert other.types is one.types
    apart = ReplacedTokens(spec.generator, spec.discriminator, shared_embeddings=False).build()
    assert apart.generator.source_embedding is not apart.discriminator.source_embedding
    assert apart.generator.encoder.position is not apart.discriminator.encoder.position
    assert (other.spec.dim, one.spec.dim) == (8, 16)
