"""The recurrent language model: torch's Embedding, RNN, LSTM or GRU, and Linear with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.models import DecoderOnlyModel
from dragoman.search import Beam, LengthLimit, SpecialTokens
from dragoman.search.forced_decoding import token_scores
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import BOS, EOS, SEP
from search.plain_search import search

TORCHS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
D, V = 6, 15
every_model = pytest.mark.parametrize(("cell", "layers"), [(cell, n) for cell in TORCHS for n in (1, 2, 3)])


def model_of(cell: str, layers: int, tied: bool = True) -> DecoderOnlyModel:
    torch.manual_seed(1)
    spec = SYSTEMS["rnn-lm"].spec(
        VocabularySizes(V, V, joint=True), model_dim=D, layers=layers, cell=cell, tied_embeddings=tied
    )
    model = spec.build().eval()
    assert isinstance(model, DecoderOnlyModel)
    for weight in model.parameters():  # biases too
        nn.init.normal_(weight, std=0.6)
    return model


class Torchs(nn.Module):
    """h_t = g(W h_{t−1} + U c_t), and a softmax over the next word."""

    def __init__(self, model: DecoderOnlyModel, cell: str, layers: int) -> None:
        super().__init__()
        weights = model.state_dict()
        self.embedding, self.output = nn.Embedding(V, D), nn.Linear(D, V)
        self.recurrent = TORCHS[cell](D, D, layers, batch_first=True)
        self.embedding.load_state_dict({"weight": weights["target_embedding.weight"]})
        self.output.load_state_dict({name: weights[f"output.{name}"] for name in ("weight", "bias")})
        path = "decoder.layers.0.0.cells."
        self.recurrent.load_state_dict(
            {name.removeprefix(path): w for name, w in weights.items() if name.startswith(path)}
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.recurrent(self.embedding(tokens))[0])


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def nothing(rows: int) -> tuple[Tensor, Tensor]:
    """No source."""
    return torch.zeros(rows, 0, dtype=torch.long), torch.zeros(rows, dtype=torch.long)


@every_model
@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_logits_equal_torch(cell: str, layers: int, tied: bool) -> None:
    model = model_of(cell, layers, tied)
    torchs = Torchs(model, cell, layers)
    tokens, lengths = torch.randint(V, (3, 7)), torch.tensor([7, 4, 1])
    logits = model(*nothing(3), tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        close(logits[row, :length], torchs(tokens[row : row + 1, :length])[0])


@every_model
def test_gradients_equal_torch(cell: str, layers: int) -> None:
    model = model_of(cell, layers, tied=False)
    torchs = Torchs(model, cell, layers)
    tokens, answer = torch.randint(V, (2, 5)), torch.randn(2, 5, V)
    (model(*nothing(2), tokens, torch.tensor([5, 5])) * answer).sum().backward()
    (torchs(tokens) * answer).sum().backward()
    theirs = dict(torchs.named_parameters())
    names = {"target_embedding.weight": "embedding.weight"}
    for name, weight in model.named_parameters():
        other = theirs[names.get(name, name.replace("decoder.layers.0.0.cells", "recurrent"))]
        assert weight.grad is not None
        assert other.grad is not None
        close(weight.grad, other.grad)


SOURCES, SOURCE_LENGTHS = torch.tensor([[BOS, 9, 8, 7], [BOS, 10, 0, 0]]), torch.tensor([4, 2])
TARGETS, TARGET_LENGTHS = torch.tensor([[SEP, 11, 12], [SEP, 13, 0]]), torch.tensor([3, 2])


@every_model
@torch.no_grad()
def test_source_separator_and_target_are_one_sequence(cell: str, layers: int) -> None:
    """START x SEPARATOR y: the logits after the separator and after every word of y."""
    model = model_of(cell, layers)
    torchs = Torchs(model, cell, layers)
    logits = model(SOURCES, SOURCE_LENGTHS, TARGETS, TARGET_LENGTHS)
    assert logits.shape == (2, 3, V)
    for row, whole in enumerate(([BOS, 9, 8, 7, SEP, 11, 12], [BOS, 10, SEP, 13])):
        s, t = int(SOURCE_LENGTHS[row]), int(TARGET_LENGTHS[row])
        one = torch.tensor([whole])
        close(logits[row, :t], torchs(one)[0, s:])
        close(logits[row, :t], model(*nothing(1), one, torch.tensor([s + t]))[0, s:])


@every_model
@torch.no_grad()
def test_decoding_continues_the_encoded_source(cell: str, layers: int) -> None:
    """Rows of different lengths: each goes on from the state after its own last word."""
    model = model_of(cell, layers)
    torchs = Torchs(model, cell, layers)
    begin = model.start_decoding(SOURCES, SOURCE_LENGTHS, beam=1, max_length=5, first=SEP)
    for row, length in enumerate(SOURCE_LENGTHS.tolist()):
        _, last = torchs.recurrent(torchs.embedding(SOURCES[row : row + 1, :length]))
        expected = dict(zip(("hidden", "cell"), last if cell == "lstm" else (last,)))
        for name, value in expected.items():
            close(begin.state["0.0"][name][row], value[:, 0])
    assert begin.positions.tolist() == SOURCE_LENGTHS.tolist()


@torch.no_grad()
def test_scores_of_generated_text_equal_torch() -> None:
    model = model_of("lstm", 2)
    torchs = Torchs(model, "lstm", 2)
    symbols = SpecialTokens(SEP, EOS, tuple(n for n in range(7) if n != EOS))
    settings = Beam(3, n_best=3, length_limit=LengthLimit(ratio=0, offset=4))
    for row, hypotheses in enumerate(search(model, SOURCES, SOURCE_LENGTHS, symbols, settings, torch.arange(2))):
        source = SOURCES[row, : SOURCE_LENGTHS[row]].tolist()
        for h in hypotheses:
            target = [*h.tokens, *([EOS] if h.finished else [])]
            log_p = torchs(torch.tensor([[*source, SEP, *target]]))[0].log_softmax(-1)
            by_hand = sum(float(log_p[len(source) + n, token]) for n, token in enumerate(target))
            assert h.score == pytest.approx(by_hand, abs=1e-4)
            framed = torch.tensor([[SEP, *target]])
            scores = token_scores(
                model, torch.tensor([source]), torch.tensor([len(source)]), framed, torch.tensor([framed.shape[1]])
            )
            assert float(scores.sum()) == pytest.approx(by_hand, abs=1e-4)
