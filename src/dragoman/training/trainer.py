"""The training loop."""

from __future__ import annotations

import math
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dragoman import checkpoint
from dragoman import config as configuration
from dragoman.config import Config
from dragoman.data import Batches, Position, TokenStore, prefetch
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory
from dragoman.objectives import Material, make
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.run import CONFIG, INITIAL, Run, pick_device, read_framing, read_spec, read_tokenizers
from dragoman.storage import exclusive_run_lock
from dragoman.training.beginning import same_task
from dragoman.training.compiling import prepare_compiler
from dragoman.training.display import Display
from dragoman.training.distribution import World
from dragoman.training.ema import Average
from dragoman.training.fitting import Parts
from dragoman.training.groups import Group, groups
from dragoman.training.meter import Meter, Stopwatch
from dragoman.training.optimizer import make_optimizer
from dragoman.training.progress import Keeper, Progress
from dragoman.training.records import NoRecords, Records
from dragoman.training.schedule import learning_rate
from dragoman.training.selection import NAMES, Score
from dragoman.training.spread import spread
from dragoman.training.step import Learner, Stepper
from dragoman.training.stopping import Budget, count, reason_to_stop
from dragoman.training.validation import Validation, Validator

LOG_EVERY = 10  # steps
SAVE_EVERY = 600  # seconds, beside every validation
ROLLBACKS = 3  # in a row before training is given up


@dataclass(frozen=True)
class Outcome:
    """How a training ended: `reason` says what stopped it."""

    reason: str
    interrupted: bool
    progress: Progress
    averaged: int = 0  # checkpoints in the mean that turned out best, 0 if it did not


@dataclass(frozen=True)
class Turn:
    """The batches of a step with the answers of all processes, and what the first one's clock says."""

    group: Group
    save: bool  # is it time for another checkpoint?


class Trainer:
    """Trains the run in a folder, from wherever it stands."""

    def __init__(
        self, folder: Path, display: Display, changes: Config | None = None, world: World | None = None
    ) -> None:
        self.folder, self.display = folder, display
        self.world = world = world or World()
        self.config = changes or configuration.from_yaml(folder / CONFIG)
        training = self.config.training
        self.device = world.place(pick_device(training.device))
        if self.device.type == "cuda" and training.compile:
            prepare_compiler()
        if self.device.type == "cpu":
            keep_freed_memory()
        if training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS is not
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(training.seed)
        spec = replace_everywhere(read_spec(folder), Stack, recomputed=training.gradient_checkpointing)
        model = spec.build()
        if (folder / INITIAL).exists():
            checkpoint.load_weights(model, folder / INITIAL)
        self.model = model.to(self.device)
        self.spread = spread(training.parallelism, world, self.device)
        source, target = read_tokenizers(folder)
        framing = read_framing(folder)
        self.run = Run(folder, self.config, model, source, target, framing, "last")
        material = Material(
            model, source, target, framing, training.label_smoothing or 0.0, dropout=self.config.text.bpe_dropout or 0.0
        )
        self.objective = make(self.config.objective.name or "translation", material, self.config.objective.settings)
        measured = replace(material, label_smoothing=0.0, dropout=0.0)
        validated = make(self.config.objective.name or "translation", measured, self.config.objective.settings)
        packed = self._packs()
        self.batches = Batches(
            TokenStore(folder / "data" / "train"),
            training.batch_tokens or 4096,
            training.seed,
            framing=framing,
            rows=self.objective.rows,
            aligned=self.objective.aligned,
            width=self.objective.width if training.batch_by == "row" else None,
            copies=self.objective.copies,
            sizes=self.objective.sizes if packed else None,
            multiples=(32, 4) if self.device.type == "cuda" else (1, 1),
            twins=self.objective.twins,
            segments=self.objective.segments,
        )
        valid = TokenStore(folder / "data" / "valid")
        self.validator = Validator(
            self.run,
            validated,
            valid,
            training.batch_tokens or 4096,
            training.validation_sentences,
            training.selection_metric,
        )
        learner = Learner(model, self.objective)
        self.spread.divide(learner)
        if self.spread.even and world.rank == 0:  # what is in parts cannot search: weights are copied for that
            self.run.model = spec.build().to(self.device)
        self.optimizer = make_optimizer(model, training)
        self.average = Average(model, training.ema_decay) if training.ema_decay else None
        self.keeper = Keeper(folder, training.keep_checkpoints, self.spread)
        self.progress = self.keeper.resume(model, self.optimizer, self.average) or Progress()
        averages = training.average_checkpoints and self.average is None
        self.budget = Budget(self.config, max(1, self.batches.an_epoch // training.gradient_accumulation), averages)
        self.budget.begin(self.progress)
        self.stepper = Stepper(
            learner,
            self.optimizer,
            self.average,
            device=self.device,
            seed=training.seed,
            clip=training.resolved("clip_norm"),
            precision=training.precision,
            compiles=packed and bool(training.compile) and self.spread.compiles,
            # recomputation asks for the state of random numbers
            replays=self.objective.steady and not training.gradient_checkpointing and self.spread.replays,
            parts=Parts(display.note),
            spread=self.spread,
        )
        self.records = Records(folder, self.progress.step) if world.rank == 0 else NoRecords()
        self.interrupted = False

    def _packs(self) -> bool:
        """Packed batches are for kernels that are compiled, which takes a GPU; elsewhere tight padding is faster."""
        asked, able = self.config.training.batch_layout, self.objective.packs and self.objective.steady
        if asked == "packed" and not able:
            raise UserError(
                "training.batch_layout is packed, but this system or objective cannot read packed rows: leave the "
                "setting out"
            )
        return able and (asked == "packed" or (asked == "auto" and self.device.type == "cuda"))

    def train(self) -> Outcome:
        """Train until something says stop; what was learned is saved whatever it was."""
        with self.world.watched(self._standing), ExitStack() as lock, _interrupts(self), self.display:
            self.world.first(lambda: lock.enter_context(exclusive_run_lock(self.folder)))
            reason = self._loop()
            averaged = 0
            if not self.interrupted and self.budget.averages:
                averaged = self.world.first(self._average)
        self.records.close()
        return Outcome(reason, self.interrupted, self.progress, averaged)

    def _loop(self) -> str:
        progress = self.progress
        self.model.train()
        self.watch = watch = Stopwatch(progress.seconds)
        self.meter = Meter(self.stepper, progress.unread, self.world)
        self.saved_at = watch.seconds
        if self.config.training.start_from and self.world.first(self.keeper.last_step) is None:
            self.records.forget_after(-1)  # of a process that was killed before its first checkpoint
            self._validate(counts=same_task(self.folder))
        stream = self._stream(progress.position)
        timed = self.config.training.minutes is not None
        self.display.start(self.budget.used(progress), None if timed else self.config.training.steps)
        self.display.note(f"best checkpoint by {NAMES.get(self.validator.metric, self.validator.metric)}")
        while True:
            turn = self._agree(next(stream))
            if (reason := self._reason_to_stop()) is not None:
                break
            self._step(turn.group)
            if progress.step % LOG_EVERY == 0 and self._log():
                stream.close()
                stream = self._stream(progress.position)
            elif self.budget.validation_due(progress):
                self._validate()
            elif turn.save:
                self._save()
        stream.close()
        if self.interrupted and self.world.first(self.keeper.last_step) != progress.step:
            self._save()
        elif not self.interrupted and not self.world.first(lambda: self.keeper.is_validated(progress.step)):
            self._validate()
        elif not self.interrupted and self.config.training.minutes is not None:
            self.world.first(lambda: self.keeper.save_again(progress))  # the time is used up: the run is complete
        return reason

    def _agree(self, group: Group) -> Turn:
        """What all processes must know alike before a step: labels, interruption, and the first one's clock."""
        seconds = self.watch.seconds
        clock = (seconds, seconds - self.saved_at > SAVE_EVERY) if self.world.rank == 0 else (0.0, False)
        mine = [group.answers, group.sentences, self.interrupted, *clock]
        answers, sentences, interrupted, seconds, save = self.world.sum(mine)
        self.interrupted = bool(interrupted)
        self.budget.spend(self.progress, seconds)
        return Turn(replace(group, answers=int(answers), sentences=int(sentences)), bool(save))

    def _stream(self, position: Position) -> Any:
        steps = groups(
            self.batches,
            position,
            self.config.training.gradient_accumulation,
            self.world.rank,
            self.world.size,
            pinned=self.device.type == "cuda",
            even=self.spread.even,
        )
        return prefetch(steps, depth=4)

    def _step(self, group: Group) -> None:
        """One optimizer step on the loss of all batches, divided by their target tokens or their sentences."""
        progress = self.progress
        step, answers = progress.step + 1, group.answers
        rate = learning_rate(self.config.training, step, self.budget.horizon(progress))
        by_sentence = self.config.training.resolved("loss_normalization") == "sentences"
        self.stepper(group.batches, step, rate, group.sentences if by_sentence else answers, group.idle)
        self.meter.add(group, answers, rate)
        progress.step, progress.position = step, group.after
        progress.tokens += answers
        progress.seconds = self.watch.seconds

    def _reason_to_stop(self) -> str | None:
        return "interrupted" if self.interrupted else reason_to_stop(self.config.training, self.progress)

    def _validate(self, counts: bool = True) -> None:
        """Validate and save. Without `counts` the result is logged, but is no candidate for the best checkpoint."""
        progress = self.progress
        with self.spread.shown(self.model, self.run.model, self.average):
            result, seconds = self.world.first(self._timed_validation)
        if not math.isfinite(result.loss):
            self._give_up("validation", result.loss)
        score = self.validator.score(result)
        if progress.best is not None and not self.world.first(lambda: self.keeper.has_best(progress)):
            self.display.note(f"the best checkpoint, of step {progress.best_step:,}, has gone: the best is found anew")
            progress.best = None
        best = counts and self._is_better(score)
        if best:
            progress.best, progress.best_loss = score.metric, result.loss
            progress.best_step, progress.waited = progress.step, 0
        elif counts:
            progress.waited += 1
        if progress.lowest_loss is None or result.loss < progress.lowest_loss:
            progress.lowest_loss = result.loss
        else:
            progress.reductions += 1
        if progress.step > progress.diverged_at and not progress.losses.high:
            progress.rollbacks = 0  # it has recovered
        self.budget.validated(progress, seconds)
        progress.seconds = self.watch.seconds
        self.records.write(
            {
                "kind": "valid" if counts else "start",
                "step": progress.step,
                **result.record(),
                "validation_seconds": round(seconds, 2),
                "seconds": round(progress.seconds, 2),
            }
        )
        self.records.write_samples(result, progress.step)
        self.display.validated(progress.step, result, best)
        self._save(validated=counts, best=best)

    def _timed_validation(self) -> tuple[Validation, float]:
        began = time.monotonic()
        return self.validator.validate(), max(0.0, time.monotonic() - began)

    def _is_better(self, score: Score) -> bool:
        """Is it better than the best so far? Equal metrics are compared by loss."""
        progress = self.progress
        if progress.best is None:
            return True
        return score > (progress.best, -math.inf if progress.best_loss is None else -progress.best_loss)

    def _save(self, validated: bool = False, best: bool = False) -> None:
        self.progress.unread = self.meter.unread()
        self.keeper.save(self.model, self.optimizer, self.average, self.progress, validated, best)
        self.saved_at = self.watch.seconds

    def _average(self) -> int:
        """The mean of the kept checkpoints becomes the best if it is."""
        count = self.keeper.average(self.run.model)
        if count < 2:
            return 0
        result = self.validator.validate()
        if not self._is_better(self.validator.score(result)):
            return 0
        self.keeper.save_average(self.run.model, {"checkpoints": count, **result.record()})
        self.records.write({"kind": "averaged", "step": self.progress.step, "checkpoints": count, **result.record()})
        return count

    def _log(self) -> bool:
        """Log what was measured; True where training diverged and was rolled back to a checkpoint."""
        progress = self.progress
        record: dict[str, Any] = {"kind": "train", "epoch": progress.position.epoch, **self.meter.read(progress.step)}
        record["seconds"] = round(progress.seconds, 2)
        if self.config.training.minutes is not None:
            record["elapsed"] = round(progress.elapsed, 4)
        skipped, loss = record.get("skipped", 0), record["loss"]
        if skipped:
            self.display.note(f"step {progress.step:,}: {count(skipped, 'step')} skipped: non-finite gradient")
        if skipped > LOG_EVERY // 2 or not math.isfinite(loss):
            self._roll_back("non-finite loss", math.nan)
            return True
        if progress.losses.diverged(loss):
            self._roll_back(f"divergence, the loss rose to {loss:.3f}", loss)
            return True
        self.records.write(record)
        self.display.logged(record, self.budget.used(progress))
        return False

    def _roll_back(self, what: str, loss: float) -> None:
        """Go back to the last good checkpoint, and on from there with the data that comes next."""
        step, ahead, rollbacks = self.progress.step, self.progress.position, self.progress.rollbacks + 1
        if rollbacks > ROLLBACKS or self.world.first(self.keeper.roll_back) is None:
            self._give_up("training", loss)
        progress = self.keeper.resume(self.model, self.optimizer, self.average)
        assert progress is not None
        self.display.note(
            f"step {step:,}: {what}; rollback to step {progress.step:,}, then on with the data that comes next"
        )
        for name, value in vars(progress).items():
            setattr(self.progress, name, value)
        self.budget.begin(self.progress)
        self.progress.position, self.progress.rollbacks, self.progress.diverged_at = ahead, rollbacks, step
        self.progress.unread = {}  # the rise may have begun before the checkpoint was made
        self.progress.losses.high = []
        self.records.forget_after(progress.step)
        self.meter = Meter(self.stepper, {}, self.world)
        self.world.first(lambda: self.keeper.save_again(self.progress))
        self.saved_at = self.watch.seconds

    def _give_up(self, which: str, loss: float) -> None:
        """Nothing of a diverged model is kept: the last checkpoint is from before."""

        def refuse() -> None:
            raise UserError(
                f"training diverged: the {which} loss is {loss:.4g} at step {self.progress.step:,}. Train a new run "
                f"with a training.learning_rate below {self.config.training.learning_rate}"
            )

        self.world.first(refuse)

    def _standing(self) -> str:
        """What to say where another process was lost."""
        there = os.environ.get("LOCAL_WORLD_SIZE", self.world.size)
        return (
            f"another process of this training has ended or no longer answers at step {self.progress.step:,}: see what "
            "it said, then go on from the last checkpoint, on any number of processes, with: torchrun --nproc-per-node "
            f"{there} -m dragoman train {shlex.quote(str(self.folder))} --resume"
        )


@contextmanager
def _interrupts(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C and SIGTERM end training after the step that is being done; a second Ctrl-C ends it at once."""

    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:  # not merely by another process
            raise KeyboardInterrupt
        asked = trainer.interrupted = True
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
