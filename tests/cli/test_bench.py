"""`dragoman bench`: speeds and profiles that change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli import app
from dragoman.cli.bench import app as bench
from dragoman.data import phrasebook
from dragoman.errors import UserError
from dragoman.training.profiling import KINDS, kind_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    phrasebook.write(folder / "corpus", pairs=300, valid=12, test=12)
    files = [f"--{name}={folder / 'corpus' / file}" for name, file in (("source", "train.en"), ("target", "train.de"))]
    small = [
        "system.settings.model_dim=16",
        "system.settings.layers=1",
        "system.settings.heads=2",
        "training.batch_tokens=600",
    ]
    settings = [part for setting in small for part in ("--set", setting)]
    command = ["train", str(folder / "run"), *files, "--size", "tiny", "--steps", "2", "--device", "cpu", *settings]
    answer = CliRunner().invoke(app, command, catch_exceptions=False)
    assert answer.exit_code == 0
    return folder / "run"


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_a_profile_of_a_run(run: Path) -> None:
    before = everything(run)
    answer = CliRunner().invoke(bench, ["step", str(run), "--steps", "2", "--warm-up", "1", "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert everything(run) == before
    assert found["steps"] == 2
    assert found["tokens_per_second"] > 0
    assert sum(found["phases"].values()) == pytest.approx(1)
    assert sum(found["kinds"].values()) == pytest.approx(1)
    assert list(found["phases"]) == ["waiting for data", "forward", "backward", "optimiser", "everything else"]
    assert found["kinds"]["matrix products"] > 0
    assert found["kinds"]["attention"] > 0
    assert 0 < found["share_of_matmul"] < 1.5
    assert found["peak_memory"] > 2**20


def test_a_profile_is_readable(run: Path) -> None:
    answer = CliRunner().invoke(bench, ["step", str(run), "--steps", "1", "--warm-up", "1", "--device", "cpu"])
    assert answer.exit_code == 0, answer.output
    for words in (
        "target tokens/s",
        "GiB of memory",
        "of a step",
        "backward",
        "matrix products",
        "multiplies matrices",
    ):
        assert words in answer.stdout


def test_a_profile_of_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        CliRunner().invoke(bench, ["step", str(tmp_path)], catch_exceptions=False)


def test_a_profile_on_an_unknown_device(run: Path) -> None:
    with pytest.raises(UserError, match="on cpu or cuda, not on abacus"):
        CliRunner().invoke(bench, ["step", str(run), "--device", "abacus"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("aten::bmm", "matrix products"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopB_TNT", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("triton_tem_fused_flex_attention_backward_zeros_12", "attention"),
        ("aten::_log_softmax_backward_data", "softmax and loss"),
        ("aten::native_layer_norm", "norms"),
        ("aten::native_dropout_backward", "dropout"),
        ("aten::_fused_adamw_", "optimiser"),
        ("Memcpy DtoD (Device -> Device)", "copies and memory"),
        ("aten::copy_", "copies and memory"),
        ("aten::relu", "element by element"),
        ("triton_poi_fused_add_mul_3", "element by element"),
        ("something never heard of", "everything else"),
    ],
)
def test_operations_are_told_apart(operation: str, kind: str) -> None:
    assert kind_of(operation) == kind
    assert kind in (*KINDS, "everything else")


def test_speeds_of_this_machine() -> None:
    small = ["--size", "tiny", "--tokens", "200", "--vocabulary", "200", "--steps", "1", "--device", "cpu"]
    answer = CliRunner().invoke(bench, ["train", *small, "--json"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    [speed] = found["speeds"]
    assert (speed["system"], speed["size"], speed["tokens"]) == ("transformer", "tiny", 200)
    assert speed["tokens_per_second"] > 0
    assert speed["tflops"] / found["machine"]["matmul_tflops"] == pytest.approx(speed["share_of_matmul"])
    try:
        import transformers  # noqa: F401
    except ImportError:
        assert speed["times_as_fast"] is None
    else:
        assert speed["times_as_fast"] > 0


def test_speeds_as_a_table() -> None:
    small = ["--system", "luong", "--size", "tiny", "--tokens", "200", "--vocabulary", "200", "--steps", "1"]
    answer = CliRunner().invoke(bench, ["train", *small, "--device", "cpu"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    assert "luong tiny" in answer.stdout
    assert "tokens/s" in answer.stdout


def test_a_system_that_does_not_translate_is_refused() -> None:
    with pytest.raises(UserError, match="systems that translate text, but bert is none"):
        CliRunner().invoke(
            bench, ["train", "--system", "bert", "--size", "tiny", "--device", "cpu"], catch_exceptions=False
        )


def test_the_help_names_the_script_with_all_peers() -> None:
    answer = CliRunner().invoke(app, ["bench", "train", "--help"])
    assert "benchmarks/training.py" in answer.output
