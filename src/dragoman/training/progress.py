"""Progress: everything that training must know to go on exactly where it was, beside weights and optimiser."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.data import Position
from dragoman.errors import UserError
from dragoman.run import CHECKPOINTS
from dragoman.storage import clear_remains, plain_errors, point, remove_folder
from dragoman.training.optimizer import load_state_tensors, state_tensors


@dataclass
class Progress:
    """Random numbers need no place here: those of a step follow from the seed and the step's number alone."""

    step: int = 0
    position: Position = field(default_factory=Position)
    best: float | None = None  # the best validation's score, higher is better
    best_step: int = 0
    waited: int = 0  # validations since then
    tokens: int = 0  # target tokens trained on
    seconds: float = 0.0
    unread: dict[str, float] = field(default_factory=dict)  # what was measured since the last line of the log

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Progress:
        try:
            return Progress(**(values | {"position": Position(**values["position"])}))
        except (KeyError, TypeError):
            raise UserError("the checkpoint says nothing of the progress of a training: use another one") from None


class Keeper:
    """Writes checkpoints, keeps the last few validated ones and the best, and finds the last one again."""

    def __init__(self, run: Path, keep: int) -> None:
        self.folder, self.keep = run / CHECKPOINTS, keep
        with plain_errors(self.folder):
            self.folder.mkdir(exist_ok=True)

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress, validated: bool, best: bool
    ) -> None:
        """One checkpoint, named by its step; `last` and, if it is the best, `best` point to it."""
        name = f"{progress.step:06d}"
        values = {"validated": validated, "progress": progress.to_dict()}
        if self.last_step() == progress.step:  # saved before it was validated: the weights are the same
            checkpoint.amend(self.folder / name, values)
        else:
            remove_folder(self.folder / name)  # a process that was killed may have got so far before
            weights = {"model": checkpoint.weights_of(model), "trainer": state_tensors(model, optimizer)}
            checkpoint.save(self.folder / name, weights, values)
        if best or not (self.folder / "best").exists():  # before the first validation, better than nothing
            point(self.folder / "best", name)
        point(self.folder / "last", name)  # last of all: from here training goes on
        self._prune(progress)

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
        """Take up the last checkpoint, if there is one; the newest whole one if `last` has been lost."""
        clear_remains(self.folder)
        steps = [path for path in self.steps() if checkpoint.is_whole(path)]
        step = self.last_step()
        if step is None and steps:
            step = int(steps[-1].name)
        if step is None:
            return None
        last = self.folder / f"{step:06d}"
        checkpoint.load_weights(model, last)
        load_state_tensors(model, optimizer, checkpoint.tensors(last, "trainer"))
        progress = Progress.from_dict(checkpoint.values(last)["progress"])
        best = f"{progress.best_step:06d}"
        if progress.best is not None and (self.folder / best).exists():  # an average is made anew at the end
            point(self.folder / "best", best)
        point(self.folder / "last", last.name)
        return progress

    def last_step(self) -> int | None:
        """The step that `last` points to."""
        last = self.folder / "last"
        if not checkpoint.is_whole(last):
            return None
        step = int(checkpoint.values(last)["progress"]["step"])
        return step if checkpoint.is_whole(self.folder / f"{step:06d}") else None

    def steps(self) -> list[Path]:
        """The checkpoints that are named by a step, oldest first."""
        return sorted((p for p in self.folder.iterdir() if p.name.isdecimal()), key=lambda path: int(path.name))

    def is_validated(self, step: int) -> bool:
        return self.last_step() == step and checkpoint.values(self.folder / "last")["validated"]

    def validated(self) -> list[Path]:
        """The kept checkpoints that were validated, oldest first."""
        return [path for path in self.steps() if checkpoint.values(path)["validated"]]

    def average(self, model: nn.Module) -> int:
        """Set the model to the mean of the kept checkpoints (Vaswani et al. 2017, §6.1); how many there were."""
        kept = self.validated()[-self.keep :]
        if len(kept) > 1:
            mean = _mean(checkpoint.tensors(path, "model") for path in kept)
            for name, weight in checkpoint.weights_of(model).items():
                weight.copy_(mean[name])
        return len(kept)

    def save_average(self, model: nn.Module, values: dict[str, Any]) -> None:
        """Keep the averaged weights as the best."""
        point(self.folder / "best", "last")  # never dangling, whatever happens in between
        remove_folder(self.folder / "averaged")
        checkpoint.save(self.folder / "averaged", {"model": checkpoint.weights_of(model)}, values)
        point(self.folder / "best", "averaged")

    def _prune(self, progress: Progress) -> None:
        stay = {path.name for path in self.validated()[-self.keep :]}
        stay |= {f"{progress.step:06d}", f"{progress.best_step:06d}", (self.folder / "best").resolve().name}
        for path in self.steps():
            if path.name not in stay:
                remove_folder(path)


def _mean(many: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    count = 0
    for weights in many:
        count += 1
        for name, weight in weights.items():
            total[name] = total[name] + weight.double() if name in total else weight.double()
    return {name: (weight / count).float() for name, weight in total.items()}
