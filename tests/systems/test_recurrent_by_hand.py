"""The recurrent encoder–decoders, step by step in NumPy with their papers' formulas written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from dragoman.errors import UserError
from dragoman.models import EncoderDecoderModel
from dragoman.parts.mixer import Context, Memory, SequenceLayout
from dragoman.search.forced_decoding import attention_weights, cross_attention
from dragoman.systems import SYSTEMS, VocabularySizes

Array = npt.NDArray[np.float64]

SOURCE, SOURCE_LENGTHS = torch.tensor([[4, 5, 6, 7], [8, 4, 0, 0]]), torch.tensor([4, 2])
TARGET, TARGET_LENGTHS = torch.tensor([[2, 6, 8], [2, 4, 7]]), torch.tensor([3, 3])
WIDTH = 4


def model_of(name: str, **settings: Any) -> EncoderDecoderModel:
    model = SYSTEMS[name].spec(VocabularySizes(9, 10), model_dim=WIDTH, **settings).build().eval()
    for weight in model.parameters():  # biases too
        nn.init.normal_(weight, std=0.7)
    return model


class Weights:
    """A model's weights as arrays, the decoder's under their short names."""

    def __init__(self, model: EncoderDecoderModel) -> None:
        self.all = {name: w.detach().double().numpy() for name, w in model.state_dict().items()}

    def __getitem__(self, name: str) -> Array:
        return self.all[f"decoder.layers.0.0.{name}"]

    def embedding(self, token: int) -> Array:
        return self.all["target_embedding.weight"][token]

    def logits(self, features: Array) -> Array:
        return self.all["output.weight"] @ features + self.all["output.bias"]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum()


def gru(w: Weights, x: Array, h: Array, cell: str = "gru") -> Array:
    """r, z = σ(W x + U h); n = tanh(W x + r (U h)), or tanh(W x + U (r h)) as in Cho et al.; h = (1 − z) n + z h."""
    W, U, b, c = (w[f"cells.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    D = len(h)
    r = sigmoid(W[:D] @ x + b[:D] + U[:D] @ h + c[:D])
    z = sigmoid(W[D : 2 * D] @ x + b[D : 2 * D] + U[D : 2 * D] @ h + c[D : 2 * D])
    reset_after, reset_before = r * (U[2 * D :] @ h + c[2 * D :]), U[2 * D :] @ (r * h) + c[2 * D :]
    n = np.tanh(W[2 * D :] @ x + b[2 * D :] + (reset_before if cell == "gru-reset-before" else reset_after))
    return (1 - z) * n + z * h


def lstm(w: Weights, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """i, f, o = σ(W x + U h); g = tanh(W x + U h); c = f c + i g; h = o tanh(c)."""
    W, U, b, d = (w[f"cells.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    i, f, g, o = np.split(W @ x + b + U @ h + d, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def maxout(w: Weights, state: Array, word: Array, context: Array) -> Array:
    """t_k = max(t̃_{2k−1}, t̃_{2k}), t̃ = U s + V y + C c + b."""
    both = w["readout.combine.weight"] @ np.concatenate((state, word, context)) + w["readout.combine.bias"]
    return np.array([max(both[2 * k], both[2 * k + 1]) for k in range(len(state))])


def encode(model: EncoderDecoderModel) -> Memory:
    return model.encode(SOURCE, SequenceLayout.padded(4, SOURCE_LENGTHS))


def states_of(memory: Memory, row: int) -> Array:
    return memory.states[row, : int(SOURCE_LENGTHS[row])].double().numpy()


both_grus = pytest.mark.parametrize("cell", ["gru", "gru-reset-before"])


@torch.no_grad()
@both_grus
def test_bahdanau_scores_with_the_state_before_the_step(cell: str) -> None:
    model = model_of("bahdanau", cell=cell)
    w, memory = Weights(model), encode(model)
    assert memory.final_state is not None
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS).numpy()
    looks = cross_attention(model, attention_weights(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS))
    assert looks is not None
    W, U, v = (w[f"context.score.{name}.weight"] for name in ("query", "key", "value"))
    for row in range(2):
        h = states_of(memory, row)
        backward_first = h[0, WIDTH // 2 :]  # ←h_1: the backward direction has read all when it reaches the first word
        np.testing.assert_allclose(memory.final_state["hidden"][row, 0, WIDTH // 2 :], backward_first, atol=1e-6)
        s = np.tanh(w["start.hidden.weight"] @ backward_first + w["start.hidden.bias"])
        for i, token in enumerate(TARGET[row].tolist()):
            y = w.embedding(token)
            energies = np.array([v[0] @ np.tanh(W @ s + U @ h_j) for h_j in h])  # e_ij = v·tanh(W s_{i−1} + U h_j)
            alpha = softmax(energies)
            c = sum(a * h_j for a, h_j in zip(alpha, h))
            s = gru(w, np.concatenate((y, c)), s, cell)
            np.testing.assert_allclose(logits[row, i], w.logits(maxout(w, s, y, c)), atol=1e-5)
            np.testing.assert_allclose(looks[row, i, : len(h)], alpha, atol=1e-6)
            assert (looks[row, i, len(h) :] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("input_feeding", [True, False])
def test_luong_scores_with_the_state_after_the_step(input_feeding: bool) -> None:
    model = model_of("luong", layers=1, input_feeding=input_feeding)
    w, memory = Weights(model), encode(model)
    assert memory.final_state is not None
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS).numpy()
    for row in range(2):
        h = states_of(memory, row)
        s, cell = (memory.final_state[name][row, 0].double().numpy() for name in ("hidden", "cell"))
        fed = np.zeros(WIDTH)  # nothing was said before the first word
        for i, token in enumerate(TARGET[row].tolist()):
            y = w.embedding(token)
            s, cell = lstm(w, np.concatenate((y, fed)) if input_feeding else y, s, cell)
            scores = np.array([s @ w["context.score.key.weight"] @ h_j for h_j in h])  # s_i·W h_j
            c = sum(a * h_j for a, h_j in zip(softmax(scores), h))
            fed = np.tanh(w["readout.combine.weight"] @ np.concatenate((c, s)))  # s̃ = tanh(W_c [c; s])
            np.testing.assert_allclose(logits[row, i], w.logits(fed), atol=1e-5)


@torch.no_grad()
@both_grus
def test_chos_context_starts_the_decoder_and_enters_every_step_and_the_output(cell: str) -> None:
    model = model_of("cho", cell=cell)
    w, memory = Weights(model), encode(model)
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS).numpy()
    for row in range(2):
        last = states_of(memory, row)[-1]  # h_T
        c = np.tanh(w["context.project.weight"] @ last + w["context.project.bias"])
        s = np.tanh(w["start.hidden.weight"] @ c + w["start.hidden.bias"])
        for i, token in enumerate(TARGET[row].tolist()):
            y = w.embedding(token)
            s = gru(w, np.concatenate((y, c)), s, cell)
            np.testing.assert_allclose(logits[row, i], w.logits(maxout(w, s, y, c)), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "sum"])
@pytest.mark.parametrize("layers", [1, 2])
def test_bag_of_words_is_pooled_and_passes_feed_forward_layers(pooling: str, layers: int) -> None:
    """z_0 = mean or sum of embeddings, z_k = tanh(W z_{k−1} + b); z takes the place of Cho's h_T."""
    model = model_of("bow", pooling=pooling, layers=layers)
    w, memory = Weights(model), encode(model)
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS).numpy()
    for row in range(2):
        words = w.all["source_embedding.weight"][SOURCE[row, : SOURCE_LENGTHS[row]].numpy()]
        z = words.sum(0) / (len(words) if pooling == "mean" else 1)
        for k in range(layers):
            name = f"encoder.layers.0.0.layers.{k}"
            z = np.tanh(w.all[f"{name}.weight"] @ z + w.all[f"{name}.bias"])
        assert memory.final_state is not None
        np.testing.assert_allclose(memory.final_state["hidden"][row, 0], z, atol=1e-6)
        if layers == 1:
            c = np.tanh(w["context.project.weight"] @ z + w["context.project.bias"])
            s = np.tanh(w["start.hidden.weight"] @ c + w["start.hidden.bias"])
            for i, token in enumerate(TARGET[row].tolist()):
                y = w.embedding(token)
                s = gru(w, np.concatenate((y, c)), s)
                np.testing.assert_allclose(logits[row, i], w.logits(maxout(w, s, y, c)), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "sum", "attention"])
def test_order_of_the_source_does_not_matter_to_a_bag_of_words(pooling: str) -> None:
    model = model_of("bow", pooling=pooling, layers=2)
    shuffled = torch.tensor([[6, 4, 7, 5], [4, 8, 0, 0]])
    expected = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    torch.testing.assert_close(model(shuffled, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS), expected, atol=1e-5, rtol=1e-5)
    other = model_of("cho", layers=1)  # a recurrent encoder reads the order
    logits = [other(source, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS) for source in (SOURCE, shuffled)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3
    repeated = model(torch.tensor([[4, 5, 6, 6], [8, 8, 0, 0]]), SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert (repeated - expected).abs().amax((1, 2)).min() > 1e-3  # but it counts: other words, other logits


@torch.no_grad()
def test_sutskever_equals_torch_lstms() -> None:
    layers = 3
    model = model_of("sutskever", layers=layers)
    encoder, decoder = (nn.LSTM(WIDTH, WIDTH, layers, batch_first=True) for _ in range(2))
    weights = model.state_dict()
    for lstm_of_torch, stack in ((encoder, "encoder"), (decoder, "decoder")):
        names = [name for name, _ in lstm_of_torch.named_parameters()]
        lstm_of_torch.load_state_dict({name: weights[f"{stack}.layers.0.0.cells.{name}"] for name in names})
    logits = model(SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    for row in range(2):
        source = SOURCE[row, : SOURCE_LENGTHS[row]].flip(0)  # reversed, so that the first words are near to each other
        _, last = encoder(weights["source_embedding.weight"][source][None])
        states, _ = decoder(weights["target_embedding.weight"][TARGET[row]][None], last)
        expected = states[0] @ weights["output.weight"].T + weights["output.bias"]
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_systems_without_attention_return_no_attention_weights() -> None:
    model = model_of("sutskever", layers=1)
    weights = attention_weights(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert weights == {}
    assert cross_attention(model, weights) is None


@torch.no_grad()
@pytest.mark.parametrize("name", ["sutskever", "cho", "bahdanau", "luong"])
def test_rows_of_a_beam_share_one_memory(name: str) -> None:
    """Two hypotheses a source, with different words, equal each of them decoded with a source of its own."""
    model = model_of(name)
    memory = encode(model)
    rows = torch.tensor([[2, 6, 8], [2, 5, 5], [2, 4, 7], [2, 9, 1]])
    together, _ = model.decode(rows, Context(SequenceLayout.padded(3, torch.full((4,), 3)), memory))
    apart = model(SOURCE.repeat_interleave(2, 0), SOURCE_LENGTHS.repeat_interleave(2), rows, torch.full((4,), 3))
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


def test_unknown_attention_score_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown attention_score 'generall': did you mean 'general'"):
        SYSTEMS["luong"].spec(VocabularySizes(9, 9), attention_score="generall")
