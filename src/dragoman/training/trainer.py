"""The training loop."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dragoman import checkpoint
from dragoman import config as configuration
from dragoman.config import Config
from dragoman.data import Batch, Batches, TokenStore, prefetch
from dragoman.errors import UserError
from dragoman.objectives import Material, make
from dragoman.run import (
    CONFIG,
    INITIAL,
    METRICS,
    Run,
    pick_device,
    read_framing,
    read_metrics,
    read_spec,
    read_tokenizers,
)
from dragoman.storage import alone, plain_errors, write_file
from dragoman.training.display import Display
from dragoman.training.meter import Meter, Stopwatch
from dragoman.training.optimizer import adamw
from dragoman.training.progress import Keeper, Progress
from dragoman.training.schedule import learning_rate
from dragoman.training.validation import Validation, Validator

LOG_EVERY = 10  # steps
SAVE_EVERY = 600  # seconds, beside every validation


@dataclass(frozen=True)
class Outcome:
    """How a training ended: `reason` says what stopped it."""

    reason: str
    interrupted: bool
    progress: Progress
    averaged: int = 0  # checkpoints in the mean that turned out best, 0 if it did not


class Trainer:
    """Trains the run in a folder, from wherever it stands."""

    def __init__(self, folder: Path, display: Display, changes: Config | None = None) -> None:
        self.folder, self.display = folder, display
        self.config = changes or configuration.from_yaml(folder / CONFIG)
        training = self.config.training
        self.device = pick_device(training.device)
        torch.manual_seed(training.seed)
        model = read_spec(folder).build()
        if (folder / INITIAL).exists():
            checkpoint.load_weights(model, folder / INITIAL)
        model.to(self.device)
        source, target = read_tokenizers(folder)
        framing = read_framing(folder)
        self.run = Run(folder, self.config, model, source, target, framing, "last")
        self.model = model
        self.optimizer = adamw(model, training)
        material = Material(
            model, source, target, framing, training.label_smoothing or 0.0, dropout=self.config.text.dropout
        )
        self.objective = make(self.config.objective.name or "translation", material, self.config.objective.settings)
        self.batches = Batches(
            TokenStore(folder / "data" / "train"),
            training.tokens or 4096,
            training.seed,
            framing=framing,
            rows=self.objective.rows,
            aligned=self.objective.aligned,
            width=self.objective.width,
            copies=self.objective.copies,
        )
        valid = TokenStore(folder / "data" / "valid")
        measured = replace(material, label_smoothing=0.0, dropout=0.0)
        validated = make(self.config.objective.name or "translation", measured, self.config.objective.settings)
        self.validator = Validator(self.run, validated, valid, training.tokens or 4096, training.validate_sentences)
        self.keeper = Keeper(folder, training.keep)
        self.progress = self.keeper.resume(model, self.optimizer) or Progress()
        self._forget_later_metrics()
        self.interrupted = False
        self.board = _board(folder, self.progress.step)

    def train(self) -> Outcome:
        """Train until something says stop; what was learned is saved whatever it was."""
        with alone(self.folder), _interrupts(self), self.display:
            reason = self._loop()
            averaged = 0
            if not self.interrupted and self.config.training.average:
                averaged = self._average()
        if self.board is not None:
            self.board.close()
        return Outcome(reason, self.interrupted, self.progress, averaged)

    def _loop(self) -> str:
        training, progress = self.config.training, self.progress
        self.model.train()
        watch = Stopwatch(progress.seconds)
        self.meter = meter = Meter(self.device, progress.unread)
        saved_at = watch.seconds
        stream = prefetch(self.batches.start(progress.position))
        self.display.start(self._done(), training.steps)
        while (reason := self._reason_to_stop(watch)) is None:
            group = [next(stream) for _ in range(training.accumulate)]
            self._step([batch for batch, _ in group], meter)
            progress.step += 1
            progress.position = group[-1][1]
            progress.tokens += sum(batch.target_tokens for batch, _ in group)
            progress.seconds = watch.seconds
            if progress.step % LOG_EVERY == 0:
                self._log(meter.read(progress.step))
            if progress.step % (training.validate_every or 1) == 0:
                self._validate(watch)
                saved_at = watch.seconds
            elif watch.seconds - saved_at > SAVE_EVERY:
                self._save()
                saved_at = watch.seconds
        stream.close()
        if self.interrupted and self.keeper.last_step() != progress.step:
            self._save()
        elif not self.interrupted and not self.keeper.is_validated(progress.step):
            self._validate(watch)
        return reason

    def _step(self, group: list[Batch], meter: Meter) -> None:
        """One step of the optimiser over the mean loss a target token of all the group's batches."""
        training, step = self.config.training, self.progress.step + 1
        rate = learning_rate(training, step)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        torch.manual_seed((training.seed << 32) + step)
        count = sum(batch.target_tokens for batch in group)
        for batch in group:
            with self._precision():
                loss = self.objective(self.model, batch.to(self.device), step)
            (loss.total / count).backward()
            meter.add(loss, batch)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), training.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        meter.stepped(norm, rate)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.training.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def _reason_to_stop(self, watch: Stopwatch) -> str | None:
        training, progress = self.config.training, self.progress
        if self.interrupted:
            return "it was interrupted"
        if training.steps is not None and progress.step >= training.steps:
            return f"it did its {training.steps:,} steps"
        if training.epochs is not None and progress.position.epoch >= training.epochs:
            return f"it did its {training.epochs:,} epochs"
        if training.minutes is not None and watch.seconds >= 60 * training.minutes:
            return f"its {training.minutes:g} minutes are over"
        if training.patience is not None and progress.waited >= training.patience:
            return f"{progress.waited} validations brought nothing better"
        return None

    def _validate(self, watch: Stopwatch) -> None:
        progress = self.progress
        result = self.validator.validate()
        if not math.isfinite(result.loss):
            raise self._diverged("validation", result.loss)
        score = self._score(result)
        best = progress.best is None or score > progress.best
        if best:
            progress.best, progress.best_step, progress.waited = score, progress.step, 0
        else:
            progress.waited += 1
        progress.seconds = watch.seconds
        self._record({"kind": "valid", "step": progress.step, **result.record(), "seconds": round(watch.seconds, 2)})
        self._write_samples(result)
        self.display.validated(progress.step, result, best)
        self._save(validated=True, best=best)

    def _save(self, validated: bool = False, best: bool = False) -> None:
        self.progress.unread = self.meter.unread()
        self.keeper.save(self.model, self.optimizer, self.progress, validated, best)

    def _score(self, result: Validation) -> float:
        """Higher is better; the loss decides where nothing else was measured."""
        asked = self.config.training.best_by
        wanted = self.objective.best if asked == "auto" else asked
        return result.measures.get(wanted, -result.loss)

    def _average(self) -> int:
        """The mean of the kept checkpoints becomes the best if it is."""
        count = self.keeper.average(self.model)
        if count < 2:
            return 0
        result = self.validator.validate()
        if self.progress.best is not None and self._score(result) <= self.progress.best:
            return 0
        self.keeper.save_average(self.model, {"checkpoints": count, **result.record()})
        self._record({"kind": "averaged", "step": self.progress.step, "checkpoints": count, **result.record()})
        return count

    def _log(self, measured: dict[str, float]) -> None:
        record: dict[str, Any] = {"kind": "train", "epoch": self.progress.position.epoch, **measured}
        record["seconds"] = round(self.progress.seconds, 2)
        if not math.isfinite(record["loss"]):
            raise self._diverged("training", record["loss"])
        self._record(record)
        self.display.logged(record, self._done())

    def _diverged(self, which: str, loss: float) -> UserError:
        """Nothing of a diverged model is kept: the last checkpoint is from before."""
        return UserError(
            f"the {which} loss is {loss} at step {self.progress.step:,}: train anew with a lower "
            f"training.learning_rate than {self.config.training.learning_rate}"
        )

    def _done(self) -> float | None:
        """The share of the training that is done, by the stopping rule that will come first; None if only patience."""
        training, progress = self.config.training, self.progress
        shares = [
            done / limit
            for done, limit in (
                (progress.step, training.steps),
                (progress.position.epoch, training.epochs),
                (progress.seconds, training.minutes and 60 * training.minutes),
            )
            if limit
        ]
        return max(shares, default=None)

    def _record(self, record: dict[str, Any]) -> None:
        with plain_errors(self.folder / METRICS), (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            if record["kind"] != "train":  # a checkpoint follows, and must not know of more than is on the disk
                file.flush()
                os.fsync(file.fileno())
        if self.board is not None:
            kind = record["kind"]
            for name, value in record.items():
                if name not in ("kind", "step"):
                    self.board.add_scalar(f"{kind}/{name}", value, record["step"])

    def _write_samples(self, result: Validation) -> None:
        with plain_errors(self.folder / "samples"):
            (self.folder / "samples").mkdir(exist_ok=True)
        lines = (json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in result.samples)
        write_file(self.folder / "samples" / f"{self.progress.step:06d}.jsonl", "".join(lines))

    def _forget_later_metrics(self) -> None:
        """What was measured after the last checkpoint will be measured again."""
        known = read_metrics(self.folder)
        kept = [record for record in known if record["step"] <= self.progress.step and record["kind"] != "averaged"]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        if known and text != (self.folder / METRICS).read_text(encoding="utf-8"):
            write_file(self.folder / METRICS, text)


@contextmanager
def _interrupts(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM end training after the step that is being done; a second Ctrl-C ends it at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if trainer.interrupted:
            raise KeyboardInterrupt
        trainer.interrupted = True
        trainer.display.note("stopping after this step; once more to stop at once")

    old = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, ask)
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        pass
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _board(folder: Path, step: int) -> Any:
    """TensorBoard's writer, where it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def change_stops(folder: Path, changed: Config) -> Config:
    """The run's configuration with new stopping rules or device; anything else must stay, for a run is its inputs."""
    saved = configuration.from_yaml(folder / CONFIG)
    stops = {name: getattr(changed.training, name) for name in ("steps", "epochs", "minutes", "patience", "device")}
    merged = replace(saved, training=replace(saved.training, **stops))
    if changed != merged:
        raise UserError(
            "a run that is resumed can change only training.steps, epochs, minutes, patience and device: "
            "for other settings train a new run"
        )
    pick_device(merged.training.device)
    write_file(folder / CONFIG, configuration.to_yaml(merged))
    return merged
