"""The training loop."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dragoman import checkpoint
from dragoman import config as configuration
from dragoman.config import Config
from dragoman.data import Batches, TokenStore, longer_side, prefetch
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory
from dragoman.models import Model, ModelSpec
from dragoman.objectives import Objective, TaskContext, build_objective, objective_class
from dragoman.parts.spec import Spec, replace_everywhere, without_dropout
from dragoman.parts.stack import Stack
from dragoman.processes import stop_on_signals
from dragoman.run import Run, read_framing, read_spec, read_tokenizers, select_device
from dragoman.run.search_choice import SearchChoice, store_choice, unset_search_settings, without_search_choice
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, INITIAL_CHECKPOINT
from dragoman.seeding import seed_generators
from dragoman.storage import exclusive_run_lock
from dragoman.training.checkpoint_manager import CheckpointManager, TrainState
from dragoman.training.display import Display
from dragoman.training.ema import WeightAverage
from dragoman.training.metrics import MetricsLog, TrainingMeter
from dragoman.training.optimizer import build_optimizer
from dragoman.training.parallel import ProcessGroup, make_strategy
from dragoman.training.run_mirror import RunMirror
from dragoman.training.schedule import learning_rate
from dragoman.training.train_step import StepBatches, TrainStep, is_out_of_memory, iterate_steps
from dragoman.training.trainable_weights import prepare_weights, trains_all_weights
from dragoman.training.training_budget import TrainingBudget, pluralize, stop_reason
from dragoman.training.validation import ValidationResult, Validator, metric_title
from dragoman.training.warm_start import NEW_WEIGHTS, same_task

LOG_INTERVAL_STEPS = 10
SAVE_INTERVAL_SECONDS = 600  # besides the checkpoint of every validation
MAX_ROLLBACKS = 3  # in a row before training is given up
PREFETCHED_STEPS = 4


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training ended.

    Attributes:
        reason: why training stopped.
        interrupted: whether it was interrupted by the user and can be resumed.
        paused: whether it was paused before its end by the caller and can be resumed.
        averaged_checkpoints: number of checkpoints whose average is the best model; 0 if a single one is best.
        best: record of the best validation, as in metrics.jsonl; empty if there was none.
        search: the search settings that were chosen on the validation set; None if none were chosen.
    """

    reason: str
    interrupted: bool
    state: TrainState
    averaged_checkpoints: int
    best: dict[str, Any]
    paused: bool = False
    search: SearchChoice | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values, with the totals of the whole run: step, epoch, target tokens, seconds."""
        state, values = self.state, {name: value for name, value in vars(self).items() if name != "state"}
        values["search"] = None if self.search is None else self.search.to_record()
        totals = {"step": state.step, "epoch": state.data_position.epoch, "target_tokens": state.target_tokens}
        return values | totals | {"seconds": round(state.seconds, 1)}


class Trainer:
    """Trains the run in a folder from its last checkpoint on."""

    def __init__(
        self,
        folder: Path,
        display: Display,
        config: Config | None = None,
        processes: ProcessGroup | None = None,
        custom_parts: Sequence[type[Spec]] = (),
        mirror: RunMirror | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Build model, data, optimizer and validator of a prepared run, and load its last checkpoint, if any.

        Args:
            folder: the run folder.
            display: shows the progress of the training.
            config: configuration to use instead of that in the folder.
            processes: the processes of a distributed training; None: a single one.
            custom_parts: layer classes of the user that the model contains besides those of the package.
            mirror: copy of the run folder that is updated after every checkpoint; None: there is no copy.
            stop_requested: returns whether to stop before the next step, as after a signal.
        """
        self.mirror, self.stop_requested = mirror, stop_requested
        self.folder, self.display = folder, display
        self.processes = processes = processes or ProcessGroup()
        self.config = config or configuration.from_yaml(folder / CONFIG_FILE)
        # if a finished run is extended, the search that was chosen at its end is ignored: all validations decode alike
        self.config = without_search_choice(self.config)
        training = self.config.training
        self.device = processes.assign_device(select_device(training.device))
        _configure_torch(self.device, bool(training.compile), training.deterministic)
        seed_generators(training.seed)
        spec = read_spec(folder, custom_parts)
        spec = replace_everywhere(spec, Stack, gradient_checkpointing=bool(training.gradient_checkpointing))
        objective = self.config.objective
        # an objective may switch off the dropout of the system, as minimum-risk training does by default
        if not objective_class(objective.name or "translation").uses_dropout(objective.settings):
            spec = without_dropout(spec)
        self.model = self._build_model(spec)
        source_tokenizer, target_tokenizer = read_tokenizers(folder)
        framing = read_framing(folder)  # special tokens around source and target
        self.run = Run(
            folder, self.config, self.model, source_tokenizer, target_tokenizer, framing, checkpoint_name="last"
        )
        self.objective = self._build_objective(
            self.model,
            label_smoothing=training.label_smoothing or 0.0,
            bpe_dropout=self.config.text.bpe_dropout or 0.0,
        )
        packed = self._use_packing()  # several pairs per row, without padding
        self.batches = self._build_batches(packed)
        self.strategy = make_strategy(training.parallelism, processes, self.device)
        # lockstep: all processes must compute the same number of batches, because the weights are sharded
        if self.strategy.lockstep and self.objective.decodes_in_training:
            raise UserError(
                f"the objective {objective.name} generates text in every step, which does not work with "
                "training.parallelism=sharded: set training.parallelism=replicated"
            )
        # torchrun sets LOCAL_WORLD_SIZE to the number of processes on this machine
        is_one_machine = int(os.environ.get("LOCAL_WORLD_SIZE", processes.world_size)) == processes.world_size
        if mirror is not None and self.strategy.lockstep and not is_one_machine:
            raise UserError(
                "training.mirror copies the files of one machine, but with training.parallelism=sharded every machine "
                "saves a part of the weights: set training.parallelism=replicated, or use a shared disk and no mirror"
            )
        self.strategy.distribute(self.objective)
        # sharded weights cannot decode: the first process validates another model, into which they are gathered
        if self.strategy.lockstep and processes.rank == 0:
            self.run.model = self._build_model(spec)
            self.run.model.match_vocabularies(source_tokenizer, target_tokenizer)  # lets it copy source tokens
        unregularized = self._build_objective(self.run.model)  # without label smoothing and BPE dropout
        self.validator = Validator(self.run, unregularized, TokenStore(folder / "data" / "valid"))
        self.optimizer = build_optimizer(self.model, training)
        self.average = WeightAverage(self.model, training.ema_decay) if training.ema_decay else None
        self.checkpoints = CheckpointManager(
            folder,
            keep=training.keep_checkpoints,
            model=self.model,
            optimizer=self.optimizer,
            average=self.average,
            strategy=self.strategy,
            initial_digest=self._initial_digest(),
            keep_history=training.keep_history,
        )
        self.state = self.checkpoints.resume() or TrainState()
        steps_per_epoch = max(1, self.batches.batches_per_epoch // training.gradient_accumulation)
        # at the end, the mean of several checkpoints is validated, unless they hold a moving average of the weights
        validates_average = training.average_checkpoints and self.average is None
        # at the end, beam size and length penalty are chosen on validation sentences, if there are enough
        chooses_search = self.validator.num_choice_sentences(num_validations=1) > 0
        self.budget = TrainingBudget(self.config, steps_per_epoch, validates_average, chooses_search)
        self.budget.update_budget(self.state)
        self.train_step = TrainStep(
            self.objective, self.optimizer, training, self.strategy, self.average, packed=packed, log=display.message
        )
        self.metrics_log = MetricsLog(folder, self.state.step, enabled=processes.rank == 0)
        self.interrupted = False

    def _build_model(self, spec: ModelSpec) -> Model:
        """Build the model with its initial weights on the device; add LoRA's adapters and freeze weights as configured.

        `spec` has its hyper-parameters.
        """
        model, new_weights = spec.build(), ()
        # weights from another run or word vectors, and the names of those that are new, which LoRA trains in full
        initial = self.folder / INITIAL_CHECKPOINT
        if initial.exists():
            checkpoint.load_weights(model, initial)
            new_weights = checkpoint.read_values(initial).get(NEW_WEIGHTS, ())
        if not trains_all_weights(self.config):
            prepare_weights(model, self.config, new_weights)
        return model.to(self.device)

    def _initial_digest(self) -> str | None:
        """Return the SHA-256 of the initial weights if some of them are frozen; None if all weights are trained.

        It is also None if the run folder has no file of initial weights.
        """
        initial = self.folder / INITIAL_CHECKPOINT
        # trial steps for the batch size run before the initial weights are written
        if trains_all_weights(self.config) or not initial.exists():
            return None
        return checkpoint.tensors_digest(initial, "model")

    def _build_objective(self, model: Model, label_smoothing: float = 0.0, bpe_dropout: float = 0.0) -> Objective:
        """Build the objective of the run, which computes the loss of a batch, for a model.

        Regularization by label smoothing (its probability mass) and BPE dropout (its probability) is off by default.
        """
        run = self.run
        task = TaskContext(
            model,
            run.source_tokenizer,
            run.target_tokenizer,
            run.framing,
            label_smoothing=label_smoothing,
            bpe_dropout=bpe_dropout,
        )
        return build_objective(self.config.objective.name or "translation", task, self.config.objective.settings)

    def _use_packing(self) -> bool:
        """Whether batches are packed (several sequences per row, without padding): on a GPU, if that is supported.

        `training.batch_layout` can demand or forbid it. On a CPU, tight padding is faster.
        """
        layout = self.config.training.batch_layout  # auto, packed or padded
        # `static_shapes`: every step is the same computation, without sampling
        supported = self.objective.supports_packing and self.objective.static_shapes
        if layout == "packed" and not supported:
            raise UserError(
                "training.batch_layout=packed puts all pairs of a batch into one row, which this system or objective "
                "does not support: set training.batch_layout to auto or padded"
            )
        return supported and (layout == "packed" or (layout == "auto" and self.device.type == "cuda"))

    def _build_batches(self, packed: bool) -> Batches:
        """Return the batches of the training pairs; `packed`: several pairs share a row, without padding.

        On a GPU, the shapes of padded batches are rounded up so that they repeat, as CUDA graphs need.
        """
        # how a pair becomes a row of a batch; `model_framing`: special tokens, of a multilingual model for each corpus
        training, rows = self.config.training, replace(self.objective.row_format, model_framing=self.run.model_framing)
        if training.batch_by == "pair":  # count tokens by the longer side, which gives all systems the same batches
            rows = replace(rows, row_length=longer_side)
        return Batches(
            TokenStore(self.folder / "data" / "train"),
            max_tokens=training.batch_tokens or 4096,
            seed=training.seed,
            rows=rows,
            packed=packed,
            pad_to_multiples=(32, 4) if self.device.type == "cuda" else (1, 1),  # of the number and length of rows
        )

    def train(self, pause_due: Callable[[TrainState], bool] = lambda state: False) -> TrainingOutcome:
        """Train until the budget is used up or training is interrupted or paused, and save a checkpoint in any case.

        All processes of a distributed training run this loop in step; only the first one writes files. At the end of
        the budget the last step is validated, checkpoints are averaged, and search settings are chosen.

        Args:
            pause_due: whether to stop at a state before the budget is used up. The checkpoint is saved without a
                validation, so that a training continued from there equals one that was never paused.
        """
        state, training, on_first_rank = self.state, self.config.training, self.processes.on_first_rank
        normalize_by_sentences = training.resolved("loss_normalization") == "sentences"
        with (
            self.processes.report_lost_process(self._lost_process_message),
            ExitStack() as lock,
            stop_on_signals(self._interrupt),
            self.display,
        ):
            on_first_rank(lambda: lock.enter_context(exclusive_run_lock(self.folder)))
            steps = self._start()
            while True:
                # the batches of this process, with the token counts of all, and whether to save by the clock
                batches, save_due = self._share_counts(next(steps))
                reason = "interrupted" if self.interrupted else stop_reason(training, state)
                paused = reason is None and pause_due(state)
                if reason is not None or paused:
                    break
                rate = learning_rate(training, state.step + 1, self.budget.schedule_inputs(state))
                # the loss of the step is the sum over all processes, divided by this
                divisor = batches.num_sentences if normalize_by_sentences else batches.target_tokens
                self.train_step(batches.batches, state.step + 1, rate, divisor, batches.dummy_batch)
                self.meter.record_step(batches, rate)
                state.step, state.data_position = state.step + 1, batches.next_position
                state.target_tokens += batches.target_tokens
                state.seconds = self.seconds
                self.checkpoints.save_history(state.step)
                if state.step % LOG_INTERVAL_STEPS == 0 and self._log_or_roll_back():
                    # rolled back to an earlier step, but not in the data: continue after what has been read so far
                    steps.close()
                    steps = self._iterate_steps()
                elif self.budget.validation_due(state):
                    self._validate_and_save()
                elif save_due:
                    self._save()
            steps.close()
            is_end = not (self.interrupted or paused)
            averaged = self._save_last_step(is_end)  # number of averaged checkpoints; 0: the best is a single one
            search = on_first_rank(self._choose_search) if is_end else None
        self.metrics_log.close()
        kind, step = ("averaged", state.step) if averaged else ("valid", state.best_step)
        best = self.metrics_log.last_record(kind, step)
        return TrainingOutcome(
            reason or "paused",
            interrupted=self.interrupted,
            state=state,
            averaged_checkpoints=averaged,
            best=best,
            paused=paused,
            search=search,
        )

    @property
    def seconds(self) -> float:
        """Seconds of training until now, including those before the run was resumed."""
        return time.monotonic() - self.started_at

    def _start(self) -> Any:
        """Start the clocks, the sums of losses and the display, and return an iterator over the batches of each step.

        A model that starts from the weights of another run (`training.start_from`) is validated before its first step,
        and saved in the first checkpoint. It can be the best checkpoint only if it was trained for the same task.
        """
        self.model.train()
        self.started_at = time.monotonic() - self.state.seconds  # as if training had never been interrupted
        self.meter = TrainingMeter(self.train_step, self.state.unlogged, self.processes)
        self.saved_at = self.seconds
        training = self.config.training
        if self.state.step == 0:
            self.checkpoints.save_history(0)
        if training.start_from and self.processes.on_first_rank(self.checkpoints.last_step) is None:
            # -1: remove all records, which a process wrote that was killed before its first checkpoint
            self.metrics_log.truncate_after(-1)
            self._validate_and_save(is_candidate=same_task(self.folder))
        steps = None if training.minutes is not None else training.steps  # to be shown; unknown with a time budget
        self.display.start(self.budget.fraction_used(self.state), steps)
        ties = f"; ties by {metric_title(self.validator.tie_break)}, then loss" if self.validator.tie_break else ""
        title = metric_title(self.validator.metric)
        self.display.message(f"the best checkpoint is chosen by validation {title}{ties}")
        return self._iterate_steps()

    def _iterate_steps(self) -> Any:
        """Return an iterator over the batches of each step from the present position in the data on.

        A thread builds batches some steps ahead.
        """
        # batches per step of all processes
        accumulation, gpu = self.config.training.gradient_accumulation, self.device.type == "cuda"
        position, lockstep = self.state.data_position, self.strategy.lockstep  # lockstep: equally many on each process
        return prefetch(
            iterate_steps(self.batches, position, accumulation, self.processes, pinned=gpu, lockstep=lockstep),
            depth=PREFETCHED_STEPS,
        )

    def _share_counts(self, batches: StepBatches) -> tuple[StepBatches, bool]:
        """Sum the token and sentence counts of a step over all processes, and share interruptions and the clock.

        An interruption of one process stops all; the used time of a time budget is that of the first process. Returns
        the batches of this process with the counts of all, and whether a checkpoint is due: more than
        `SAVE_INTERVAL_SECONDS` after the last one, by the clock of the first process.
        """
        seconds = self.seconds
        save_due = seconds - self.saved_at > SAVE_INTERVAL_SECONDS
        clock = (seconds, save_due) if self.processes.rank == 0 else (0.0, False)  # others add 0 to the sums
        interrupted = self.interrupted or self.stop_requested()
        values = [batches.target_tokens, batches.num_sentences, interrupted, *clock]
        tokens, sentences, num_interrupted, seconds, any_save_due = self.processes.all_reduce_sum(values)
        self.interrupted = bool(num_interrupted)
        self.budget.update_time_used(self.state, seconds)
        return replace(batches, target_tokens=int(tokens), num_sentences=int(sentences)), bool(any_save_due)

    def _save_last_step(self, is_end: bool) -> int:
        """Save a checkpoint of the last step; at the end of training (`is_end`), validate it and average checkpoints.

        Nothing is saved or validated twice if the last step was already. Returns the number of checkpoints whose
        average is the best checkpoint; 0 if it is not an average.
        """
        state, on_first_rank = self.state, self.processes.on_first_rank
        if not is_end:  # interrupted or paused
            if on_first_rank(self.checkpoints.last_step) != state.step:
                self._save()
            return 0
        if not on_first_rank(lambda: self.checkpoints.is_validated(state.step)):
            self._validate_and_save()
        elif self.config.training.minutes is not None:
            on_first_rank(lambda: self.checkpoints.update_state(state))  # the time is used up: the run is complete
        return on_first_rank(self._average_checkpoints) if self.budget.validates_average else 0

    def _validate_and_save(self, is_candidate: bool = True) -> None:
        """Validate the model, log the result, and save a checkpoint.

        `is_candidate`: whether it can become the best checkpoint; false for a model that was pretrained for another
        task, before its first step. A loss that is not finite is a UserError. If the best checkpoint is missing on the
        disk, this one takes its place.
        """
        state, on_first_rank = self.state, self.processes.on_first_rank
        # inside, `self.run.model` has the weights to validate: their moving average, if there is one
        with self.strategy.inference_weights(self.model, self.run.model, self.average):
            result, seconds = on_first_rank(self._timed_validation)
        if not math.isfinite(result.loss):
            self._raise_diverged("validation", result.loss)
        if state.best_metric is not None and not on_first_rank(lambda: self.checkpoints.has_best(state)):
            self.display.message(
                f"the best checkpoint, of step {state.best_step:,}, is missing: the next validation becomes the best"
            )
            state.best_metric = None  # the validation recorded below is then the best
        best = state.record_validation(self.validator.score(result), is_candidate)
        self.budget.record_validation(state, seconds)
        state.seconds = self.seconds
        record = {"kind": "valid" if is_candidate else "start", "step": state.step, **result.to_record()}
        times = {"validation_seconds": round(seconds, 2), "seconds": round(state.seconds, 2)}
        self.metrics_log.write(record | times)
        self.metrics_log.write_samples(result, state.step)
        self.display.log_validation(state.step, result, best)
        self._save(validated=is_candidate, best=best)

    def _timed_validation(self) -> tuple[ValidationResult, float]:
        """Compute loss and metrics on the validation set; return them with the seconds that this took."""
        start = time.monotonic()
        return self.validator.validate(), time.monotonic() - start

    def _save(self, validated: bool = False, best: bool = False) -> None:
        """Save a checkpoint of the present step, update the copy of the run folder, and restart the time between saves.

        `validated`: whether the step was validated; `best`: whether its score is the best so far.
        """
        self.state.unlogged = self.meter.unlogged()  # sums of the losses since the last record in metrics.jsonl
        self.checkpoints.save(self.state, validated, best)
        if self.mirror is not None:
            self.processes.on_first_rank(self._publish)
        self.saved_at = self.seconds

    def _publish(self) -> None:
        """Update the copy of the run folder; if that fails, training goes on, and the next checkpoint tries again."""
        assert self.mirror is not None
        try:
            self.mirror.publish()
        except UserError as error:
            self.display.message(f"step {self.state.step:,}: {error}; training continues without this copy")

    def _average_checkpoints(self) -> int:
        """Average the weights of the latest validated checkpoints; the average becomes the best if it validates better.

        `self.run.model` then has the averaged weights. Returns the number of averaged checkpoints; 0 if there are fewer
        than two, or if the average is not better than the best checkpoint.
        """
        count = self.checkpoints.average(self.run.model)
        if count < 2:
            return 0
        result = self.validator.validate()
        if not self.state.is_better(self.validator.score(result)):
            return 0
        values = {"checkpoints": count, **result.to_record()}
        self.checkpoints.save_average(self.run.model, values)
        self.metrics_log.write({"kind": "averaged", "step": self.state.step, **values})
        return count

    def _choose_search(self) -> SearchChoice | None:
        """Choose beam size and length penalty for the best checkpoint on the validation set, and store them in the run.

        `self.run.model` gets the weights of the best checkpoint. Returns None if nothing is chosen: the user has set
        both, too few validation sentences are decoded, there is no best checkpoint, or memory does not suffice for a
        larger beam.
        """
        best, validations = self.folder / CHECKPOINT_DIR / "best", self.metrics_log.count("valid")
        if not best.exists():
            return None
        if not self.validator.num_choice_sentences(validations):
            if self.validator.sources and unset_search_settings(self.run.config):
                self.display.message(
                    f"search settings are not chosen: {len(self.validator.sources)} validation sentences are too few"
                )
            return None
        self.checkpoints.load_best(self.run.model)
        try:
            choice = self.validator.choose_search(validations)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.display.message(
                "search settings are not chosen: no memory for a larger beam; see dragoman tune-search"
            )
            return None
        if choice is None:
            return None
        store_choice(self.folder, choice)
        self.metrics_log.write({"kind": "search", "step": self.state.step, **choice.to_record()})
        for line in choice.lines():
            self.display.message(line)
        return choice

    def _log_or_roll_back(self) -> bool:
        """Log the steps since the last record; if the loss has diverged, roll back to an earlier checkpoint instead.

        It has diverged if more than half of these steps had a non-finite gradient, or their mean loss is not finite, or
        if several records in a row have a much higher loss than before. Returns whether training was rolled back.
        """
        state = self.state
        record: dict[str, Any] = {"kind": "train", "epoch": state.data_position.epoch}
        record |= self.meter.make_record(state.step)
        record["seconds"] = round(state.seconds, 2)
        if self.config.training.minutes is not None:
            record["elapsed"] = round(state.time_used, 4)  # fraction of the time budget
        skipped, loss = record.get("skipped", 0), record["loss"]
        if skipped:
            self.display.message(f"step {state.step:,}: {pluralize(skipped, 'step')} skipped: non-finite gradient")
        if skipped > LOG_INTERVAL_STEPS // 2 or not math.isfinite(loss):  # most of the steps since the last record
            self._roll_back("non-finite loss", math.nan)
            return True
        if state.loss_history.diverged(loss):
            self._roll_back(f"divergence, the loss rose to {loss:.3f}", loss)
            return True
        self.metrics_log.write(record)
        self.display.log_step(record, self.budget.fraction_used(state))
        return False

    def _roll_back(self, reason: str, loss: float) -> None:
        """Load the last checkpoint from before a divergence; training continues from there with data not seen yet.

        After `MAX_ROLLBACKS` in a row, or without a checkpoint, training ends with a UserError. Later records of
        metrics.jsonl are removed. `reason` and the training `loss` (NaN: not finite) are for messages.
        """
        state = self.state
        step, position, rollbacks = state.step, state.data_position, state.rollbacks + 1
        if rollbacks > MAX_ROLLBACKS or self.processes.on_first_rank(self.checkpoints.roll_back) is None:
            self._raise_diverged("training", loss)
        if self.mirror is not None:  # other machines have only the checkpoints that they have fetched
            self.processes.on_first_rank(self.mirror.publish)
            self.processes.wait_for_all(self.mirror.fetch)
        restored = self.checkpoints.resume()  # loads the weights, too
        assert restored is not None
        self.display.message(
            f"step {step:,}: {reason}; rollback to step {restored.step:,}, continuing with the next data"
        )
        vars(state).update(vars(restored))  # in place: `state` is the object that the training loop uses
        self.budget.update_budget(state)
        state.data_position, state.rollbacks, state.diverged_at = position, rollbacks, step
        state.unlogged = {}  # the loss may have begun to rise before the checkpoint was saved
        state.loss_history.high_losses = []  # the rising losses that led to the rollback
        self.metrics_log.truncate_after(state.step)
        self.meter = TrainingMeter(self.train_step, unlogged={}, processes=self.processes)
        self.processes.on_first_rank(lambda: self.checkpoints.update_state(state))
        self.saved_at = self.seconds

    def _raise_diverged(self, kind: str, loss: float) -> None:
        """End training on all processes with a UserError: it has diverged.

        `kind` of the `loss` is "training" or "validation", for the message.
        """

        def fail() -> None:
            """Raise the error; run on the first process, so that it is reported once."""
            step, rate = self.state.step, self.config.training.learning_rate
            raise UserError(
                f"training diverged: the {kind} loss is {loss:.4g} at step {step:,}; train a new run with a "
                f"training.learning_rate below {rate}"
            )

        self.processes.on_first_rank(fail)

    def _interrupt(self) -> None:
        """Let training stop after the current step, and tell the user; called on the first Ctrl-C or signal."""
        self.interrupted = True
        self.display.message("stopping after this step; press Ctrl-C again to stop immediately")

    def _lost_process_message(self) -> str:
        """Return the error message for the case that another process of the training does not answer."""
        processes_per_node = os.environ.get("LOCAL_WORLD_SIZE", self.processes.world_size)
        return (
            f"another process of this training has ended or does not answer at step {self.state.step:,}: see its "
            "output, then resume from the last checkpoint, on any number of processes, with: torchrun --nproc-per-node "
            f"{processes_per_node} -m dragoman train {shlex.quote(str(self.folder))} --resume"
        )


def _configure_torch(device: torch.device, compile_step: bool, deterministic: bool) -> None:
    """Configure torch for this process: compiler workers, memory allocation, deterministic kernels.

    Args:
        device: of the training; on a CPU, freed memory is kept for the next step.
        compile_step: whether the training step is compiled.
        deterministic: whether only deterministic kernels are allowed.
    """
    if device.type == "cuda" and compile_step:
        _start_compiler_workers()
    if device.type == "cpu":
        keep_freed_memory()
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)


def _start_compiler_workers() -> None:
    """Start torch.compile's worker processes now, because this takes ten seconds, in which the model can be built.

    Compiled kernels are cached in the user's cache folder, where later runs of the same shape find them, also after a
    restart of the machine, which empties the compiler's default cache.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "dragoman" / "compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    from torch._inductor.async_compile import AsyncCompile

    for name in ("warm_pool", "wakeup"):  # private, and optional
        if (start := getattr(AsyncCompile, name, None)) is not None:
            start()
