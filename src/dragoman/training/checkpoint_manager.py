"""Progress: everything that training must know to go on exactly where it was, beside weights and optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.data import DataPosition
from dragoman.errors import UserError
from dragoman.run import CHECKPOINT_DIR
from dragoman.storage import os_errors_as_user_errors, remove_folder, remove_partial_files, replace_symlink
from dragoman.training.divergence import LossHistory
from dragoman.training.ema import WeightAverage
from dragoman.training.optimizer import load_state_tensors, state_tensors
from dragoman.training.parallel import ParallelStrategy, shard_like, weights_for_inference
from dragoman.training.process_group import ProcessGroup

FORMER = ("rewinds", "usual")  # fields of older checkpoints that are no longer used


@dataclass
class TrainState:
    """Random numbers need no place here: those of a step follow from the seed and the step's number alone."""

    step: int = 0
    data_position: DataPosition = field(default_factory=DataPosition)
    best_metric: float | None = None  # the metric of the best validation, higher is better
    best_loss: float | None = None  # and its loss, which decides between equals
    best_step: int = 0
    validations_since_best: int = 0  # validations since then
    lowest_loss: float | None = None  # of all validations
    reductions: int = 0  # validations whose loss was not the lowest so far: the schedule `plateau` counts them
    target_tokens: int = 0  # target tokens trained on
    seconds: float = 0.0
    unlogged: dict[str, float] = field(default_factory=dict)  # what was measured since the last line of the log
    loss_history: LossHistory = field(default_factory=LossHistory)
    rollbacks: int = 0  # since the training last recovered from divergence
    diverged_at: int = 0  # the step at which the last rollback began
    extended_at: int = 0  # the step at which the run was extended, as far as this state knows
    # for a budget of time only:
    minutes: float | None = None  # the budget that what follows belongs to
    start_seconds: float = 0.0  # at which its schedule starts
    time_used: float = 0.0  # the share of it that is used
    validation_time_used: float = 0.0  # the share of it at which the last validation ended
    validation_seconds: float = 0.0  # how long that took

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> TrainState:
        values = {name: value for name, value in values.items() if name not in FORMER}
        try:
            values |= {
                "data_position": DataPosition(**values["data_position"]),
                "loss_history": LossHistory(**values.get("loss_history", {})),
            }
            return TrainState(**values)
        except (KeyError, TypeError):
            raise UserError("the checkpoint says nothing of the progress of a training: use another one") from None


class CheckpointManager:
    """Writes checkpoints, keeps the last few validated ones and the best, and finds the last one again.

    On many processes all call `save` and `resume`, and the first one does what is done on the disk, but for the parts
    of a sharded state, which each writes itself. Any number of processes can go on from what any number has written.
    """

    def __init__(self, run: Path, keep: int, spread: ParallelStrategy | None = None) -> None:
        self.folder, self.keep = run / CHECKPOINT_DIR, keep
        self.strategy = spread or ParallelStrategy(ProcessGroup(), torch.device("cpu"))
        with os_errors_as_user_errors(self.folder):
            self.folder.mkdir(exist_ok=True)

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage | None,
        progress: TrainState,
        validated: bool,
        best: bool,
    ) -> None:
        """One checkpoint, named by its step; `last` and, if it is the best, `best` point to it.

        Its model is the one to be used: where there is a running mean of the weights, that mean. The weights that are
        trained stand with the optimiser's state then.
        """
        name, first = f"{progress.step:06d}", self.strategy.processes.on_first_rank
        values = {"validated": validated, "progress": progress.to_dict()}
        if first(lambda: self.last_step() == progress.step):  # saved before it was validated: the weights are the same
            write = partial(checkpoint.update_values, self.folder / name, values)
        else:
            state = _state(model, optimizer, average)
            files = {"model": self.strategy.gather(weights_for_inference(model, average))}
            shards = self.strategy.write_shards(state, self.folder)
            files |= {"trainer": state} if shards is None else {}
            folders = None if shards is None else {"trainer": shards}
            write = partial(self._write, self.folder / name, files, values, folders)
        first(lambda: self._publish(write, name, progress, best))

    def _write(self, folder: Path, *content: Any) -> None:
        remove_folder(folder)  # a process that was killed may have got so far before
        checkpoint.save(folder, *content)

    def _publish(self, write: Callable[[], None], name: str, progress: TrainState, best: bool) -> None:
        write()
        if best or not (self.folder / "best").exists():  # before the first validation, better than nothing
            replace_symlink(self.folder / "best", name)
        replace_symlink(self.folder / "last", name)  # last of all: from here training goes on
        self._prune(progress)

    def update_state(self, progress: TrainState) -> None:
        """The last checkpoint with another progress."""
        last = self.folder / f"{progress.step:06d}"
        checkpoint.update_values(last, checkpoint.read_values(last) | {"progress": progress.to_dict()})

    def resume(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None = None
    ) -> TrainState | None:
        """Take up the last checkpoint, if there is one; the newest whole one if `last` has been lost."""
        progress = self.strategy.processes.on_first_rank(self._find)
        if progress is None:
            return None
        last = self.folder / f"{progress.step:06d}"
        checkpoint.load_weights(model, last, shard_like)
        if average is not None:
            average.load_state_tensors(checkpoint.named_weights(model))
        state = _state(model, optimizer, average)
        if (last / "trainer").is_dir():
            from dragoman.training.sharded import read_shards  # which takes seconds to import

            read_shards(last / "trainer", state)
        else:
            found = checkpoint.read_tensors(last, "trainer")
            found = {name: shard_like(value, state.get(name, value)) for name, value in found.items()}
            for name in (name for name in state if name.startswith("weight/")):
                state[name].copy_(found.pop(name))
            load_state_tensors(model, optimizer, found)
        self.strategy.processes.on_first_rank(lambda: self._point_again(progress))
        return progress

    def _find(self) -> TrainState | None:
        remove_partial_files(self.folder)
        steps = [path for path in self.saved_checkpoints() if checkpoint.is_complete(path)]
        step = self.last_step()
        if step is None and steps:
            step = int(steps[-1].name)
        if step is None:
            return None
        last = self.folder / f"{step:06d}"
        checkpoint.verify_subfolder(last, "trainer")
        return self._progress(last)

    def _point_again(self, progress: TrainState) -> None:
        best = f"{progress.best_step:06d}"
        if progress.best_metric is not None and (self.folder / best).exists():  # an average is made anew at the end
            replace_symlink(self.folder / "best", best)
        elif not (self.folder / "best").exists():  # it was written after the checkpoint that training rolled back to
            replace_symlink(self.folder / "best", f"{progress.step:06d}")
        replace_symlink(self.folder / "last", f"{progress.step:06d}")
        self._prune(progress)  # a process that was killed may not have got so far

    def last_step(self) -> int | None:
        """The step that `last` points to."""
        last = self.folder / "last"
        if not checkpoint.is_complete(last):
            return None
        step = int(checkpoint.read_values(last)["progress"]["step"])
        return step if checkpoint.is_complete(self.folder / f"{step:06d}") else None

    def roll_back(self) -> int | None:
        """Make the last good checkpoint the last of all; its step.

        It is a validated one: others were written when the clock or an interruption said so, and a training must roll
        back to the same step whether it was interrupted or not. The loss had not begun to rise there.
        """
        validated = self.validated()
        if not validated:
            return self.last_step()
        calm = [path for path in validated if not self._progress(path).loss_history.high_losses]
        good = (calm or validated)[-1]
        replace_symlink(self.folder / "last", good.name)
        for path in self.saved_checkpoints():
            if int(path.name) > int(good.name):
                remove_folder(path)
        return int(good.name)

    def _progress(self, path: Path) -> TrainState:
        return TrainState.from_dict(checkpoint.read_values(path)["progress"])

    def saved_checkpoints(self) -> list[Path]:
        """The checkpoints that are named by a step, oldest first; none where the folder has gone."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((p for p in found if p.name.isdecimal()), key=lambda path: int(path.name))

    def has_best(self, progress: TrainState) -> bool:
        return (self.folder / f"{progress.best_step:06d}").is_dir()

    def is_validated(self, step: int) -> bool:
        return self.last_step() == step and checkpoint.read_values(self.folder / "last")["validated"]

    def validated(self) -> list[Path]:
        """The kept checkpoints that were validated, oldest first."""
        return [path for path in self.saved_checkpoints() if checkpoint.read_values(path)["validated"]]

    def average(self, model: nn.Module) -> int:
        """Set the model to the mean of the kept checkpoints (Vaswani et al. 2017, §6.1); how many there were."""
        kept = self.validated()[-self.keep :]
        if len(kept) > 1:
            mean = _mean(checkpoint.read_tensors(path, "model") for path in kept)
            for name, weight in checkpoint.named_weights(model).items():
                weight.copy_(mean[name])
        return len(kept)

    def save_average(self, model: nn.Module, values: dict[str, Any]) -> None:
        """Keep the averaged weights as the best."""
        replace_symlink(self.folder / "best", "last")  # never dangling, whatever happens in between
        remove_folder(self.folder / "averaged")
        checkpoint.save(self.folder / "averaged", {"model": checkpoint.named_weights(model)}, values)
        replace_symlink(self.folder / "best", "averaged")

    def _prune(self, progress: TrainState) -> None:
        stay = {path.name for path in self.validated()[-self.keep :]}
        stay |= {f"{progress.step:06d}", f"{progress.best_step:06d}", (self.folder / "best").resolve().name}
        for path in self.saved_checkpoints():
            if path.name not in stay:
                remove_folder(path)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage | None) -> dict[str, Tensor]:
    """What a training needs beside the weights that are to be used: those that it trains, where they are others."""
    weights = checkpoint.named_weights(model)
    own = {} if average is None else {f"weight/{name}": weights[name] for name in average.averages}
    return state_tensors(model, optimizer) | own


def _mean(many: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    count = 0
    for weights in many:
        count += 1
        for name, weight in weights.items():
            total[name] = total[name] + weight.double() if name in total else weight.double()
    return {name: (weight / count).float() for name, weight in total.items()}
