"""Run folders and specs written by an earlier version still open, and mean the same.

`folders/` holds four small runs, `specs.json` the specs of all systems in size tiny, `expected.json` the scores that
the earlier version gave to some translations.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dragoman
from dragoman.models import model_from_dict, model_to_dict
from dragoman.systems import SYSTEMS, VocabularySizes

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
SPECS = json.loads((HERE / "specs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXPECTED["scores"])
def test_an_old_run_scores_as_before(name: str) -> None:
    run = dragoman.load(HERE / "folders" / name)
    sources, targets = zip(*EXPECTED["pairs"])
    scores = [one.score for one in run.score(list(sources), list(targets))]
    assert scores == pytest.approx(EXPECTED["scores"][name], rel=1e-4)
    assert run.translate(list(sources))[0].text is not None


def test_an_old_masked_language_model_fills_gaps() -> None:
    run = dragoman.load(HERE / "folders" / "bert")
    assert run.fill(["The <mask> sleeps."])[0].text.endswith("sleeps.")


def test_an_old_run_is_resumed(tmp_path: Path) -> None:
    from dragoman.cli import app

    folder = tmp_path / "run"
    shutil.copytree(HERE / "folders" / "transformer", folder, symlinks=True)
    app(["train", str(folder), "--resume", "--steps", "31", "--quiet"], standalone_mode=False)
    assert (folder / "checkpoints" / "last").resolve().name == "000031"


@pytest.mark.parametrize("name", SPECS)
def test_an_old_spec_is_the_present_one(name: str) -> None:
    spec = model_from_dict(SPECS[name], {})
    assert model_to_dict(spec) == model_to_dict(SYSTEMS[name].spec(VocabularySizes(100, 100), "tiny"))
