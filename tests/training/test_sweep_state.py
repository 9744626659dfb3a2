"""Successive halving and the ranking of a sweep, computed by hand."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.training.successive_halving import rung_fractions, survivors
from dragoman.training.sweep_state import RungResult, SweepResult, SweepRun, SweepState


@pytest.mark.parametrize(
    ("configurations", "factor", "fractions"),
    [
        (20, 3, [1 / 9, 1 / 3, 1]),
        (9, 3, [1 / 9, 1 / 3, 1]),
        (8, 3, [1 / 3, 1]),
        (2, 3, [1]),
        (16, 2, [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]),
        (1000, 10, [1 / 10, 1]),  # less than 1/32 of the training says little
    ],
)
def test_rungs(configurations: int, factor: int, fractions: list[float]) -> None:
    assert rung_fractions(configurations, factor) == pytest.approx(fractions)


def test_the_best_third_survives_and_at_least_one() -> None:
    assert survivors(list("abcdefg"), 7, 3) == ["a", "b"]
    assert survivors(list("abcd"), 7, 3) == ["a", "b"]  # three have failed
    assert survivors(["a", "b"], 2, 3) == ["a"]


def make_state(names: list[str], seeds: tuple[int, ...] = (1,), factor: int | None = 2) -> SweepState:
    configurations = [{} if name == "default" else {"training.batch_tokens": int(name)} for name in names]
    state = SweepState.create(configurations, seeds, factor)
    assert list(state.configurations) == names
    state.metric, state.metric_title = "bleu", "BLEU"
    for run in state.runs:
        run.status = "prepared"
    return state


def record(run: SweepRun, fraction: float, metric: float, loss: float = 1.0) -> None:
    values = {"bleu": metric, "loss": loss}
    run.results.append(RungResult(fraction, int(100 * fraction), 60 * fraction, 1000, (metric, -loss), values))
    run.status = "finished" if fraction == 1 else "paused"


def test_the_best_half_and_the_default_continue() -> None:
    state = make_state(["default", "001", "002", "003", "004"])
    assert state.rungs == [1 / 4, 1 / 2, 1]
    for run, metric in zip(state.runs, [0.0, 3.0, 1.0, 4.0, 2.0]):
        record(run, 1 / 4, metric)
    assert state.competitors(1) == ["default", "003", "001"]
    record(state.runs[0], 1 / 2, 1.0)
    record(state.runs[3], 1 / 2, 5.0, loss=2.0)
    record(state.runs[1], 1 / 2, 5.0, loss=1.5)
    assert state.competitors(2) == ["default", "001"]  # equal metrics, lower loss
    assert not state.is_complete()
    record(state.runs[0], 1.0, 9.0)
    record(state.runs[1], 1.0, 10.0)
    assert state.is_complete()
    result = SweepResult.of(Path("sweep"), state)
    assert [entry.name for entry in result.ranking] == ["001", "default", "003", "004", "002"]
    assert result.default_rank == 2
    assert result.default_gap == pytest.approx(10.0)  # 9 is 10 % below 10
    assert "2 of 5, with BLEU 9.00: 10.0 % worse" in result.summary()[-1]


def test_configurations_are_compared_by_the_mean_of_their_seeds() -> None:
    state = make_state(["default", "001", "002"], seeds=(1, 2), factor=None)
    for run, metric in zip(state.runs, [1.0, 1.0, 2.0, 8.0, 6.0, 6.0]):
        record(run, 1.0, metric)
    result = SweepResult.of(Path("sweep"), state)
    assert [entry.name for entry in result.ranking] == ["002", "001", "default"]
    assert result.ranking[1].best_run.seed == 2
    row = result.rows()[1]
    assert (row["BLEU"].mean, row["BLEU"].std) == (5.0, pytest.approx(18**0.5))


def test_lower_error_rates_are_better() -> None:
    state = make_state(["default", "001"], factor=None)
    state.metric = state.metric_title = "wer"
    for run, rate in zip(state.runs, [15.0, 10.0]):
        run.results.append(RungResult(1.0, 1, 1.0, 1, (-rate, -1.0), {"wer": rate, "loss": 1.0}))
        run.status = "finished"
    result = SweepResult.of(Path("sweep"), state)
    assert result.best.name == "001"
    assert result.default_gap == pytest.approx(50.0)


def test_failed_configurations_come_last_and_do_not_continue() -> None:
    state = make_state(["default", "001", "002", "003", "004"])
    for run, metric in zip(state.runs, [1.0, 2.0, 3.0, 4.0]):
        record(run, 1 / 4, metric)
    state.runs[4].status, state.runs[4].error = "failed", "training diverged"
    assert state.competitors(1) == ["default", "003", "002"]
    ranking = SweepResult.of(Path("sweep"), state).ranking
    assert ranking[-1].name == "004"
    assert SweepResult.of(Path("sweep"), state).rows()[-1]["error"] == "seed 1: training diverged"


def test_a_run_that_finished_early_keeps_its_result() -> None:
    state = make_state(["default", "001", "002"], factor=2)
    for run in state.runs:
        record(run, 1 / 2, 3.0)
    state.runs[0].status = "finished"  # patience was exhausted before the rung
    assert state.runs[0].has_reached(1.0)
    assert state.score_at("default", 1.0) == (3.0, -1.0)
    assert state.score_at("001", 1.0) is None


def test_duplicates_share_the_runs_of_the_first() -> None:
    state = make_state(["default", "001", "002"], factor=None)
    state.runs[1].status, state.runs[1].same_as = "duplicate", "default"
    assert state.competitors(0) == ["default", "002"]
    record(state.runs[0], 1.0, 1.0)
    record(state.runs[2], 1.0, 2.0)
    assert state.is_complete()
    assert [entry.name for entry in state.ranking()] == ["002", "default"]


def test_the_state_survives_the_disk(tmp_path: Path) -> None:
    state = make_state(["default", "001"])
    record(state.runs[1], 1.0, 2.0)
    state.save(tmp_path)
    assert SweepState.load(tmp_path) == state
    with pytest.raises(UserError, match="has no sweep"):
        SweepState.load(tmp_path / "other")


def test_tables_in_all_formats() -> None:
    state = make_state(["default", "001"], factor=None)
    for run, metric in zip(state.runs, [1.25, 2.5]):
        record(run, 1.0, metric)
    state.runs[0].settings = {"training.batch_tokens": 1024}
    result = SweepResult.of(Path("sweep"), state)
    rows = list(csv.DictReader(io.StringIO(result.table("csv"))))
    assert [(row["configuration"], row["batch_tokens"], float(row["BLEU"])) for row in rows] == [
        ("001", "1", 2.5),
        ("default", "1024 (auto)", 1.25),
    ]
    assert result.table("markdown").splitlines()[1].startswith("| ---")
    assert "\\toprule" in result.table("latex")
    assert result.to_dict()["default_gap_percent"] == pytest.approx(50.0)
