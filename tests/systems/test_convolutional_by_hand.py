"""ConvS2S with its paper's formulas written out in NumPy, place by place; ByteNet by how far it sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel, count_parameters
from dragoman.parts.convolution import DilatedBlock, SourceExtension, WeightNormLinear
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.spec import find_specs
from dragoman.search.forced_decoding import attention_weights, cross_attention
from dragoman.systems import SYSTEMS, VocabularySizes

Array = npt.NDArray[np.float64]

SOURCE, SOURCE_LENGTHS = torch.tensor([[4, 5, 6, 7], [8, 4, 0, 0]]), torch.tensor([4, 2])
TARGET, TARGET_LENGTHS = torch.tensor([[2, 6, 8], [2, 4, 7]]), torch.tensor([3, 3])


def model_of(name: str, vocabulary: VocabularySizes, **settings: Any) -> EncoderDecoderModel:
    model = SYSTEMS[name].spec(vocabulary, **settings).build().eval()
    assert isinstance(model, EncoderDecoderModel)
    return model


# ---- ConvS2S


class ConvS2S:
    """The model again, one sentence and one place at a time."""

    def __init__(self, model: EncoderDecoderModel, kernel: int) -> None:
        self.weights = {name: w.detach().double().numpy() for name, w in model.state_dict().items()}
        self.kernel = kernel

    def layer(self, path: str, gain: float, x: Array) -> Array:
        """w = g v/‖v‖ row by row, then w·x + b."""
        v, growth, b = (self.weights[f"{path}.{name}"] for name in ("weight", "growth", "bias"))
        rows = [(gain + growth[o]) / np.sqrt((v[o] ** 2).sum()) * v[o] for o in range(len(v))]
        return np.array([row @ x for row in rows]) + b

    def gated(self, path: str, inputs: list[Array], place: int, ahead: int) -> Array:
        """A ⊙ σ(B) of the inputs up to `ahead` places after this one; zeros outside the sentence."""
        window = []
        for at in range(place + ahead - self.kernel + 1, place + ahead + 1):
            window.append(inputs[at] if 0 <= at < len(inputs) else np.zeros_like(inputs[0]))
        A, B = np.split(self.layer(f"{path}.convolution.linear", 2.0, np.concatenate(window)), 2)
        return A / (1 + np.exp(-B))

    def embed(self, side: str, stack: str, tokens: list[int]) -> list[Array]:
        words, places = self.weights[f"{side}_embedding.weight"], self.weights[f"{stack}.position.table.weight"]
        return [words[token] + places[place] for place, token in enumerate(tokens)]

    def encode(self, tokens: list[int], layers: int) -> tuple[list[Array], list[Array]]:
        """z and e."""
        e = z = self.embed("source", "encoder", tokens)
        for layer in range(layers):
            path, ahead = f"encoder.layers.{layer}.0.body.0", self.kernel // 2
            z = [np.sqrt(0.5) * (z[i] + self.gated(path, z, i, ahead)) for i in range(len(z))]
        return z, e

    def decode(self, source: list[int], target: list[int], layers: int) -> tuple[list[Array], list[list[Array]]]:
        """Logits at every place, and the weights of every layer's attention."""
        z, e = self.encode(source, layers)
        m = len(source)
        g = h = self.embed("target", "decoder", target)
        looks = []
        for layer in range(layers):
            path, above, look = f"decoder.layers.{layer}.0.body", [], []
            for i in range(len(h)):
                state = self.gated(f"{path}.0", h, i, 0)
                d = self.layer(f"{path}.1.body.0.query", 1.0, state) + g[i]
                scores = np.exp([d @ z[j] for j in range(m)])
                a = scores / scores.sum()
                c = m * np.sqrt(1 / m) * sum(a[j] * (z[j] + e[j]) for j in range(m))
                above.append(np.sqrt(0.5) * (np.sqrt(0.5) * (state + c) + h[i]))
                look.append(a)
            h = above
            looks.append(look)
        return [self.weights["output.weight"] @ x + self.weights["output.bias"] for x in h], looks


def sentences() -> list[tuple[int, list[int], list[int]]]:
    return [(row, SOURCE[row, : SOURCE_LENGTHS[row]].tolist(), TARGET[row].tolist()) for row in range(2)]


@pytest.mark.parametrize(("layers", "kernel"), [(1, 3), (2, 3), (2, 5)])
@torch.no_grad()
def test_convs2s_equals_loops_over_positions(layers: int, kernel: int) -> None:
    settings: dict[str, Any] = {
        "model_dim": 4,
        "layers": layers,
        "kernel_size": kernel,
        "dropout": 0.0,
        "tied_embeddings": False,
    }
    model = model_of("convs2s", VocabularySizes(9, 10), **settings)
    for weight in model.parameters():  # biases and gains too
        nn.init.normal_(weight, std=0.7)
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    weights = attention_weights(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    picture = cross_attention(model, weights)
    assert picture is not None
    assert len(weights) == layers
    by_hand = ConvS2S(model, kernel)
    for row, source, target in sentences():
        expected, looks = by_hand.decode(source, target, layers)
        np.testing.assert_allclose(logits[row].numpy(), expected, atol=1e-4)
        for layer, look in enumerate(looks):
            recorded = weights[f"decoder.layers.{layer}.0.body.1.body.0"][row, 0]
            np.testing.assert_allclose(recorded[:, : len(source)].numpy(), look, atol=1e-5)
            assert not recorded[:, len(source) :].any()
        np.testing.assert_allclose(picture[row, :, : len(source)].numpy(), np.mean(looks, 0), atol=1e-5)


def test_number_of_parameters_of_convs2s() -> None:
    """A convolution: k·d inputs to 2d outputs, each with b and g. W of the attention: d to d, with b and g."""
    d, k, layers, longest = 6, 3, 2, 50
    convolution = 2 * d * k * d + 2 * (2 * d)
    attention = d * d + 2 * d
    body = layers * (2 * convolution + attention) + 2 * longest * d
    settings: dict[str, Any] = {"model_dim": d, "layers": layers, "kernel_size": k, "max_positions": longest}
    separate, joint = VocabularySizes(30, 20), VocabularySizes(30, 30, joint=True)
    assert count_parameters(SYSTEMS["convs2s"].spec(separate, **settings)) == body + (30 + 20) * d + 20
    assert (
        count_parameters(SYSTEMS["convs2s"].spec(separate, **settings, tied_embeddings=False))
        == body + (30 + 40) * d + 20
    )
    assert count_parameters(SYSTEMS["convs2s"].spec(joint, **settings)) == body + 30 * d + 30


def test_convs2s_is_initialized_as_in_the_paper() -> None:
    """§3.5: words and places of deviation 0.1, g = 2√p before a gate and 1 elsewhere, biases zero."""
    torch.manual_seed(0)
    model = model_of("convs2s", VocabularySizes(500, 500), model_dim=64, layers=1, dropout=0.19)
    for table in ("source_embedding.weight", "decoder.position.table.weight"):
        assert model.get_parameter(table).std().item() == pytest.approx(0.1, rel=0.02)
    gains = [module.gain for module in model.modules() if isinstance(module, WeightNormLinear)]
    assert gains == pytest.approx([1.8, 1.8, 1.0])
    assert not any(w.any() for name, w in model.named_parameters() if name.endswith((".bias", ".growth")))


# ---- ByteNet


def bytenet(**settings: Any) -> EncoderDecoderModel:
    """Wide and exact enough that the one path to the edge of the field survives all rectifiers and rounding."""
    model = model_of("bytenet", VocabularySizes(100, 100), model_dim=64, dropout=0.0, **settings).double()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    return model


def touched(model: EncoderDecoderModel, place: int) -> tuple[list[int], list[int]]:
    """Which of 60 source and target places have a gradient from the logits at `place`; each token is its place."""
    tokens = torch.arange(60)[None]
    model.zero_grad()
    model(tokens, torch.tensor([60]), tokens, torch.tensor([60]))[0, place].sum().backward()
    sides = (model.source_embedding.weight.grad, model.target_embedding.weight.grad)
    source, target = (side[:60].any(1).nonzero()[:, 0].tolist() for side in sides if side is not None)
    return source, target


@pytest.mark.parametrize(("layers", "blocks", "kernel"), [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 4, 2), (1, 2, 5)])
def test_receptive_field_of_bytenet(layers: int, blocks: int, kernel: int) -> None:
    """The field is 1 + Σ (k−1)·dilation: all of it back in the decoder, half of it each way in the encoder.

    A logit sees the columns of its own place and of `reach` places before, and each column what the encoder's field
    reaches from there, further ahead where the field is not symmetric.
    """
    reach = layers * sum((kernel - 1) * 2**block for block in range(blocks))
    behind = layers * sum((kernel - 1) * 2**block // 2 for block in range(blocks))
    ahead = reach - behind
    model, place = bytenet(layers=layers, blocks_per_layer=blocks, kernel_size=kernel, tied_embeddings=False), 40
    source, target = touched(model, place)
    assert (target[0], target[-1]) == (place - reach, place)
    assert len(target) == 1 + reach
    assert (source[0], source[-1]) == (place - reach - behind, place + ahead)


@pytest.mark.parametrize("far", [6, 7])
@torch.no_grad()
def test_receptive_field_of_the_bytenet_encoder(far: int) -> None:
    """Two sets of two blocks, kernel 3: 1 + 2·(2·1 + 2·2) = 13 places, 6 each way."""
    model, middle = bytenet(layers=2, blocks_per_layer=2), 10

    def column(tokens: Tensor) -> Tensor:
        return model.encode(tokens, SequenceLayout.padded(21, torch.tensor([21]))).states[0, middle]

    tokens = torch.arange(21)[None]
    for place in (middle - far, middle + far):
        changed = tokens.clone()
        changed[0, place] = 99
        assert torch.equal(column(changed), column(tokens)) == (far > 6)


@pytest.mark.parametrize("back", [12, 13])
@torch.no_grad()
def test_receptive_field_of_the_bytenet_decoder(back: int) -> None:
    model, place, lengths = bytenet(layers=2, blocks_per_layer=2), 15, torch.tensor([20])
    tokens = torch.arange(20)[None]
    changed = tokens.clone()
    changed[0, place - back] = 99
    before, after = (model(tokens, lengths, target, lengths)[0, place] for target in (tokens, changed))
    assert torch.equal(before, after) == (back > 12)
    changed = tokens.clone()
    changed[0, place + 1] = 99
    assert torch.equal(before, model(tokens, lengths, changed, lengths)[0, place])


@pytest.mark.parametrize(("ratio", "offset", "columns"), [(1.0, 0.0, 3), (1.2, 0.0, 4), (1.0, 2.0, 5), (2.0, 1.5, 8)])
@torch.no_grad()
def test_bytenet_unfolds_over_the_extended_source_and_beyond(ratio: float, offset: float, columns: int) -> None:
    """Three words have ⌈3a + b⌉ columns. A logit sees those of 12 places back: the last at columns + 11, then none."""
    model = bytenet(layers=2, blocks_per_layer=2, unfolding_ratio=ratio, unfolding_offset=offset)
    target, lengths = torch.arange(21)[None], torch.tensor([21])
    one, other = (
        model(torch.tensor([source]), torch.tensor([3]), target, lengths)[0] for source in ([5, 6, 7], [8, 9, 10])
    )
    seen = columns + 12
    assert [torch.equal(one[place], other[place]) for place in range(21)] == [False] * seen + [True] * (21 - seen)


@torch.no_grad()
def test_bytenet_encodes_the_source_and_a_padding_vector_after_it() -> None:
    """|t̂| = 1.5 |s| + 1: rows of 4 and 2 words become 7 and 4 vectors, whatever the other row is."""
    model = bytenet(layers=1, blocks_per_layer=2, unfolding_ratio=1.5, unfolding_offset=1.0)
    source = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])
    memory = model.encode(source, SequenceLayout.padded(4, torch.tensor([4, 2])))
    assert memory.layout.lengths is not None
    assert memory.layout.lengths.tolist() == [7, 4]
    assert memory.states.shape[1] == 7
    padding = model.state_dict()["source_extension.padding"]
    for row, words, length in ((0, 4, 7), (1, 2, 4)):
        vectors = [*model.source_embedding(source[row, :words]), *[padding] * (length - words)]
        alone = model.encoder(
            torch.stack(vectors)[None], Context(SequenceLayout.padded(length, torch.tensor([length])))
        )
        torch.testing.assert_close(memory.states[row, :length], alone.output[0])


def test_extended_lengths_are_rounded_up() -> None:
    """1.2 · 3 = 3.6; 1.1 · 10 is 11, although 1.1 is a little more than eleven tenths in binary."""
    for ratio, offset, source, length in ((1.2, 0, 3, 4), (1.2, 0, 5, 6), (1.1, 0, 10, 11), (1.5, 4, 5, 12)):
        assert SourceExtension(ratio, offset).extended_length(source) == length
    for extension in (SourceExtension(), SourceExtension(1.1, 0.3), SourceExtension(1.5, 4)):
        assert extension.extended_lengths(torch.arange(300)).tolist() == [
            extension.extended_length(n) for n in range(300)
        ]
    with pytest.raises(UserError, match=r"but system\.settings\.unfolding_ratio is 0\.9"):
        bytenet(unfolding_ratio=0.9)


def test_number_of_parameters_of_bytenet() -> None:
    """A block: d to d/2, k·d/2 to d/2, d/2 to d, with biases, and norms of d, d/2 and d/2."""
    d, k, layers, blocks = 8, 3, 2, 4
    half = d // 2
    block = (d * half + half) + (k * half * half + half) + (half * d + d) + 2 * (d + half + half)
    unfolding = d * d + d + d  # and the vector after the source
    body = 2 * (layers * blocks * block + 2 * d) + unfolding
    settings: dict[str, Any] = {"model_dim": d, "layers": layers, "blocks_per_layer": blocks, "kernel_size": k}
    separate, joint = VocabularySizes(30, 20), VocabularySizes(30, 30, joint=True)
    assert count_parameters(SYSTEMS["bytenet"].spec(separate, **settings)) == body + (30 + 20) * d + 20
    assert count_parameters(SYSTEMS["bytenet"].spec(joint, **settings, tied_embeddings=False)) == body + 2 * 30 * d + 30


def test_bytenet_has_the_papers_size() -> None:
    """§5: 30 blocks a side in sets of five, dilations 1, 2, 4, 8, 16, 800 units inside a block."""
    spec = SYSTEMS["bytenet"].spec(VocabularySizes(300, 300), "big")
    assert [part.dilation for part in find_specs(spec.encoder, DilatedBlock)] == [1, 2, 4, 8, 16]
    assert (spec.dim // 2, spec.encoder.depth) == (800, 6)
