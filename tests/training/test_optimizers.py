"""Optimisers against torch's own, and steps that must not happen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.config import TrainingConfig
from dragoman.errors import UserError
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, OutputLayer, TokenEmbedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import hidden_matrices
from dragoman.parts.stack import Stack
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training.ema import WeightAverage
from dragoman.training.optimizer import (
    OPTIMIZERS,
    Muon,
    build_optimizer,
    clip_grad_norm,
    load_state_tensors,
    orthogonalize,
    set_found_inf,
    set_learning_rate,
    state_tensors,
)

SETTINGS: list[dict[str, Any]] = [
    *({"optimizer": name} for name in OPTIMIZERS),
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    {"optimizer": "adafactor", "momentum": 0.9},
]


def config_of(settings: dict[str, Any]) -> TrainingConfig:
    return TrainingConfig(beta2=0.95, epsilon=1e-8, weight_decay=0.1, **settings)


def model_of(seed: int = 0) -> nn.Module:
    """Grouped queries, a gated network, a tied table: matrices, tables and vectors of every kind."""
    torch.manual_seed(seed)
    stack = Stack((SelfAttention(heads=4, kv_heads=2), FeedForward(inner_dim=24, gated=True)), depth=2)
    return DecoderOnly(16, 30, stack, Embedding(), True).build()


def give_gradients(model: nn.Module, seed: int, bad: bool = False) -> None:
    torch.manual_seed(seed)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    if bad:
        weight.grad.view(-1)[0] = math.nan  # type: ignore[union-attr]  # one number in the last weight


def run(optimizer: torch.optim.Optimizer, model: nn.Module, steps: range, rate: float = 0.01) -> None:
    for step in steps:
        give_gradients(model, step)
        set_learning_rate(optimizer, rate / step)
        optimizer.step()


def contents(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    everything = dict(model.named_parameters()) | state_tensors(model, optimizer)
    return {name: value.detach().clone() for name, value in everything.items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


# ---- what is updated how


@pytest.mark.parametrize("system", SYSTEMS)
def test_hidden_matrices_exclude_embeddings_outputs_and_vectors(system: str) -> None:
    model = SYSTEMS[system].spec(VocabularySizes(300, 300, True), "tiny").build()
    found = hidden_matrices(model)
    assert found
    for weight, rows in found.items():
        assert sum(rows) == weight.shape[0]
        assert weight.dim() == 2
        assert 300 not in weight.shape
    parts = [part for part in model.modules() if isinstance(part, (TokenEmbedding, OutputLayer, nn.Embedding))]
    assert not any(table in found for part in parts for table in part.parameters(recurse=False))


def test_fused_projections_are_split_into_matrices() -> None:
    model = model_of()
    names = {weight: name for name, weight in model.named_parameters()}
    found = {".".join(names[weight].split(".")[-2:]): rows for weight, rows in hidden_matrices(model).items()}
    assert found["project.weight"] == (16, 8, 8)
    assert found["output.weight"] == found["narrow.weight"] == (16,)
    assert found["widen.weight"] == found["gate.weight"] == (24,)
    assert len(hidden_matrices(model)) == 2 * 5


def test_gates_of_recurrent_cells_are_split_into_matrices() -> None:
    model = SYSTEMS["luong"].spec(VocabularySizes(300, 300, True), "tiny").build()
    found = hidden_matrices(model)
    cells = [weight for name, weight in model.named_parameters() if "weight_hh" in name or "weight_ih" in name]
    assert cells
    assert all(found[weight] == (weight.shape[0] // 4,) * 4 for weight in cells)  # an LSTM


# ---- Adadelta


def test_adadelta_equals_torch() -> None:
    model, twin = model_of(), model_of()
    own, other = (
        build_optimizer(model, config_of({"optimizer": "adadelta"})),
        torch.optim.Adadelta(twin.parameters(), rho=0.95, eps=1e-6),
    )
    for step in range(1, 6):
        for one in (model, twin):
            give_gradients(one, step)
        set_learning_rate(own, 1 / step)
        other.param_groups[0]["lr"] = 1 / step
        own.step()
        other.step()
    for weight, wanted in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(weight, wanted)


# ---- Adafactor


def test_adafactor_equals_torch() -> None:
    """torch bounds the rate by 1/√t, which does not matter for small rates."""
    model, twin = model_of().double(), model_of().double()
    own = build_optimizer(model, TrainingConfig(optimizer="adafactor"))
    other = torch.optim.Adafactor(twin.parameters(), lr=0.01, weight_decay=0.0)
    for step in range(1, 6):
        for one in (model, twin):
            give_gradients(one, step)
        set_learning_rate(own, 0.01 / step)
        other.param_groups[0]["lr"] = 0.01 / step
        own.step()
        other.step()
    for weight, wanted in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(weight, wanted, rtol=1e-6, atol=1e-9)


def test_adafactor_by_hand() -> None:
    """One step: β = 0, so R and C are the means of ∇² over columns and rows, and U = ∇ / √(R Cᵀ / mean R)."""
    weight = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64))
    model = nn.ParameterList([weight])
    optimizer = build_optimizer(model, TrainingConfig(optimizer="adafactor"))
    weight.grad = torch.tensor([[1.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    set_learning_rate(optimizer, 0.1)
    optimizer.step()
    # R = (1, 5), C = (1, 5), mean R = 3: R Cᵀ / 3 = ((1/3, 5/3), (5/3, 25/3)), so U = (√3, √0.6; √0.6, 3√0.12)
    update = torch.tensor([[3**0.5, 0.6**0.5], [0.6**0.5, 3 * 0.12**0.5]], dtype=torch.float64)
    update /= (5.28 / 4) ** 0.5  # the mean square of U, (3 + 0.6 + 0.6 + 1.08) / 4, is above 1
    # the root mean square of the weights is 2.5
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64) - 0.1 * 2.5 * update
    torch.testing.assert_close(weight.detach(), expected)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(UserError, match=r"training\.momentum"):
        build_optimizer(model_of(), TrainingConfig(optimizer="sgd", nesterov=True))


# ---- Muon


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 16, 48), (2, 48, 16)])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, ...], precision: torch.dtype) -> None:
    torch.manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(*shape))
    right, _ = torch.linalg.qr(torch.randn(*shape).mT)
    least = min(shape[1:])
    values = torch.linspace(0.05, 3.0, least).expand(shape[0], least)
    matrices = left[..., :least] * values[:, None] @ right[..., :least].mT * 7
    result = orthogonalize(matrices, precision)
    found = torch.linalg.svdvals(result)
    assert found.min() > 0.6
    assert found.max() < 1.3
    ideal = left[..., :least] @ right[..., :least].mT  # U Vᵀ
    alike = (result * ideal).sum((1, 2)) / (result.norm(dim=(1, 2)) * ideal.norm(dim=(1, 2)))
    assert alike.min() > 0.97


@pytest.mark.parametrize(("precision", "tolerance"), [(torch.bfloat16, 0.03), (torch.float32, 1e-4)])
def test_muon_equals_torch(precision: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch always rounds to bfloat16 before its Newton–Schulz steps, unless it is kept from it."""
    if precision is torch.float32:
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    torch.manual_seed(0)
    shapes = [(16, 16), (16, 16), (8, 40), (40, 8)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours]
    mine = Muon({w: (w.shape[0],) for w in ours}, [], momentum=0.9, weight_decay=0.1, precision=precision)
    reference = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    mine.param_groups[0]["lr"] = torch.tensor(0.02)
    for _ in range(5):
        before = [weight.detach().clone() for weight in ours]
        for weight, other in zip(ours, theirs):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
            other.data.copy_(weight)
        mine.step()
        reference.step()
        for weight, other, old in zip(ours, theirs, before):
            change, expected = weight - old, other - old
            assert (change - expected).norm() < tolerance * expected.norm()
            mine_, theirs_ = mine.state[weight]["momentum_buffer"], reference.state[other]["momentum_buffer"]
            torch.testing.assert_close(mine_, theirs_)


def test_muon_equals_adamw_on_other_weights() -> None:
    model, twin = model_of(), model_of()
    optimizer = build_optimizer(model, config_of({"optimizer": "muon"}))
    hidden = hidden_matrices(twin)
    others = [weight for weight in twin.parameters() if weight not in hidden]
    groups = [
        {"params": [w for w in others if w.dim() == 2], "weight_decay": 0.1},
        {"params": [w for w in others if w.dim() == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    for step in (1, 2, 3):
        for one in (model, twin):
            give_gradients(one, step)
        set_learning_rate(optimizer, 0.01 / step)
        for group in reference.param_groups:
            group["lr"] = 0.01 / step
        optimizer.step()
        reference.step()
    mine = dict(model.named_parameters())
    for name, weight in twin.named_parameters():
        if weight not in hidden:
            torch.testing.assert_close(mine[name], weight, msg=name)


def test_blocks_are_separate_matrices() -> None:
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(16 + 8 + 8, 12))
    apart = [nn.Parameter(part.clone()) for part in whole.detach().split((16, 8, 8))]
    one = Muon({whole: (16, 8, 8)}, [], weight_decay=0.1)
    several = Muon({part: (part.shape[0],) for part in apart}, [], weight_decay=0.1)
    for optimizer in (one, several):
        optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
    for _ in range(3):
        whole.grad = torch.randn_like(whole)
        for part, gradient in zip(apart, whole.grad.split((16, 8, 8))):
            part.grad = gradient.clone()
        one.step()
        several.step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in apart]))


def test_muon_updates_have_the_magnitude_of_adamw() -> None:
    """0.2 √max(r, c) · O, O with r singular values near 1: a mean square of 0.04 (Liu et al. 2025, §2.2)."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(64, 256))
    optimizer = Muon({weight: (64,)}, [])
    optimizer.param_groups[0]["lr"] = torch.tensor(1.0)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    assert weight.detach().square().mean().sqrt() == pytest.approx(0.2, rel=0.2)


# ---- the others


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"optimizer": "adam"}, lambda weights: torch.optim.Adam(weights, betas=(0.9, 0.95), eps=1e-8)),
        ({"optimizer": "sgd"}, lambda weights: torch.optim.SGD(weights)),
        ({"optimizer": "sgd", "momentum": 0.9}, lambda weights: torch.optim.SGD(weights, momentum=0.9)),
        (
            {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
            lambda weights: torch.optim.SGD(weights, momentum=0.9, nesterov=True),
        ),
    ],
)
def test_adam_and_sgd_equal_torch_without_weight_decay(
    settings: dict[str, Any], reference: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model, twin = model_of(), model_of()
    optimizer, other = build_optimizer(model, config_of(settings)), reference(twin.parameters())
    run(optimizer, model, range(1, 4))
    for step in range(1, 4):
        give_gradients(twin, step)
        other.param_groups[0]["lr"] = 0.01 / step
        other.step()
    for mine, theirs in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(mine, theirs)


def test_adamw_decays_only_matrices_and_tables() -> None:
    """Without gradients that differ from zero a step is W ← (1 − ηλ) W."""
    model = model_of()
    optimizer = build_optimizer(model, config_of({"optimizer": "adamw"}))
    before = [weight.detach().clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    for weight, old in zip(model.parameters(), before):
        torch.testing.assert_close(weight.detach(), old * (1 - 0.5 * 0.1) if weight.dim() == 2 else old)


# ---- for all of them


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_non_finite_gradient_changes_nothing(settings: dict[str, Any]) -> None:
    model, twin = model_of(), model_of()
    optimizer, other = build_optimizer(model, config_of(settings)), build_optimizer(twin, config_of(settings))
    weights = list(model.parameters())
    weights[0].data[0, 0] = -0.0
    twin.load_state_dict(model.state_dict())
    for bad_before in (1, 3):  # the very first step, and one among others
        before = contents(model, optimizer)
        give_gradients(model, 100, bad=True)
        norm = clip_grad_norm(weights, 1.0)
        assert norm.isnan()
        set_learning_rate(optimizer, 0.01)
        set_found_inf(optimizer, ~norm.isfinite())
        optimizer.step()
        after = contents(model, optimizer)
        assert_same(before, after)
        assert after[next(iter(dict(model.named_parameters())))].view(-1)[0].signbit() or bad_before > 1
        for one, its in ((optimizer, model), (other, twin)):
            for step in range(bad_before, bad_before + 2):
                give_gradients(its, step)
                set_learning_rate(one, 0.01)
                set_found_inf(one, ~clip_grad_norm(its.parameters(), 1.0).isfinite())
                one.step()
        assert_same(contents(model, optimizer), contents(twin, other))
    assert not torch.equal(weights[0], model_of().get_parameter(next(iter(dict(model.named_parameters())))))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_saved_and_loaded_state_continues_bit_equal(settings: dict[str, Any]) -> None:
    model, twin = model_of(), model_of(seed=5)
    optimizer, other = build_optimizer(model, config_of(settings)), build_optimizer(twin, config_of(settings))
    run(optimizer, model, range(1, 4))
    twin.load_state_dict(model.state_dict())
    load_state_tensors(twin, other, {name: value.clone() for name, value in state_tensors(model, optimizer).items()})
    run(optimizer, model, range(4, 6))
    run(other, twin, range(4, 6))
    assert_same(contents(model, optimizer), contents(twin, other))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_step_updates_tensors_in_place(settings: dict[str, Any]) -> None:
    """What a graph has recorded are addresses: weights, state and rates must stay where they were."""
    model = model_of()
    optimizer = build_optimizer(model, config_of(settings))

    def places() -> dict[str, int]:
        tensors = dict(model.named_parameters()) | state_tensors(model, optimizer)
        tensors |= {f"rate {i}": group["lr"] for i, group in enumerate(optimizer.param_groups)}
        return {name: value.data_ptr() for name, value in tensors.items()}

    before = places()
    run(optimizer, model, range(1, 3))
    load_state_tensors(model, optimizer, {name: v.clone() for name, v in state_tensors(model, optimizer).items()})
    assert places() == before


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(
    "settings", [SETTINGS[0], *(pytest.param(one, marks=pytest.mark.exhaustive) for one in SETTINGS[1:])], ids=str
)
def test_compiled_step_is_equal(settings: dict[str, Any]) -> None:
    """torch itself keeps its compiler out of fused kernels: they run between the graphs."""
    model, twin = model_of(), model_of()
    optimizer, other = build_optimizer(model, config_of(settings)), build_optimizer(twin, config_of(settings))

    def step(norm: Tensor) -> None:
        set_found_inf(other, ~norm.isfinite())
        other.step()

    compiled = torch.compile(step, backend="aot_eager")
    run(optimizer, model, range(1, 3))
    for number, norm in ((1, 1.0), (7, math.inf), (2, 1.0)):
        give_gradients(twin, number)
        set_learning_rate(other, 0.01 / number)
        compiled(torch.tensor(norm))
    found = contents(twin, other)
    for name, value in contents(model, optimizer).items():
        torch.testing.assert_close(found[name], value, msg=name)


def test_muon_compiles_into_one_graph() -> None:
    weight = nn.Parameter(torch.ones(8, 8))
    optimizer = Muon({weight: (4, 4)}, [])
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    weight.grad = torch.randn_like(weight)
    torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")()
    assert not torch.equal(weight, torch.ones(8, 8))


def test_state_of_another_optimizer_is_an_error() -> None:
    model = model_of()
    state = state_tensors(model, build_optimizer(model, config_of({"optimizer": "adamw"})))
    with pytest.raises(UserError, match=r"training\.optimizer"):
        load_state_tensors(model, build_optimizer(model, config_of({"optimizer": "sgd"})), state)


def test_gradients_are_clipped_by_their_total_norm() -> None:
    weights = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    for limit, expected in ((0.0, [3.0, 4.0]), (10.0, [3.0, 4.0]), (1.0, [0.6, 0.8])):
        weights[0].grad, weights[1].grad = torch.tensor([3.0]), torch.tensor([4.0])  # the third has none
        assert float(clip_grad_norm(iter(weights), limit)) == 5.0
        assert [float(w.grad) for w in weights if w.grad is not None] == pytest.approx(expected, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_captured_step_is_equal_and_does_not_synchronize(settings: dict[str, Any]) -> None:
    model, twin = model_of().cuda(), model_of().cuda()
    optimizer, other = build_optimizer(model, config_of(settings)), build_optimizer(twin, config_of(settings))
    average = WeightAverage(twin, 0.9)
    weights = list(twin.parameters())

    def step() -> None:
        norm = clip_grad_norm(weights, 1.0)
        set_found_inf(other, ~norm.isfinite())
        other.step()
        average.update()

    give_gradients(twin, 1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    with torch.cuda.stream(stream):  # a step that is skipped, before the one that is recorded, loads the libraries
        set_found_inf(other, torch.ones((), dtype=torch.bool, device="cuda"))
        other.step()
        clip_grad_norm(weights, 0.0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(graph):
        step()
    kept = [weight.grad for weight in weights]
    for number in (1, 7, 2):
        bad = number == 7
        for one in (twin, model):
            give_gradients(one, number, bad)
        for place, weight in zip(kept, weights):
            assert place is not None
            place.copy_(weight.grad)
        set_learning_rate(other, 0.01 / number)
        average.set_step(number)
        graph.replay()
        if not bad:
            set_learning_rate(optimizer, 0.01 / number)
            clip_grad_norm(model.parameters(), 1.0)
            optimizer.step()
    found = contents(twin, other)
    for name, value in contents(model, optimizer).items():
        torch.testing.assert_close(found[name], value, msg=name)
    assert all(value.isfinite().all() for value in average.averages.values())
