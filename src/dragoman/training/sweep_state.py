"""State and result of a sweep: its runs with their scores, saved after every event, and the ranking."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from dragoman.errors import UserError
from dragoman.evaluation.table import MeanStd, format_csv, format_latex, format_table
from dragoman.storage import write_file
from dragoman.training.successive_halving import rung_fractions, survivors
from dragoman.training.sweep_space import short_names

STATE_FILE = "results.json"
STATE_VERSION = 1
DEFAULT_NAME = "default"  # of the configuration in which no setting is changed

Score = tuple[float, ...]  # selection metric, then what decides between equal ones; higher is better
RunStatus = Literal["unprepared", "prepared", "paused", "finished", "failed", "duplicate"]


@dataclass(frozen=True)
class RungResult:
    """A run after part of its training, scored on the validation set.

    Attributes:
        fraction: of the training budget, 1 at its end.
        score: by the selection metric, as checkpoints are compared (`Validator.score`): higher is better.
        metrics: of the validation, as in metrics.jsonl, and `target_loss`, the mean of −log p(y|x) over whole targets.
    """

    fraction: float
    step: int
    seconds: float
    target_tokens: int
    score: Score
    metrics: dict[str, Any]


@dataclass
class SweepRun:
    """One configuration with one seed.

    Attributes:
        results: one for each rung that was reached.
        settings: resolved values of the settings that the sweep varies.
        memory: estimated bytes of its training.
        digest: of its resolved settings; runs with equal ones are trained once.
        same_as: configuration whose run has the same resolved settings.
    """

    configuration: str
    seed: int
    status: RunStatus = "unprepared"
    results: list[RungResult] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    memory: int = 0
    digest: str = ""
    same_as: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """Name of its run folder within the folder of the sweep, such as 007-seed1."""
        return f"{self.configuration}-seed{self.seed}"

    def result_at(self, fraction: float) -> RungResult | None:
        """Return the result of the run after this fraction of the training budget; None if it is not there yet.

        A run that has finished earlier, because validation no longer improved, keeps its last result.
        """
        reached = [result for result in self.results if result.fraction <= fraction]  # in the order of fractions
        if not reached or (reached[-1].fraction < fraction and self.status != "finished"):
            return None
        return reached[-1]

    def has_reached(self, fraction: float) -> bool:
        """Whether the run need not be trained for the comparison at this fraction of the training budget.

        It has a result there, has failed, or repeats another run.
        """
        return self.status in ("failed", "duplicate") or self.result_at(fraction) is not None


@dataclass
class SweepState:
    """All runs of a sweep, and what their comparison depends on.

    Attributes:
        configurations: changed settings of each configuration, by its name; the default one has none.
        factor: of successive halving; None trains every configuration completely.
        metric: selection metric of the default configuration, by which all are compared.
        metric_title: its name in tables.
    """

    configurations: dict[str, dict[str, Any]]
    runs: list[SweepRun]
    factor: int | None
    metric: str = ""
    metric_title: str = ""

    @staticmethod
    def create(configurations: Iterable[dict[str, Any]], seeds: Sequence[int], factor: int | None) -> SweepState:
        """Return the state of a sweep that has not started.

        Args:
            configurations: changed settings of each configuration, by dotted name; empty for the default one.
            seeds: each configuration is trained with all of them.
            factor: η of successive halving; None trains every configuration completely.
        """
        state = SweepState(configurations={}, runs=[], factor=factor)
        state.extend(configurations, seeds)
        return state

    def extend(self, configurations: Iterable[dict[str, Any]], seeds: Sequence[int]) -> None:
        """Add configurations, given by their changed settings, and seeds that the sweep does not have yet.

        There is then a run for each configuration and seed. Configurations are named by number, such as "007"; the
        one without changed settings is "default".
        """
        for settings in configurations:
            if settings not in self.configurations.values():
                name = f"{len(self.configurations):03d}" if settings else DEFAULT_NAME
                self.configurations[name] = settings
        existing_runs = {(run.configuration, run.seed) for run in self.runs}
        all_seeds = dict.fromkeys([*(run.seed for run in self.runs), *seeds])  # without repetitions, in order
        for name, seed in product(self.configurations, all_seeds):
            if (name, seed) not in existing_runs:
                self.runs.append(SweepRun(name, seed))

    @staticmethod
    def load(folder: Path) -> SweepState:
        """Read the state of a sweep from results.json in its folder.

        A file that is missing, damaged, or from a later version of the package is a UserError.
        """
        path = folder / STATE_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(
                f"{folder} has no sweep: start one with 'dragoman sweep FOLDER --source … --set …'"
            ) from None
        except ValueError:
            raise UserError(
                f"the state of the sweep, {path}, is damaged: remove {folder}, and start the sweep again"
            ) from None
        if values.pop("version") > STATE_VERSION:
            raise UserError(
                f"the state of the sweep, {path}, was written by a later version of dragoman: update dragoman"
            )
        runs = values.pop("runs")
        for run in runs:
            run["results"] = [RungResult(**result | {"score": tuple(result["score"])}) for result in run["results"]]
        return SweepState(runs=[SweepRun(**run) for run in runs], **values)

    def save(self, folder: Path) -> None:
        """Write the state to results.json in the folder of the sweep, atomically."""
        values = {"version": STATE_VERSION, **asdict(self)}
        write_file(folder / STATE_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")

    @property
    def rungs(self) -> list[float]:
        """Fractions of the training budget at which configurations are compared; [1] without successive halving."""
        count = len(self.configurations) - 1  # without the default one, which never drops out
        return [1.0] if self.factor is None else rung_fractions(count, self.factor)

    def runs_of(self, configuration: str) -> list[SweepRun]:
        """Return the runs of a configuration, one for each seed.

        If all its settings turned out to equal those of another configuration (`same_as`), only that one is trained,
        and its runs are returned.
        """
        runs = [run for run in self.runs if run.configuration == configuration]
        return self.runs_of(runs[0].same_as) if runs and runs[0].same_as else runs

    def score_at(self, configuration: str, fraction: float) -> Score | None:
        """Return the mean score of a configuration over its seeds at a `fraction` of the training budget.

        A score is the selection metric and what decides between equal ones; higher is better. None if a run has failed
        or is not trained so far.
        """
        runs = self.runs_of(configuration)
        results = [None if run.status == "failed" else run.result_at(fraction) for run in runs]
        scores = [result.score for result in results if result is not None]
        if not scores or len(scores) < len(results):
            return None
        return tuple(map(fmean, zip(*scores)))

    def competitors(self, rung: int) -> list[str]:
        """Return the names of the configurations that are trained up to the comparison number `rung`, counted from 0.

        These are all for the first one, then the best 1/η at the one before. The default configuration is always
        added, so that it can be compared with the best at the end. Configurations that repeat another are left out.
        """
        names = [name for name in self.configurations if name != DEFAULT_NAME and not self._is_duplicate(name)]
        for fraction in self.rungs[:rung]:
            assert self.factor is not None
            scores = {name: self.score_at(name, fraction) for name in names}
            ranked = sorted((name for name in names if scores[name]), key=lambda name: scores[name] or (), reverse=True)
            names = survivors(ranked, competitors=len(names), factor=self.factor)  # failed ones count, too
        return [DEFAULT_NAME, *names]

    def _is_duplicate(self, configuration: str) -> bool:
        """Whether all settings of a configuration turned out to equal those of an earlier one, so it is not trained."""
        return all(run.status == "duplicate" for run in self.runs if run.configuration == configuration)

    def ranking(self) -> list[ConfigurationResult]:
        """Return the results of all configurations, the best one first, without those that repeat another one.

        They are ranked by the fraction of the training budget up to which they were trained, then by their score there.
        """
        results = []
        for name in self.configurations:
            if self._is_duplicate(name):
                continue
            reached = [fraction for fraction in self.rungs if self.score_at(name, fraction) is not None]
            fraction = reached[-1] if reached else 0.0
            results.append(ConfigurationResult(name, self.runs_of(name), fraction, self.score_at(name, fraction)))
        return sorted(results, key=lambda result: result.sort_key, reverse=True)

    def planned_runs(self) -> list[int]:
        """Return the number of runs that are trained up to each of the `rungs` (fractions of the training budget).

        At a rung, the best 1/η are chosen to be trained further, where η is `self.factor`. As long as the earlier rungs
        are not finished, the number is estimated.
        """
        seeds = len({run.seed for run in self.runs})
        counts = [len(self.competitors(0))]
        for rung in range(1, len(self.rungs)):
            assert self.factor is not None
            expected = 1 + max(1, (counts[-1] - 1) // self.factor)  # the default configuration, and the best others
            counts.append(len(self.competitors(rung)) if self._competitors_are_known(rung) else expected)
        return [seeds * count for count in counts]

    def is_complete(self) -> bool:
        """Whether all runs are trained that take part in the comparisons (`rungs`) known so far."""
        return all(
            run.has_reached(fraction)
            for rung, fraction in enumerate(self.rungs)
            if self._competitors_are_known(rung)
            for name in self.competitors(rung)
            for run in self.runs_of(name)
        )

    def _competitors_are_known(self, rung: int) -> bool:
        """Whether all comparisons before number `rung` are finished: they decide which configurations take part in it.

        Comparisons are counted from 0; each is at a fraction of the training budget (`self.rungs`).
        """
        return all(
            run.has_reached(fraction)
            for earlier, fraction in enumerate(self.rungs[:rung])
            for name in self.competitors(earlier)
            for run in self.runs_of(name)
        )


@dataclass(frozen=True)
class ConfigurationResult:
    """A configuration with its runs, the fraction of the budget up to which it was compared, and its mean score there.

    The score is None if a run has failed.
    """

    name: str
    runs: list[SweepRun]
    fraction: float
    score: Score | None

    @property
    def sort_key(self) -> tuple[float, Score]:
        """Key by which configurations are sorted, larger for a better one: trained fraction, then score.

        Configurations without a score, because a run has failed, come after all others.
        """
        return (self.fraction, self.score) if self.score is not None else (-1.0, ())

    @property
    def results(self) -> list[RungResult]:
        """The results of its runs, one for each seed, at the fraction of the budget up to which it was compared."""
        results = [run.result_at(self.fraction) for run in self.runs]
        return [result for result in results if result is not None]

    @property
    def best_run(self) -> SweepRun:
        """The run (seed) of the configuration with the best score."""
        return max(self.runs, key=lambda run: result.score if (result := run.result_at(self.fraction)) else ())

    @property
    def error(self) -> str:
        """Seed and error message of the first run that failed; empty if none did."""
        return next((f"seed {run.seed}: {run.error}" for run in self.runs if run.status == "failed"), "")


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep: configurations from best to worst, and how far the default one is from the best.

    Attributes:
        folder: of the sweep; `folder / "best"` is the run of the winner.
        metric: validation metric by which configurations are compared.
        metric_title: its name in tables.
    """

    folder: Path
    metric: str
    metric_title: str
    configurations: dict[str, dict[str, Any]]
    ranking: list[ConfigurationResult]

    @staticmethod
    def of(folder: Path, state: SweepState) -> SweepResult:
        """Return the result of the sweep in `folder`, which may be unfinished, from its state."""
        return SweepResult(folder, state.metric, state.metric_title, state.configurations, state.ranking())

    @property
    def best(self) -> ConfigurationResult:
        """The best configuration; a UserError is raised if no run has a result."""
        if not self.ranking or self.ranking[0].score is None:
            errors = [result.error for result in self.ranking if result.error]
            problem = "continue it with the same command"
            if errors:
                problem = f"correct the cause of the first error ({errors[0]})"
            raise UserError(f"no run of the sweep in {self.folder} has a result: {problem}")
        return self.ranking[0]

    @property
    def default_rank(self) -> int:
        """Rank of the default configuration among all; 1 is the best."""
        return 1 + [result.name for result in self.ranking].index(DEFAULT_NAME)

    @property
    def default_gap(self) -> float | None:
        """How much worse than the best the metric of the default configuration is, in percent of the best.

        None if one of them has no result, or if the metric of the best is 0.
        """
        best, default = self.ranking[0].score, self.ranking[self.default_rank - 1].score
        if best is None or default is None or not best[0]:  # the first number of a score is the metric
            return None
        return 100 * (best[0] - default[0]) / abs(best[0])

    def value(self, result: RungResult) -> float:
        """Return the value of the sweep's metric in a result of a run, such as a BLEU of 31.2."""
        return float(result.metrics[self.metric])

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table as dicts by column: one for each configuration, from best to worst.

        Columns are rank, name, the varied settings, metric, loss, training cost and, if a run has failed, its error.
        """
        swept = list(dict.fromkeys(name for settings in self.configurations.values() for name in settings))
        names = short_names(swept)
        rows = []
        for rank, result in enumerate(self.ranking, 1):
            # settings that the configuration changes, and the values of all swept settings, some chosen automatically
            changed, resolved = self.configurations[result.name], result.runs[0].settings
            row: dict[str, Any] = {"rank": rank if result.score else None, "configuration": result.name}
            for name in swept:
                automatic = None if resolved.get(name) is None else f"{resolved[name]} (auto)"
                row[names[name]] = str(changed[name]) if name in changed else automatic
            if run_results := result.results:  # one for each seed
                row[self.metric_title] = MeanStd.of([self.value(run_result) for run_result in run_results])
                losses = [run_result.metrics["loss"] for run_result in run_results]
                row["loss"] = MeanStd.of(losses, decimals=3)  # with three decimals, also if it is the metric
                if any(name.startswith("text.") for name in swept):  # then losses per token cannot be compared
                    target_losses = [run_result.metrics["target_loss"] for run_result in run_results]
                    row["loss per target"] = MeanStd.of(target_losses)
                row["steps"] = round(fmean(run_result.step for run_result in run_results))
                row["seconds"] = round(fmean(run_result.seconds for run_result in run_results))
            row["parameters"] = result.runs[0].parameters
            row["trained"] = f"{100 * result.fraction:.0f} %"
            if any(other.error for other in self.ranking):
                row["error"] = result.error or None
            rows.append(row)
        return rows

    def table(self, format: str = "text") -> str:
        """Return the table of all configurations in a `format`: text, csv, markdown or latex."""
        if format == "csv":
            return format_csv(self.rows())
        if format == "latex":
            return format_latex(self.rows())
        return format_table(self.rows(), markdown=format == "markdown")

    def summary(self) -> list[str]:
        """Return lines of text: the best configuration, its settings that differ from the default, and the gap to that.

        The gap is how much worse the default configuration is, in percent.
        """
        best, metric = self.best, self.metric_title
        value = MeanStd.of([self.value(result) for result in best.results]).formatted
        lines = [f"best: configuration {best.name}, validation {metric} {value}, in {self.folder / 'best'}"]
        default = self.ranking[self.default_rank - 1]
        for name, changed in self.configurations[best.name].items():
            automatic = default.runs[0].settings.get(name)  # the value in the default configuration
            if changed != automatic:
                lines.append(f"  {name}={changed}  (default: {'none' if automatic is None else automatic})")
        if best.name == DEFAULT_NAME:
            lines[0] = f"best: the default configuration, validation {metric} {value}, in {self.folder / 'best'}"
        elif self.default_gap is None:
            lines.append(f"the default configuration has no result{f': {default.error}' if default.error else ''}")
        else:
            default_value = MeanStd.of([self.value(result) for result in default.results]).formatted
            lines.append(
                f"the default configuration is {self.default_rank} of {len(self.ranking)}, with {metric} "
                f"{default_value}: {self.default_gap:.1f} % worse than the best"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values: metric, rank and gap of the default, and all configurations, best first."""
        ranking = [
            {
                "configuration": result.name,
                "settings": self.configurations[result.name],
                "trained": result.fraction,  # of the training budget
                "score": result.score and result.score[0],  # the selection metric; None without a result
                "runs": [asdict(run) for run in result.runs],
                "error": result.error,
            }
            for result in self.ranking
        ]
        return {
            "folder": str(self.folder),
            "metric": self.metric,
            "metric_title": self.metric_title,
            "default_rank": self.default_rank,
            "default_gap_percent": self.default_gap,
            "configurations": ranking,
        }
