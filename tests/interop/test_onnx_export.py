"""Export to ONNX: the same logits with caches, the same greedy outputs, a program that works."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dragoman
from dragoman.config import Config
from dragoman.models import Model
from dragoman.parts.exported_recurrence import ONNX_GATES
from dragoman.parts.recurrence import CELLS
from dragoman.run import Run
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer, learn_tokenizer

pytest.importorskip("onnxruntime")

LINES = ["the dog sleeps .", "größe – 5 €", "a cat sees an old house 🏠"] * 3
SMALL = {"model_dim": 16, "layers": 1, "heads": 2}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn_tokenizer(LINES, "bpe", 300)


def untrained_run(tokenizer: Tokenizer, system: str, num_labels: int = 0, **settings: Any) -> Run:
    """A run with random weights, large enough that its outputs differ from each other; a tagger has labels."""
    known = SYSTEMS[system].settings()
    small = {name: value for name, value in SMALL.items() if name in known}
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    spec = SYSTEMS[system].spec(vocabulary, "tiny", **(small | settings))
    spec = spec.with_labels(num_labels) if num_labels else spec
    torch.manual_seed(0)
    model: Model = spec.build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0) if weight.any() else weight.normal_()  # a router of zeros would leave all to ties
    config = replace(Config(), search=replace(Config().search, beam_size=1, max_target_length=12))
    return Run(Path("untrained"), config, model, tokenizer, tokenizer, spec.default_framing, "last")


def readme_program(folder: Path) -> dict[str, Any]:
    """Execute the program of the README, and return what it defines."""
    (program,) = re.findall("```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme", "__file__": str(folder / "readme.py")}
    exec(program, names)
    return names


#: system and settings: one of each kind of state, and every recurrent cell
SYSTEMS_AND_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "caches": ("transformer", {}),
    "attention to a bidirectional GRU": ("bahdanau", {}),
    "LSTM with input feeding": ("luong", {}),
    "GRU with the reset gate first": ("bahdanau", {"cell": "gru-reset-before"}),
    "Elman network": ("rnn-lm", {"cell": "rnn"}),
    "rotary positions, grouped heads": ("llama", {"kv_heads": 1}),
    "relative biases": ("t5", {"sentinels": 2}),
    "source as a prefix": ("unilm", {}),
    "convolution": ("convs2s", {}),
    "hard attention": ("hard-monotonic", {}),
    "copying": ("transformer", {"copying": True}),
    "experts": ("moe", {"layers": 2}),
    "LSTMs in two columns": ("deep-att", {"layers": 2}),
    "experts between LSTMs": ("moe-2017", {"layers": 2}),
    "residual LSTMs": ("gnmt", {"layers": 3}),
    "dilated convolution": ("bytenet", {}),
    "mean of embeddings": ("bow", {}),
    "one vector for the source": ("sutskever", {}),
    "one vector for every step": ("cho", {}),
    "parallel layers": ("palm", {}),
    "windows": ("gpt3", {"layers": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS_AND_SETTINGS)
def test_logits_and_greedy_outputs_are_equal(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    system, settings = SYSTEMS_AND_SETTINGS[name]
    run = untrained_run(tokenizer, system, **settings)
    result = run.export(tmp_path / "out", "onnx")
    assert result.model == "ONNX graphs encoder.onnx and decoder.onnx"
    assert result.check is not None
    assert result.check.max_relative_error < (1e-3 if run.model.output.is_mixture else 1e-4)
    assert result.check.equal_outputs in (None, result.check.sentences)


@pytest.mark.slow
def test_models_whose_eos_is_forced_are_compared_without(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "transformer")
    run.special_tokens = replace(run.special_tokens, force_eos_at_limit=True)
    result = run.export(tmp_path / "out", "onnx")
    assert result.check is not None
    assert result.check.equal_outputs == result.check.sentences


@pytest.mark.slow
def test_the_program_of_the_readme_generates_as_greedy_search_does(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "bahdanau")
    run.export(tmp_path / "out", "onnx")
    texts = ["the dog sleeps", "a", "größe – 5 </s>"]
    results = run.translate(texts, beam_size=1)
    program = readme_program(tmp_path / "out")
    decode = program["target_tokenizer"].decode
    assert program["generate"](texts) == [decode(tokenizer.tokens_to_ids(result.tokens)) for result in results]
    # the loop of the documentation, with the graphs of the program
    page = Path(__file__).parents[2] / "docs" / "exporting.md"
    (loop,) = re.findall("```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    source, lengths = run.pad_batch(run.encode_sources(texts))
    values = {"source": source.numpy(), "lengths": lengths.numpy(), "bos": 2, "eos": 3, "max_length": 12}
    values |= {name: program[name] for name in ("encoder", "decoder", "np")}
    exec(loop, values := values | {"suppressed": list(run.framing.suppressed)})
    assert [row[: len(result.tokens)] for row, result in zip(np.stack(values["targets"], 1).tolist(), results)] == [
        tokenizer.tokens_to_ids(result.tokens) for result in results
    ]


@pytest.mark.slow
def test_the_program_continues_the_prompts_of_a_language_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "gpt")
    run.export(tmp_path / "out", "onnx")
    program = readme_program(tmp_path / "out")
    greedy = dragoman.Beam(1, length_limit=dragoman.LengthLimit(ratio=0, offset=12, max=12))
    for prompt in ("the dog", ""):  # the encoder then reads nothing
        tokens = run.generate([prompt], greedy)[0].tokens
        ids = tokenizer.tokens_to_ids(tokens)[len(tokenizer.encode(prompt)) :]
        assert program["generate"]([prompt]) == [program["target_tokenizer"].decode(ids)]


@pytest.mark.slow
def test_a_tagger_is_one_graph(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "tagger", num_labels=5)
    result = run.export(tmp_path / "out", "onnx")
    assert result.model == "ONNX graph model.onnx"
    assert result.check is not None
    assert result.check.max_relative_error < 1e-5
    program = readme_program(tmp_path / "out")
    expected = run.model(*run.pad_batch(run.encode_sources(["the dog"])))[0]
    torch.testing.assert_close(torch.tensor(program["logits"]("the dog")), expected.detach(), rtol=1e-4, atol=1e-4)
    assert program["labels"]("the dog") == [str(int(label)) for label in expected[1:-1].argmax(-1)]


def test_what_torch_cannot_trace_is_refused_by_name(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "transformer-dmca", layers=2)
    with pytest.raises(
        dragoman.UserError, match=r"cannot be exported to ONNX: the cached state of decoder layer .* does not grow"
    ):
        run.export(tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dragoman.interop.onnx.onnx_exporter.is_installed", lambda package: package != "onnxscript")
    with pytest.raises(dragoman.UserError, match=r"needs the package onnxscript: .* pip install 'dragoman\[onnx\]'"):
        dragoman.export(tmp_path / "run", tmp_path / "out", "onnx")


def test_every_cell_has_gates_in_the_order_of_onnx() -> None:
    assert ONNX_GATES.keys() == CELLS.keys()
