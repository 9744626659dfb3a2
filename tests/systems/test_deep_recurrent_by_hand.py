"""GNMT, Deep-Att and the LSTMs with experts, layer by layer over torch.nn.LSTM and LSTMCell with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.models import EncoderDecoderModel, count_parameters
from dragoman.parts.experts import MixtureOfExperts, NoisyTopKGating
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.recurrence import Recurrent
from dragoman.parts.spec import find_specs
from dragoman.search.forced_decoding import attention_weights, cross_attention
from dragoman.systems import SYSTEMS, VocabularySizes

SOURCE, SOURCE_LENGTHS = torch.tensor([[4, 5, 6, 7], [8, 4, 0, 0]]), torch.tensor([4, 2])
TARGET, TARGET_LENGTHS = torch.tensor([[2, 6, 8, 5], [2, 4, 7, 0]]), torch.tensor([4, 3])
D = 6
ROWS = [0, 1]
Weights = dict[str, Tensor]


def model_of(name: str, **settings: Any) -> EncoderDecoderModel:
    torch.manual_seed(3)
    model = SYSTEMS[name].spec(VocabularySizes(9, 10), "big", model_dim=D, **settings).build().eval()
    for weight in model.parameters():  # biases too
        nn.init.normal_(weight, std=0.6)
    return model


def lstm(weights: Weights, path: str, cell: bool = False, both: bool = False) -> Any:
    """torch's LSTM, or its cell, with the weights that stand under a path."""
    found = {name.removeprefix(f"{path}."): weight for name, weight in weights.items() if name.startswith(f"{path}.")}
    gates, inputs = found["weight_ih_l0"].shape
    torchs: nn.Module = nn.LSTMCell(inputs, gates // 4)
    if cell:
        found = {name.removesuffix("_l0"): weight for name, weight in found.items()}
    else:
        projected = len(found["weight_hr_l0"]) if "weight_hr_l0" in found else 0
        torchs = nn.LSTM(inputs, gates // 4, batch_first=True, bidirectional=both, proj_size=projected)
    torchs.load_state_dict(found)
    return torchs


def additive(q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(q + k)


def tanh_product(q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(q) * torch.tanh(k)


def attending_layer(
    weights: Weights, path: str, words: Tensor, memory: Tensor, combined: Callable[[Tensor, Tensor], Tensor] = additive
) -> tuple[Tensor, Tensor, Tensor]:
    """The bottom layer of a decoder: T D words and S D states → states T D, contexts T D, weights T S.

    e_tj = v·combined(W h_{t−1}, U m_j), c_t = Σ_j α_tj m_j, h_t = LSTM([y_t; c_t], h_{t−1}).
    """
    W, U, v = (weights[f"{path}.context.score.{name}.weight"] for name in ("query", "key", "value"))
    gates, projected = len(weights[f"{path}.cells.weight_ih_l0"]), f"{path}.cells.weight_hr_l0" in weights
    step = lstm(weights, f"{path}.cells", cell=not projected)
    hidden, cell = torch.zeros(1, D), torch.zeros(1, gates // 4)
    states, contexts, alphas = [], [], []
    for word in words:
        alpha = torch.stack([v[0] @ combined(W @ hidden[0], U @ m) for m in memory]).softmax(0)
        context = alpha @ memory
        inputs = torch.cat((word, context))[None]
        hidden, cell = step(inputs, (hidden, cell))[1] if projected else step(inputs, (hidden, cell))
        states.append(hidden[0])
        contexts.append(context)
        alphas.append(alpha)
    return torch.stack(states), torch.stack(contexts), torch.stack(alphas)


def check(model: EncoderDecoderModel, row: int, memory: Tensor, features: Tensor, alpha: Tensor) -> None:
    """Encoder, logits and attention of a padded batch are those of one row alone, worked by hand."""
    weights = model.state_dict()
    S, T = int(SOURCE_LENGTHS[row]), int(TARGET_LENGTHS[row])
    states = model.encode(SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS)).states
    torch.testing.assert_close(states[row, :S], memory, atol=1e-5, rtol=1e-5)
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)[row, :T]
    expected = features @ weights["output.weight"].T + weights["output.bias"]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    looks = cross_attention(model, attention_weights(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS))
    assert looks is not None
    torch.testing.assert_close(looks[row, :T, :S], alpha, atol=1e-5, rtol=1e-5)
    assert not looks[row, :, S:].any()


def embedded(weights: Weights, row: int) -> tuple[Tensor, Tensor]:
    source = weights["source_embedding.weight"][SOURCE[row, : SOURCE_LENGTHS[row]]]
    return source, weights["target_embedding.weight"][TARGET[row, : TARGET_LENGTHS[row]]]


# ---- GNMT


def gnmt_path(stack: str, layer: int) -> str:
    """Layers are counted from 1; from the third up there is a residual connection around them."""
    return f"{stack}.layers.0.{layer - 1}" + (".body.cells" if layer > 2 else ".cells")


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_gnmt_equals_torch_lstms_with_residual_connections_from_the_third_layer(layers: int, row: int) -> None:
    model = model_of("gnmt", layers=layers)
    weights = model.state_dict()
    x, words = embedded(weights, row)
    for layer in range(1, layers + 1):
        y = lstm(weights, gnmt_path("encoder", layer), both=layer == 1)(x[None])[0][0]
        x = x + y if layer >= 3 else y
    memory = x
    x, contexts, alpha = attending_layer(weights, "decoder.layers.0.0", words, memory)
    for layer in range(2, layers + 1):
        y = lstm(weights, gnmt_path("decoder", layer))(torch.cat((x, contexts), -1)[None])[0][0]
        x = x + y if layer >= 3 else y
    check(model, row, memory, x, alpha)


@torch.no_grad()
def test_upper_gnmt_layer_with_zero_weights_is_the_identity() -> None:
    """An LSTM of zeros puts out σ(0)·tanh(0) = 0: from the third layer up x + 0 is left, the second hides all below."""
    deep, shallow = model_of("gnmt", layers=4), model_of("gnmt", layers=2)
    shallow.load_state_dict({name: deep.state_dict()[name] for name in shallow.state_dict()})
    for stack in (deep.encoder, deep.decoder):
        for name, weight in stack.named_parameters():
            if name.startswith(("layers.0.2.", "layers.0.3.")):
                weight.zero_()
    of_both = [model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS) for model in (deep, shallow)]
    torch.testing.assert_close(of_both[0][:, :3], of_both[1][:, :3], atol=1e-6, rtol=1e-6)
    for name, weight in shallow.decoder.named_parameters():
        if name.startswith("layers.0.1."):
            weight.zero_()
    logits = shallow(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    torch.testing.assert_close(logits, shallow.state_dict()["output.bias"].expand_as(logits))


def test_gnmts_shapes() -> None:
    weights = model_of("gnmt", layers=3).state_dict()
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    half = D // 2
    assert shapes["encoder.layers.0.0.cells.weight_ih_l0"] == (4 * half, D)
    assert shapes["encoder.layers.0.0.cells.weight_ih_l0_reverse"] == (4 * half, D)
    assert shapes["encoder.layers.0.1.cells.weight_ih_l0"] == (4 * D, D)
    assert not any("reverse" in name and not name.startswith("encoder.layers.0.0.") for name in shapes)
    for layer in (1, 2, 3):  # the context enters every one of them
        assert shapes[f"{gnmt_path('decoder', layer)}.weight_ih_l0"] == (4 * D, 2 * D)


def test_only_the_bottom_layer_of_gnmt_attends() -> None:
    model = model_of("gnmt", layers=4)
    assert model.memory_paths == ["decoder.layers.0.0"]
    weights = attention_weights(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert {path: tuple(w.shape) for path, w in weights.items()} == {"decoder.layers.0.0": (2, 1, 4, 4)}


# ---- Deep-Att


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("layers", "decoder_layers"), [(1, 1), (2, 3), (3, 2)])
def test_deep_att_equals_torch_lstms_with_fast_forward_connections(layers: int, decoder_layers: int, row: int) -> None:
    """f^k = W^k [first half of f^{k−1}; h^{k−1}] + b, which is all that enters the gates of layer k from below."""
    model = model_of("deep-att", layers=layers, decoder_layers=decoder_layers)
    weights = model.state_dict()
    words, target = embedded(weights, row)

    def linear(path: str, x: Tensor) -> Tensor:
        f = x @ weights[f"{path}.weight_ih_l0"].T + weights[f"{path}.bias_ih_l0"]
        assert f.shape[-1] == 4 * D
        return f

    tops = []
    for column in (0, 1):
        x = words
        for k in range(layers):
            layer = f"encoder.layers.0.0.columns.{column}.layers.{k}"
            f = linear(layer, x)
            backwards = (column + k) % 2 == 1
            h = lstm(weights, layer)((x.flip(0) if backwards else x)[None])[0][0]
            h = h.flip(0) if backwards else h
            x = torch.cat((f[:, : 2 * D], h), -1)
        tops.append((h, f))
    e = torch.cat((tops[0][0], tops[1][0], tops[0][1], tops[1][1]), -1)
    assert e.shape[-1] == 10 * D
    memory = e @ weights["encoder.layers.0.0.project.weight"].T

    bottom = "decoder.layers.0.0.bottom"
    h, contexts, alpha = attending_layer(weights, bottom, target, memory)
    f = linear(f"{bottom}.cells", torch.cat((target, contexts), -1))
    for k in range(decoder_layers - 1):
        layer = f"decoder.layers.0.0.layers.{k}"
        x = torch.cat((f[:, : 2 * D], h), -1)
        f = linear(layer, x)
        h = lstm(weights, layer)(x[None])[0][0]
    check(model, row, memory, h, alpha)


@torch.no_grad()
def test_fast_forward_path_is_linear() -> None:
    """With nothing but f in e, twice the words (and no biases) give twice the memory, through any number of layers."""
    model = model_of("deep-att", layers=4)
    weights = model.state_dict()
    for name, weight in weights.items():
        if "columns" in name:
            if "bias" in name:
                weight.zero_()
            elif "weight_ih" in name and ".layers.0.weight" not in name.removeprefix("encoder.layers.0.0."):
                weight[:, 2 * D :] = 0  # h goes no further than its own layer
    weights["encoder.layers.0.0.project.weight"][:, : 2 * D] = 0
    once = model.encode(SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS)).states
    weights["source_embedding.weight"].mul_(2)
    twice = model.encode(SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS)).states
    torch.testing.assert_close(twice[0], 2 * once[0])
    assert once[0].abs().max() > 0.1


def test_only_the_bottom_layer_of_deep_att_attends() -> None:
    model = model_of("deep-att", layers=2)
    assert model.memory_paths == ["decoder.layers.0.0.bottom"]
    weights = attention_weights(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert {path: tuple(w.shape) for path, w in weights.items()} == {"decoder.layers.0.0.bottom": (2, 1, 4, 4)}


# ---- LSTMs with a mixture of experts between them (Shazeer et al. 2017)


def experts(weights: Weights, path: str, x: Tensor, top_k: int) -> Tensor:
    """σ(Σ_e g_e · (W₂ max(0, W₁ x + b₁) + b₂)_e), g the softmax of the `top_k` largest scores: T D → T D."""
    rows = []
    for token in x:
        scores = weights[f"{path}.router.weight"] @ token
        best = sorted(range(len(scores)), key=lambda e: -float(scores[e]))[:top_k]
        total = sum(scores[e].exp() for e in best)
        row = torch.zeros(D)
        for e in best:
            (W1, b1), (W2, b2) = (
                (weights[f"{path}.experts.{e}.{name}.weight"], weights[f"{path}.experts.{e}.{name}.bias"])
                for name in ("widen", "narrow")
            )
            row += scores[e].exp() / total * (W2 @ (W1 @ token + b1).clamp(min=0) + b2)
        rows.append(1 / (1 + (-row).exp()))
    return torch.stack(rows)


@torch.no_grad()
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # said by torch's module
@pytest.mark.parametrize(("layers", "cell_dim"), [(1, None), (2, None), (3, 10), (2, 8)])
def test_moe_2017_equals_torch_lstms_with_a_loop_over_experts_between_them(
    layers: int, cell_dim: int | None, row: int
) -> None:
    """Every layer is residual; the experts come after the bottom layer, whose attention context all above it read."""
    model = model_of("moe-2017", layers=layers, cell_dim=cell_dim, experts=5, experts_per_token=3, ffn_dim=7)
    weights = model.state_dict()
    x, words = embedded(weights, row)
    x = x + lstm(weights, "encoder.layers.0.0.body.cells", both=True)(x[None])[0][0]
    x = x + experts(weights, "encoder.layers.0.1.body", x, 3)
    for layer in range(2, layers + 1):
        x = x + lstm(weights, f"encoder.layers.0.{layer}.body.cells")(x[None])[0][0]
    memory = x
    y, contexts, alpha = attending_layer(weights, "decoder.layers.0.0.body", words, memory, tanh_product)
    x = words + y
    x = x + experts(weights, "decoder.layers.0.1.body", x, 3)
    for layer in range(2, layers + 1):
        x = x + lstm(weights, f"decoder.layers.0.{layer}.body.cells")(torch.cat((x, contexts), -1)[None])[0][0]
    check(model, row, memory, x, alpha)


def test_moe_2017_has_the_papers_experts() -> None:
    """§E: 32 experts of 512 · 2048 + 2048 · 512 = 2M weights in either stack, 4 for each token; gates start at 0."""
    spec = SYSTEMS["moe-2017"].spec(VocabularySizes(100, 100, joint=True), "big")
    mixtures = list(find_specs(spec, MixtureOfExperts))
    assert [(m.num_experts, m.top_k, m.expert.inner_dim, spec.dim) for m in mixtures] == [(32, 4, 2048, 512)] * 2
    assert {(m.gating, m.output_activation) for m in mixtures} == {(NoisyTopKGating(0.01, 0.01), "sigmoid")}
    assert {part.cell_dim for part in find_specs(spec, Recurrent)} == {2048}  # projected to 512
    model = SYSTEMS["moe-2017"].spec(VocabularySizes(9, 9), "tiny").build()
    routers = [weight for name, weight in model.named_parameters() if ".router." in name]
    assert len(routers) == 4  # W and W_noise of either stack
    assert not any(weight.any() for weight in routers)


# ---- weights counted by hand


def count(inputs: int, d: int) -> int:
    """Four gates, each from the input and from the last state; torch has two biases for each."""
    return 4 * (inputs * d + d * d + 2 * d)


def test_numbers_of_parameters_of_deep_systems() -> None:
    d, vocabulary = 10, VocabularySizes(30, 20)
    tables = (30 + 20 + 20) * d + 20  # source, target and output, with the output's bias
    additive = 2 * d * d + d
    gnmt = SYSTEMS["gnmt"].spec(vocabulary, "big", model_dim=d, layers=4)
    encoder = 2 * count(d, d // 2) + 3 * count(d, d)
    decoder = 4 * count(2 * d, d) + additive
    assert count_parameters(gnmt) == encoder + decoder + tables
    deep_att = SYSTEMS["deep-att"].spec(vocabulary, "big", model_dim=d, layers=3, decoder_layers=5)
    encoder = 2 * (count(d, d) + 2 * count(3 * d, d)) + 10 * d * d
    decoder = count(2 * d, d) + 4 * count(3 * d, d) + additive
    assert count_parameters(deep_att) == encoder + decoder + tables


def test_gnmts_paper_size() -> None:
    """Eight layers of 1024 in either stack: 16 million weights and more in each decoder layer, 8 in an encoder's."""
    big = SYSTEMS["gnmt"].spec(VocabularySizes(32000, 32000, joint=True), "big")
    d = 1024
    encoder = 2 * count(d, d // 2) + 7 * count(d, d)
    decoder = 8 * count(2 * d, d) + 2 * d * d + d
    assert count_parameters(big) == encoder + decoder + 2 * 32000 * d + 32000
