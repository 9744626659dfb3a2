"""`dragoman compare`: tables, files, resuming, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from calling import Dragoman

from dragoman.data import phrasebook
from dragoman.systems import SYSTEMS
from dragoman.systems.published_results import PUBLISHED_RESULTS

SMALL = ("system.settings.model_dim=16", "search.beam_size=1", "training.batch_tokens=300", "text.vocab_size=400")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=300, valid=6, test=6)
    return folder


def files(corpus: Path) -> list[str]:
    parts = {"": "train", "valid-": "valid", "test-": "test"}
    sides = {"source": "en", "target": "de"}
    named = [(f"--{a}{side}", f"{corpus / part}.{end}") for a, part in parts.items() for side, end in sides.items()]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    return [*(word for pair in named for word in pair), *settings, "--device", "cpu"]


def test_compare_writes_all_tables_and_reuses_finished_runs(
    dragoman: Dragoman, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "comparison"
    asked = ["compare", folder, "--systems", "cho,bahdanau", "--seeds", "1,2", "--steps", 2, *files(corpus)]
    outputs = ["--csv", tmp_path / "table.csv", "--latex", tmp_path / "table.tex"]
    code, out, err = dragoman(*asked, *outputs)
    assert code == 0, err
    assert "mean ± standard deviation of 2 seeds" in out
    assert "have not learned to translate" in out
    assert "better than" not in out
    assert err.count("2 steps,") == 4
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["system"] for row in rows] == ["cho", "bahdanau"]
    assert rows[0]["target tokens"] == rows[1]["target tokens"]
    assert {"BLEU, std", "training FLOPs", "device FLOPs", "tokens/s", "parameters"} <= set(rows[0])
    assert (tmp_path / "table.tex").read_text().startswith(r"\begin{tabular}")
    assert "<table>" in (folder / "comparison.html").read_text()
    assert "| bahdanau" in (folder / "comparison.md").read_text()

    def refuse(*arguments: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("dragoman.training.comparison_training.Trainer", refuse)
    code, out, err = dragoman(*asked, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert [one["system"] for one in document["systems"]] == ["cho", "bahdanau"]
    assert document["seeds"] == [1, 2]
    assert not document["machine_dependent"]
    assert err.count("already finished") == 4


@pytest.mark.exhaustive
def test_systems_with_settings_of_their_own_other_metrics_and_ensembles(
    dragoman: Dragoman, tmp_path: Path, corpus: Path
) -> None:
    systems = "cho,cho@model_dim=24@training.label_smoothing=0.2"
    options = ["--systems", systems, "--seeds", "1,2", "--steps", 1, "--metrics", "chrf,rouge-l", "--ensembles"]
    code, out, err = dragoman("compare", tmp_path / "comparison", *options, *files(corpus), "--json")
    assert code == 0, err
    plain, wide, ensemble, _ = json.loads(out)["systems"]
    assert (plain["system"], wide["system"]) == tuple(systems.split(","))
    assert wide["parameters"] > plain["parameters"]
    config = (tmp_path / "comparison" / f"{wide['system']}-seed1" / "config.yaml").read_text()
    assert "label_smoothing: 0.2" in config
    assert {"chrF", "ROUGE-L"} <= set(plain)
    assert "BLEU" not in plain
    assert ensemble["system"] == "cho, ensemble of 2"
    assert ensemble["parameters"] == 2 * plain["parameters"]
    assert ensemble["training FLOPs"] == pytest.approx(2 * plain["training FLOPs"])
    assert ensemble["perplexity"] is None
    assert plain["device FLOPs"] > plain["training FLOPs"]  # no training is as fast as a large matrix product
    told = dragoman("compare", tmp_path / "comparison", *options, *files(corpus)).out
    assert "chrF signature: nrefs:1" in told
    assert "device FLOPs: seconds" in told


def test_a_system_is_trained_further_with_another_objective(dragoman: Dragoman, tmp_path: Path, corpus: Path) -> None:
    further = "cho+reward@objective.settings.num_candidates=2"
    options = ["--systems", f"cho,{further}", "--steps", 10, *files(corpus), "--set", "search.max_target_length=5"]
    code, out, err = dragoman("compare", tmp_path / "comparison", *options, "--json")
    assert code == 0, err
    first, second = json.loads(out)["systems"]
    assert second["system"] == further
    assert (first["steps"], second["steps"]) == (10, 11)  # a tenth more
    added = second["training FLOPs"] / first["training FLOPs"] - 1
    assert 0.1 < added < 1.0  # one step instead of ten, but each with two candidates
    config = (tmp_path / "comparison" / f"{further}-seed1" / "config.yaml").read_text()
    assert "name: reward" in config


def test_published_costs_are_time_times_speed() -> None:
    by_model = {(result.model, result.task): result for result in PUBLISHED_RESULTS}
    p100, hour = 9.5e12, 3600
    base, big = (by_model[f"Transformer ({size})", "WMT14 en-de"].device_flops for size in ("base", "big"))
    assert base == pytest.approx(12 * hour * 8 * p100, rel=0.02)
    assert big == pytest.approx(3.5 * 24 * hour * 8 * p100, rel=0.02)
    assert {result.system for result in PUBLISHED_RESULTS} <= set(SYSTEMS)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--systems", "cho+rewards"], "unknown objective 'rewards'"),
        (["--systems", "cho@heads=3"], "unknown setting of cho 'heads'"),
        (["--ensembles"], "name at least two, such as --seeds 1,2,3"),
        (["--metrics", "comet"], "does not support comet, which also reads the sources"),
        (["--target-tokens", "1k", "--steps", "5"], "set by one option, but --target-tokens and --steps are given"),
        (["--target-tokens", "many"], "--target-tokens must be a number such as 500000, 500k or 1e13, got 'many'"),
        (["--seeds", "1,x"], "--seeds must be integers"),
        (["--seeds", "1,1"], "contains a seed twice"),
        (["--systems", "cho,cho"], "--systems names a system twice"),
        (["--systems", "bert"], "bert does not translate text"),
        (["--target", "x"], "files are given, but not the source side"),
    ],
)
def test_compare_rejects_invalid_options(dragoman: Dragoman, tmp_path: Path, options: list[str], told: str) -> None:
    code, _, err = dragoman("compare", tmp_path / "comparison", *options)
    assert code == 2
    assert told in err
    assert not (tmp_path / "comparison").exists()
