"""Mixtures of experts: equal to a plain loop over experts, balanced as told, blind to company."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.experts import (
    ExpertsMixer,
    ExpertUsage,
    Gating,
    MixtureOfExperts,
    NoisyTopKGating,
    SoftmaxGating,
    load_balancing_loss,
    record_expert_usage,
    selection_probability,
    squared_variation,
)
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.mixer import Context, SequenceLayout

WIDTH = 6
FEED_FORWARD = FeedForward(5, "silu", gated=True)


def ctx_of(*lengths: int) -> Context:
    return Context(SequenceLayout.padded(max(lengths), torch.tensor(lengths)))


def dense_loop(part: ExpertsMixer, x: Tensor) -> Tensor:
    """Token by token, expert by expert: gates are the largest probabilities, divided by their sum."""
    y = torch.zeros_like(x)
    for place in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[1])).tolist():
        token = x[tuple(place)]
        p = (part.router.weight @ token).softmax(0).tolist()
        best = sorted(range(len(p)), key=lambda e: -p[e])[: part.top_k]
        total = sum(p[e] for e in best) if part.top_k > 1 else 1.0
        for e in best:
            y[tuple(place)] += p[e] / total * part.experts[e](token, ctx_of(1))[0]  # type: ignore[operator]
    return y


@pytest.mark.parametrize(("count", "chosen"), [(4, 1), (4, 2), (5, 3), (2, 2), (1, 1)])
@torch.no_grad()
def test_grouped_and_dense_equal_a_loop_over_experts(count: int, chosen: int) -> None:
    part = MixtureOfExperts(FEED_FORWARD, count, chosen).build(WIDTH).eval()
    x = torch.randn(3, 4, WIDTH)
    expected = dense_loop(part, x)
    torch.testing.assert_close(part(x, ctx_of(4, 4, 4))[0], expected, atol=1e-6, rtol=1e-5)  # grouped by expert
    for t in range(4):
        token, context = x[:, t : t + 1], Context(SequenceLayout.continuation(torch.full((3,), t)))
        y, state, *_ = part(token, context, {})  # the selected experts alone
        torch.testing.assert_close(y[:, 0], expected[:, t], atol=1e-6, rtol=1e-5)
        assert state == {}
        routing = part.router(token, None)
        y = part._compute_all(token, routing.gates, routing.selected, context)  # every expert, as in a graph
        torch.testing.assert_close(y[:, 0], expected[:, t], atol=1e-6, rtol=1e-5)


def test_gradients_equal_those_of_the_loop() -> None:
    part = MixtureOfExperts(FEED_FORWARD, 4, 2).build(WIDTH).train()
    x = torch.randn(2, 5, WIDTH)
    sums = torch.randn(2, 5, WIDTH)
    gradients: list[list[Tensor]] = []
    for y in (part(x, ctx_of(5, 5))[0], differentiable_loop(part, x)):
        found = torch.autograd.grad((y * sums).sum(), list(part.parameters()))
        gradients.append(list(found))
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
        assert one.any()


def differentiable_loop(part: ExpertsMixer, x: Tensor) -> Tensor:
    p = (x @ part.router.weight.T).softmax(-1)
    gates = torch.where(p >= p.topk(part.top_k).values[..., -1:], p, 0.0)
    gates = gates / gates.sum(-1, keepdim=True)
    return sum((gates[..., e, None] * expert(x, ctx_of(5, 5))[0] for e, expert in enumerate(part.experts)), 0 * x)


@torch.no_grad()
def test_two_experts_by_hand() -> None:
    """W x = (ln 3, 0, −9): p ∝ (3, 1, e^−9); the first two are chosen, ¾ and ¼, and give x and 10 x."""
    part = MixtureOfExperts(FeedForward(1, "identity", bias=False), 3, 2).build(1).eval()
    part.router.weight.copy_(torch.tensor([[3.0], [1.0], [1.0]]).log() - torch.tensor([[0.0], [0.0], [9.0]]))
    for expert, scale in zip(part.experts, (1.0, 10.0, 1000.0)):
        expert.widen.weight.fill_(1.0)  # type: ignore[operator, union-attr]
        expert.narrow.weight.fill_(scale)  # type: ignore[operator, union-attr]
    y = part(torch.ones(1, 1, 1), ctx_of(1)).output
    assert float(y) == pytest.approx(0.75 * 1 + 0.25 * 10)


# ---- balance


def test_balanced_routing_costs_one() -> None:
    """Four tokens, four experts, each selected by one token: shares and means are ¼, 4 · 4 · 1/16 = 1."""
    p = torch.full((1, 4, 4), 0.1) + 0.6 * torch.eye(4)
    assert float(load_balancing_loss(p, p.topk(1).indices, None)) == pytest.approx(1.0)
    pairs = torch.tensor([[[0, 1], [2, 3], [1, 2], [3, 0]]])
    assert float(load_balancing_loss(torch.full((1, 4, 4), 0.25), pairs, None)) == pytest.approx(1.0)


def test_all_to_one_costs_as_much_as_there_are_experts() -> None:
    p = torch.eye(4)[2].expand(2, 3, 4)
    assert float(load_balancing_loss(p, p.topk(1).indices, None)) == pytest.approx(4.0)


def test_a_cost_between_them_by_hand() -> None:
    """Of three choices two fall on the first, p means (0.7, 0.3): 2 · (⅔ · 0.7 + ⅓ · 0.3) = 17/15."""
    p = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]])
    assert float(load_balancing_loss(p, p.topk(1).indices, None)) == pytest.approx(17 / 15)


@torch.no_grad()
def test_balancing_loss_is_computed_in_training_only() -> None:
    part = MixtureOfExperts(FEED_FORWARD, 4, 1, gating=SoftmaxGating(0.05)).build(WIDTH)
    part.router.weight.zero_()
    part.router.weight[3] = 100.0  # all like the last
    x = torch.ones(2, 3, WIDTH)
    losses = part.train()(x, ctx_of(3, 3)).auxiliary_losses
    assert [float(loss) for loss in losses] == pytest.approx([0.05 * 4])
    assert part.eval()(x, ctx_of(3, 3)).auxiliary_losses == ()


@torch.no_grad()
def test_balancing_loss_ignores_padding() -> None:
    part = MixtureOfExperts(FEED_FORWARD, 4, 2).build(WIDTH).train()
    x = torch.randn(2, 4, WIDTH)
    losses = []
    for padding in (x[1, 2:], 50 * torch.ones(2, WIDTH), -50 * torch.ones(2, WIDTH)):
        padded = torch.stack((x[0], torch.cat((x[1, :2], padding))))
        losses.append(part(padded, ctx_of(4, 2)).auxiliary_losses[0])
    alone = Context(SequenceLayout.packed_row(6, torch.tensor([4, 2]), 4))
    loss = part(torch.cat((x[0], x[1, :2]))[None], alone).auxiliary_losses[0]
    torch.testing.assert_close(torch.stack(losses), loss.expand(3))


def test_balancing_loss_balances_the_router() -> None:
    """Gradient steps on the loss alone bring a one-sided router close to the minimum."""
    part = MixtureOfExperts(FEED_FORWARD, 4, 1, gating=SoftmaxGating(1.0)).build(WIDTH).train()
    x = torch.randn(1, 64, WIDTH)
    x[..., 0] = 1.0
    with torch.no_grad():
        part.router.weight[0, 0] = 3.0  # nearly all like the first
    optimizer = torch.optim.Adam(part.router.parameters(), 0.05)
    costs = []
    for _ in range(100):
        loss = part(x, ctx_of(64)).auxiliary_losses[0]
        costs.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert costs[0] > 2
    assert costs[-1] < 1.1


# ---- noisy top-k gating (Shazeer et al. 2017)


def noisy_part(count: int = 5, chosen: int = 2, importance: float = 0.0, load: float = 0.0) -> ExpertsMixer:
    """Experts behind a router whose weights are not the zeros of the start."""
    part = MixtureOfExperts(FEED_FORWARD, count, chosen, NoisyTopKGating(importance, load)).build(WIDTH)
    for weight in part.router.parameters():
        torch.nn.init.normal_(weight)
    return part


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_noisy_gates_are_the_softmax_of_the_scores_that_are_kept(training: bool) -> None:
    """H = W x + ε softplus(W_noise x), all but the two largest −∞, then softmax; ε = 0 after training."""
    part = noisy_part().train(training)
    x = torch.randn(2, 4, WIDTH)
    torch.manual_seed(7)
    noise = torch.randn(2, 4, 5) * float(training)
    W, W_noise = part.router.weight, part.router.noise_weight
    expected = torch.zeros_like(x)
    for b in range(2):
        for t in range(4):
            H = W @ x[b, t] + noise[b, t] * (1 + (W_noise @ x[b, t]).exp()).log()
            kept = torch.tensor([h if h in H.sort().values[-2:] else -torch.inf for h in H])
            for e, gate in enumerate(kept.exp() / kept.exp().sum()):
                expected[b, t] += gate * part.experts[e](x[b, t], ctx_of(1))[0]  # type: ignore[operator]
    torch.manual_seed(7)
    torch.testing.assert_close(part(x, ctx_of(4, 4)).output, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_probability_of_selection_is_the_frequency_with_new_noise(chosen: int) -> None:
    """The noise of one expert is drawn 20,000 times, that of the others is kept: how often is it among the best?"""
    torch.manual_seed(0)
    clean, deviation = torch.randn(4), torch.rand(4) + 0.5
    noisy = clean + deviation * torch.randn(4)
    found = selection_probability(clean, noisy, deviation, chosen)
    for expert in range(4):
        drawn = noisy.repeat(20_000, 1)
        drawn[:, expert] = clean[expert] + deviation[expert] * torch.randn(20_000)
        frequency = (drawn.topk(chosen).indices == expert).any(1).double().mean()
        assert float(found[expert]) == pytest.approx(float(frequency), abs=0.015)
    assert torch.equal(selection_probability(clean, noisy, deviation, 4), torch.ones(4))


def test_squared_variation_by_hand() -> None:
    """Of 1 and 3: mean 2, variance 1, so 1/4; of equal numbers 0; of one of four 3."""
    for values, expected in (((1.0, 3.0), 0.25), ((2.0, 2.0, 2.0), 0.0), ((0.0, 5.0, 0.0, 0.0), 3.0)):
        assert float(squared_variation(torch.tensor(values))) == pytest.approx(expected)


@torch.no_grad()
def test_losses_of_importance_and_load_by_hand() -> None:
    """x = 1, W = (0, 0, 100, 100), hardly any noise: the last two always, gates about ½, CV² of (0, 0, 1, 1) is 1."""
    part = MixtureOfExperts(FEED_FORWARD, 4, 2, NoisyTopKGating(0.3, 0.7)).build(WIDTH).train()
    part.router.noise_weight.fill_(-5.0)
    part.router.weight[2:, 0] = 100.0
    x = torch.ones(2, 3, WIDTH)
    x[1, 1:] = -1.0  # padding, which would like the first two
    losses = part(x, ctx_of(3, 1)).auxiliary_losses
    assert [float(loss) for loss in losses] == pytest.approx([0.3, 0.7], abs=1e-4)
    assert part.eval()(x, ctx_of(3, 1)).auxiliary_losses == ()


def test_noisy_gating_starts_with_zeros_and_equal_chances() -> None:
    """W = W_noise = 0: noise of deviation ln 2 alone decides, and every expert gets its share of 2 in 8."""
    system = MixtureOfExperts(FEED_FORWARD, 8, 2, NoisyTopKGating())
    part = system.build(WIDTH).train()
    assert not any(weight.any() for weight in part.router.parameters())
    with record_expert_usage(part) as usage:
        part(torch.randn(8, 500, WIDTH), ctx_of(*[500] * 8))
    assert usage[""].load_fractions == pytest.approx([1 / 8] * 8, abs=0.015)


def test_gates_and_noise_get_gradients_from_output_and_losses() -> None:
    part = noisy_part(4, 2, importance=0.1, load=0.1).train()
    out = part(torch.randn(2, 6, WIDTH), ctx_of(6, 6))
    for value in (out.output.square().sum(), *out.auxiliary_losses):
        gradients = torch.autograd.grad(value, [part.router.weight, part.router.noise_weight], retain_graph=True)
        assert all(gradient.any() for gradient in gradients)


def trained_usage(gating: Gating) -> ExpertUsage:
    """Usage of eight experts after a short training on numbers of which most are alike."""
    torch.manual_seed(0)
    part = MixtureOfExperts(FeedForward(8), 8, 2, gating).build(WIDTH).train()
    x = torch.randn(1, 128, WIDTH)
    x[..., 0] += 2.0
    optimizer = torch.optim.Adam(part.parameters(), 0.01)
    for _ in range(100):
        out = part(x, ctx_of(128))
        loss = (out.output - (2 * x).sin()).square().mean() + sum(out.auxiliary_losses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with record_expert_usage(part.eval()) as usage, torch.no_grad():
        part(x, ctx_of(128))
    return usage[""]


def test_importance_and_load_losses_balance_the_experts() -> None:
    """The coefficients of variation are small with the paper's weights for language models, and large without."""
    free, balanced = (trained_usage(NoisyTopKGating(weight, weight)) for weight in (0.0, 0.1))
    assert balanced.importance_variation < 0.3 < free.importance_variation
    assert balanced.load_variation < 0.3 < free.load_variation


@torch.no_grad()
def test_usage_counts_tokens_and_gates_without_padding() -> None:
    """Gates ¾ and ¼ of the first two experts (see above), three tokens and two of padding."""
    part = MixtureOfExperts(FeedForward(1, "identity", bias=False), 3, 2).build(1).eval()
    part.router.weight.copy_(torch.tensor([[3.0], [1.0], [1.0]]).log() - torch.tensor([[0.0], [0.0], [9.0]]))
    with record_expert_usage(part) as usage:
        for lengths in ((2, 1), (2, 2)):
            part(torch.ones(2, 2, 1), ctx_of(*lengths))
        part(torch.ones(2, 1, 1), Context(SequenceLayout.continuation(torch.zeros(2, dtype=torch.long))), {})
    part(torch.ones(2, 2, 1), ctx_of(2, 2))  # after the end
    assert usage[""].load.tolist() == [9, 9, 0]
    assert usage[""].importance.tolist() == pytest.approx([6.75, 2.25, 0])
    assert usage[""].load_fractions == [0.5, 0.5, 0]
    assert usage[""].load_variation == pytest.approx((3 / 2 - 1) ** 0.5)


def test_one_expert_per_token_is_refused_by_noisy_gating() -> None:
    with pytest.raises(UserError, match=r"set system\.settings\.experts_per_token to 2 or more"):
        MixtureOfExperts(FEED_FORWARD, 4, 1, NoisyTopKGating()).build(WIDTH)


# ---- company, noise, what does not fit


@torch.no_grad()
def test_output_of_a_token_does_not_depend_on_others() -> None:
    """Hundreds of tokens go to one expert, and none is dropped."""
    part = MixtureOfExperts(FEED_FORWARD, 4, 2).build(WIDTH).eval()
    x = torch.randn(1, 1, WIDTH)
    crowd = part(x.expand(1, 500, WIDTH), ctx_of(500)).output
    torch.testing.assert_close(crowd, part(x, ctx_of(1))[0].expand(1, 500, WIDTH))


@torch.no_grad()
def test_noise_is_for_training() -> None:
    part = MixtureOfExperts(FEED_FORWARD, 4, 2, gating=SoftmaxGating(router_noise=5.0)).build(WIDTH)
    x, context = torch.randn(2, 8, WIDTH), ctx_of(8, 8)
    assert torch.equal(part.eval()(x, context)[0], part(x, context)[0])
    part.train()
    assert not torch.allclose(part(x, context)[0], part(x, context)[0])


def test_a_step_compiles_to_one_graph() -> None:
    part = MixtureOfExperts(FEED_FORWARD, 4, 2).build(WIDTH).eval()

    def step(x: Tensor, at: Tensor) -> Any:
        return part(x, Context(SequenceLayout.continuation(at)), {})[0]

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    x = torch.randn(3, 1, WIDTH)
    torch.testing.assert_close(compiled(x, torch.tensor([0, 4, 2])), step(x, torch.tensor([0, 4, 2])))


def test_top_k_cannot_exceed_the_number_of_experts() -> None:
    with pytest.raises(UserError, match=r"from 1 to .*, which is 4, but is 5"):
        MixtureOfExperts(FEED_FORWARD, 4, 5).build(WIDTH)
