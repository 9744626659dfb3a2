"""The fused output layer and cross-entropy against torch's own two, in loss and in every gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import IGNORE_INDEX
from dragoman.objectives.cross_entropy import (
    FusedCrossEntropy,
    RDropCrossEntropy,
    TokenLogProbs,
    token_metrics,
    tokens_per_chunk,
)
from dragoman.objectives.objective import token_loss
from dragoman.parts.embedding import OutputLayer

TOKENS, WIDTH, WORDS = 23, 7, 11
TIGHT = {"atol": 2e-6, "rtol": 2e-6}


def material(bias: bool, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """States, matrix, bias and answers, some of them IGNORE_INDEX."""
    some = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, generator=some).requires_grad_()
    weight = torch.randn(WORDS, WIDTH, generator=some).requires_grad_()
    b = torch.randn(WORDS, generator=some).requires_grad_() if bias else None
    answers = torch.randint(0, WORDS, (TOKENS,), generator=some)
    answers[::5] = IGNORE_INDEX
    return x, weight, b, answers


def torchs(x: Tensor, weight: Tensor, bias: Tensor | None, answers: Tensor, smoothing: float) -> Tensor:
    """The same in float64."""
    logits = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return F.cross_entropy(logits, answers, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORE_INDEX)


@pytest.mark.parametrize("size", [1, 4, 5, TOKENS, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_equal_torch(bias: bool, smoothing: float, size: int) -> None:
    x, weight, b, answers = material(bias)
    total, likelihood, spread = FusedCrossEntropy.apply(x, weight, b, answers, smoothing, size)
    ours = torch.autograd.grad(3 * total, [t for t in (x, weight, b) if t is not None])
    expected = torchs(x, weight, b, answers, smoothing)
    theirs = torch.autograd.grad(3 * expected, [t for t in (x, weight, b) if t is not None])
    torch.testing.assert_close(total.double(), expected, **TIGHT)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)
    log_p = F.linear(x, weight, b).double().log_softmax(-1)[answers != IGNORE_INDEX]
    torch.testing.assert_close(likelihood.double(), torchs(x, weight, b, answers, 0.0), **TIGHT)
    torch.testing.assert_close(spread.double(), -log_p.mean(-1).sum(), **TIGHT)
    assert not likelihood.requires_grad
    assert not spread.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_equal_finite_differences(smoothing: float) -> None:
    """(f(x + h d) − f(x − h d)) / 2h in float64 along random directions d."""
    x, weight, b, answers = material(bias=True, seed=3)
    assert b is not None
    gradients = torch.autograd.grad(FusedCrossEntropy.apply(x, weight, b, answers, smoothing, 6)[0], (x, weight, b))
    for seed in range(5):
        some = torch.Generator().manual_seed(seed)
        directions = [torch.randn(t.shape, generator=some, dtype=torch.float64) for t in (x, weight, b)]
        ends = []
        for step in (1e-5, -1e-5):
            moved = [t.detach().double() + step * d for t, d in zip((x, weight, b), directions)]
            ends.append(torchs(moved[0], moved[1], moved[2], answers, smoothing))
        along = sum((g.double() * d).sum() for g, d in zip(gradients, directions))
        assert float(along) == pytest.approx(float((ends[0] - ends[1]) / 2e-5), rel=1e-5)


def test_loss_computed_by_hand() -> None:
    """Two words with logits 0 and log 3: p = ¼ and ¾."""
    x, weight = torch.ones(1, 1, requires_grad=True), torch.tensor([[0.0], [math.log(3)]], requires_grad=True)
    total, likelihood, spread = FusedCrossEntropy.apply(x, weight, None, torch.tensor([1]), 0.2, 1)
    assert float(likelihood) == pytest.approx(math.log(4 / 3))
    assert float(spread) == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)
    assert float(total.detach()) == pytest.approx(0.8 * float(likelihood) + 0.2 * float(spread))
    total.backward()
    assert weight.grad is not None  # p − 0.8 [answer] − 0.1
    assert weight.grad.flatten().tolist() == pytest.approx([0.25 - 0.1, 0.75 - 0.9])


@pytest.mark.parametrize("bias", [True, False])
def test_no_labels_give_zero_loss_and_gradients(bias: bool) -> None:
    x, weight, b, answers = material(bias)
    answers.fill_(IGNORE_INDEX)
    total, likelihood, spread = FusedCrossEntropy.apply(x, weight, b, answers, 0.1, 8)
    assert (float(total.detach()), float(likelihood), float(spread)) == (0.0, 0.0, 0.0)
    for gradient in torch.autograd.grad(total, [t for t in (x, weight, b) if t is not None]):
        assert not gradient.any()
    assert [float(one.detach()) for one in token_metrics(x, weight, b, answers)] == [0.0, 0.0, 0.0]


def losses(x: Tensor, weight: Tensor, b: Tensor | None, answers: Tensor) -> dict[str, Tensor]:
    """The total of each function that differentiates the output layer itself."""
    return {
        "cross-entropy": FusedCrossEntropy.apply(x, weight, b, answers, 0.1, 6)[0],
        "R-Drop": RDropCrossEntropy.apply(x[1:], weight, b, answers[1:], 0.1, 2.0, 6)[0],  # an even number of rows
        "log p": TokenLogProbs.apply(x, weight, b, answers, 6).sum(),
    }


@pytest.mark.parametrize("bias", [True, False])
def test_frozen_output_matrix_costs_no_product(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is not computed; that of x is the same as with a matrix that learns."""
    x, weight, b, answers = material(bias)
    expected = {name: torch.autograd.grad(loss, x)[0] for name, loss in losses(x, weight, b, answers).items()}

    def no_product(*_: Tensor) -> Tensor:
        raise AssertionError("the gradient of the frozen matrix was computed")

    monkeypatch.setattr("dragoman.objectives.cross_entropy._add_product", no_product)
    for name, loss in losses(x, weight.detach(), b, answers).items():
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize("frozen", [True, False])
def test_compiled_losses_have_the_same_gradients(frozen: bool) -> None:
    x, weight, b, answers = material(bias=True)
    weight = weight.detach().requires_grad_(not frozen)
    compiled = torch.compile(losses, fullgraph=True, dynamic=False, backend="eager")
    learned = [tensor for tensor in (x, weight, b) if tensor is not None and tensor.requires_grad]
    ours, expected = (
        torch.autograd.grad(torch.stack(list(function(x, weight, b, answers).values())).sum(), learned)
        for function in (compiled, losses)
    )
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_large_logits_are_stable() -> None:
    x, weight, b, answers = material(bias=True)
    scaled = (1000 * x).detach().requires_grad_()
    total, *_ = FusedCrossEntropy.apply(scaled, weight, b, answers, 0.1, 6)
    expected = torchs(scaled, weight, b, answers, 0.1)
    torch.testing.assert_close(total.double(), expected, atol=0, rtol=1e-6)
    ours, theirs = (torch.autograd.grad(loss, (scaled, weight)) for loss in (total, expected))
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-4)
        assert one.isfinite().all()


@pytest.mark.parametrize("bias", [True, False])
def test_evaluation_gives_the_same_loss_and_accuracy(bias: bool) -> None:
    x, weight, b, answers = material(bias)
    _, likelihood, spread = FusedCrossEntropy.apply(x, weight, b, answers, 0.0, 9)
    measured = token_metrics(x, weight, b, answers)
    torch.testing.assert_close(measured[0], likelihood)
    torch.testing.assert_close(measured[1], spread)
    best = F.linear(x, weight, b).argmax(-1)
    assert int(measured[2]) == int(((best == answers) & (answers != IGNORE_INDEX)).sum())


def test_chunks_do_not_change_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, b, answers = material(bias=True)
    whole = token_metrics(x, weight, b, answers)
    monkeypatch.setattr("dragoman.objectives.cross_entropy.MAX_CHUNK_LOGITS", {"cpu": 3 * WORDS})
    assert tokens_per_chunk(x, weight) == 3
    for one, other in zip(token_metrics(x, weight, b, answers), whole):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("learning", [True, False])
def test_token_loss_equals_torch(smoothing: float, learning: bool) -> None:
    output = OutputLayer(WORDS, WIDTH, None, True)
    for weight in output.parameters():
        torch.nn.init.normal_(weight)
    features = torch.randn(4, 3, WIDTH)
    answers = torch.randint(0, WORDS, (4, 3))
    answers[1, 1:] = IGNORE_INDEX
    with torch.set_grad_enabled(learning):
        sums = token_loss(output, features, answers, smoothing)
    logits = output(features).flatten(0, 1)
    expected = F.cross_entropy(logits, answers.flatten(), reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(sums["total"], expected.detach() if not learning else expected)
    assert ("correct" in sums) is not learning


@pytest.mark.parametrize("bias", [True, False])
def test_bfloat16_is_close(bias: bool) -> None:
    """Under autocast the states come in bfloat16, whose products are exact to one part in 256."""
    x, weight, b, answers = material(bias)
    half = x.detach().bfloat16().requires_grad_()
    total, *_ = FusedCrossEntropy.apply(half, weight, b, answers, 0.1, 6)
    expected = torchs(x, weight, b, answers, 0.1)
    assert float(total.detach()) == pytest.approx(float(expected.detach()), rel=0.01)
    ours = torch.autograd.grad(total, (half, weight))
    theirs = torch.autograd.grad(expected, (x, weight))
    assert [one.dtype for one in ours] == [torch.bfloat16, torch.float32]
    for one, other in zip(ours, theirs):
        assert float((one.float() - other).norm() / other.norm()) < 0.02
