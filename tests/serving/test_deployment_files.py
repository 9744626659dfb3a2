"""The files in deploy/: they name options, variables and files that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from dragoman.cli import main
from dragoman.serving import ApiKeys

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "dragoman.service").read_text(encoding="utf-8")
SERVICE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["dragoman"]


def printed_config(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The configuration that `dragoman serve` prints; the runs do not exist, which is an error after that."""
    monkeypatch.setattr("sys.argv", ["dragoman", *arguments, "--print-config"])
    with pytest.raises(SystemExit):
        main()
    captured = capsys.readouterr()
    assert "does not exist" in captured.err
    return captured.out


@pytest.mark.parametrize("uncommented", [False, True])
def test_example_of_a_configuration(
    uncommented: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DEPLOY / "service.yaml").read_text(encoding="utf-8")
    if uncommented:  # all lines that are examples; of two lines with the same option, the last one counts
        text = re.sub(r"^# ?( *(?:- |[a-z-]+: \S|[a-z-]+:$))", r"\1", text, flags=re.M)
    (tmp_path / "service.yaml").write_text(text)
    found = yaml.safe_load(printed_config(["serve", "--config", str(tmp_path / "service.yaml")], monkeypatch, capsys))
    assert found["allowed-host"] == ["translate.example.org"]
    assert found["port"] == (443 if uncommented else 5000)
    assert found["route"] == (["test=en-de:0.9,experiment:0.1"] if uncommented else None)


def test_example_of_keys() -> None:
    keys = ApiKeys.read(DEPLOY / "keys.yaml")
    newsroom, operator = keys.find("replace-me"), keys.find("replace-me-too")
    assert newsroom is not None
    assert operator is not None
    assert (newsroom.priority, operator.admin, keys.required) == (1, True, True)


def test_compose_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in SERVICE["environment"].items():
        monkeypatch.setenv(name, value)
    found = yaml.safe_load(printed_config(SERVICE["command"], monkeypatch, capsys))
    assert (found["host"], found["runs"], found["log-format"]) == ("0.0.0.0", ["runs/en-de=en-de"], "json")
    assert (SERVICE["read_only"], SERVICE["cap_drop"]) == (True, ["ALL"])
    kind, program, option, code = SERVICE["healthcheck"]["test"]
    assert (kind, program, option, "/readyz" in code) == ("CMD", "python", "-c", True)
    compile(code, "health", "exec")
    folders = re.findall(r"--owner dragoman (.+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))[0].split()
    assert {volume.split(":")[1] for volume in SERVICE["volumes"]} <= {*folders, "/data/runs"}


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_accepts_the_file() -> None:
    command = ["docker-compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_systemd_unit() -> None:
    (command,) = re.findall("^ExecStart=(.+)$", UNIT, re.M)
    assert shlex.split(command)[1:] == ["serve", "--config", "/etc/dragoman/service.yaml"]
    assert "Type=notify" in UNIT
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "dragoman.service"
    unit.write_text(UNIT.replace("/opt/dragoman/bin/dragoman", sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_documented_metrics_exist(client: TestClient) -> None:
    documented = set(re.findall(r"`(dragoman_\w+)`", (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")))
    text = client.get("/metrics").text
    existing = set(re.findall(r"^# TYPE (dragoman_\w+)", text, re.M))
    assert documented == existing
