"""Misspelt names are reported before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.builtin_names import system_names, system_setting_names

CODE = """
import contextlib, io, json, sys
import dragoman.cli
answers = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["dragoman", *command.split()]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            dragoman.cli.main()
        except SystemExit as end:
            answers.append((end.code, said.getvalue(), "torch" in sys.modules))
print(json.dumps(answers))
"""

MISTAKES = {
    "translate nosuchrun": "nosuchrun does not exist",
    "translate runn text": "did you mean run?",
    "translate . text": "is not a run folder, because it has no model.json",
    "translate run text": "run has no checkpoint 'best': choose one of its checkpoints, 000500",
    "translate run text --checkpoint 000500 --device abacus": "unknown device 'abacus'",
    "translate run missing": "missing does not exist",
    "translate run text.xml": "text.xml has the suffix .xml",
    "translate run text --temperature 2": "--temperature needs --sample",
    "translate run --input text --output out --features-column 2": "--features-column cannot be used with --input",
    "translate run --input text --output out --source-features text": "--source-features cannot be used with --input",
    "score run --checkpoint 000500 --input text --output out --features-column 2": "--features-column cannot be used",
    "evaluate run --source missing": "run has no checkpoint",
    "evaluate run --checkpoint 000500 --source missing": "missing does not exist",
    "evaluate run --source text --metrics blue": "did you mean 'bleu'",
    "train new --source text --target text --system transfomer": "did you mean 'transformer'",
    "train new --source text --target text --set system.settings.layer=2": "did you mean 'layers'",
    "train new --source text --target missing": "missing does not exist",
    "train new --source text --set training.step=5": "did you mean 'training.steps'",
    "train new --source text --start-from nowhere": "nowhere does not exist",
    "train run --source text": "run already contains a run",
    "train new --resume": "new does not exist",
    "systems transfomer": "did you mean 'transformer'",
    "serve nosuchrun=en-de": "nosuchrun does not exist",
    "show nosuchrun Hello": "nosuchrun does not exist",
    "tag nosuchrun text": "nosuchrun does not exist",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, and a folder that looks like a run whose best checkpoint is missing."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "text").write_text("Anna reads.\n")
    (folder / "text.xml").write_text("Anna,reads\n")
    (folder / "run" / "checkpoints" / "000500").mkdir(parents=True)
    (folder / "run" / "model.json").write_text("{}")
    return folder


def test_mistakes_are_reported_without_importing_torch(folder: Path) -> None:
    arguments = [sys.executable, "-c", CODE, json.dumps(list(MISTAKES))]
    answered = subprocess.run(arguments, capture_output=True, text=True, cwd=folder, check=True)
    for (command, message), (code, said, imported) in zip(MISTAKES.items(), json.loads(answered.stdout), strict=True):
        assert not imported, command
        assert (code, len(said.strip().splitlines())) == (2, 1), said
        assert message in said, command


def test_names_checked_without_torch_equal_those_of_the_package() -> None:
    from dragoman.systems import SYSTEMS
    from dragoman.systems.setting_help import SETTING_HELP

    assert sorted(system_names()) == sorted(SYSTEMS)
    assert system_setting_names() == [*SETTING_HELP]
