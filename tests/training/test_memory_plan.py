"""The memory plan: a training is divided until it fits, and settings of the user stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dragoman.config import Config, from_dict
from dragoman.models import ModelSpec
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.training import memory_plan
from dragoman.training.defaults import Defaults, configured_recipe
from dragoman.training.memory_plan import choose_memory_plan, estimate_activations, plan_memory

MIB = 2**20


def test_first_plan_that_fits() -> None:
    """Of a step with 8,192 tokens at 1 MiB per 8 tokens, or per 64 with recomputation, and 100 MiB of weights."""

    def estimate(tokens: int, recomputes: bool) -> int:
        return 100 * MIB + MIB * tokens // (64 if recomputes else 8)

    def plan(free: int, recompute: bool = True) -> tuple[int, bool, int]:
        chosen = plan_memory(estimate, free * MIB, 8192, 512, 2048, recompute)
        return chosen.batches, chosen.gradient_checkpointing, chosen.needed // MIB

    assert plan(2000) == (1, False, 1124)
    assert plan(1000) == (2, False, 612)
    assert plan(400) == (4, False, 356)  # batches of 2,048 tokens
    assert plan(300) == (1, True, 228)
    assert plan(140) == (4, True, 132)
    assert plan(120) == (8, True, 116)  # smaller batches only after recomputation
    assert plan(10) == (16, True, 108)  # nothing fits: the least, with batches of 512 tokens
    assert plan(300, recompute=False) == (8, False, 228)


def transformer() -> ModelSpec:
    return SYSTEMS["transformer"].spec(VocabularySizes(100, 100, True), "tiny", model_dim=16, heads=2, layers=2)


def choose(monkeypatch: pytest.MonkeyPatch, config: Config, free: float, open_batch: bool = True) -> Defaults:
    monkeypatch.setattr(memory_plan, "available_memory", lambda: free)
    defaults = Defaults(config)
    if open_batch:
        defaults.set_and_report("training.batch_tokens", 4096, "for the test")
    choose_memory_plan(defaults, transformer(), "cpu")
    return defaults


def test_plan_is_reported_and_keeps_the_size_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_dict({"data": {"max_length": 100}})
    parameters = 16 * sum(weight.numel() for weight in transformer().build().parameters())
    half = (parameters + estimate_activations(transformer(), 2048)) / memory_plan.PLANNED_MEMORY_SHARE
    training = choose(monkeypatch, config, 100 * half).config.training
    assert (training.batch_tokens, training.gradient_accumulation, training.gradient_checkpointing) == (4096, 1, False)
    defaults = choose(monkeypatch, config, half)
    training = defaults.config.training
    assert (training.batch_tokens, training.gradient_accumulation, training.gradient_checkpointing) == (2048, 2, False)
    assert [choice.setting for choice in defaults.choices] == [
        "training.batch_tokens",
        "training.gradient_accumulation",
    ]
    assert not defaults.warnings
    few = (parameters + estimate_activations(transformer(), 4096, True)) / memory_plan.PLANNED_MEMORY_SHARE
    given = replace(config, training=replace(config.training, batch_tokens=4096))
    training = choose(monkeypatch, given, few, open_batch=False).config.training
    assert (training.batch_tokens, training.gradient_accumulation, training.gradient_checkpointing) == (4096, 1, True)


def test_each_setting_of_a_plan_has_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than two batches with recomputation need does not suffice without it, however a step is divided."""
    parameters = 16 * sum(weight.numel() for weight in transformer().build().parameters())
    needed = parameters + estimate_activations(transformer(), 2048, gradient_checkpointing=True)
    defaults = choose(monkeypatch, from_dict({"data": {"max_length": 100}}), needed / memory_plan.PLANNED_MEMORY_SHARE)
    training = defaults.config.training
    assert (training.batch_tokens, training.gradient_accumulation, training.gradient_checkpointing) == (2048, 2, True)
    reasons = {choice.setting: choice.reason for choice in defaults.choices}
    assert reasons["training.gradient_accumulation"] == "so that a step has 4,096 tokens"
    assert "GiB are needed otherwise" in reasons["training.batch_tokens"]
    assert reasons["training.gradient_checkpointing"] == reasons["training.batch_tokens"]


def test_suggests_lora_if_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_dict({"training": {"start_from": "runs/large"}})
    (warning,) = choose(monkeypatch, config, 1).warnings
    assert "0.0 GiB are free: --lora-rank 16 would need about" in warning
    (warning,) = choose(monkeypatch, Config(), 1).warnings
    assert "lower data.max_length or training.batch_tokens" in warning


def test_rates_of_fine_tuning() -> None:
    """Imported models and LoRA are trained by AdamW, with lower rates than from scratch; a given recipe stays."""
    config = from_dict({"system": {"name": "transformer"}})
    name, scratch = configured_recipe(config)
    assert name == "modern"
    name, tuned = configured_recipe(config, imported_parent=True)
    assert (name, tuned.peak_learning_rate(1024, 100, None, warm_start=True)[0]) == ("plain", 0.05 / 1024)
    lora = replace(config, lora=replace(config.lora, rank=8))
    name, adapted = configured_recipe(lora)
    assert (name, adapted.peak_learning_rate(512, 100, None, warm_start=True)[0]) == ("plain", 0.3 / 512)
    given = replace(config, training=replace(config.training, recipe="modern"))
    assert configured_recipe(given, imported_parent=True) == ("modern", scratch)
