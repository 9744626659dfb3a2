"""Progress: everything that training must know to go on exactly where it was, beside weights and optimiser."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.data import Position
from dragoman.run import CHECKPOINTS
from dragoman.storage import plain_errors, point, remove_folder
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Progress:
        return Progress(**(values | {"position": Position(**values["position"])}))


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
        remove_folder(self.folder / name)  # a process that was killed may have got so far before
        checkpoint.save(
            self.folder / name,
            {"model": checkpoint.weights_of(model), "trainer": state_tensors(model, optimizer)},
            {"validated": validated, "progress": progress.to_dict()},
        )
        if best or not (self.folder / "best").exists():  # before the first validation, better than nothing
            point(self.folder / "best", name)
        point(self.folder / "last", name)  # last of all: from here training goes on
        self._prune()

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
        """Take up the last checkpoint, if there is one."""
        for partial in self.folder.glob(".*.partial"):  # what a killed process was writing
            shutil.rmtree(partial) if partial.is_dir() and not partial.is_symlink() else partial.unlink()
        last = self.folder / "last"
        if not last.exists():
            return None
        checkpoint.load_weights(model, last)
        load_state_tensors(model, optimizer, checkpoint.tensors(last, "trainer"))
        return Progress.from_dict(checkpoint.values(last)["progress"])

    def validated(self) -> list[Path]:
        """The kept checkpoints that were validated, oldest first."""
        steps = sorted(path for path in self.folder.iterdir() if path.name.isdecimal())
        return [path for path in steps if checkpoint.values(path)["validated"]]

    def average(self, model: nn.Module) -> int:
        """Set the model to the mean of the kept checkpoints (Vaswani et al. 2017, §6.1); how many there were."""
        kept = self.validated()[-self.keep :]
        if len(kept) > 1:
            mean = _mean(checkpoint.tensors(path, "model") for path in kept)
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight.copy_(mean[name])
        return len(kept)

    def save_average(self, model: nn.Module, values: dict[str, Any]) -> None:
        """Keep the averaged weights as the best."""
        remove_folder(self.folder / "averaged")
        checkpoint.save(self.folder / "averaged", {"model": checkpoint.weights_of(model)}, values)
        point(self.folder / "best", "averaged")

    def _prune(self) -> None:
        best, last = ((self.folder / name).resolve().name for name in ("best", "last"))
        steps = sorted(path for path in self.folder.iterdir() if path.name.isdecimal())
        stay = {path.name for path in self.validated()[-self.keep :]} | {best, last}
        for path in steps:
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
