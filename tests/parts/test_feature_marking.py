"""Feature symbols (Wu et al. 2021, §3): positions and types by hand, and an encoder that reads them as a set."""

from __future__ import annotations

import pytest
import torch

from dragoman.models import Model
from dragoman.parts.embedding import Embedding
from dragoman.parts.feature_marking import FeatureMarking, FeatureTypeEmbedding
from dragoman.parts.mixer import SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes

FIRST, COUNT = 10, 4  # the feature symbols are 10 to 13


def marking(scaled: bool = False, invariant: bool = True) -> FeatureTypeEmbedding:
    table = Embedding(scaled=scaled).build_embedding(FIRST + COUNT, 4)
    built = FeatureMarking(FIRST, COUNT, invariant).build_marking(table)
    with torch.no_grad():
        built.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 2.0, 0, 0]]))
    return built


def test_features_are_at_position_0_and_tokens_count_from_1() -> None:
    source = torch.tensor([[11, 12, 4, 5, 6], [10, 4, 5, 0, 0], [4, 5, 6, 7, 8]])
    layout = SequenceLayout.padded(5, torch.tensor([5, 3, 5]))
    _, marked = marking()(torch.zeros(3, 5, 4), source, layout)
    assert marked.position_ids is not None
    assert marked.position_ids[0].tolist() == [0, 0, 1, 2, 3]
    assert marked.position_ids[1, :3].tolist() == [0, 1, 2]
    assert marked.position_ids[2].tolist() == [1, 2, 3, 4, 5]
    assert marked.num_positions == 6
    assert marked.positions.equal(layout.positions)  # padding and recurrence depend on columns


def test_positions_of_packed_sequences() -> None:
    source = torch.tensor([[11, 12, 4, 5, 10, 6, 7, 8, 9, 0]])
    layout = SequenceLayout.packed_row(10, torch.tensor([4, 3, 2]), max_length=4)
    _, marked = marking()(torch.zeros(1, 10, 4), source, layout)
    assert marked.position_ids is not None
    assert marked.position_ids[0, :9].tolist() == [0, 0, 1, 2, 0, 1, 2, 1, 2]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_vector_for_each_type_is_added(scaled: bool) -> None:
    layout = SequenceLayout.padded(2, torch.tensor([2]))
    marked, _ = marking(scaled)(torch.ones(1, 2, 4), torch.tensor([[13, 4]]), layout)
    scale = 2.0 if scaled else 1.0  # √4
    assert marked[0].tolist() == [[1, 1 + 2 * scale, 1, 1], [1 + scale, 1, 1, 1]]


def test_sequential_positions_are_the_columns() -> None:
    layout = SequenceLayout.padded(3, torch.tensor([3]))
    _, marked = marking(invariant=False)(torch.zeros(1, 3, 4), torch.tensor([[11, 12, 4]]), layout)
    assert marked.encoded_positions.tolist() == [[0, 1, 2]]


def model_with_features(name: str, invariant: bool = True, **settings: object) -> Model:
    torch.manual_seed(0)
    small = {"model_dim": 16, "layers": 2} | settings
    spec = SYSTEMS[name].spec(VocabularySizes(FIRST + COUNT, FIRST + COUNT, joint=True), "tiny", **small)
    return spec.with_feature_symbols(FIRST, COUNT, invariant).build().eval().double()


def logits(model: Model, source: list[int]) -> torch.Tensor:
    target = torch.tensor([[2, 5, 6]])
    return model(torch.tensor([source]), torch.tensor([len(source)]), target, torch.tensor([3]))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("transformer", {"heads": 2}),
        ("transformer", {"heads": 2, "position_encoding": "rotary"}),
        ("transformer", {"heads": 2, "position_encoding": "learned", "max_positions": 8}),
        ("transformer", {"heads": 2, "position_encoding": "alibi"}),
        ("shaw", {"heads": 2}),
    ],
)
def test_the_order_of_features_does_not_matter(name: str, settings: dict[str, object]) -> None:
    model = model_with_features(name, **settings)
    expected = logits(model, [11, 12, 13, 4, 5, 6, 3])
    torch.testing.assert_close(logits(model, [13, 11, 12, 4, 5, 6, 3]), expected, atol=1e-12, rtol=0)
    assert (logits(model, [11, 12, 10, 4, 5, 6, 3]) - expected).abs().max() > 1e-3  # which features does
    sequential = model_with_features(name, invariant=False, **settings)
    first, other = (logits(sequential, source) for source in ([11, 12, 13, 4, 3], [13, 11, 12, 4, 3]))
    assert (first - other).abs().max() > 1e-3


def test_without_features_relative_positions_are_those_of_a_plain_model() -> None:
    marked = model_with_features("transformer", heads=2, position_encoding="rotary")
    plain = model_with_features("transformer", heads=2, position_encoding="rotary")
    with torch.no_grad():
        marked.feature_marking.weight.zero_()  # type: ignore[union-attr, operator]
    plain.feature_marking = None
    torch.testing.assert_close(logits(marked, [4, 5, 6, 3]), logits(plain, [4, 5, 6, 3]), atol=1e-12, rtol=0)


def test_learned_positions_have_one_for_features() -> None:
    model = model_with_features("transformer", heads=2, position_encoding="learned", max_positions=8)
    assert model.max_source_length == 7
