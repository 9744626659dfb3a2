"""Parts side by side behind one norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dragoman.parts.attention import SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.norm import RMSNorm
from dragoman.parts.stack import Parallel

SPEC = Parallel((SelfAttention(heads=2), FeedForward(5, "silu", gated=True), FeedForward(3)))


@torch.no_grad()
def test_parallel_block_equals_its_formula() -> None:
    part = SPEC.build(8)
    x, context = torch.randn(2, 4, 8), Context(SequenceLayout.padded(4, torch.tensor([4, 3])))
    attention, gated, plain = part.bodies
    z = F.layer_norm(x, (8,))
    expected = x + attention(z, context)[0] + gated(z, context)[0] + plain(z, context)[0]
    torch.testing.assert_close(part(x, context)[0], expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_without_attention_it_is_plain_arithmetic() -> None:
    """(3, 4) has the mean square 12.5; W₂ relu(W₁ z) with W₁ = W₂ = 1 and then 2, both added to x."""
    part = Parallel((FeedForward(2, bias=False), FeedForward(2, bias=False)), RMSNorm(0.0)).build(2)
    for body, scale in zip(part.bodies, (1.0, 2.0)):
        body.widen.weight.copy_(torch.eye(2))
        body.narrow.weight.copy_(scale * torch.eye(2))
    x = torch.tensor([[[3.0, 4.0]]])
    y = part(x, Context(SequenceLayout.padded(1, torch.tensor([1])))).output
    torch.testing.assert_close(y, x + 3 * x / 12.5**0.5)


@torch.no_grad()
def test_each_body_keeps_its_own_state() -> None:
    part = SPEC.build(8)
    x = torch.randn(2, 5, 8)
    whole = part(x, Context(SequenceLayout.padded(5, torch.tensor([5, 5])))).output
    state = part.init_state(2, 6, x)
    assert {name: sorted(inner) for name, inner in state.items()} == {"0": ["key", "value"], "1": [], "2": []}
    for t in range(5):
        y, state, *_ = part(x[:, t : t + 1], Context(SequenceLayout.continuation(torch.full((2,), t))), state)
        torch.testing.assert_close(y[:, 0], whole[:, t], atol=1e-5, rtol=1e-5)


def test_dropout_is_applied_to_each_body() -> None:
    part = Parallel((FeedForward(), FeedForward()), dropout=0.5).build(64).train()
    x = torch.randn(2, 4, 64)
    untouched = (part(x, Context(SequenceLayout.padded(4, torch.tensor([4, 4]))))[0] == x).float().mean()
    assert 0.15 < untouched < 0.35  # both dropped: a quarter
