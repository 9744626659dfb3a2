"""Run folders and specs written by an earlier version still open, and mean the same.

`folders/` holds four small runs, `specs.json` and `specs_base.json` the specs of all systems in sizes tiny and base,
`expected.json` the scores that the earlier version gave to some translations.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dragoman
from dragoman.config import Config, from_dict, replace_settings
from dragoman.data.preflight import load_preflight
from dragoman.errors import UserError
from dragoman.legacy import SETTINGS
from dragoman.models import model_from_dict, model_to_dict
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.systems.setting_help import SETTING_HELP

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
SPECS = {
    size: json.loads((HERE / file).read_text(encoding="utf-8"))
    for size, file in (("tiny", "specs.json"), ("base", "specs_base.json"))
}


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


def test_an_old_preflight_report_has_present_names() -> None:
    report = load_preflight(HERE / "folders" / "bert")
    assert report["usual_tokens_per_character"] == [None, None]
    assert "fertility" not in report


@pytest.mark.parametrize("size", SPECS)
def test_old_specs_of_all_systems_are_the_present_ones(size: str) -> None:
    settings = {"bytenet": {"unfolding_ratio": 1.0}}  # the earlier version did not extend the source
    for name, old in SPECS[size].items():
        present = SYSTEMS[name].spec(VocabularySizes(100, 100), size, **settings.get(name, {}))
        if name == "tagger":  # its labels are now set by training on tags
            present = present.with_labels(100)
        assert model_to_dict(model_from_dict(old, {})) == model_to_dict(present), name


def test_old_settings_of_systems_have_present_names() -> None:
    assert set(SETTINGS["system.settings"].values()) <= SETTING_HELP.keys()
    values = {"system": {"name": "shaw", "settings": {"width": 32, "clip": 4, "tied": False}}}
    settings = from_dict(values, "config.yaml").system.settings
    assert settings == {"model_dim": 32, "max_distance": 4, "tied_embeddings": False}
    values = {"system": {"name": "luong", "settings": {"tie_output": True, "share_embeddings": False}}}
    settings = from_dict(values, "config.yaml").system.settings
    assert settings == {"tied_embeddings": True, "shared_embeddings": False}


def test_settings_of_a_custom_system_keep_their_names() -> None:
    settings = {"base": 2, "noise": 0.5, "values": 3}
    assert from_dict({"system": {"name": "mine", "settings": settings}}).system.settings == settings
    config = replace_settings(Config(), {"system.name": "mine", "system.settings.base": 2})
    assert config.system.settings == {"base": 2}
    with pytest.raises(UserError, match=r"system.settings.base is now called system.settings.rope_base"):
        replace_settings(Config(), {"system.settings.base": 2})
