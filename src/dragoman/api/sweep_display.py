"""Progress of a sweep on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from itertools import pairwise
from typing import Any, Self

from dragoman.console import LOG_INTERVAL_SECONDS, format_duration, log, progress_bar
from dragoman.training.sweep_state import SweepRun, SweepState


class SweepDisplay:
    """Shows a bar for the whole sweep and one for each active run, with speed and an estimate of the time left.

    A sweep trains all runs to a first fraction of their training budget, then the best of them to the next fraction;
    such a stage is a rung of successive halving. Work is measured in budgets of a run: a run that is trained from a
    third of its budget to the end is two thirds.
    """

    def __init__(self, state: SweepState) -> None:
        """Show the progress of a sweep, which continues from its saved `state`."""
        self.state = state
        self.bar = progress_bar(sys.stderr.isatty())
        self.sweep_task = self.bar.add_task("starting", total=1.0)
        self.tasks: dict[str, Any] = {}  # bars of the active runs
        self.active: dict[str, dict[str, Any]] = {}  # last progress of each active run
        # when the training began, and the work that an earlier, interrupted sweep had done before
        self.started, self.work_at_start = time.monotonic(), self.work_done()
        self.last_line = time.monotonic()  # when a plain line was printed last
        # the present rung: its name (empty before the first), fraction of the training, finished runs and all runs
        self.rung_text, self.rung_fraction, self.done_runs, self.rung_runs = "", 1.0, 0, 0

    def __enter__(self) -> Self:
        """Start to draw the bars."""
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the bars."""
        self.bar.stop()

    def message(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        if self.bar.disable:
            log(text)
        else:
            self.bar.console.print(text, highlight=False, markup=False)

    def show_status(self, text: str) -> None:
        """Show a text beside the bar of the sweep, such as what is being prepared."""
        self.bar.update(self.sweep_task, description=text)

    def start_rung(self, rung: int, fraction: float, runs: int, waiting: int, parallel: int) -> None:
        """Announce the next rung (stage of the sweep, counted from 0).

        In it, `runs` runs compete, which are trained up to a `fraction` of their budgets; `waiting` of them are still
        to be trained, `parallel` at a time.
        """
        rungs = len(self.state.rungs)
        self.rung_text = "training"
        if rungs > 1:
            self.rung_text = f"rung {rung + 1} of {rungs} ({100 * fraction:.0f} % of the training)"
        self.rung_fraction, self.done_runs, self.rung_runs = fraction, runs - waiting, runs
        if self.work_done() <= self.work_at_start:  # nothing has been trained yet: the clock starts now
            self.started = time.monotonic()
        self.message(f"{self.rung_text}: {waiting} of {runs} runs to train, {min(parallel, waiting)} at a time")

    def start_run(self, run: SweepRun, label: str) -> None:
        """Show a bar, with a label, for a run whose training begins; its end is the fraction at which the rung ends."""
        self.active[run.name] = {"label": label, "fraction": 0.0, "tokens_per_second": 0.0}
        self.tasks[run.name] = self.bar.add_task(f"{label}  starting", total=self.rung_fraction)
        self.refresh()

    def show_progress(self, name: str, event: dict[str, Any]) -> None:
        """Show the progress of the active run of this name.

        `event` has its step, loss, tokens_per_second, and the used fraction of its training budget (None if unknown).
        """
        self.active[name] |= {"fraction": event["fraction"] or 0.0, "tokens_per_second": event["tokens_per_second"]}
        text = f"step {event['step']:,}  loss {event['loss']:.3f}  {event['tokens_per_second']:,.0f} tokens/s"
        label = self.active[name]["label"]
        self.bar.update(self.tasks[name], completed=self.active[name]["fraction"], description=f"{label}  {text}")
        self.refresh()

    def finish_run(self, run: SweepRun, label: str, text: str) -> None:
        """Print the result `text` of a run, and remove its bar.

        A summary of the sweep follows, unless runs are still being prepared: then there is no rung (stage) yet.
        """
        self.remove_run(run.name)
        self.done_runs += 1
        self.message(f"{label}: {text}" + (f"  [{self.summary()}]" if self.rung_text else ""))
        self.refresh()

    def remove_run(self, name: str) -> None:
        """Remove the bar of a run that is no longer active."""
        self.active.pop(name, None)
        if name in self.tasks:
            self.bar.remove_task(self.tasks.pop(name))

    def refresh(self) -> None:
        """Redraw the bar of the sweep; without a terminal, print a line if the last one is old enough."""
        if not self.rung_text:  # no run is being trained yet
            return
        text = self.summary()
        self.bar.update(self.sweep_task, completed=self.work_done(), total=self.work_total(), description=text)
        if self.bar.disable and time.monotonic() - self.last_line >= LOG_INTERVAL_SECONDS:
            self.last_line = time.monotonic()
            self.message(text)

    def summary(self) -> str:
        """Return a line with the runs that are done in the present rung, the speed of all, and the time left."""
        parts = [f"{self.rung_text}: {self.done_runs} of {self.rung_runs} runs"]
        if speed := sum(active["tokens_per_second"] for active in self.active.values()):
            parts.append(f"{speed:,.0f} tokens/s")
        if (seconds := self.seconds_left()) is not None:
            parts.append(f"{format_duration(seconds)} left")
        return ", ".join(parts)

    def work_done(self) -> float:
        """Return the work of all runs so far: the sum of the fractions of their training budgets that are used."""
        work = 0.0
        for run in self.state.runs:
            reached = run.results[-1].fraction if run.results else 0.0
            work += max(reached, self.active.get(run.name, {}).get("fraction", 0.0))
        return work

    def work_total(self) -> float:
        """Return the work of the whole sweep, in training budgets of a run, as far as it can be foreseen.

        The number of runs in each rung is known, but not which of them will fail.
        """
        fractions = [0.0, *self.state.rungs]  # of the training budget, at which runs are compared
        work_by_rung = [end - start for start, end in pairwise(fractions)]  # of one run
        total = sum(runs * work for runs, work in zip(self.state.planned_runs(), work_by_rung))
        for run in self.state.runs:
            if run.status == "failed":  # the work up to the rung after its last result is not done
                total -= work_by_rung[min(len(run.results), len(work_by_rung) - 1)]
        return total

    def seconds_left(self) -> float | None:
        """Estimate the seconds that are left from the speed since the start; None before anything is done."""
        done = self.work_done()
        if done <= self.work_at_start:
            return None
        work_per_second = (done - self.work_at_start) / max(1e-9, time.monotonic() - self.started)
        return max(0.0, self.work_total() - done) / work_per_second if work_per_second > 0 else math.inf
