"""A step of training: accumulation, gradients that are no numbers, random numbers, and shapes that vary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman.config import TrainingConfig
from dragoman.cuda_graphs import CudaGraphCache
from dragoman.data import Batch, Batches, EncodedPair, SentencePair, TokenStore, write_store
from dragoman.models import Model
from dragoman.objectives import Loss, Objective, TaskContext, build_objective
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import ENCODER_DECODER_FRAMING, learn_tokenizer
from dragoman.training.ema import WeightAverage
from dragoman.training.optimizer import build_optimizer, state_tensors
from dragoman.training.parallel import ProcessGroup
from dragoman.training.train_step import TrainStep, iterate_steps

WORDS = 40
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "adam": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd"},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "muon": {"optimizer": "muon", "weight_decay": 0.1},
}


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    random = np.random.default_rng(0)
    pair = SentencePair("x", "y", "corpus", 1)
    examples = [
        EncodedPair(pair, *(random.integers(4, WORDS, random.integers(2, 12)).tolist() for _ in range(2)))
        for _ in range(200)
    ]
    return write_store(tmp_path / "store", [examples], WORDS)


class Sometimes(Objective):
    """Translation whose loss is no number in the steps that `bad` names."""

    def __init__(self, objective: Objective, bad: set[int]) -> None:
        torch.nn.Module.__init__(self)
        self.objective, self.bad = objective, bad

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        loss = self.objective(batch, step)
        return Loss(loss.total * float("nan"), loss.num_labels, loss.metrics) if step in self.bad else loss


def small(dropout: float = 0.0) -> tuple[Model, Objective]:
    torch.manual_seed(0)
    settings = {"model_dim": 16, "layers": 1, "heads": 2, "dropout": dropout}
    model = SYSTEMS["transformer"].spec(VocabularySizes(WORDS, WORDS, True), "tiny", **settings).build().train()
    tokenizer = learn_tokenizer(["a b"], "byte")
    return model, build_objective(
        "translation", TaskContext(model, tokenizer, tokenizer, ENCODER_DECODER_FRAMING, 0.1), {}
    )


def make_train_step(
    model: Model,
    objective: Objective,
    optimizer: str = "momentum",
    ema: float | None = None,
    seed: int = 1,
    precision: str = "float32",
    compiles: bool = False,
) -> TrainStep:
    config = TrainingConfig(**OPTIMIZERS[optimizer], seed=seed, precision=precision, compile=compiles, clip_norm=1.0)  # type: ignore[arg-type]
    average = WeightAverage(model, ema) if ema else None
    return TrainStep(objective, build_optimizer(model, config), config, average=average, packed=compiles)


def batch_of(store: TokenStore, start: int, stop: int, **settings: Any) -> Batch:
    return Batches(store, 2000, seed=0, **settings).build_batch(np.arange(start, stop), 0)


def step(train_step: TrainStep, number: int, *batches: Batch, rate: float = 0.1) -> None:
    train_step(list(enumerate(batches)), number, rate, sum(batch.target_tokens for batch in batches))


def everything(train_step: TrainStep, model: Model) -> dict[str, Tensor]:
    """Weights and optimiser, as they are now."""
    both = dict(model.named_parameters()) | state_tensors(model, train_step.optimizer)
    return {name: tensor.detach().clone() for name, tensor in both.items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


# ---- accumulation


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])  # the others make much of the signs of gradients near zero
def test_two_batches_equal_one_larger_batch(optimizer: str, store: TokenStore) -> None:
    found = []
    for parts in ([(0, 12), (12, 30)], [(0, 30)]):
        model, objective = small()
        train_step = make_train_step(model, objective, optimizer)
        for number in (1, 2):
            step(train_step, number, *(batch_of(store, *part) for part in parts), rate=0.01)
        found.append((everything(train_step, model), train_step.loss_sums, train_step.gradient_norm))
    (one, sums, norm), (other, same_sums, same_norm) = found
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(sums, same_sums, rtol=1e-5, atol=0)
    torch.testing.assert_close(norm, same_norm, rtol=1e-4, atol=0)


def test_step_follows_the_gradient_of_the_mean_loss(store: TokenStore) -> None:
    model, objective = small()
    batch = batch_of(store, 0, 9)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    loss = objective(batch, 1)
    gradients = torch.autograd.grad(loss.total / loss.num_labels, list(model.parameters()))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    train_step = make_train_step(model, objective, "sgd")
    step(train_step, 1, batch, rate=0.5)
    assert float(train_step.gradient_norm) == pytest.approx(float(norm), rel=1e-5)
    scale = 0.5 * min(1.0, 1.0 / float(norm))  # gradients are clipped to a norm of 1
    for (name, weight), gradient in zip(model.named_parameters(), gradients):
        torch.testing.assert_close(weight, before[name] - scale * gradient, rtol=1e-4, atol=1e-6)
    total, likelihood, lost = train_step.loss_sums.tolist()
    assert total == pytest.approx(float(loss.total.detach()), rel=1e-5)
    assert likelihood == pytest.approx(float(loss.metrics["nll_loss"]), rel=1e-5)
    assert lost == 0


def test_gradients_are_cleared_after_a_step(store: TokenStore) -> None:
    model, objective = small()
    train_step = make_train_step(model, objective)
    step(train_step, 1, batch_of(store, 0, 9))
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


# ---- what is no number


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_non_finite_loss_changes_nothing(optimizer: str, store: TokenStore) -> None:
    model, objective = small()
    train_step = make_train_step(model, Sometimes(objective, {1, 3}), optimizer)
    batches = [batch_of(store, 8 * number, 8 * number + 8) for number in range(5)]
    first = everything(train_step, model)
    step(train_step, 1, batches[0])  # even the very first
    assert_equal(everything(train_step, model), first)
    step(train_step, 2, batches[1])
    second, sums = everything(train_step, model), train_step.loss_sums.tolist()
    step(train_step, 3, batches[2])
    assert_equal(everything(train_step, model), second)
    assert int(train_step.skipped_steps) == 2
    assert train_step.loss_sums.tolist()[:2] == sums[:2]  # of the losses that were numbers
    assert train_step.loss_sums.tolist()[2] == batches[0].target_tokens + batches[2].target_tokens
    step(train_step, 4, batches[3])
    assert int(train_step.skipped_steps) == 2
    twin, objective = small()
    other = make_train_step(twin, objective, optimizer)
    step(other, 2, batches[1])
    step(other, 4, batches[3])
    assert_equal(everything(train_step, model), everything(other, twin))  # as if they had never been


def test_non_finite_batch_skips_the_step_but_not_the_measurement(store: TokenStore) -> None:
    class Second(Sometimes):
        calls = 0

        def forward(self, batch: Batch, step: int = 0) -> Loss:
            self.calls += 1
            return super().forward(batch, 1 if self.calls == 2 else 0)

    model, objective = small()
    train_step = make_train_step(model, Second(objective, {1}))
    before = everything(train_step, model)
    good, bad = batch_of(store, 0, 9), batch_of(store, 9, 20)
    loss = objective(good, 1)
    step(train_step, 1, good, bad)
    assert_equal(everything(train_step, model), before)
    assert int(train_step.skipped_steps) == 1
    assert train_step.loss_sums.tolist()[0] == pytest.approx(float(loss.total.detach()), rel=1e-5)
    assert train_step.loss_sums.tolist()[2] == bad.target_tokens


# ---- random numbers


def trained(store: TokenStore, seed: int = 1, first: int = 0, between: Callable[[], Any] = lambda: None) -> Any:
    model, objective = small(dropout=0.3)
    train_step = make_train_step(model, objective, "adamw", seed=seed)
    for number in (1, 2, 3):
        between()
        batches = [batch_of(store, 9 * n, 9 * n + 9) for n in (number, number + 3)]
        tokens = sum(batch.target_tokens for batch in batches)
        train_step(list(enumerate(batches, first)), number, 0.01, tokens)
    return everything(train_step, model), train_step.loss_sums


def test_random_numbers_depend_on_seed_and_step(store: TokenStore) -> None:
    one, sums = trained(store)
    again, same = trained(store, between=lambda: torch.rand(7))  # whatever was drawn elsewhere
    assert_equal(one, again)
    assert torch.equal(sums, same)
    assert not torch.equal(trained(store, seed=2)[1], sums)
    assert not torch.equal(trained(store, first=4)[1], sums)  # batches of a step have random numbers of their own


def test_batch_does_not_depend_on_its_process(store: TokenStore) -> None:
    """By the number of a batch within its step, so that it may be computed by one process or another."""
    batches = [batch_of(store, 9 * number, 9 * number + 9) for number in range(2)]
    sums = []
    for numbers in ([0, 1], [0], [1]):
        model, objective = small(dropout=0.3)
        train_step = make_train_step(model, objective)
        train_step([(number, batches[number]) for number in numbers], 5, 0.0, 100)
        sums.append(train_step.loss_sums)
    torch.testing.assert_close(sums[0], sums[1] + sums[2], rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_share_the_batches_of_a_step(store: TokenStore, size: int) -> None:
    batches = Batches(store, 120, seed=3)
    alone = iterate_steps(batches, next(batches.iterate_indices())[2], 4)
    ranks = [ProcessGroup(rank, size) for rank in range(size)]
    shared = [iterate_steps(batches, next(batches.iterate_indices())[2], 4, rank) for rank in ranks]
    for _ in range(12):
        whole, parts = next(alone), [next(each) for each in shared]
        assert {part.next_position for part in parts} == {whole.next_position}
        assert sum(part.target_tokens for part in parts) == whole.target_tokens
        found = {number: batch for part in parts for number, batch in part.batches}
        assert sorted(found) == [0, 1, 2, 3]
        for number, batch in whole.batches:
            assert torch.equal(found[number].source, batch.source)


# ---- averages, precision, compilation


def test_weight_average_follows_every_step(store: TokenStore) -> None:
    model, objective = small()
    train_step = make_train_step(model, objective, ema=0.5)
    mean = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for number in (1, 2, 3):
        step(train_step, number, batch_of(store, 9 * number, 9 * number + 9))
        kept = min(0.5, (1 + number) / (10 + number))
        mean = {name: kept * mean[name] + (1 - kept) * weight.detach() for name, weight in model.named_parameters()}
    assert train_step.average is not None
    for name, average in train_step.average.averages.items():
        torch.testing.assert_close(average, mean[name])


def test_bfloat16_keeps_float32_weights(store: TokenStore) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        model, objective = small()
        train_step = make_train_step(model, objective, precision=precision)
        step(train_step, 1, batch_of(store, 0, 20))
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        losses.append(float(train_step.loss_sums[0]))
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
def test_compiled_step_handles_many_shapes(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler gives up after some shapes unless it is told that more will come."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **settings: plain(module, **settings, backend="eager"))
    torch._dynamo.reset()
    model, objective = small()
    with torch._dynamo.config.patch(recompile_limit=2):  # a smaller one, since each takes its time
        train_step = make_train_step(model, objective, compiles=True)
        for number in range(1, 5):
            batches = Batches(store, 200 * number, seed=0, rows=objective.row_format, packed=True)
            step(train_step, number, batches.build_batch(np.arange(number, number + 4), 0))
    assert int(train_step.skipped_steps) == 0
    assert train_step.loss_sums[0] > 0


def test_steps_through_the_graph_cache_are_equal(store: TokenStore) -> None:
    """On a CPU the cache runs everything eagerly, on its static copies of the tensors."""
    results = []
    for cached in (False, True):
        model, objective = small(dropout=0.3)
        train_step = make_train_step(model, objective, "adamw")
        if cached:
            train_step.graphs = CudaGraphCache(torch.device("cpu"), max_graphs=2)
        for number in (1, 2, 3):
            step(train_step, number, *(batch_of(store, 9 * n, 9 * n + 9) for n in (number, number + 3)))
        results.append(everything(train_step, model))
    assert_equal(*results)
