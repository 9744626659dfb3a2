"""The scripts that measure a run: they print speeds and leave the run unchanged."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from dragoman.cli import app
from dragoman.data import phrasebook
from dragoman.errors import UserError

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return import_module(name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speed")
    phrasebook.write(folder / "corpus", pairs=300, valid=12, test=12)
    files = [f"--{name}={folder / 'corpus' / file}" for name, file in (("source", "train.en"), ("target", "train.de"))]
    small = ["model_dim=16", "layers=1", "heads=2"]
    settings = [part for setting in small for part in ("--set", f"system.settings.{setting}")]
    command = ["train", str(folder / "run"), *files, "--size", "tiny", "--steps", "2", "--device", "cpu", *settings]
    answer = CliRunner().invoke(app, command, catch_exceptions=False)
    assert answer.exit_code == 0
    return folder / "run"


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_profile_of_a_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    script("profile_step").main([str(run), "--steps", "2", "--warmup", "1", "--json"])
    profile = json.loads(capsys.readouterr().out)
    assert contents(run) == before
    assert profile["tokens_per_second"] > 0
    assert profile["tflops"] > 0
    assert sum(profile["phases"].values()) == pytest.approx(1)
    assert set(profile["phases"]) == {"waiting for data", "forward", "optimizer", "backward and everything else"}
    assert sum(profile["operation_kinds"].values()) == pytest.approx(1)
    assert profile["operation_kinds"]["matrix products"] > 0
    assert profile["peak_memory"] > 2**20


def test_profile_refuses_another_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        script("profile_step").main([str(tmp_path)])


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "matrix products"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopB_TNT", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::_log_softmax_backward_data", "softmax and loss"),
        ("aten::_fused_adamw_", "optimizer"),
        ("Memcpy DtoD (Device -> Device)", "copies and memory"),
        ("triton_poi_fused_add_mul_3", "elementwise"),
        ("something unknown", "other"),
    ],
)
def test_kinds_of_operations(operation: str, kind: str) -> None:
    assert script("profile_step").operation_kind(operation) == kind


def test_translation_speed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure = script("translation_speed").main
    measure([str(run), "--batches", "1,2", "--beams", "1,2", "--device", "cpu", "--seconds", "0", "--json"])
    speeds = json.loads(capsys.readouterr().out)["speeds"]
    assert [(speed["beam_size"], speed["batch_size"]) for speed in speeds] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for speed in speeds:
        assert speed["tokens_per_second"] >= speed["sentences_per_second"] > 0
        assert speed["first_token_seconds"] > 0
        assert sum(speed["time_shares"].values()) == pytest.approx(1)
        assert all(0 < share < 1 for share in speed["time_shares"].values())
    (tmp_path / "file").write_text("The dog sleeps.\n", encoding="utf-8")
    measure([str(run), str(tmp_path / "file"), "--batches", "4", "--device", "cpu", "--seconds", "0"])
    assert "tokens/s" in capsys.readouterr().out


def test_a_cell_is_too_slow_only_beyond_the_noise(capsys: pytest.CaptureFixture[str]) -> None:
    check_speed = script("check_speed")
    assert check_speed.cell([20.0, 22.0, 30.0], [10.0, 10.0, 10.0]) == {"ratio": 2.2, "noise": 0.2}
    recorded = {name: {"ratio": 2.0, "noise": 0.1} for name in ("equal", "noisy", "slow")}
    now = {"equal": {"ratio": 2.0, "noise": 0.0}, "noisy": {"ratio": 1.6, "noise": 0.1}}
    now |= {"slow": {"ratio": 1.6, "noise": 0.0}, "new": {"ratio": 0.5, "noise": 0.0}}
    assert check_speed.report(now, recorded) == ["slow"]
    assert capsys.readouterr().out.count("too slow") == 1
