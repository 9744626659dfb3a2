"""Alignments read off attention weights."""

from __future__ import annotations

import pytest
import torch

from dragoman.search.forced_decoding import TokenWordMap, attention_weights, cross_attention, word_alignment
from dragoman.systems import SYSTEMS, VocabularySizes


def links(weights: torch.Tensor, source: list[int], target: list[int]) -> list[tuple[int, int]]:
    """The links of pieces that are all letters."""
    return word_alignment(weights, *(TokenWordMap.from_tokens(words, ["x"] * len(words)) for words in (source, target)))


def test_each_target_word_goes_with_the_word_that_it_looked_at_most() -> None:
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.8, 0.1, 0.1], [0.3, 0.3, 0.4]])
    assert links(weights, [0, 1, 2], [0, 1, 2]) == [(0, 1), (1, 0), (2, 2)]


def test_the_pieces_of_a_word_are_looked_at_together() -> None:
    """Two pieces of 0.3 outweigh one word of 0.4; a target word's two pieces are summed too."""
    weights = torch.tensor([[0.4, 0.3, 0.3], [0.9, 0.1, 0.0]])
    assert links(weights, [0, 1, 1], [0, 1]) == [(0, 1), (1, 0)]
    assert links(weights, [0, 1, 1], [0, 0]) == [(0, 0)]  # 0.4 + 0.9 and 0.6 + 0.1


def test_pieces_of_no_word_are_neither_aligned_nor_looked_at() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.4, 0.1, 0.5]])
    assert links(weights, [0, 1, -1], [0, -1]) == [(1, 0)]  # END draws most of it, and does not count
    assert links(weights, [-1, -1, -1], [0, 1]) == []
    assert links(weights, [0, 1, 2], [-1, -1]) == []


def test_punctuation_attached_to_a_word_does_not_decide_its_link() -> None:
    """I saw a dog. / Ich habe gesehen.: the full stops look at each other, and are in other words."""
    source = TokenWordMap.from_tokens([0, 1, 2, 3, 3], ["▁I", "▁saw", "▁a", "▁dog", "."])
    target = TokenWordMap.from_tokens([0, 1, 2, 2], ["▁Ich", "▁habe", "▁gesehen", "."])
    weights = torch.eye(5)[[0, 1, 1, 4]]
    assert word_alignment(weights, source, target) == [(0, 0), (1, 1), (1, 2)]


def test_punctuation_that_stands_alone_is_aligned() -> None:
    source = TokenWordMap.from_tokens([0, 1, 1], ["▁ja", "▁nein", "."])
    target = TokenWordMap.from_tokens([0, 1, 2], ["▁yes", "▁no", "▁."])
    assert target.core_word_ids == [0, 1, 2]
    assert word_alignment(torch.eye(3), source, target) == [(0, 0), (1, 1), (1, 2)]
    byte = TokenWordMap.from_tokens([0, 0, 1], ["<0x61>", "<0x2E>", "<0xE2>"])
    assert byte.core_word_ids == [0, -1, 1]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("bahdanau", {"decoder.layers.0.0"}),
        ("luong", {"decoder.layers.0.0"}),
        (
            "transformer",
            {f"encoder.layers.{i}.0.body" for i in range(2)}
            | {f"decoder.layers.{i}.{j}.body" for i in (0, 1) for j in (0, 1)},
        ),
    ],
)
def test_the_weights_of_every_layer_and_head_can_be_had_back(name: str, paths: set[str]) -> None:
    model = SYSTEMS[name].spec(VocabularySizes(9, 9), "tiny", model_dim=8).build().eval()
    source, target = torch.randint(4, 9, (2, 5)), torch.randint(4, 9, (2, 3))
    weights = attention_weights(model, source, torch.tensor([5, 3]), target, torch.tensor([3, 3]))
    assert weights.keys() == paths
    heads = 4 if name == "transformer" else 1
    for path, weight in weights.items():
        length = 5 if path.startswith("encoder") else 3
        assert weight.shape[:3] == (2, heads, length)
        torch.testing.assert_close(weight.sum(-1), torch.ones(2, heads, length))
    looks = cross_attention(model, weights)
    assert looks is not None
    assert looks.shape == (2, 3, 5)
    assert not looks[1, :, 3:].any()  # padding is never looked at
    cross = [weight for path, weight in weights.items() if path.startswith("decoder") and weight.shape[-1] == 5]
    torch.testing.assert_close(looks, sum(weight.mean(1) for weight in cross) / len(cross))
