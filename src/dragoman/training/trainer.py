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
from dragoman.data import Batches, DataPosition, TokenStore, longer_side, prefetch
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory
from dragoman.objectives import TaskContext, build_objective
from dragoman.parts.spec import replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.run import CONFIG_FILE, INITIAL_CHECKPOINT, Run, read_framing, read_spec, read_tokenizers, select_device
from dragoman.storage import exclusive_run_lock
from dragoman.training.accumulation import StepBatches, iterate_steps
from dragoman.training.checkpoint_manager import CheckpointManager, TrainState
from dragoman.training.checkpoint_selection import METRIC_NAMES, ValidationScore
from dragoman.training.compiling import prepare_compiler
from dragoman.training.display import Display
from dragoman.training.ema import WeightAverage
from dragoman.training.metrics_log import MetricsLog, NullMetricsLog
from dragoman.training.oom import BatchSplitter
from dragoman.training.optimizer import build_optimizer
from dragoman.training.parallel import make_strategy
from dragoman.training.process_group import ProcessGroup
from dragoman.training.schedule import learning_rate
from dragoman.training.throughput import Stopwatch, TrainingMeter
from dragoman.training.train_step import LossModule, TrainStep
from dragoman.training.training_budget import TrainingBudget, pluralize, stop_reason
from dragoman.training.validation import ValidationResult, Validator
from dragoman.training.warm_start import same_task

LOG_EVERY = 10  # steps
SAVE_EVERY = 600  # seconds, beside every validation
ROLLBACKS = 3  # in a row before training is given up


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training ended: `reason` says what stopped it."""

    reason: str
    interrupted: bool
    state: TrainState
    averaged_checkpoints: int = 0  # checkpoints in the mean that turned out best, 0 if it did not


@dataclass(frozen=True)
class StepPlan:
    """The batches of a step with the answers of all processes, and what the first one's clock says."""

    group: StepBatches
    save: bool  # is it time for another checkpoint?


class Trainer:
    """Trains the run in a folder, from wherever it stands."""

    def __init__(
        self, folder: Path, display: Display, config: Config | None = None, processes: ProcessGroup | None = None
    ) -> None:
        self.folder, self.display = folder, display
        self.processes = processes = processes or ProcessGroup()
        self.config = config or configuration.from_yaml(folder / CONFIG_FILE)
        training = self.config.training
        self.device = processes.assign_device(select_device(training.device))
        if self.device.type == "cuda" and training.compile:
            prepare_compiler()
        if self.device.type == "cpu":
            keep_freed_memory()
        if training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS is not
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(training.seed)
        spec = replace_everywhere(read_spec(folder), Stack, gradient_checkpointing=training.gradient_checkpointing)
        model = spec.build()
        if (folder / INITIAL_CHECKPOINT).exists():
            checkpoint.load_weights(model, folder / INITIAL_CHECKPOINT)
        self.model = model.to(self.device)
        self.strategy = make_strategy(training.parallelism, processes, self.device)
        source, target = read_tokenizers(folder)
        framing = read_framing(folder)
        self.run = Run(folder, self.config, model, source, target, framing, "last")
        material = TaskContext(
            model,
            source,
            target,
            framing,
            training.label_smoothing or 0.0,
            bpe_dropout=self.config.text.bpe_dropout or 0.0,
        )
        self.objective = build_objective(
            self.config.objective.name or "translation", material, self.config.objective.settings
        )
        measured = replace(material, label_smoothing=0.0, bpe_dropout=0.0)
        validated = build_objective(
            self.config.objective.name or "translation", measured, self.config.objective.settings
        )
        packed, rows = self._packs(), self.objective.row_format
        self.batches = Batches(
            TokenStore(folder / "data" / "train"),
            training.batch_tokens or 4096,
            training.seed,
            rows=rows if training.batch_by == "row" else replace(rows, row_length=longer_side),
            packed=packed,
            pad_to_multiples=(32, 4) if self.device.type == "cuda" else (1, 1),
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
        learner = LossModule(model, self.objective)
        self.strategy.distribute(learner)
        if (
            self.strategy.lockstep and processes.rank == 0
        ):  # what is in parts cannot search: weights are copied for that
            self.run.model = spec.build().to(self.device)
        self.optimizer = build_optimizer(model, training)
        self.average = WeightAverage(model, training.ema_decay) if training.ema_decay else None
        self.checkpoints = CheckpointManager(folder, training.keep_checkpoints, self.strategy)
        self.state = self.checkpoints.resume(model, self.optimizer, self.average) or TrainState()
        averages = training.average_checkpoints and self.average is None
        self.budget = TrainingBudget(
            self.config, max(1, self.batches.batches_per_epoch // training.gradient_accumulation), averages
        )
        self.budget.update_budget(self.state)
        self.train_step = TrainStep(
            learner,
            self.optimizer,
            self.average,
            device=self.device,
            seed=training.seed,
            clip_norm=training.resolved("clip_norm"),
            precision=training.precision,
            use_compile=packed and bool(training.compile) and self.strategy.supports_compile,
            # recomputation asks for the state of random numbers
            use_cuda_graphs=self.objective.static_shapes
            and not training.gradient_checkpointing
            and self.strategy.supports_cuda_graphs,
            splitter=BatchSplitter(display.message),
            strategy=self.strategy,
        )
        self.metrics_log = MetricsLog(folder, self.state.step) if processes.rank == 0 else NullMetricsLog()
        self.interrupted = False

    def _packs(self) -> bool:
        """Packed batches are for kernels that are compiled, which takes a GPU; elsewhere tight padding is faster."""
        asked, able = (
            self.config.training.batch_layout,
            self.objective.supports_packing and self.objective.static_shapes,
        )
        if asked == "packed" and not able:
            raise UserError(
                "training.batch_layout is packed, but this system or objective cannot read packed rows: leave the "
                "setting out"
            )
        return able and (asked == "packed" or (asked == "auto" and self.device.type == "cuda"))

    def train(self) -> TrainingOutcome:
        """Train until something says stop; what was learned is saved whatever it was."""
        with self.processes.report_lost_process(self._standing), ExitStack() as lock, _interrupts(self), self.display:
            self.processes.on_first_rank(lambda: lock.enter_context(exclusive_run_lock(self.folder)))
            reason = self._loop()
            averaged = 0
            if not self.interrupted and self.budget.validates_average:
                averaged = self.processes.on_first_rank(self._average)
        self.metrics_log.close()
        return TrainingOutcome(reason, self.interrupted, self.state, averaged)

    def _loop(self) -> str:
        progress = self.state
        self.model.train()
        self.watch = watch = Stopwatch(progress.seconds)
        self.meter = TrainingMeter(self.train_step, progress.unlogged, self.processes)
        self.saved_at = watch.seconds
        if self.config.training.start_from and self.processes.on_first_rank(self.checkpoints.last_step) is None:
            self.metrics_log.truncate_after(-1)  # of a process that was killed before its first checkpoint
            self._validate(counts=same_task(self.folder))
        stream = self._stream(progress.data_position)
        timed = self.config.training.minutes is not None
        self.display.start(self.budget.fraction_used(progress), None if timed else self.config.training.steps)
        self.display.message(f"best checkpoint by {METRIC_NAMES.get(self.validator.metric, self.validator.metric)}")
        while True:
            turn = self._agree(next(stream))
            if (reason := self._reason_to_stop()) is not None:
                break
            self._step(turn.group)
            if progress.step % LOG_EVERY == 0 and self._log():
                stream.close()
                stream = self._stream(progress.data_position)
            elif self.budget.validation_due(progress):
                self._validate()
            elif turn.save:
                self._save()
        stream.close()
        if self.interrupted and self.processes.on_first_rank(self.checkpoints.last_step) != progress.step:
            self._save()
        elif not self.interrupted and not self.processes.on_first_rank(
            lambda: self.checkpoints.is_validated(progress.step)
        ):
            self._validate()
        elif not self.interrupted and self.config.training.minutes is not None:
            self.processes.on_first_rank(
                lambda: self.checkpoints.update_state(progress)
            )  # the time is used up: the run is complete
        return reason

    def _agree(self, group: StepBatches) -> StepPlan:
        """What all processes must know alike before a step: labels, interruption, and the first one's clock."""
        seconds = self.watch.seconds
        clock = (seconds, seconds - self.saved_at > SAVE_EVERY) if self.processes.rank == 0 else (0.0, False)
        mine = [group.target_tokens, group.sentences, self.interrupted, *clock]
        answers, sentences, interrupted, seconds, save = self.processes.all_reduce_sum(mine)
        self.interrupted = bool(interrupted)
        self.budget.update_time_used(self.state, seconds)
        return StepPlan(replace(group, target_tokens=int(answers), sentences=int(sentences)), bool(save))

    def _stream(self, position: DataPosition) -> Any:
        steps = iterate_steps(
            self.batches,
            position,
            self.config.training.gradient_accumulation,
            self.processes.rank,
            self.processes.world_size,
            pinned=self.device.type == "cuda",
            lockstep=self.strategy.lockstep,
        )
        return prefetch(steps, depth=4)

    def _step(self, group: StepBatches) -> None:
        """One optimizer step on the loss of all batches, divided by their target tokens or their sentences."""
        progress = self.state
        step, answers = progress.step + 1, group.target_tokens
        rate = learning_rate(self.config.training, step, self.budget.horizon(progress))
        by_sentence = self.config.training.resolved("loss_normalization") == "sentences"
        self.train_step(group.batches, step, rate, group.sentences if by_sentence else answers, group.dummy_batch)
        self.meter.record_step(group, answers, rate)
        progress.step, progress.data_position = step, group.next_position
        progress.target_tokens += answers
        progress.seconds = self.watch.seconds

    def _reason_to_stop(self) -> str | None:
        return "interrupted" if self.interrupted else stop_reason(self.config.training, self.state)

    def _validate(self, counts: bool = True) -> None:
        """Validate and save. Without `counts` the result is logged, but is no candidate for the best checkpoint."""
        progress = self.state
        with self.strategy.inference_weights(self.model, self.run.model, self.average):
            result, seconds = self.processes.on_first_rank(self._timed_validation)
        if not math.isfinite(result.loss):
            self._give_up("validation", result.loss)
        score = self.validator.score(result)
        if progress.best_metric is not None and not self.processes.on_first_rank(
            lambda: self.checkpoints.has_best(progress)
        ):
            self.display.message(
                f"the best checkpoint, of step {progress.best_step:,}, has gone: the best is found anew"
            )
            progress.best_metric = None
        best = counts and self._is_better(score)
        if best:
            progress.best_metric, progress.best_loss = score.metric, result.loss
            progress.best_step, progress.validations_since_best = progress.step, 0
        elif counts:
            progress.validations_since_best += 1
        if progress.lowest_loss is None or result.loss < progress.lowest_loss:
            progress.lowest_loss = result.loss
        else:
            progress.reductions += 1
        if progress.step > progress.diverged_at and not progress.loss_history.high_losses:
            progress.rollbacks = 0  # it has recovered
        self.budget.record_validation(progress, seconds)
        progress.seconds = self.watch.seconds
        self.metrics_log.write(
            {
                "kind": "valid" if counts else "start",
                "step": progress.step,
                **result.to_record(),
                "validation_seconds": round(seconds, 2),
                "seconds": round(progress.seconds, 2),
            }
        )
        self.metrics_log.write_samples(result, progress.step)
        self.display.log_validation(progress.step, result, best)
        self._save(validated=counts, best=best)

    def _timed_validation(self) -> tuple[ValidationResult, float]:
        began = time.monotonic()
        return self.validator.validate(), max(0.0, time.monotonic() - began)

    def _is_better(self, score: ValidationScore) -> bool:
        """Is it better than the best so far? Equal metrics are compared by loss."""
        progress = self.state
        if progress.best_metric is None:
            return True
        return score > (progress.best_metric, -math.inf if progress.best_loss is None else -progress.best_loss)

    def _save(self, validated: bool = False, best: bool = False) -> None:
        self.state.unlogged = self.meter.unlogged()
        self.checkpoints.save(self.model, self.optimizer, self.average, self.state, validated, best)
        self.saved_at = self.watch.seconds

    def _average(self) -> int:
        """The mean of the kept checkpoints becomes the best if it is."""
        count = self.checkpoints.average(self.run.model)
        if count < 2:
            return 0
        result = self.validator.validate()
        if not self._is_better(self.validator.score(result)):
            return 0
        self.checkpoints.save_average(self.run.model, {"checkpoints": count, **result.to_record()})
        self.metrics_log.write(
            {"kind": "averaged", "step": self.state.step, "checkpoints": count, **result.to_record()}
        )
        return count

    def _log(self) -> bool:
        """Log what was measured; True where training diverged and was rolled back to a checkpoint."""
        progress = self.state
        record: dict[str, Any] = {
            "kind": "train",
            "epoch": progress.data_position.epoch,
            **self.meter.make_record(progress.step),
        }
        record["seconds"] = round(progress.seconds, 2)
        if self.config.training.minutes is not None:
            record["elapsed"] = round(progress.time_used, 4)
        skipped, loss = record.get("skipped", 0), record["loss"]
        if skipped:
            self.display.message(f"step {progress.step:,}: {pluralize(skipped, 'step')} skipped: non-finite gradient")
        if skipped > LOG_EVERY // 2 or not math.isfinite(loss):
            self._roll_back("non-finite loss", math.nan)
            return True
        if progress.loss_history.diverged(loss):
            self._roll_back(f"divergence, the loss rose to {loss:.3f}", loss)
            return True
        self.metrics_log.write(record)
        self.display.log_step(record, self.budget.fraction_used(progress))
        return False

    def _roll_back(self, what: str, loss: float) -> None:
        """Go back to the last good checkpoint, and on from there with the data that comes next."""
        step, ahead, rollbacks = self.state.step, self.state.data_position, self.state.rollbacks + 1
        if rollbacks > ROLLBACKS or self.processes.on_first_rank(self.checkpoints.roll_back) is None:
            self._give_up("training", loss)
        progress = self.checkpoints.resume(self.model, self.optimizer, self.average)
        assert progress is not None
        self.display.message(
            f"step {step:,}: {what}; rollback to step {progress.step:,}, then on with the data that comes next"
        )
        for name, value in vars(progress).items():
            setattr(self.state, name, value)
        self.budget.update_budget(self.state)
        self.state.data_position, self.state.rollbacks, self.state.diverged_at = ahead, rollbacks, step
        self.state.unlogged = {}  # the rise may have begun before the checkpoint was made
        self.state.loss_history.high_losses = []
        self.metrics_log.truncate_after(progress.step)
        self.meter = TrainingMeter(self.train_step, {}, self.processes)
        self.processes.on_first_rank(lambda: self.checkpoints.update_state(self.state))
        self.saved_at = self.watch.seconds

    def _give_up(self, which: str, loss: float) -> None:
        """Nothing of a diverged model is kept: the last checkpoint is from before."""

        def refuse() -> None:
            raise UserError(
                f"training diverged: the {which} loss is {loss:.4g} at step {self.state.step:,}. Train a new run "
                f"with a training.learning_rate below {self.config.training.learning_rate}"
            )

        self.processes.on_first_rank(refuse)

    def _standing(self) -> str:
        """What to say where another process was lost."""
        there = os.environ.get("LOCAL_WORLD_SIZE", self.processes.world_size)
        return (
            f"another process of this training has ended or no longer answers at step {self.state.step:,}: see what "
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
        trainer.display.message("stopping after this step; once more to stop at once")

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
