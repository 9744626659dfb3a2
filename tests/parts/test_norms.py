"""Batch normalisation as torch's over the real tokens, its running statistics, and that they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Glorot
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.norm import BatchNorm, BatchNormModule, LayerNorm
from dragoman.parts.positions import Sinusoidal
from dragoman.parts.stack import PreNorm, Stack
from dragoman.training.checkpoint_manager import CheckpointManager, TrainState

LENGTHS = torch.tensor([5, 2, 3])


def batch() -> tuple[Tensor, SequenceLayout, Tensor]:
    """Three rows of five places, where they lie, and which are real."""
    layout = SequenceLayout.padded(5, LENGTHS)
    real = torch.arange(5) < LENGTHS[:, None]
    return 3 + 2 * torch.randn(3, 5, 4), layout, real


def pair(**settings: float) -> tuple[BatchNormModule, nn.BatchNorm1d]:
    ours = BatchNorm(**settings).build(4)
    theirs = nn.BatchNorm1d(4, eps=settings.get("epsilon", 1e-5), momentum=settings.get("momentum", 0.1))
    assert isinstance(ours, BatchNormModule)
    with torch.no_grad():
        for weight in (ours.weight, ours.bias):
            nn.init.normal_(weight)
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)
    return ours, theirs


def test_batch_norm_by_hand() -> None:
    """Tokens 1, 3 and, in the padding, 100: mean 2, variance 1; the running ones go a quarter of the way."""
    norm = BatchNorm(epsilon=0.0, momentum=0.25).build(1).train()
    y = norm(torch.tensor([[[1.0], [3.0]], [[100.0], [100.0]]]), SequenceLayout.padded(2, torch.tensor([2, 0])))
    assert y[0].flatten().tolist() == [-1.0, 1.0]
    assert float(norm.running_mean) == 0.5  # 0.75 · 0 + 0.25 · 2
    assert float(norm.running_var) == 1.25  # 0.75 · 1 + 0.25 · 2, the variance over n − 1 being 2


@pytest.mark.parametrize("settings", [{}, {"epsilon": 0.1, "momentum": 0.5}])
def test_batch_norm_equals_torch_without_padding(settings: dict[str, float]) -> None:
    ours, theirs = pair(**settings)
    for _ in range(3):
        x, layout, real = batch()
        mine, other = x.clone().requires_grad_(), x[real].requires_grad_()
        y, expected = ours(mine, layout), theirs(other)
        torch.testing.assert_close(y[real], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        weights = torch.randn_like(expected)
        (y[real] * weights).sum().backward()
        (expected * weights).sum().backward()
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad[real], other.grad, atol=1e-5, rtol=1e-4)
        assert not mine.grad[~real].any()
    ours.eval(), theirs.eval()
    x, layout, real = batch()
    torch.testing.assert_close(ours(x, layout)[real], theirs(x[real]), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_batch_statistics_ignore_padding() -> None:
    x, layout, real = batch()
    plain, strange, wide = (BatchNorm().build(4).train() for _ in range(3))
    y = plain(x, layout)
    torch.testing.assert_close(strange(torch.where(real[..., None], x, 1e4), layout)[real], y[real])
    wider = torch.cat((x, torch.full((3, 6, 4), -1e4)), 1)
    torch.testing.assert_close(wide(wider, SequenceLayout.padded(11, LENGTHS))[:, :5][real], y[real])
    for other in (strange, wide):
        torch.testing.assert_close(other.running_mean, plain.running_mean)
        torch.testing.assert_close(other.running_var, plain.running_var)


@torch.no_grad()
def test_batch_norm_without_padding_information() -> None:
    x, _, real = batch()
    expected = pair()[0].train()
    packed = SequenceLayout.packed_row(int(LENGTHS.sum()), LENGTHS, 5)
    y = expected(x[real][None], packed)
    torch.testing.assert_close(y[0], expected(x, SequenceLayout.padded(5, LENGTHS))[real])


def test_batch_norm_of_one_token_is_finite() -> None:
    norm = BatchNorm().build(4).train()
    assert norm(torch.randn(1, 1, 4), SequenceLayout.padded(1, torch.tensor([1]))).isfinite().all()
    assert norm.running_var.isfinite().all()


@torch.no_grad()
def test_batch_norm_keeps_the_dtype() -> None:
    x, layout, _ = batch()
    assert BatchNorm().build(4).train()(x.bfloat16(), layout).dtype == torch.bfloat16


def test_initialization_leaves_norms_unchanged() -> None:
    norm = BatchNorm().build(4)
    Glorot().apply(norm)
    assert (norm.weight == 1).all()


# ---- running statistics are kept with the weights


def stack(norm: BatchNorm | LayerNorm) -> nn.Module:
    return Stack((PreNorm(FeedForward(), norm),)).build(4)


def trained() -> nn.Module:
    model = stack(BatchNorm()).train()
    for _ in range(2):
        x, layout, _ = batch()
        model(x, Context(layout))
    return model


def test_a_checkpoint_holds_running_statistics(tmp_path: Path) -> None:
    model = trained()
    weights = checkpoint.named_weights(model)
    assert weights.keys() == model.state_dict().keys()
    assert {"layers.0.0.before.running_mean", "layers.0.0.before.running_var"} < weights.keys()
    checkpoint.save(tmp_path / "one", {"model": weights}, {})
    again = stack(BatchNorm())
    checkpoint.load_weights(again, tmp_path / "one")
    assert all(torch.equal(value, weights[name]) for name, value in checkpoint.named_weights(again).items())


def test_missing_and_unexpected_statistics_are_named(tmp_path: Path) -> None:
    weights = dict(checkpoint.named_weights(trained()))
    checkpoint.save(tmp_path / "surplus", {"model": weights}, {})
    with pytest.raises(UserError, match=r"has the weight layers\.0\.0\.before\.running_mean"):
        checkpoint.load_weights(stack(LayerNorm()), tmp_path / "surplus")
    checkpoint.save(tmp_path / "shape", {"model": weights | {"layers.0.0.before.running_var": torch.ones(3)}}, {})
    with pytest.raises(UserError, match=r"running_var with shape \[3\], but in this model its shape is \[4\]"):
        checkpoint.load_weights(stack(BatchNorm()), tmp_path / "shape")
    del weights["layers.0.0.before.running_mean"]
    checkpoint.save(tmp_path / "lacking", {"model": weights}, {})
    with pytest.raises(UserError, match=r"lacks the weight layers\.0\.0\.before\.running_mean"):
        checkpoint.load_weights(stack(BatchNorm()), tmp_path / "lacking")


def test_computed_buffers_are_not_saved() -> None:
    """Frequencies and the like are computed, so a checkpoint of parameters alone is a whole one."""
    model = Stack((PreNorm(FeedForward(), LayerNorm()),), position=Sinusoidal()).build(4)
    assert [name for name, _ in model.named_buffers()] == ["position.frequency"]
    assert checkpoint.named_weights(model).keys() == dict(model.named_parameters()).keys()


def test_an_average_of_checkpoints_averages_statistics(tmp_path: Path) -> None:
    model, kept = trained(), []
    keeper = CheckpointManager(tmp_path, 2, model, torch.optim.AdamW(model.parameters()))
    for step in (1, 2):
        x, layout, _ = batch()
        model(x, Context(layout))
        kept.append({name: value.clone() for name, value in checkpoint.named_weights(model).items()})
        keeper.save(TrainState(step), validated=True, best=False)
    assert keeper.average(model) == 2
    for name, value in checkpoint.named_weights(model).items():
        torch.testing.assert_close(value, (kept[0][name] + kept[1][name]) / 2)
