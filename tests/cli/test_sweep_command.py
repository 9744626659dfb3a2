"""`dragoman sweep`: options, errors and tables; tests/test_sweep.py tests the sweep itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import Dragoman

import dragoman as library
from dragoman.api.sweep_runs import SWEEP_FILE, SweepRequest
from dragoman.errors import UserError
from dragoman.training.sweep_space import parse_space
from dragoman.training.sweep_state import RungResult, SweepState


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished sweep of two batch sizes and the default."""
    configurations = [{}, {"training.batch_tokens": 512}, {"training.batch_tokens": 2048}]
    state = SweepState.create(configurations, (1,), None)
    state.metric, state.metric_title = "bleu", "BLEU"
    for run, bleu in zip(state.runs, (30.0, 20.0, 40.0)):
        run.results = [RungResult(1.0, 100, 60.0, 9000, (bleu, -2.0), {"bleu": bleu, "loss": 2.0})]
        run.status, run.settings, run.parameters = "finished", {"training.batch_tokens": 1024}, 5000
    state.save(tmp_path)
    return tmp_path


def test_show_prints_the_table_and_the_gap_of_the_default(dragoman: Dragoman, finished: Path) -> None:
    answer = dragoman("sweep", finished, "--show")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0].split()[:5] == ["rank", "configuration", "batch_tokens", "BLEU", "loss"]
    assert [line.split()[1] for line in lines[2:5]] == ["002", "default", "001"]
    assert "training.batch_tokens=2048  (default: 1024)" in answer.out
    assert "the default configuration is 2 of 3, with BLEU 30.00: 25.0 % worse than the best" in answer.out


def test_show_prints_other_formats(dragoman: Dragoman, finished: Path) -> None:
    assert dragoman("sweep", finished, "--show", "--table", "csv").out.startswith("rank,configuration,batch_tokens")
    assert dragoman("sweep", finished, "--show", "--table", "markdown").out.startswith("| rank | configuration")
    document = json.loads(dragoman("sweep", finished, "--show", "--json").out)
    assert (document["default_rank"], document["default_gap_percent"]) == (2, 25.0)
    assert [entry["score"] for entry in document["configurations"]] == [40.0, 30.0, 20.0]


def test_mistakes_are_answered_and_leave_nothing(dragoman: Dragoman, tmp_path: Path) -> None:
    text, folder = tmp_path / "text", tmp_path / "sweep"
    text.write_text("Anna reads.\n", encoding="utf-8")
    files = ("--source", text, "--target", text)
    sizes = ("--set", "system.size=tiny,small")
    space = tmp_path / "space.yaml"
    space.write_text("training.batch_tokens: [1, 2", encoding="utf-8")
    for options, message in (
        (["--show"], "has no sweep"),
        ([], "has no sweep"),
        ([*files], "several values"),
        ([*sizes], "no training text"),
        (["--source", tmp_path / "missing", *sizes], "does not exist"),
        ([*files, "--set", "training.batch_tokenz=1,2"], "did you mean 'training.batch_tokens'"),
        ([*files, "--set", "system.name=transformer,transfomer"], "did you mean 'transformer'"),
        ([*files, *sizes, "--parallel", "many"], "--parallel must be auto or a number"),
        ([*files, *sizes, "--seeds", "1,1"], "twice"),
        ([*files, *sizes, "--factor", "1"], "at least 2"),
        ([*files, *sizes, "--table", "html"], "unknown format"),
        ([*files, *sizes, "--size", "tiny"], "system.size is given twice"),
        ([*files, "--space", space], "not valid YAML"),
        ([*files, "--set", "training.learning_rate=1e-4..1e-2"], "--random N"),
    ):
        answer = dragoman("sweep", folder, *options)
        assert (answer.code, answer.out) == (2, ""), message
        assert message in answer.err
        assert not folder.exists()


def test_a_saved_sweep_is_not_continued_with_other_options(dragoman: Dragoman, finished: Path) -> None:
    request = SweepRequest.create(parse_space(["training.batch_tokens=512,2048"]))
    (finished / SWEEP_FILE).write_text(json.dumps(request.to_dict()), encoding="utf-8")
    for options, message in (
        (["--seeds", "1,2"], "with seeds=[1], but now seeds=[1, 2] is given"),
        (["--factor", "4"], "with factor=3, but now factor=4 is given"),
        (["--no-halving"], "with factor=3, but now factor=None is given"),
        (["--random", "2"], "with samples=None, but now samples=2 is given"),
        (["--sample-seed", "2"], "with sample_seed=1, but now sample_seed=2 is given"),
        (["--validation-sentences", "9"], "but now validation_sentences=9 is given"),
        (["--random", "0"], "at least 1"),
    ):
        answer = dragoman("sweep", finished, *options)
        assert (answer.code, answer.out) == (2, ""), options
        assert message in answer.err
    with pytest.raises(UserError, match="with factor=3, but now factor=4 is given"):
        library.sweep(finished, factor=4)
    with pytest.raises(UserError, match=r"training\.steps is given"):
        library.sweep(finished, settings={"training.steps": 5})
