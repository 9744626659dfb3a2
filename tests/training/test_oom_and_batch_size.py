"""Batches that do not fit are computed in parts with the same gradients, and the largest that fit can be found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest_training import small_config
from torch import Tensor

from dragoman.config import TrainingConfig, from_yaml, override_settings
from dragoman.data import Batch, Batches, EncodedPair, SentencePair, TokenStore, write_store
from dragoman.data.batch_arrays import halve_batch
from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.objectives import Objective, TaskContext, build_objective
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.run import read_spec
from dragoman.run_files import CONFIG_FILE
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer
from dragoman.training import batch_size_finder as budget
from dragoman.training.batch_size_finder import largest_fitting, measure_peak_memory, widest_batch
from dragoman.training.display import SilentDisplay
from dragoman.training.memory_plan import estimate_activations
from dragoman.training.optimizer import build_optimizer
from dragoman.training.prepare import prepare_run
from dragoman.training.train_step import TrainStep, batch_from_tensors, is_out_of_memory
from dragoman.training.trainer import Trainer

WORDS = learn_tokenizer([f"a{number} b{number}" for number in range(20)], "word", 60)


def model_of(system: str, dropout: float = 0.0, recomputed: bool = False, **more: object) -> Model:
    known = SYSTEMS[system].settings()
    wanted = {"model_dim": 16, "layers": 2, "heads": 4, "dropout": dropout, "attention_dropout": 0.0}
    settings = {name: value for name, value in wanted.items() if name in known} | more
    spec = SYSTEMS[system].spec(VocabularySizes(WORDS.vocab_size, WORDS.vocab_size, True), "tiny", **settings)
    torch.manual_seed(0)
    return replace_everywhere(spec, Stack, gradient_checkpointing=recomputed).build().train()


def objective_of(name: str, model: Model, **settings: object) -> Objective:
    return build_objective(name, TaskContext(model, WORDS, WORDS, model.spec.default_framing, 0.1), settings)


def data_for(folder: Path, objective: Objective, pairs: int = 40) -> TokenStore:
    random = np.random.default_rng(0)

    def row(most: int) -> list[int]:
        return random.integers(7, WORDS.vocab_size, random.integers(2, most)).tolist()

    features = objective.task.model.source_features
    examples = []
    for _ in range(pairs):
        source, target = row(14), None if objective.data_format == "text" else row(16)
        if objective.data_format in ("tags", "turns"):
            target = [0 if place % 3 == 1 else word for place, word in enumerate(source)]
        read: Any = source if features is None else random.standard_normal((len(source), features), np.float32)
        examples.append(EncodedPair(SentencePair("x", None if target is None else "y", "corpus", 1), read, target))
    return write_store(folder / "store", [examples], WORDS.vocab_size)


def batches_of(store: TokenStore, objective: Objective, packed: bool = False, **more: Any) -> Batches:
    return Batches(
        store,
        600,
        seed=0,
        rows=objective.row_format,
        packed=packed,
        **more,
    )


def gradients(model: Model, objective: Objective, parts: list[Batch], answers: int) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for part in parts:
        torch.manual_seed(1)
        loss = objective(part, 1)
        (loss.total / answers).backward()
        total = total + loss.total.detach()
    return total, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-5, atol=1e-4)
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


# ---- halves of a batch


CASES = [
    ("transformer", "translation", {}, {}),
    ("transformer", "translation", {}, {"rdrop_alpha": 1.0}),
    ("luong", "translation", {}, {}),
    ("gpt", "causal-lm", {}, {}),
    ("gpt", "translation", {}, {}),
    ("llama", "dialogue", {}, {}),
    ("bart", "denoising", {}, {}),
    ("roberta", "masked-lm", {}, {}),
    ("tagger", "tagging", {}, {}),
    ("vision", "translation", {"feature_dim": 6}, {}),
    ("speech", "translation", {"feature_dim": 5}, {}),
]


@pytest.mark.parametrize("layout", ["padded", "filled", "packed"])
@pytest.mark.parametrize(("system", "name", "settings", "learns"), CASES)
def test_halves_give_the_gradients_of_the_whole_batch(
    system: str, name: str, settings: dict[str, Any], learns: dict[str, Any], layout: str, tmp_path: Path
) -> None:
    model = model_of(system, **settings)
    objective = objective_of(name, model, **learns)
    if layout == "packed" and not objective.supports_packing:
        pytest.skip("cannot be packed")
    more = {"pad_to_multiples": (8, 4)} if layout == "filled" else {}
    whole = batches_of(data_for(tmp_path, objective), objective, layout == "packed", **more).build_batch(
        np.arange(3, 22), 0
    )
    first, second = halve_batch(whole)
    assert len(first) + len(second) == len(whole) == 19
    assert np.concatenate((first.indices, second.indices)).tolist() == whole.indices.tolist()
    assert first.target_tokens + second.target_tokens == whole.target_tokens
    assert first.source_tokens + second.source_tokens == whole.source_tokens
    answers = whole.target_tokens
    assert_same(gradients(model, objective, [whole], answers), gradients(model, objective, [first, second], answers))


def test_halves_of_a_packed_batch_have_one_shape(tmp_path: Path) -> None:
    objective = objective_of("translation", model_of("transformer"))
    batches = batches_of(data_for(tmp_path, objective, 200), objective, packed=True)
    shapes = set()
    for indices in batches.plan_window(0, 0):
        whole = batches.build_batch(indices, 0)
        for half in halve_batch(whole):
            shapes.add(tuple(tensor.shape for tensor in half.tensors().values()))
            assert half.target.shape[1] < 0.75 * whole.target.shape[1]
    assert len(shapes) == 1


def test_single_pair_cannot_be_halved(tmp_path: Path) -> None:
    objective = objective_of("translation", model_of("transformer"))
    with pytest.raises(ValueError, match="one pair cannot be halved"):
        halve_batch(batches_of(data_for(tmp_path, objective), objective).build_batch(np.array([3]), 0))


# ---- memory that runs out in a step


def make_train_step(model: Model, objective: Objective, say: Callable[[str], None] = lambda text: None) -> TrainStep:
    config = TrainingConfig(optimizer="sgd", seed=1, clip_norm=1.0, precision="float32")
    return TrainStep(objective, build_optimizer(model, config), config, log=say)


def short_of(
    train_step: TrainStep, places: int, late: bool = True, error: type[Exception] = torch.OutOfMemoryError
) -> None:
    """Let memory run out over batches of more places: in the backward pass, when some gradients are already added."""
    forward_backward = train_step._forward_backward

    def limited(tensors: dict[str, Tensor], *arguments: Any) -> None:
        if positions(tensors) > places and not late:
            raise error("out of memory")
        forward_backward(tensors, *arguments)
        if positions(tensors) > places:
            train_step.weights[0].grad = train_step.weights[0].grad * 3  # type: ignore[operator]
            raise error("out of memory")

    train_step._forward_backward = limited  # type: ignore[method-assign]


def positions(tensors: dict[str, Tensor]) -> int:
    return tensors["source"].shape[0] * tensors["source"].shape[1] + tensors["target"].numel()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_out_of_memory_step_has_the_same_result(packed: bool, late: bool, tmp_path: Path) -> None:
    """Though the first batch of the step fits, and the second fails when its gradients are half added."""
    results = []
    said: list[str] = []
    for short in (False, True):
        model = model_of("transformer")
        objective = objective_of("translation", model)
        batches = batches_of(data_for(tmp_path, objective), objective, packed)
        small = batches_of(batches.store, objective).build_batch(np.arange(2), 0)
        train_step = make_train_step(model, objective, said.append)
        large = batches.build_batch(np.arange(2, 30), 0)
        if short:
            short_of(train_step, large.num_positions // 2 - 1, late)
        train_step([(0, small), (1, large)], 1, 0.01, small.target_tokens + large.target_tokens)
        train_step([(0, large)], 2, 0.01, large.target_tokens)
        results.append(
            (train_step.loss_sums.clone(), {name: weight.detach() for name, weight in model.named_parameters()})
        )
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-4)
    for name, weight in results[0][1].items():
        torch.testing.assert_close(weight, results[1][1][name], rtol=1e-3, atol=1e-5)
    assert len(said) == 2  # two parts, then four
    assert "does not fit into memory: it is computed in 2 parts from now on" in said[0]
    width = max(large.source.numel(), large.target.numel())
    assert f"a batch of {width:,} tokens" in said[0]
    assert f"training.batch_tokens={width // 2} would avoid this" in said[0]


def test_pair_too_large_for_memory_is_an_error(tmp_path: Path) -> None:
    model = model_of("transformer")
    objective = objective_of("translation", model)
    batch = batches_of(data_for(tmp_path, objective), objective).build_batch(np.arange(5), 0)
    train_step = make_train_step(model, objective)
    short_of(train_step, 0)
    with pytest.raises(UserError, match=r"out of memory with a single pair of .* tokens: lower data\.max_length"):
        train_step([(0, batch)], 1, 0.01, batch.target_tokens)


def test_optimizer_too_large_for_memory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("transformer")
    objective = objective_of("translation", model)
    batch = batches_of(data_for(tmp_path, objective), objective).build_batch(np.arange(5), 0)
    train_step = make_train_step(model, objective)

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(train_step.optimizer, "step", full)
    with pytest.raises(UserError, match="do not fit into memory: choose a smaller system"):
        train_step([(0, batch)], 1, 0.01, batch.target_tokens)


def test_other_errors_are_raised(tmp_path: Path) -> None:
    model = model_of("transformer")
    objective = objective_of("translation", model)
    batch = batches_of(data_for(tmp_path, objective), objective).build_batch(np.arange(5), 0)
    train_step = make_train_step(model, objective)
    train_step._forward_backward = lambda *arguments: (_ for _ in ()).throw(RuntimeError("shapes differ"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="shapes differ"):
        train_step([(0, batch)], 1, 0.01, batch.target_tokens)


def test_is_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    chained = RuntimeError("operation failed due to a previous error during capture")
    chained.__context__ = torch.OutOfMemoryError("x")
    assert is_out_of_memory(chained)
    assert not is_out_of_memory(RuntimeError("shapes differ"))


# ---- layers that are computed twice


TWICE = [
    ("transformer", "translation", {}),
    ("t5", "translation", {}),
    ("convs2s", "translation", {}),
    ("bytenet", "translation", {}),
    ("moe", "translation", {"ffn_dim": 40}),
    ("luong", "translation", {}),
    ("gnmt", "translation", {"layers": 3}),
    ("deep-att", "translation", {}),
    ("gpt", "causal-lm", {}),
    ("electra", "replaced-token-detection", {}),
    ("speech", "translation", {"feature_dim": 5}),
]


@pytest.mark.parametrize(("system", "name", "settings"), TWICE)
def test_gradient_checkpointing_is_bit_equal(system: str, name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for recomputed in (False, True):
        model = model_of(system, 0.2, recomputed, **settings)
        objective = objective_of(name, model)
        batch = batches_of(data_for(tmp_path, objective), objective).build_batch(np.arange(20), 0)
        found.append(gradients(model, objective, [batch], batch.target_tokens))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for name, gradient in found[0][1].items():
        assert torch.equal(gradient, found[1][1][name]), name


def test_gradient_checkpointing_saves_memory() -> None:
    kept = []
    for recomputed in (False, True):
        model = model_of("transformer", 0.1, recomputed, layers=6)
        sizes: dict[int, int] = {}

        def keep(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        ids, lengths = torch.randint(7, WORDS.vocab_size, (8, 16)), torch.full((8,), 16)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(ids, lengths, ids, lengths)
        kept.append(sum(sizes.values()))
    assert kept[1] < kept[0] / 4


def test_gradient_checkpointing_returns_auxiliary_losses_once(tmp_path: Path) -> None:
    model = model_of("moe", 0.0, recomputed=True, ffn_dim=40)
    objective = objective_of("translation", model)
    batch = batches_of(data_for(tmp_path, objective), objective).build_batch(np.arange(20), 0)
    left = []
    features = model.forward_features

    def watched(*arguments: Any) -> Any:
        result = features(*arguments)
        left.append(result.auxiliary_losses)
        return result

    model.forward_features = watched  # type: ignore[method-assign]
    loss = objective(batch, 1)
    before = len(left[0])
    loss.total.backward()
    assert len(left[0]) == before == sum(name.endswith("router.weight") for name, _ in model.named_parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("transformer", "translation"),
        pytest.param("t5", "translation", marks=pytest.mark.exhaustive),
        pytest.param("gpt", "causal-lm", marks=pytest.mark.exhaustive),
    ],
)
def test_gradient_checkpointing_compiles_into_one_graph(system: str, name: str, tmp_path: Path) -> None:
    model = model_of(system, recomputed=True)
    objective = objective_of(name, model)
    batch = batches_of(data_for(tmp_path, objective), objective, packed=True).build_batch(np.arange(12), 0)
    torch._dynamo.reset()
    batch = batch_from_tensors(batch.tensors(), batch.max_lengths)
    compiled = torch.compile(objective, fullgraph=True, dynamic=False, backend="eager")
    results = []
    for one in (objective, compiled):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        total = one(batch, 1).total
        total.backward()
        results.append((total.detach(), {n: w.grad for n, w in model.named_parameters() if w.grad is not None}))
    assert_same(results[0], results[1])


def test_gradient_checkpointing_rejects_running_statistics() -> None:
    with pytest.raises(UserError, match=r"running statistics.*set training\.gradient_checkpointing to false"):
        model_of("transformer", recomputed=True, norm="batch", pre_norm=True)


# ---- the largest budget


def test_largest_batch_size_is_found_within_five_percent() -> None:
    for fixed, each, limit in ((10**9, 50_000, 8 * 10**9), (10**6, 10**5, 10**11), (0, 3 * 10**6, 7 * 10**9)):
        asked = []

        def peak(
            tokens: int, fixed: int = fixed, each: int = each, limit: int = limit, asked: Any = asked
        ) -> int | None:
            asked.append(tokens)
            used = fixed + each * tokens
            return None if used > 1.1 * limit else used

        found = largest_fitting(peak, 500, 10**9, limit)
        best = (limit - fixed) / each
        assert best / 1.06 <= found <= best
        assert found in asked
        assert len(asked) <= 8


def test_superlinear_memory_is_handled() -> None:
    asked = []

    def peak(tokens: int) -> int | None:
        asked.append(tokens)
        return tokens**2 if tokens < 90_000 else None

    assert 80_000 / 1.06 <= largest_fitting(peak, 300, 10**9, 80_000**2) <= 80_000
    assert len(asked) < 25


def test_batch_size_is_limited_by_the_corpus() -> None:
    assert largest_fitting(lambda tokens: tokens, 500, 7000, 10**9) == 7000


def test_nothing_fits_is_an_error() -> None:
    with pytest.raises(UserError, match="not even the smallest batch, of 500 tokens, fits"):
        largest_fitting(lambda tokens: None, 500, 7000, 10**9)


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitting") / "run"
    prepare_run(folder, small_config(corpus), lambda text: None)
    return folder


def test_batch_size_is_measured_by_training_steps(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward_backward = TrainStep._forward_backward

    def limited(train_step: TrainStep, tensors: dict[str, Tensor], *arguments: Any) -> None:
        forward_backward(train_step, tensors, *arguments)
        if positions(tensors) > 3000:
            raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(TrainStep, "_forward_backward", limited)
    config = from_yaml(run / CONFIG_FILE)
    assert measure_peak_memory(run, config, 1000) == 0  # nothing is measured on a CPU
    assert measure_peak_memory(run, config, 4000) is None


def test_widest_batch_has_the_longest_rows(run: Path) -> None:
    batches = Trainer(run, SilentDisplay()).batches
    batch = widest_batch(batches)
    lengths = batches.store.length_counts()
    longest = int(np.maximum(lengths.source, lengths.target).max()) + 1
    assert max(batch.source.shape[1], batch.target.shape[1]) >= longest  # more where byte pairs are left unmerged
    assert len(batch) == batches.max_tokens // longest


def test_batch_size_is_estimated_on_a_cpu(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 12 * 10**7
    monkeypatch.setattr(budget, "available_memory", lambda: free)
    config = override_settings(small_config(corpus), ["training.batch_tokens=null", "training.auto_batch_size=true"])
    prepared = prepare_run(tmp_path / "run", config, lambda text: None)
    [choice] = [choice for choice in prepared.choices if choice.setting == "training.batch_tokens"]
    assert "by an estimate for the CPU" in str(choice)
    written = from_yaml(tmp_path / "run" / CONFIG_FILE).training
    assert written.batch_tokens == choice.value
    assert not written.auto_batch_size
    spec = read_spec(tmp_path / "run")
    weights = 16 * sum(weight.numel() for weight in spec.build().parameters())
    needed = [
        weights + estimate_activations(spec, tokens) for tokens in (written.batch_tokens, written.batch_tokens + 1000)
    ]
    assert needed[0] <= 0.9 * free < needed[1]


def test_batch_size_is_measured_on_a_gpu(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search as it is on a GPU, with trials and memory put in."""
    config = from_yaml(run / CONFIG_FILE)
    config = override_settings(config, ["training.device=cuda", "training.batch_tokens=null"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))
    monkeypatch.setattr(budget, "measure_peak_memory", lambda folder, config, tokens, parts: 10**6 * tokens)
    said: list[str] = []
    tokens, why = budget.find_batch_size(run, config, read_spec(run), said.append)
    assert 900 / 1.06 <= tokens <= 900
    assert "the largest that fits into 0.8 GiB" in why
    assert said[0] == "searching for the largest batch that fits into memory"


def test_cpu_without_memory_is_an_error(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_memory", lambda: 10**6)
    config = override_settings(small_config(corpus), ["training.batch_tokens=null", "training.auto_batch_size=true"])
    with pytest.raises(UserError, match=r"training needs about .* GiB of memory, but 0\.0 GiB are free"):
        prepare_run(tmp_path / "run", config, lambda text: None)


def test_auto_batch_size_conflicts_with_batch_tokens() -> None:
    with pytest.raises(
        UserError, match=r"training\.auto_batch_size searches .* training\.batch_tokens=500 sets it: leave one"
    ):
        TrainingConfig(batch_tokens=500, auto_batch_size=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is free is read from Linux")
def test_available_memory_is_plausible() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 0 < budget.available_memory() <= 1024 * int(total.split()[1])


def test_gradient_checkpointing_is_a_setting(corpus: Path, tmp_path: Path) -> None:
    """It changes nothing but the memory: the same weights to the bit."""
    weights = []
    for name, checkpointing in (("kept", False), ("recomputed", True)):
        folder = tmp_path / name
        prepare_run(folder, small_config(corpus, steps=4, gradient_checkpointing=checkpointing), lambda text: None)
        trainer = Trainer(folder, SilentDisplay())
        trainer.train()
        weights.append(dict(trainer.model.named_parameters()))
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())
