"""Apple GPUs are chosen automatically, and nothing that they lack is asked of them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dragoman.cli.checks import check_device
from dragoman.config import TrainingConfig
from dragoman.data import Batch
from dragoman.errors import UserError
from dragoman.objectives import TaskContext, build_objective
from dragoman.parts import precision
from dragoman.parts.convolution import SourceExtension
from dragoman.parts.experts import record_expert_usage
from dragoman.parts.precision import accumulator_dtype
from dragoman.run import select_device
from dragoman.search.topk import topk, topk_continuations
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer
from dragoman.training.optimizer import build_optimizer
from dragoman.training.train_step import TrainStep, is_out_of_memory


def available(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_the_gpu_is_chosen_automatically(monkeypatch: pytest.MonkeyPatch) -> None:
    for (cuda, mps), expected in {(1, 0): "cuda", (0, 1): "mps", (1, 1): "cuda", (0, 0): "cpu"}.items():
        available(monkeypatch, bool(cuda), bool(mps))
        assert select_device("auto").type == expected


def test_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device("mps")
    available(monkeypatch, cuda=False, mps=True)
    assert select_device("mps").type == "mps"
    with pytest.raises(UserError, match="device cuda was requested, but no GPU is available"):
        select_device("cuda")
    available(monkeypatch, cuda=False, mps=False)
    with pytest.raises(UserError, match="device mps was requested, but no GPU is available: use --device cpu"):
        select_device("mps")


def test_missing_operations_are_computed_on_the_cpu() -> None:
    """The variable is set before torch is imported, unless the user has set it."""
    code = "import dragoman, os, sys; print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'], 'torch' in sys.modules)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTORCH_ENABLE_MPS_FALLBACK"}
    for given, expected in (({}, "1 False"), ({"PYTORCH_ENABLE_MPS_FALLBACK": "0"}, "0 False")):
        printed = subprocess.run([sys.executable, "-c", code], env=environment | given, capture_output=True, text=True)
        assert printed.stdout.strip() == expected, printed.stderr


def test_sums_have_a_type_that_the_device_has() -> None:
    types = {device: accumulator_dtype(torch.device(device)) for device in ("cpu", "cuda", "mps")}
    assert types == {"cpu": torch.float64, "cuda": torch.float64, "mps": torch.float32}


class NoFloat64(TorchDispatchMode):
    """Rejects operations whose result is float64, as Apple GPUs do."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            assert not isinstance(leaf, torch.Tensor) or leaf.dtype != torch.float64, function
        return result


@pytest.mark.parametrize("system", ["transformer", "bahdanau", "moe"])
def test_a_training_step_needs_no_float64(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", {"mps", "cpu"})
    words = learn_tokenizer([f"a{number} b{number}" for number in range(20)], "word", 60)
    sizes = VocabularySizes(words.vocab_size, words.vocab_size, True)
    known = SYSTEMS[system].settings()
    small = {name: value for name, value in {"model_dim": 16, "layers": 2, "heads": 4}.items() if name in known}
    model = SYSTEMS[system].spec(sizes, "tiny", **small).build().train()
    objective = build_objective("translation", TaskContext(model, words, words, model.spec.default_framing, 0.1), {})
    config = TrainingConfig(optimizer="adamw", seed=1, clip_norm=1.0, precision="float32")
    ids, lengths = torch.randint(7, words.vocab_size, (4, 6)), torch.full((4,), 6)
    batch = Batch(ids, lengths, ids, lengths, ids, np.arange(4), source_tokens=24, target_tokens=24)
    with record_expert_usage(model), NoFloat64():
        step = TrainStep(objective, build_optimizer(model, config), config)
        step([(0, batch)], 1, 0.01, batch.target_tokens)
        assert step.loss_sums.dtype == torch.float32
        assert step.loss_sums[0] > 0


def test_lengths_are_exact_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    extension = SourceExtension(1.1, 0.0)
    lengths = torch.arange(1, 3000)
    monkeypatch.setattr("dragoman.parts.convolution.WITHOUT_FLOAT64", {"cpu"})
    assert extension.extended_lengths(lengths).tolist() == [
        extension.extended_length(int(length)) for length in lengths
    ]


def test_continuations_are_selected_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of all accelerators: the best of each row, then of all rows, ties by the lower row and token."""
    scores, logits = torch.tensor([[-1.0, -1.0]]), torch.tensor([[[0.0, 2.0, 2.0, 1.0], [2.0, 0.0, 1.0, 2.0]]])
    normalizer = logits.logsumexp(-1)
    with NoFloat64():
        values, tokens = topk(logits, 2)
        found = topk((scores[..., None] + values - normalizer[..., None]).flatten(1), 4)[1]
    expected = topk_continuations(scores, logits, normalizer, 4)
    assert (found // 2).tolist() == expected[1].tolist()
    assert tokens.flatten(1).gather(1, found).tolist() == expected[2].tolist() == [[1, 2, 0, 3]]


def test_out_of_memory_is_recognized() -> None:
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)"))
