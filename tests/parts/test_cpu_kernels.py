"""Compiled kernels compute what the modules of a layer compute, one token per row."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.parts import cpu_kernels
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.compiled_steps import CompiledStep
from dragoman.parts.feedforward import ACTIVATIONS, FeedForward
from dragoman.parts.inference import InferenceResidual, optimize_for_inference
from dragoman.parts.mixer import Context, Memory, Mixer, SequenceLayout, State
from dragoman.parts.norm import BatchNorm, RMSNorm
from dragoman.parts.positions import Rotary
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Residual

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
DIM = 24  # not a multiple of a vector register
ROWS = [1, 2, 5, 6, 13, 31]
needs_compiler = pytest.mark.skipif(cpu_kernels.library() is None, reason="the kernels cannot be compiled here")


@pytest.fixture
def uncached() -> Iterator[None]:
    """Forget the compiled library before and after a test, which looks for another one."""
    cpu_kernels.library.cache_clear()
    yield
    cpu_kernels.library.cache_clear()


def optimized(spec: Spec) -> tuple[Mixer, InferenceResidual]:
    """A layer with random weights, also in norms and biases, and its version for inference."""
    torch.manual_seed(0)
    layer = spec.build(DIM).eval()
    for weight in layer.parameters():
        nn.init.normal_(weight, mean=1.0 if weight.dim() == 1 else 0.0, std=0.3)
    layer.path = layer.body.path = "layer"
    made = optimize_for_inference(nn.ModuleDict({"layer": layer}))["layer"]
    assert isinstance(made, InferenceResidual)
    return layer, made


def compare(layer: Mixer, step: CompiledStep | None, x: Tensor, context: Context, states: tuple[State, State]) -> None:
    """Compare a step with the modules of the layer, on one and two threads; each has a state of its own."""
    assert step is not None
    expected = layer(x, context, states[0]).output
    for all_threads in (False, True):
        arguments = step.layer.step_arguments(len(x), context, states[1])
        assert arguments is not None
        torch.testing.assert_close(step.run(x, arguments, all_threads), expected, **TOLERANCE)


@needs_compiler
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@torch.inference_mode()
def test_feed_forward_networks(name: str, gated: bool) -> None:
    body = FeedForward(50, activation=name, gated=gated, bias=not gated)  # type: ignore[arg-type]
    for spec in (PreNorm(body), PostNorm(body, RMSNorm()), Residual(body)):
        layer, made = optimized(spec)
        for rows in ROWS:
            compare(
                layer, made.step, 3 * torch.randn(rows, 1, DIM), Context(SequenceLayout(torch.zeros(rows, 1))), ({}, {})
            )


SELF_ATTENTION = {
    "plain": SelfAttention(4),
    "without biases": SelfAttention(2, bias=False, value_dim=5),
    "rotary": SelfAttention(3, kv_heads=1, position=Rotary(), qk_norm=RMSNorm()),
    "scaled": SelfAttention(4, kv_heads=2, scale=1.0),
}


@needs_compiler
@pytest.mark.parametrize("beam", [0, 1, 3])
@pytest.mark.parametrize("name", SELF_ATTENTION)
@torch.inference_mode()
def test_self_attention_to_the_keys_of_ancestors(name: str, beam: int) -> None:
    layer, made = optimized(PreNorm(SELF_ATTENTION[name]))
    sources, length, random = 2, 7, torch.Generator().manual_seed(1)
    rows = sources * max(1, beam)
    states = tuple(layer.init_state(rows, length, torch.zeros(1)) for _ in range(2))
    ancestors = None
    if beam:
        ancestors = torch.arange(beam)[None, :, None].repeat(sources, 1, length)
    for position in range(length):
        positions = torch.full((rows,), position)
        if ancestors is not None:
            parents = torch.randint(beam, (sources, beam, 1), generator=random).expand(-1, -1, length)
            ancestors = ancestors.gather(1, parents)
            ancestors[:, :, position] = torch.arange(beam)  # the new token is in the row's own cache
        layout = SequenceLayout.continuation(positions, max_length=length)
        context = Context(layout, ancestors=ancestors)
        x = torch.randn(rows, 1, DIM, generator=random)
        compare(layer, made.step, x, context, states)  # type: ignore[arg-type]
        heads = made.body.heads_step  # between the products
        assert heads is not None
        again = heads(made.body.project(made.before(x)), context, states[1])
        torch.testing.assert_close(x + made.body.output(again), layer(x, context, states[0]).output, **TOLERANCE)


@needs_compiler
@pytest.mark.parametrize("spec", [CrossAttention(4), CrossAttention(4, kv_heads=2, qk_norm=RMSNorm(), value_dim=3)])
@pytest.mark.parametrize("lengths", [[6, 6], [1, 6]])
@torch.inference_mode()
def test_cross_attention_of_a_beam(spec: CrossAttention, lengths: list[int]) -> None:
    layer, made = optimized(PostNorm(spec))
    layout = SequenceLayout.padded(6, torch.tensor(lengths))
    x, encoded = torch.randn(2 * 3, 1, DIM), torch.randn(2, 6, DIM)
    memory = Memory(encoded, layout)
    context = Context(SequenceLayout(torch.zeros(6, 1, dtype=torch.long)), memory)
    assert made.body.step_arguments(6, context, {}) is None  # what is projected for this call only is not kept
    memory.projections = {"layer": made.body.project_memory(memory)}
    compare(layer, made.step, x, context, ({}, {}))
    heads = made.body.heads_step(made.body.query(x), context, {})
    torch.testing.assert_close(made.after(x + made.body.output(heads)), layer(x, context, {}).output, **TOLERANCE)


@needs_compiler
@torch.inference_mode()
def test_a_layer_that_the_kernels_do_not_know_has_no_step() -> None:
    for spec in (PreNorm(FeedForward(), BatchNorm()), PreNorm(SelfAttention(2, projections=False))):
        assert optimized(spec)[1].step is None
    layer = PreNorm(FeedForward()).build(DIM).double()
    assert optimize_for_inference(nn.ModuleDict({"layer": layer}))["layer"].step is None
    layer = PreNorm(FeedForward()).build(DIM)
    assert optimize_for_inference(nn.ModuleDict({"layer": layer}), "int8")["layer"].step is None


@needs_compiler
@pytest.mark.parametrize(("rows", "inputs", "outputs"), list(itertools.product(ROWS, [1, 40], [1, 16, 100])))
@torch.inference_mode()
def test_products(rows: int, inputs: int, outputs: int) -> None:
    functions = cpu_kernels.library()
    assert functions is not None
    layer, x = nn.Linear(inputs, outputs), torch.randn(rows, inputs)
    packed = cpu_kernels.pack_weight(functions, layer.weight)
    struct = cpu_kernels.linear_struct(packed, layer.bias, outputs)
    for threads in (1, 2, 3):
        y = torch.full((rows, outputs), torch.nan)
        functions.linear_step(struct, x.data_ptr(), y.data_ptr(), rows, threads)
        torch.testing.assert_close(y, layer(x), **TOLERANCE)


@needs_compiler
def test_exponentials_of_all_sizes() -> None:
    """log(e^a + e^b) by hand, at the limits of float32, and beside an element of −∞."""
    functions = cpu_kernels.library()
    assert functions is not None
    for a in (-100.0, -87.5, -30.0, -1e-3, 0.0):
        logits = torch.tensor([a, 0.0] + 17 * [-torch.inf])
        expected = math.log1p(math.exp(a))
        assert cpu_kernels.log_sum_exp(functions, logits).item() == pytest.approx(expected, abs=1e-7)
    large = torch.tensor([3e38, 3e38, -3e38])
    assert cpu_kernels.log_sum_exp(functions, large).item() == pytest.approx(3e38)


# ---- compiling


def test_without_a_compiler_torch_computes(uncached: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_kernels, "COMPILERS", ("no-such-compiler",))
    monkeypatch.delenv("CC", raising=False)
    assert cpu_kernels.library() is None
    layer, x = FeedForward().build(8), torch.randn(1, 1, 8)
    made = optimize_for_inference(nn.ModuleDict({"layer": layer}))["layer"]
    context = Context(SequenceLayout(torch.zeros(1, 1)))
    with torch.inference_mode():
        torch.testing.assert_close(made(x, context, {}).output, layer(x, context, {}).output, **TOLERANCE)


def test_kernels_can_be_turned_off(uncached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CPU_KERNELS", "0")
    assert cpu_kernels.library() is None


@needs_compiler
def test_kernels_are_compiled_once(uncached: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    functions = cpu_kernels.library()
    assert functions is not None
    (file,) = tmp_path.rglob("*.so")
    assert not [path for path in file.parent.iterdir() if path != file]  # nothing is left besides
    cpu_kernels.library.cache_clear()
    monkeypatch.setattr(cpu_kernels, "COMPILERS", ())
    assert cpu_kernels.library() is not None
    values = torch.zeros(1, 8)
    torch.testing.assert_close(cpu_kernels.log_sum_exp(functions, values), values.logsumexp(-1))


@pytest.mark.skipif(os.name != "posix", reason="kernels are compiled on POSIX systems")
@pytest.mark.parametrize("content", ["exit 1", 'touch "$0.called"'])
def test_a_compiler_that_fails(uncached: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{content}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(cpu_kernels, "COMPILERS", ())
    assert cpu_kernels.library() is None
    assert not list(tmp_path.rglob("*.so"))


@needs_compiler
def test_a_compiler_in_a_folder_with_spaces(uncached: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    monkeypatch.setenv("CC", f"'{tmp_path}/my compilers/cc' -g")  # does not exist: another one is used
    assert cpu_kernels.library() is not None


@needs_compiler
@pytest.mark.parametrize("size", [100, 20_000])
def test_a_damaged_library_is_compiled_again(
    uncached: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "whole"))
    assert cpu_kernels.library() is not None
    (file,) = tmp_path.rglob("*.so")
    damaged = tmp_path / "damaged" / file.relative_to(tmp_path / "whole")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(file.read_bytes()[:size])
    cpu_kernels.library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "damaged"))
    assert cpu_kernels.library() is not None
    assert max(path.stat().st_size for path in damaged.parent.iterdir()) == file.stat().st_size


@needs_compiler
def test_a_library_that_others_can_write_is_not_used(
    uncached: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cpu_kernels.library() is not None
    (file,) = tmp_path.rglob("*.so")
    assert file.stat().st_mode & 0o777 == 0o500
    monkeypatch.setattr(cpu_kernels, "COMPILERS", ())
    monkeypatch.delenv("CC", raising=False)
    for change in (lambda: file.chmod(0o777), lambda: monkeypatch.setattr(os, "getuid", lambda: 123_456)):
        cpu_kernels.library.cache_clear()
        change()
        assert cpu_kernels.library() is None
        file.chmod(0o500)


# ---- calls that kernels cannot compute


@needs_compiler
@torch.inference_mode()
def test_other_dtypes_are_left_to_torch() -> None:
    layer, made = optimized(PreNorm(FeedForward(50)))
    context = Context(SequenceLayout(torch.zeros(2, 1)))
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.randn(2, 1, DIM).to(dtype)
        assert made.step(x, context, {}, lambda: None) is None  # type: ignore[arg-type, misc, return-value]
    layer, made = optimized(PreNorm(SelfAttention(4)))
    state = layer.init_state(2, 3, torch.zeros(1))
    for positions in (torch.zeros(2, 1, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.long)[:, :1]):
        assert made.body.step_arguments(2, Context(SequenceLayout(positions)), state) is None
    assert made.body.step_arguments(2, Context(SequenceLayout(positions.contiguous())), state) is not None


@needs_compiler
@torch.inference_mode()
def test_copies_of_an_optimized_layer_have_no_step() -> None:
    layer, made = optimized(PreNorm(SelfAttention(4)))
    assert made.step is not None
    copied = deepcopy(made)
    assert copied.step is None
    x, context = torch.randn(2, 1, DIM), Context(SequenceLayout(torch.zeros(2, 1, dtype=torch.long)))
    states = [layer.init_state(2, 3, torch.zeros(1)) for _ in range(2)]
    expected = layer(x, context, states[0]).output
    torch.testing.assert_close(copied(x, context, states[1]).output, expected, **TOLERANCE)


@needs_compiler
def test_structures_are_those_of_the_source() -> None:
    functions = cpu_kernels.library()
    assert functions is not None
    names = ("Linear", "Norm", "Attention", "FeedForward", "Search", "Buffer", "Beam")
    structures = [getattr(cpu_kernels, f"{name}Struct") for name in names]
    sizes = torch.zeros(len(structures), dtype=torch.long)
    functions.struct_sizes(sizes.data_ptr())
    assert sizes.tolist() == [ctypes.sizeof(structure) for structure in structures]


@needs_compiler
def test_logits_that_are_no_numbers() -> None:
    """As torch's: NaN wherever there is one."""
    functions = cpu_kernels.library()
    assert functions is not None
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[nan] * 3, [nan, -inf, -inf], [inf, nan, 0.0], [1.0, nan, 0.0], [inf, 0.0, -inf]])
    torch.testing.assert_close(cpu_kernels.log_sum_exp(functions, logits), logits.logsumexp(-1), equal_nan=True)


@torch.inference_mode()
def test_activations_are_in_the_order_of_the_kernels() -> None:
    """The numbers in the C source, which this list of names gives."""
    source = cpu_kernels.SOURCE.read_text()
    names = source.split("enum { RELU", 1)[1].split("}", 1)[0]
    assert [name.strip().lower().replace("_", "-") for name in ("RELU" + names).split(",")] == list(ACTIVATIONS)
    assert F.relu is ACTIVATIONS["relu"]
