"""Packed matrices: any number of rows and threads, and what happens where there is no kernel for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts import kernel_choice, packed_linear
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, OutputLayer
from dragoman.parts.inference import CPU_TABLE_LENGTH, InferencePrecision, optimize_for_inference
from dragoman.parts.kernel_choice import KernelChoices, Product, fastest, kernel_choices
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.norm import RMSNorm
from dragoman.parts.packed_linear import KERNELS, PACKED_ROWS, FastestProduct, plain, try_to_pack
from dragoman.parts.positions import Rotary

LINEAR = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("rows", [(1,), (3,), (4,), (64,), (65,), (300,), (3, 7), (2, 3, 4), (0,)])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_any_number_of_rows(rows: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(48, 33, bias)
    x = torch.randn(*rows, 48)
    torch.testing.assert_close(optimize_for_inference(nn.Sequential(layer))(x), layer(x), **LINEAR)
    assert optimize_for_inference(nn.Sequential(layer), "int8")(x).shape == (*rows, 33)


@torch.no_grad()
def test_rows_that_are_not_contiguous() -> None:
    layer, x = nn.Linear(48, 33), torch.randn(48, 2, 5)
    for made in (optimize_for_inference(nn.Sequential(layer)), optimize_for_inference(nn.Sequential(layer), "int8")):
        torch.testing.assert_close(made(x.permute(1, 2, 0)), made(x.permute(1, 2, 0).contiguous()))


@pytest.mark.parametrize("threads", [(1, 2), (2, 1)])
@torch.no_grad()
def test_the_number_of_threads_may_change(threads: tuple[int, int]) -> None:
    before = torch.get_num_threads()
    layer, x = nn.Linear(256, 300), torch.randn(70, 256)
    try:
        torch.set_num_threads(threads[0])
        made = optimize_for_inference(nn.Sequential(layer))
        torch.set_num_threads(threads[1])
        torch.testing.assert_close(made(x), layer(x), **LINEAR)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_int8_rounds_a_matrix_row_by_row() -> None:
    """W = [[1, 0.5], [0.01, 0.02]] in steps of 1/127 and 0.02/127, x = (1, −1) in steps of 2/255, all by hand."""
    layer = nn.Linear(2, 2)
    layer.weight.copy_(torch.tensor([[1.0, 0.5], [0.01, 0.02]]))
    layer.bias.copy_(torch.tensor([3.0, -3.0]))
    y = optimize_for_inference(nn.Sequential(layer), "int8")(torch.tensor([[1.0, -1.0]]))
    expected = torch.tensor([[3 + (127 - 64) / 127, -3 + (64 - 127) * 0.02 / 127]])
    torch.testing.assert_close(y, expected, atol=0.02, rtol=0)
    assert abs(float(y[0, 1]) + 3 + 0.01) < 4e-4, "the small row must not be rounded in the steps of the large one"


@pytest.mark.parametrize("bias", [True, False])
def test_int8_scales_each_row_of_a_wide_input(bias: bool) -> None:
    """With one scale for both, the small row's numbers would all be 0: its largest is 1/1000 of the other's."""
    layer = nn.Linear(64, 16, bias=bias)
    x = torch.randn(2, 64) * torch.tensor([[1000.0], [1.0]])
    found, right = optimize_for_inference(nn.Sequential(layer), "int8")(x), layer(x)
    assert ((found - right).norm(dim=1) < 0.03 * right.norm(dim=1)).all()  # of steps of 1/63, each a third on average


@pytest.mark.parametrize("weights", ["float32", "int8"])
@torch.no_grad()
def test_without_kernels_weights_are_not_packed(monkeypatch: pytest.MonkeyPatch, weights: InferencePrecision) -> None:
    def missing(*_: object) -> None:
        raise AttributeError("no such operator")

    layer, x = nn.Linear(6, 5), torch.randn(4, 6)
    for name in KERNELS[weights].keys() - {"plain"}:
        monkeypatch.setitem(KERNELS[weights], name, missing)
    assert torch.equal(optimize_for_inference(nn.Sequential(layer), weights)(x), layer(x))


@pytest.mark.parametrize(("precision", "name"), [(kind, name) for kind in KERNELS for name in KERNELS[kind]])
@torch.no_grad()
def test_every_kernel_computes_the_product(precision: str, name: str) -> None:
    layer, x = nn.Linear(48, 64), torch.randn(3, 7, 48)
    product = try_to_pack(KERNELS[precision][name], layer.weight, layer.bias)
    if product is None:
        pytest.skip(f"this torch is without {name}")
    tolerance = LINEAR if precision == "float32" else {"atol": 0.03, "rtol": 0.03}  # steps of 1/127 of the largest
    torch.testing.assert_close(product(x), layer(x), **tolerance)


def test_the_fastest_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clock = {"slow": 0, "fast": 0, "as fast": 0}, [0.0]

    def kernel(name: str, seconds: float) -> Callable[[Tensor], Tensor]:
        def product(x: Tensor) -> Tensor:
            calls[name] += 1
            clock[0] += seconds
            return x

        return product

    monkeypatch.setattr(kernel_choice.time, "perf_counter", lambda: clock[0])
    kernels = {"slow": kernel("slow", 3e-3), "fast": kernel("fast", 1e-4), "as fast": kernel("as fast", 1e-4)}
    assert fastest(kernels, torch.zeros(1)) == "fast"  # the first of equal ones, which need not be packed
    assert calls["fast"] == calls["as fast"] > calls["slow"]  # in turns, until one is clearly slower


def test_processes_agree_on_the_first_choice_of_a_shape(tmp_path: Path) -> None:
    first, second = KernelChoices(tmp_path / "a" / "file"), KernelChoices(tmp_path / "a" / "file")
    assert (first.find("2×3"), second.find("2×3")) == (None, None)
    assert first.add("2×3", "mkl") == "mkl"
    assert second.add("2×3", "onednn") == "mkl"  # measured at the same time, but too late
    with (tmp_path / "a" / "file").open("a") as file:
        file.write('damaged\n["4×5", "plain"]\n["6×7", "unfin')
    assert [second.find(shape) for shape in ("4×5", "6×7")] == ["plain", None]
    assert KernelChoices(tmp_path / "a" / "file").find("2×3") == "mkl"


def test_choices_without_a_place_for_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choices = KernelChoices(tmp_path / "file" / "choices")  # below a file
    assert choices.add("2×3", "mkl") == choices.find("2×3") == "mkl"


@torch.no_grad()
def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it returns then
    monkeypatch.chdir(tmp_path)
    layer, x = nn.Linear(5, 4), torch.randn(1, 5)
    torch.testing.assert_close(FastestProduct(layer.weight, layer.bias, "float32")(x), layer(x), **LINEAR)
    assert not list(tmp_path.iterdir())


@torch.no_grad()
def test_choices_of_an_earlier_process_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layer, x = nn.Linear(5, 4), torch.randn(1, 5)
    FastestProduct(layer.weight, layer.bias, "float32")(x)
    assert list(tmp_path.rglob("*.jsonl"))
    monkeypatch.setattr(packed_linear, "fastest", None)
    torch.testing.assert_close(FastestProduct(layer.weight, layer.bias, "float32")(x), layer(x), **LINEAR)


@torch.no_grad()
def test_a_stored_choice_of_an_unknown_kernel_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layer, x = nn.Linear(5, 4), torch.randn(1, 5)
    kernel_choices().add("float32 4×5 1 True", "kernel of another version")
    torch.testing.assert_close(FastestProduct(layer.weight, layer.bias, "float32")(x), layer(x), **LINEAR)


@torch.no_grad()
def test_float64_weights_are_not_packed() -> None:
    layer, x = nn.Linear(6, 5).double(), torch.randn(4, 6).double()
    assert torch.equal(optimize_for_inference(nn.Sequential(layer), "int8")(x), layer(x))


def test_the_quantized_engine_is_restored() -> None:
    before = torch.backends.quantized.engine
    optimize_for_inference(nn.Sequential(nn.Linear(6, 5)), "int8")
    assert torch.backends.quantized.engine == before


@torch.no_grad()
def test_layers_within_an_output_layer_are_packed_too() -> None:
    table = Embedding(width=6).build_embedding(40, 8)
    nn.init.normal_(table.weight)
    layer, x = OutputLayer(40, 8, table, bias=True), torch.randn(5, 8)
    made = optimize_for_inference(nn.Sequential(layer))
    torch.testing.assert_close(made(x), layer(x), **LINEAR)
    assert not any(type(part) in (nn.Linear, OutputLayer) for part in made.modules())


def test_an_unknown_kind_of_weights() -> None:
    with pytest.raises(UserError, match="int8"):
        optimize_for_inference(nn.Sequential(), "int4")  # type: ignore[arg-type]


@torch.no_grad()
def test_all_classes_of_row_counts_are_the_same() -> None:
    layer = nn.Linear(16, 8_000)
    made = optimize_for_inference(nn.Sequential(layer))
    for rows in (1, 2, 3, 4, 8, 16, 33, PACKED_ROWS - 1, PACKED_ROWS, 2 * PACKED_ROWS):
        x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(made(x), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 8), (3, 1, 8), (2, 3, 5, 8)])
def test_rms_norm_in_few_operations(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(1e-6).build(8)
    nn.init.normal_(norm.weight)
    x = torch.randn(shape)
    x[0] = 0.0  # whose norm is that of ε
    optimized = optimize_for_inference(nn.ModuleDict({"norm": norm}))["norm"]
    with torch.inference_mode():
        torch.testing.assert_close(optimized(x), F.rms_norm(x, (8,), norm.weight, 1e-6))
        tiny = 1e-4 * torch.randn(shape)  # ε counts
        torch.testing.assert_close(optimized(tiny), F.rms_norm(tiny, (8,), norm.weight, 1e-6))


@pytest.mark.parametrize("first", [0, 5, CPU_TABLE_LENGTH - 1, CPU_TABLE_LENGTH + 3])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_step_with_rotary_positions_and_norms(first: int, kv_heads: int) -> None:
    """Attention of grouped heads, at positions within and beyond the table of angles."""
    torch.manual_seed(0)
    spec = SelfAttention(4, kv_heads=kv_heads, position=Rotary(), qk_norm=RMSNorm(1e-6))
    original = spec.build(32).eval()
    for norm in (original.query_norm, original.key_norm):
        nn.init.normal_(norm.weight, mean=1.0)
    outputs = []
    for layer in (original, optimize_for_inference(nn.ModuleDict({"layer": original}))["layer"]):
        torch.manual_seed(1)
        with torch.inference_mode():
            length = first + 4
            state = layer.init_state(3, length, torch.zeros(1))
            for step in range(3):
                layout = SequenceLayout.continuation(torch.full((3,), first + step), max_length=length)
                result = layer.forward(torch.randn(3, 1, 32), Context(layout, None), state)
                state = result.state
                outputs.append(result.output)
    for ours, expected in zip(outputs[3:], outputs[:3]):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_large_matrix_is_measured_by_a_part_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing is chosen yet
    sizes: list[int] = []

    def record(weight: Tensor, bias: Tensor | None) -> Product:
        sizes.append(len(weight))
        return plain(weight, bias)

    layer, x = nn.Linear(8, 100), torch.randn(1, 8)
    for name in KERNELS["float32"]:
        monkeypatch.setitem(KERNELS["float32"], name, record)
    monkeypatch.setattr(packed_linear, "MAX_MEASURED_WEIGHTS", 80)
    with torch.no_grad():
        torch.testing.assert_close(FastestProduct(layer.weight, layer.bias, "float32")(x), layer(x))
    assert sizes == [10] * len(KERNELS["float32"]) + [100]
