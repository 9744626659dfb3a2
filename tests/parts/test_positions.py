"""Positions: the sinusoids of the formula, which extend, and learned ones, which refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel
from dragoman.parts.attention import SelfAttention
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.positions import Concatenated, Learned, NoPosition, Sinusoidal, SinusoidalPosition
from dragoman.parts.stack import Stack
from dragoman.parts.visibility import Full
from dragoman.search import Beam, LengthLimit, SpecialTokens
from dragoman.systems import SYSTEMS, VocabularySizes
from search.plain_search import search

#: PE(pos, ·) for d = 4: the frequencies are 10000^0 = 1 and 10000^(−2/4) = 0.01
FIVE_BY_FOUR = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(5)]


def encoding(n: int, d: int) -> torch.Tensor:
    part = Sinusoidal().build(d)
    assert isinstance(part, SinusoidalPosition)
    return part.encoding(torch.arange(n))


def test_sinusoids_of_five_positions_and_four_columns() -> None:
    torch.testing.assert_close(encoding(5, 4), torch.tensor(FIVE_BY_FOUR), atol=1e-6, rtol=0)
    assert encoding(5, 4)[:, 2].tolist() == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04], abs=5e-5)
    assert encoding(5, 4)[1].tolist() == pytest.approx([0.8415, 0.5403, 0.0100, 1.0000], abs=1e-4)


def test_self_similarity_depends_on_the_distance_alone() -> None:
    """PE(p)·PE(q) = Σ_i cos((p − q) ω_i), by sin·sin + cos·cos; largest, d/2, where p = q."""
    similarity = encoding(5, 4) @ encoding(5, 4).T
    expected = torch.tensor([[math.cos(p - q) + math.cos((p - q) / 100) for q in range(5)] for p in range(5)])
    torch.testing.assert_close(similarity, expected, atol=1e-6, rtol=0)
    assert similarity.diagonal().tolist() == pytest.approx([2.0] * 5)


def test_an_odd_width_ends_with_a_sine() -> None:
    expected = [[math.sin(p), math.cos(p), math.sin(p / 10000 ** (2 / 3))] for p in range(4)]
    torch.testing.assert_close(encoding(4, 3), torch.tensor(expected), atol=1e-6, rtol=0)


def test_sinusoids_depend_on_positions_not_on_columns() -> None:
    part = Sinusoidal().build(4)
    layout = SequenceLayout.packed_row(5, torch.tensor([3, 2]), 3)
    added = part.embed(torch.zeros(1, 5, 4), layout)
    expected = torch.tensor([FIVE_BY_FOUR[p] for p in (0, 1, 2, 0, 1)])
    torch.testing.assert_close(added[0], expected, atol=1e-6, rtol=0)


def test_no_position_is_the_identity() -> None:
    part, x = NoPosition().build(4), torch.randn(1, 3, 4)
    positions = torch.arange(3)[None]
    assert part.embed(x, SequenceLayout(positions)) is x
    assert part.rotate(x, positions) is x
    assert part.score_bias(x, positions, positions) is None
    assert part.value_bias(x, positions, positions) is None


def model_with(position: Learned | Sinusoidal) -> EncoderDecoderModel:
    spec = SYSTEMS["transformer"].spec(VocabularySizes(9, 9, joint=True), model_dim=8, heads=2, layers=1, dropout=0.0)
    encoder, decoder = (replace(stack, position=position) for stack in (spec.encoder, spec.decoder))
    return replace(spec, encoder=encoder, decoder=decoder).build().eval()


def run(model: EncoderDecoderModel, source: int, target: int) -> torch.Tensor:
    source_lengths, target_lengths = torch.tensor([source]), torch.tensor([target])
    ones = torch.ones(1, max(source, target), dtype=torch.long)
    return model(ones[:, :source], source_lengths, ones[:, :target], target_lengths)


def test_learned_positions_refuse_long_sequences() -> None:
    model = model_with(Learned(max_length=5))
    assert model.max_source_length == 5
    assert model.max_target_length(torch.tensor([1, 3])).tolist() == [5, 5]
    assert run(model, 5, 5).isfinite().all()
    for source, target in ((6, 5), (5, 6)):
        with pytest.raises(UserError, match="has learned positions for 5 tokens, but a sequence has 6"):
            run(model, source, target)


def test_learned_positions_refuse_long_decoding() -> None:
    model = model_with(Learned(max_length=5))
    source, lengths = torch.ones(1, 3, dtype=torch.long), torch.tensor([3])
    begin = model.start_decoding(source, lengths, beam=1, max_length=5, first=2)
    state = begin.state
    for position in range(5):
        logits, after = model.decode(
            torch.tensor([[4]]), Context(SequenceLayout.continuation(torch.tensor([position])), begin.memory), state
        )
        assert after is not None
        state = after
    torch.testing.assert_close(logits[0, 0], _whole(model, source, lengths), atol=1e-5, rtol=1e-5)
    assert model.start_decoding(source, lengths, beam=1, max_length=6, first=2).max_length == 5
    with pytest.raises(UserError, match="has learned positions for 5 tokens, but the search may generate 6"):
        model.decoder.init_state(1, 6, source)


def _whole(model: EncoderDecoderModel, source: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return model(source, lengths, torch.full((1, 5), 4), torch.tensor([5]))[0, -1]


def test_a_search_stays_within_learned_positions() -> None:
    model = model_with(Learned(max_length=5))
    never_ends = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2, 3))  # END is banned: it writes to its limit
    settings = Beam(2, length_limit=LengthLimit(ratio=10, offset=10))
    found = search(
        model, torch.ones(1, 3, dtype=torch.long), torch.tensor([3]), never_ends, settings, torch.tensor([0])
    )
    assert len(found[0][0].tokens) == 5
    assert not found[0][0].finished


def test_packed_rows_need_positions_for_the_longest_sequence() -> None:
    part = Learned(max_length=3).build(4)
    fits = SequenceLayout.packed_row(7, torch.tensor([3, 3, 1]), 3)
    assert torch.equal(part.embed(torch.zeros(1, 7, 4), fits)[0, 3:6], part.table.weight)
    with pytest.raises(UserError, match="has learned positions for 3 tokens, but a sequence has 4"):
        part.embed(torch.zeros(1, 5, 4), SequenceLayout.packed_row(5, torch.tensor([4, 1]), 4))


def test_sinusoids_extend_past_every_length() -> None:
    model = model_with(Sinusoidal())
    assert model.max_source_length is None
    assert model.max_target_length(torch.tensor([3])) is None
    assert run(model, 40, 70).shape == (1, 70, 9)
    assert encoding(5001, 4)[5000].tolist() == pytest.approx(
        [math.sin(5000), math.cos(5000), math.sin(50), math.cos(50)], abs=1e-3
    )


def test_without_positions_order_is_invisible_and_with_them_it_is_not() -> None:
    """Self-attention that sees everything is blind to order: turn the words and the outputs turn with them."""
    x, context = torch.randn(1, 5, 8), Context(SequenceLayout.padded(5, torch.tensor([5])))
    blind = Stack((SelfAttention(heads=2, visibility=Full()),)).build(8)
    sighted = Stack((SelfAttention(heads=2, visibility=Full()),), position=Sinusoidal()).build(8)
    torch.testing.assert_close(blind(x.flip(1), context)[0], blind(x, context)[0].flip(1), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(sighted(x.flip(1), context)[0], sighted(x, context)[0].flip(1), atol=1e-3)


# ---- concatenated instead of added


def test_concatenated_positions_follow_the_embedding() -> None:
    """[x; PE(pos)] with n = 3 and d = 4 for the positions: the embedding is unchanged, the sinusoids stand after it."""
    part, x = Concatenated(Sinusoidal(), 4).build(6), torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    y = part.embed(x, SequenceLayout.padded(3, torch.tensor([3])))
    expected = [[*word, *FIVE_BY_FOUR[p]] for p, word in enumerate(x[0].tolist())]
    torch.testing.assert_close(y[0], torch.tensor(expected), atol=1e-6, rtol=0)
    learned = Concatenated(Learned(8), 3).build(5)
    table = learned.position.table.weight.detach()
    y = learned.embed(x, SequenceLayout(torch.tensor([[7, 0, 2]])))
    assert torch.equal(y[0], torch.cat((x[0], table[[7, 0, 2]]), -1))


@pytest.mark.parametrize("position", [Sinusoidal(), Learned(9)])
def test_adding_is_concatenating_and_projecting_by_two_identities(position: Sinusoidal | Learned) -> None:
    """[I I] [x; p] = x + p."""
    layer = SelfAttention(heads=2, visibility=Full())
    added = Stack((layer,), position=position).build(4)
    concatenated = Stack((layer,), position=Concatenated(position, 4), input_dim=8).build(4)
    weights = {name.replace("position.", "position.position."): w for name, w in added.state_dict().items()}
    identities = {"project.weight": torch.eye(4).repeat(1, 2), "project.bias": torch.zeros(4)}
    concatenated.load_state_dict(weights | identities)
    x, context = torch.randn(2, 5, 4), Context(SequenceLayout.padded(5, torch.tensor([5, 3])))
    torch.testing.assert_close(concatenated(x, context).output[0], added(x, context).output[0], atol=1e-5, rtol=1e-5)


def test_a_transformer_with_concatenated_positions_divides_its_width() -> None:
    vocabulary = VocabularySizes(9, 9)
    spec = SYSTEMS["transformer"].spec(vocabulary, "tiny", model_dim=8, heads=2, position_dim=3)
    model = spec.build()
    assert isinstance(model, EncoderDecoderModel)
    assert model.source_embedding.weight.shape == (9, 5)
    tokens, layout = torch.tensor([[4, 5, 6]]), SequenceLayout.padded(3, torch.tensor([3]))
    x = model.eval().encode(tokens, layout).encoder_inputs
    expected = torch.cat((model.source_embedding(tokens), encoding(3, 3)[None]), -1)
    torch.testing.assert_close(x, expected)
    with pytest.raises(UserError, match=r"rotary positions act in the attention: set .*position_encoding"):
        SYSTEMS["transformer"].spec(vocabulary, "tiny", position_dim=3, position_encoding="rotary")
    with pytest.raises(UserError, match=r"position_dim, .* must be from 1 to 7"):
        SYSTEMS["transformer"].spec(vocabulary, "tiny", model_dim=8, position_dim=8).build()


def test_learned_positions_refuse_past_their_length_when_concatenated() -> None:
    part = Concatenated(Learned(4), 2).build(6)
    assert part.max_length == 4
    with pytest.raises(UserError, match="learned positions for 4 tokens, but a sequence has 5"):
        part.embed(torch.zeros(1, 5, 4), SequenceLayout.padded(5, torch.tensor([5])))
