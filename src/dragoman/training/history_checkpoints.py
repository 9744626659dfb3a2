"""Checkpoints of the history of a training: weights alone, at steps whose logarithms are about equally spaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman import checkpoint
from dragoman.run_files import CHECKPOINT_DIR, HISTORY_DIR, history_steps
from dragoman.storage import os_errors_as_user_errors, remove_folder, remove_partial_files


def is_history_step(step: int) -> bool:
    """Whether a step is one of 0, 1, 2, 3, 4, 6, 8, 11, 16, …: the powers of √2, rounded."""
    return step == 0 or step == round(2 ** (round(2 * math.log2(step)) / 2))


class HistoryCheckpoints:
    """Keeps the weights of a few steps in checkpoints/history, from which training is not resumed.

    A model changes most in its first steps, so that the steps are powers of √2. If there are more than `max_count`, the
    one that is closest to its neighbors on a logarithmic scale is removed.
    """

    def __init__(self, run: Path, max_count: int) -> None:
        """Save checkpoints in checkpoints/history of the run folder `run`: at most `max_count`, none if that is 0."""
        self.run, self.max_count = run, max_count
        self.folder = run / CHECKPOINT_DIR / HISTORY_DIR

    def is_due(self, step: int) -> bool:
        """Whether the weights of `step` are to be saved: it is a power of √2, and history is not disabled."""
        return self.max_count > 0 and is_history_step(step)

    def save(self, step: int, weights: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Save the weights of a step, by name, and remove a checkpoint if there are more than `max_count`.

        `values` are stored in the manifest of the checkpoint.
        """
        with os_errors_as_user_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        remove_partial_files(self.folder)
        remove_folder(self._path(step))  # left by a process that was killed before its first regular checkpoint
        checkpoint.save(self._path(step), {"model": weights}, {"step": step, **values})
        self._thin()

    def truncate_after(self, step: int) -> None:
        """Remove the checkpoints after `step`, from which training is resumed: later steps will be trained again."""
        for saved in history_steps(self.run):
            if saved > step:
                remove_folder(self._path(saved))

    def _thin(self) -> None:
        """Remove checkpoints until there are at most `max_count`, but neither the first nor the last one.

        Each time the one is removed whose neighbors are closest to each other on a logarithmic scale.
        """
        steps = history_steps(self.run)
        while len(steps) > max(2, self.max_count):
            # the gap that removing steps[n] would leave, on a logarithmic scale; + 1 because step 0 has no logarithm
            gaps = {n: math.log((steps[n + 1] + 1) / (steps[n - 1] + 1)) for n in range(1, len(steps) - 1)}
            closest = min(gaps, key=lambda n: gaps[n])
            remove_folder(self._path(steps.pop(closest)))

    def _path(self, step: int) -> Path:
        """Return the folder of a step, such as checkpoints/history/000016."""
        return self.folder / f"{step:06d}"
