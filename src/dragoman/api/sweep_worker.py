"""Process of a sweep: prepares runs, or trains one up to a rung; started by `dragoman.api.sweep_process`.

The job comes as one line of JSON on standard input, and events leave as lines of JSON on standard output. When standard
input closes, because the sweep stops or was killed, a training saves a checkpoint and ends.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from dragoman import config as configuration
from dragoman.api.parent_models import open_parent
from dragoman.config import Config
from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.lens.run_report import write_report
from dragoman.objectives import TaskContext, build_objective
from dragoman.run import load
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, is_run_folder
from dragoman.storage import exclusive_run_lock, resolve_link
from dragoman.systems import SYSTEMS
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.defaults import epoch_target_tokens
from dragoman.training.display import Display
from dragoman.training.preparation_cache import PreparationCache
from dragoman.training.prepare import prepare_run
from dragoman.training.recipes import default_steps
from dragoman.training.sweep_state import RungResult
from dragoman.training.train_step import InsufficientMemoryError, is_out_of_memory
from dragoman.training.trainer import Trainer
from dragoman.training.validation import ValidationResult, Validator, metric_title

MAX_LOCK_SECONDS = 120  # that a worker waits for another one to end

Report = Callable[[dict[str, Any]], None]  # sends an event to the sweep


def main() -> int:
    """Carry out the job on standard input; return the exit code: 0, or 1 after a failure."""
    report = _open_event_stream()
    job = json.loads(sys.stdin.readline())
    Thread(target=_interrupt_at_end_of_input, daemon=True).start()
    try:
        JOBS[job.pop("kind")](report, **job)
    except KeyboardInterrupt:  # at the end of standard input: the sweep stops
        report({"event": "interrupted"})
    except Exception as error:  # a failed run must not end the sweep
        traceback.print_exc()
        report({"event": "failed", **describe_error(error)})
        return 1
    return 0


def _open_event_stream() -> Report:
    """Return a function that writes an event, a dictionary, as a line of JSON to standard output.

    Everything else that is printed goes to standard error, which is the log.
    """
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # file descriptor 1, standard output, is standard error from now on

    def report(event: dict[str, Any]) -> None:
        """Write an event as one line of JSON."""
        stream.write(json.dumps(event) + "\n")
        stream.flush()

    return report


def _interrupt_at_end_of_input() -> None:
    """Wait until standard input closes, then interrupt this process as Ctrl-C does."""
    sys.stdin.read()
    if os.name == "nt":  # where os.kill ends the process at once
        signal.raise_signal(signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)


def describe_error(error: Exception) -> dict[str, Any]:
    """Return the fields of an event that reports a failure: the first line of its message, and if memory ran out."""
    out_of_memory = isinstance(error, (InsufficientMemoryError, MemoryError)) or is_out_of_memory(error)
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return {"error": text.splitlines()[0] if text else type(error).__name__, "out_of_memory": out_of_memory}


# ---- preparation


def prepare_runs(report: Report, settings: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """Prepare run folders one after the other, so that runs with equal text settings share tokenizers and token stores.

    Args:
        report: receives the events: "device", "message", and "prepared" or "unprepared" for each run.
        settings: settings of all runs, by their dotted names.
        runs: name, folder and changed settings of each run, and whether it has the default configuration, which is
            the first one.
    """
    report({"event": "device", **describe_device(settings.get("training.device", "auto"))})
    base, cache = configuration.replace_settings(Config(), settings), PreparationCache()

    def log(text: str) -> None:
        """Report a message of the preparation."""
        report({"event": "message", "text": text})

    for run in runs:
        try:
            config = configuration.replace_settings(base, run["settings"])
            if not is_run_folder(folder := Path(run["folder"])):
                prepare_run(folder, config, log, cache=cache, open_parent=open_parent)
            report({"event": "prepared", "run": run["name"], **describe_prepared(folder)})
        except UserError as error:
            report({"event": "unprepared", "run": run["name"], **describe_error(error)})
            if run["is_default"]:  # the data are at fault, so that no other run can be prepared
                return


def describe_device(name: str) -> dict[str, Any]:
    """Return the devices on which runs are trained: their kind, their names, and the free memory in bytes.

    Of several GPUs it is the smallest free memory, without GPUs that of the machine. `name` is the setting
    training.device: auto and cuda mean all GPUs.
    """
    from dragoman.run import select_device
    from dragoman.training.memory_plan import available_memory

    device = select_device(name)
    if device.type != "cuda":
        return {"kind": device.type, "devices": [name], "memory": available_memory()}
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if name in ("auto", "cuda") else [name]
    return {"kind": "cuda", "devices": devices, "memory": min(torch.cuda.mem_get_info(device)[0] for device in devices)}


def describe_prepared(folder: Path) -> dict[str, Any]:
    """Return what the sweep needs to know about a prepared run: settings, size, metric, and a digest of the settings.

    Settings have dotted names and include those of the system; memory is an estimate in bytes. Runs with the same
    digest are equal.
    """
    config = configuration.from_yaml(folder / CONFIG_FILE)
    memory = json.loads((folder / "preflight.json").read_text(encoding="utf-8"))["memory"]
    metric = config.training.selection_metric
    system = SYSTEMS.get(config.system.name or "")
    values: dict[str, Any] = {}
    if system is not None:  # default values of its hyper-parameters, which the configuration may override
        values = {name: parameter.default for name, parameter in system.settings().items()}
        values |= system.sizes[config.system.size or "base"]  # hyper-parameters that the size sets
    settings = {f"system.settings.{name}": value for name, value in values.items()}
    settings |= configuration.settings_by_name(config)
    return {
        "settings": settings,
        "parameters": memory["parameters"],
        "memory": memory["total"],
        "metric": metric,
        "metric_title": metric_title(metric),
        "digest": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16],
    }


# ---- training


class WorkerDisplay(Display):
    """Reports the progress of a training as events."""

    def __init__(self, report: Report) -> None:
        """Send events with the function `report`."""
        super().__init__()
        self.report = report

    def message(self, text: str) -> None:
        """Print a message to the log."""
        print(text, file=sys.stderr, flush=True)

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Report step, loss and speed from a record of metrics.jsonl, and the used fraction of the training budget."""
        values = {name: record[name] for name in ("step", "loss", "tokens_per_second")}
        self.report({"event": "progress", "fraction": fraction, **values})

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Print the loss of a validation to the log."""
        self.message(f"step {step:,}  validation loss {result.loss:.3f}{'  best so far' if best else ''}")


def train_run(report: Report, folder: str, fraction: float, device: str, sentences: int, metric: str) -> None:
    """Train a prepared run up to a fraction of its training budget, and report its score on the validation set.

    Training pauses there in the schedule of the whole budget, so that a run that continues equals one that was never
    paused. At the end of its training the best checkpoint is scored, before that also the last one.

    Args:
        report: receives events: "progress", and at the end "result" or "interrupted".
        folder: the run folder.
        fraction: part of the budget of steps or minutes, up to 1.
        device: device of the training; "auto": that of the run's configuration.
        sentences: number of validation sentences to decode.
        metric: selection metric of the sweep.
    """
    path = Path(folder)
    _wait_for_lock(path)
    config = configuration.from_yaml(path / CONFIG_FILE)
    if device != "auto":
        config = replace(config, training=replace(config.training, device=device))
    trainer = Trainer(path, WorkerDisplay(report), config)
    outcome = trainer.train(pause_condition(trainer, fraction))
    if outcome.interrupted:
        report({"event": "interrupted"})
        return
    state = outcome.state
    del trainer
    gc.collect()  # the memory of the training is needed for decoding
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    links = ("best", "last") if outcome.paused else ("best",)
    # names of checkpoints, by their steps; both links may point to the same one
    checkpoints = {resolve_link(path / CHECKPOINT_DIR / link).resolve().name for link in links}
    scored = [score_checkpoint(path, name, config.training.device, sentences, metric) for name in sorted(checkpoints)]
    score, validation = max(scored, key=lambda score_and_metrics: score_and_metrics[0])
    result = RungResult(
        fraction, state.step, seconds=state.seconds, target_tokens=state.target_tokens, score=score, metrics=validation
    )
    if not outcome.paused:  # the run is complete
        write_report(load(path, device="cpu"))
    report({"event": "result", "finished": not outcome.paused, "reason": outcome.reason, "result": asdict(result)})


def _wait_for_lock(folder: Path) -> None:
    """Wait up to two minutes while another process trains the run in a folder.

    It may be a worker of a killed sweep, which saves a checkpoint before it ends. If it still runs then, `Trainer`
    raises a UserError.
    """
    for _ in range(MAX_LOCK_SECONDS):
        try:
            with exclusive_run_lock(folder):
                return
        except UserError:
            time.sleep(1.0)


def pause_condition(trainer: Trainer, fraction: float) -> Callable[[TrainState], bool]:
    """Return a function that tells from the training state whether to pause: once a fraction of the budget is used.

    The budget is the limit of steps or minutes; for the fraction 1 training never pauses. A training that only
    patience ends has no budget: the fraction is that of the default number of steps.
    """
    if fraction >= 1:
        return lambda state: False
    budget, training = trainer.budget, trainer.config.training
    if budget.steps is None and training.minutes is None:
        assert training.batch_tokens is not None  # chosen when the run was prepared
        step_tokens = training.batch_tokens * training.gradient_accumulation
        steps = math.ceil(fraction * default_steps(epoch_target_tokens(trainer.batches.store), step_tokens))
        return lambda state: state.step >= steps
    return lambda state: (budget.fraction_used(state) or 0.0) >= fraction  # of the limit that is reached first


def score_checkpoint(
    folder: Path, checkpoint: str, device: str, sentences: int, metric: str
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Score a checkpoint on the validation set; return the score and all metrics by name.

    The score is a tuple of numbers, where higher is better: the value of `metric`, and others for ties. Every run of a
    sweep decodes the same number of `sentences`. The loss in the score is that of a whole target, −log p(y|x), because
    tokens of different tokenizers cannot be compared.
    """
    run = load(folder, checkpoint, device)
    validation_settings = {"training.validation_sentences": sentences, "training.selection_metric": metric}
    run.config = configuration.replace_settings(run.config, validation_settings)
    task = TaskContext(run.model, run.source_tokenizer, run.target_tokenizer, run.framing)
    settings = run.config.objective
    objective = build_objective(settings.name or "translation", task, settings.settings)
    store = TokenStore(folder / "data" / "valid")
    validator = Validator(run, objective, store)
    result = validator.validate()
    target_loss = result.loss * epoch_target_tokens(store) / len(store)  # per sentence, not per token
    # the validator negates the loss, so that higher is better
    score = tuple(-target_loss if value == -result.loss else value for value in validator.score(result))
    return score, {**result.to_record(), "target_loss": target_loss}


JOBS: dict[str, Callable[..., None]] = {"prepare": prepare_runs, "train": train_run}

if __name__ == "__main__":
    sys.exit(main())
