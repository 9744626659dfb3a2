"""Training state and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.data import DataPosition
from dragoman.errors import UserError
from dragoman.run.run_weights import BASE_WEIGHTS
from dragoman.run_files import CHECKPOINT_DIR
from dragoman.storage import (
    os_errors_as_user_errors,
    remove_folder,
    remove_partial_files,
    replace_symlink,
    resolve_link,
)
from dragoman.training.ema import WeightAverage
from dragoman.training.history_checkpoints import HistoryCheckpoints
from dragoman.training.metrics import LossHistory
from dragoman.training.optimizer import load_state_tensors, state_tensors
from dragoman.training.parallel import ParallelStrategy, shard_like
from dragoman.training.validation import ValidationScore


@dataclass
class TrainState:
    """Everything besides weights and optimizer that is needed to resume training exactly.

    Random number generators are not part of it: those of a step are seeded with its number.
    """

    step: int = 0
    data_position: DataPosition = field(default_factory=DataPosition)
    best_metric: float | None = None  # metric of the best validation; higher is better
    best_loss: float | None = None  # its loss, which decides between equal metrics and tie-breaks
    best_tie_break: float | None = None  # its error rate, negated, which decides between equal metrics
    best_step: int = 0
    validations_since_best: int = 0  # without a better checkpoint or a lower loss than all before
    lowest_loss: float | None = None  # of all validations
    reductions: int = 0  # validations without a lower loss, for the schedule `plateau`
    target_tokens: int = 0  # tokens trained on
    seconds: float = 0.0
    unlogged: dict[str, float] = field(default_factory=dict)  # measurements since the last record of the log
    loss_history: LossHistory = field(default_factory=LossHistory)
    rollbacks: int = 0  # since training last recovered from divergence
    diverged_at: int = 0  # step of the last rollback
    extended_at: int = 0  # step at which the run was last extended
    # with a time budget:
    minutes: float | None = None  # the budget that the following fields refer to
    start_seconds: float = 0.0  # at which its schedule starts
    time_used: float = 0.0  # fraction of the budget
    validation_time_used: float = 0.0  # fraction at the end of the last validation
    validation_seconds: float = 0.0  # duration of the last validation

    def record_validation(self, score: ValidationScore, is_candidate: bool) -> bool:
        """Record a validation score (metric, tie-break and negated loss), and return whether it is the best so far.

        `validations_since_best`, which early stopping compares with the patience, also restarts whenever the loss is
        lower than ever, because a metric such as exact match stays 0 for a while. `is_candidate` is false for weights
        that cannot become the best checkpoint, such as pretrained ones before training: only their loss is recorded.
        The number of rollbacks in a row is reset once training has recovered from divergence.
        """
        best, loss = is_candidate and self.is_better(score), -score.negative_loss
        improved = best or self.lowest_loss is None or loss < self.lowest_loss
        if best:
            self.best_metric, self.best_tie_break, self.best_loss = score.metric, score.tie_break, loss
            self.best_step = self.step
        if is_candidate:
            self.validations_since_best = 0 if improved else self.validations_since_best + 1
        if self.lowest_loss is None or loss < self.lowest_loss:
            self.lowest_loss = loss
        else:
            self.reductions += 1  # the schedule `plateau` reduces the learning rate once more
        # recovered: training has passed the step of its last divergence, and its latest losses are not too high
        if self.step > self.diverged_at and not self.loss_history.high_losses:
            self.rollbacks = 0
        return best

    def is_better(self, score: ValidationScore) -> bool:
        """Whether a validation score is better than the best so far: by metric, then tie-break, then loss.

        A state saved by an earlier version may lack the best tie-break, which then counts as equal to that of `score`,
        or the best loss, which then counts as worse.
        """
        if self.best_metric is None:
            return True
        tie_break = score.tie_break if self.best_tie_break is None else self.best_tie_break
        best_loss = math.inf if self.best_loss is None else self.best_loss
        return score > ValidationScore(self.best_metric, tie_break, negative_loss=-best_loss)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values, for the manifest of a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> TrainState:
        """Build the training state from the dict of its fields.

        Missing fields get their defaults; it is a UserError if the position in the data is missing or a field unknown.
        """
        try:
            nested = {
                "data_position": DataPosition(**values["data_position"]),
                "loss_history": LossHistory(**values.get("loss_history", {})),
            }
            return TrainState(**values | nested)
        except (KeyError, TypeError):
            raise UserError(
                "the training state that the checkpoint stores is incomplete or from another version of dragoman: "
                "remove the folder of this checkpoint, so that training resumes from the checkpoint before it"
            ) from None

    @staticmethod
    def load(folder: Path) -> TrainState:
        """Read the training state that a checkpoint folder stores in its manifest under "progress"."""
        return TrainState.from_dict(checkpoint.read_values(folder)["progress"])


class CheckpointManager:
    """Saves checkpoints, keeps the latest validated ones and the best, and finds the last one again.

    With several processes all call `save` and `resume`. The first one accesses the disk, except for the shards of a
    sharded state, which every process writes itself. Any number of processes can resume from any checkpoint.
    """

    def __init__(
        self,
        run: Path,
        keep: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage | None = None,
        strategy: ParallelStrategy | None = None,
        initial_digest: str | None = None,
        keep_history: int = 0,
    ) -> None:
        """Create the folder `checkpoints` of a run, if it does not exist.

        Args:
            run: the run folder.
            keep: number of validated checkpoints, the latest ones, that are kept besides the best.
            model, optimizer: whose weights and state are saved and loaded.
            average: moving average of the weights, if there is one.
            strategy: how weights are distributed over processes; by default a single process has them all.
            initial_digest: SHA-256 of the initial weights, if some of them are frozen: checkpoints then hold only the
                trained ones, and name the others by this digest. None if all weights are trained.
            keep_history: number of checkpoints with weights alone that are kept, at steps which are powers of √2; 0:
                none are saved.
        """
        self.include_frozen = initial_digest is None  # in checkpoints
        # an entry of the manifest of every checkpoint that lacks the frozen weights
        self.initial_entry = {} if initial_digest is None else {BASE_WEIGHTS: initial_digest}
        self.folder, self.keep = run / CHECKPOINT_DIR, keep
        self.model, self.optimizer, self.weight_average = model, optimizer, average
        self.strategy = strategy or ParallelStrategy()
        with os_errors_as_user_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        self.history = HistoryCheckpoints(run, keep_history)

    def save_history(self, step: int) -> None:
        """Save the weights for inference in checkpoints/history if `step` is 0 or a rounded power of √2.

        Other steps are not saved, nor is any step if the history keeps no checkpoints (`keep_history` is 0).
        """
        if not self.history.is_due(step):
            return
        weights = self._inference_weights()
        self.strategy.processes.on_first_rank(lambda: self.history.save(step, weights, self.initial_entry))

    def _inference_weights(self) -> Mapping[str, Tensor]:
        """Return the weights for inference by name, gathered from all processes: the moving average if there is one."""
        averages = self.weight_average.averages if self.weight_average is not None else {}
        return self.strategy.gather(self._stored_weights(self.model) | averages)

    def save(self, state: TrainState, validated: bool, best: bool) -> None:
        """Save a checkpoint named by `state.step`; the link `last` and, if `best` is true, the link `best` point to it.

        The file `model` has the weights for inference: the moving average, if there is one. The trained weights are
        then stored in the file `trainer`, with the optimizer state. `validated`: whether `state` includes a validation
        of these weights. If the last checkpoint is of this step, only its state is replaced. All processes call this;
        the first one writes, and each one its shard of a sharded state.
        """
        folder, on_first_rank = self._path(state.step), self.strategy.processes.on_first_rank
        values = {"validated": validated, "progress": state.to_dict(), **self.initial_entry}  # for the manifest
        if on_first_rank(lambda: self.last_step() == state.step):  # this step was saved before it was validated
            write = partial(checkpoint.update_values, folder, values)  # its weights have not changed
        else:
            tensors = self._trainer_tensors()
            files = {"model": self._inference_weights()}
            shards = self.strategy.write_shards(tensors, self.folder)  # a folder; None if weights are not sharded
            files |= {"trainer": tensors} if shards is None else {}
            folders = None if shards is None else {"trainer": shards}
            write = partial(_save_anew, folder, files, values, folders)
        on_first_rank(lambda: self._publish(write, state, best))

    def _publish(self, write: Callable[[], None], state: TrainState, best: bool) -> None:
        """Call `write`, which writes the checkpoint of `state.step`, and point the link `last` to it.

        If the checkpoint is the best (`best`), or there is none yet, the link `best` points to it, too. Checkpoints
        that are no longer kept are removed.
        """
        write()
        name = self._path(state.step).name
        has_best = resolve_link(self.folder / "best").exists()
        if best or not has_best:  # before the first validation any checkpoint is the best
            replace_symlink(self.folder / "best", name)
        replace_symlink(self.folder / "last", name)  # at the end: training resumes from here
        self._prune(state)

    def update_state(self, state: TrainState) -> None:
        """Replace the training state that the checkpoint of `state.step` stores under "progress"."""
        last = self._path(state.step)
        checkpoint.update_values(last, checkpoint.read_values(last) | {"progress": state.to_dict()})

    def resume(self) -> TrainState | None:
        """Load weights and optimizer state of the last checkpoint, and return its training state; None without one.

        If the link `last` is missing, the newest complete checkpoint is loaded. All processes call this.
        """
        state = self.strategy.processes.on_first_rank(self._find_state_to_resume)
        if state is None:
            return None
        last = self._path(state.step)
        # `shard_like` selects the part of a full tensor that this process holds
        checkpoint.load_weights(self.model, last, shard=shard_like, include_frozen=self.include_frozen)
        # with a moving average, the model now has the averages: its trained weights, in `trainer`, are loaded below
        if self.weight_average is not None:
            self.weight_average.load_state_tensors(self._stored_weights(self.model))
        tensors = self._trainer_tensors()  # of this process, to be overwritten
        if (last / "trainer").is_dir():
            from dragoman.training.sharded import read_shards  # takes seconds to import

            read_shards(last / "trainer", tensors)
        else:
            saved = checkpoint.read_tensors(last, "trainer")
            saved = {name: shard_like(value, tensors.get(name, value)) for name, value in saved.items()}
            for name in (name for name in tensors if name.startswith("weight/")):  # only with a moving average
                tensors[name].copy_(saved.pop(name))
            load_state_tensors(self.model, self.optimizer, saved)
        self.strategy.processes.on_first_rank(lambda: self._restore_links(state))
        return state

    def _find_state_to_resume(self) -> TrainState | None:
        """Return the training state of the checkpoint to which the link `last` points; None without any checkpoint.

        If the link is missing, because a process was killed before it could set it, the newest complete checkpoint is
        taken. Partial files of such a process are removed.
        """
        remove_partial_files(self.folder)
        step = self.last_step()
        if step is None:
            complete = [path for path in self.saved_checkpoints() if checkpoint.is_complete(path)]
            if not complete:
                return None
            step = int(complete[-1].name)
        # shards of the optimizer state: torch reads them without verifying their digests
        checkpoint.verify_subfolder(self._path(step), "trainer")
        return TrainState.load(self._path(step))

    def _restore_links(self, state: TrainState) -> None:
        """Point the links to the checkpoints that `state` names: `best` to `best_step`, `last` to `step`.

        A process that was killed while it saved a checkpoint may have left them unchanged. Checkpoints that are no
        longer kept are removed, and those of the history that are later than `state.step`.
        """
        best = self._path(state.best_step)
        # a link to checkpoints/averaged is replaced, too: the average is computed again at the end of training
        if state.best_metric is not None and best.exists():
            replace_symlink(self.folder / "best", best.name)
        elif not resolve_link(self.folder / "best").exists():  # a rollback has removed it, because it was newer
            replace_symlink(self.folder / "best", self._path(state.step).name)
        replace_symlink(self.folder / "last", self._path(state.step).name)
        self.history.truncate_after(state.step)
        self._prune(state)

    def last_step(self) -> int | None:
        """Return the step of the checkpoint to which the link `last` points; None without a complete one."""
        last = self.folder / "last"
        if not checkpoint.is_complete(last):
            return None
        step = int(checkpoint.read_values(last)["progress"]["step"])
        return step if checkpoint.is_complete(self._path(step)) else None

    def roll_back(self) -> int | None:
        """After divergence: let `last` link to the last good checkpoint, remove later ones, and return its step.

        Good is the latest validated checkpoint from before the loss began to rise (`high_losses` is empty), or else the
        latest validated one. Checkpoints without a validation were saved at times that depend on the clock or an
        interruption, and a rollback must not depend on these. If none is validated, nothing is removed, and the result
        is the last step, or None without any checkpoint.
        """
        validated = self.validated()
        if not validated:
            return self.last_step()
        before_rise = [path for path in validated if not TrainState.load(path).loss_history.high_losses]
        good = (before_rise or validated)[-1]
        replace_symlink(self.folder / "last", good.name)
        for path in self.saved_checkpoints():
            if int(path.name) > int(good.name):
                remove_folder(path)
        return int(good.name)

    def saved_checkpoints(self) -> list[Path]:
        """Return the checkpoint folders that are named by a step, such as checkpoints/002000, oldest first."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in paths if path.name.isdecimal()), key=lambda path: int(path.name))

    def validated(self) -> list[Path]:
        """Return the checkpoint folders whose weights were validated, oldest first."""
        return [path for path in self.saved_checkpoints() if checkpoint.read_values(path)["validated"]]

    def has_best(self, state: TrainState) -> bool:
        """Whether the checkpoint of `state.best_step`, the step of the best validation, is still on the disk."""
        return self._path(state.best_step).is_dir()

    def is_validated(self, step: int) -> bool:
        """Whether the last checkpoint is that of this step, and its weights were validated."""
        return self.last_step() == step and checkpoint.read_values(self.folder / "last")["validated"]

    def average(self, model: nn.Module) -> int:
        """Set the model's weights to the mean of the `self.keep` latest validated checkpoints, and return their number.

        As in Vaswani et al. (2017, §6.1). The model is not changed if there are fewer than two.
        """
        averaged = self.validated()[-self.keep :]
        if len(averaged) > 1:
            weights = self._stored_weights(model)
            sums = {name: torch.zeros(weight.shape, dtype=torch.float64) for name, weight in weights.items()}
            for path in averaged:
                for name, saved in checkpoint.read_tensors(path, "model").items():
                    sums[name] += saved
            for name, weight in weights.items():
                weight.copy_(sums[name] / len(averaged))
        return len(averaged)

    def save_average(self, model: nn.Module, values: dict[str, Any]) -> None:
        """Save the averaged weights of a model as checkpoints/averaged, and let the link `best` point to it.

        `values` are stored in the manifest, such as the metrics of the average.
        """
        replace_symlink(self.folder / "best", "last")  # so that the link never dangles, even if this is interrupted
        remove_folder(self.folder / "averaged")
        files = {"model": self._stored_weights(model)}
        checkpoint.save(self.folder / "averaged", files, values | self.initial_entry)
        replace_symlink(self.folder / "best", "averaged")

    def _stored_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the weights that checkpoints store, by name: all, or only the trained ones if some are frozen."""
        return checkpoint.named_weights(model, self.include_frozen)

    def load_best(self, model: nn.Module) -> None:
        """Load the best checkpoint into a model that has the same weights and LoRA adapters as the trained one.

        If some weights are frozen, the checkpoint lacks them, and those of the model stay.
        """
        checkpoint.load_weights(model, self.folder / "best", include_frozen=self.include_frozen)

    def _trainer_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of this process that only training needs, by name: the optimizer state.

        With a moving average, which is saved as the weights of the model, also the trained weights: "weight/NAME".
        """
        trained: dict[str, Tensor] = {}
        if self.weight_average is not None:
            weights = checkpoint.named_weights(self.model)
            trained = {f"weight/{name}": weights[name] for name in self.weight_average.averages}
        return state_tensors(self.model, self.optimizer) | trained

    def _path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step, such as checkpoints/002000."""
        return self.folder / f"{step:06d}"

    def _prune(self, state: TrainState) -> None:
        """Remove all checkpoints but that of `state.step`, the `self.keep` latest validated ones, and the best.

        The best is that of `state.best_step`; the one that the link `best` points to is kept, too.
        """
        kept = {path.name for path in self.validated()[-self.keep :]}
        kept |= {
            self._path(state.step).name,
            self._path(state.best_step).name,
            resolve_link(self.folder / "best").resolve().name,
        }
        for path in self.saved_checkpoints():
            if path.name not in kept:
                remove_folder(path)


def _save_anew(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    values: Mapping[str, Any],
    folders: Mapping[str, Path] | None,
) -> None:
    """Save a checkpoint in `folder`, after removing an incomplete one that a killed process left there.

    Args:
        tensors: named tensors of each tensor file, by the name of the file.
        values: JSON values for the manifest.
        folders: folders that are moved into the checkpoint, by their names in it.
    """
    remove_folder(folder)
    checkpoint.save(folder, tensors, values, folders)
