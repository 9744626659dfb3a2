"""Training on a Ray cluster: Ray Train starts the processes that torchrun would start, and again when one is lost."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman import __version__
from dragoman.api.training_task import Log, TrainingTask
from dragoman.bulk import RayExecutor, executor_from_text
from dragoman.bulk.block_worker import check_version
from dragoman.bulk.ray_executor import connect, first_line
from dragoman.errors import UserError
from dragoman.processes import stop_on_signals
from dragoman.run_files import check_new_folder
from dragoman.training.display import Display
from dragoman.training.parallel import TIMEOUT, LostProcessError
from dragoman.training.run_mirror import RunMirror
from dragoman.training.trainer import TrainingOutcome
from dragoman.training.validation import ValidationResult

DISPLAY_POLL_SECONDS = 0.5  # between two looks at what the first process has sent
MAX_RESTARTS = 3
#: between checks whether machines can be added: practically never, as they are used after the next restart anyway
RESIZE_INTERVAL_SECONDS = 1e9


class DriverChannel:
    """A Ray actor between the first training process and the driver, which displays what the process sends.

    In the other direction, the driver tells the process to stop.
    """

    def __init__(self) -> None:
        """Start without messages: nothing to display, and no request to stop."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []  # (method of the driver's display, arguments)
        self.stopping = False

    def send(self, method: str, arguments: tuple[Any, ...]) -> None:
        """Store a call of a method of the display, until the driver (the user's process) fetches it (`take`)."""
        self.calls.append((method, arguments))

    def take(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Return the calls (method, arguments) that were sent since the last `take`, and forget them."""
        calls, self.calls = self.calls, []
        return calls

    def stop(self) -> None:
        """Let the training stop after its present step: its first process asks `is_stopping`."""
        self.stopping = True

    def is_stopping(self) -> bool:
        """Whether the driver wants the training to stop after its present step."""
        return self.stopping


class RemoteDisplay(Display):
    """The display of the first process: sends everything to the driver through a channel."""

    def __init__(self, channel: Any) -> None:
        """Send to the driver through `channel`, a Ray actor of DriverChannel."""
        super().__init__()
        self.channel = channel

    def start(self, fraction: float | None, total_steps: int | None) -> None:
        """Send that training starts, or is resumed; `fraction` of the budget was used before (None: unknown).

        `total_steps` is the planned number of steps, None without a limit.
        """
        super().start(fraction, total_steps)
        self._send("start", fraction, total_steps)

    def message(self, text: str) -> None:
        """Send a message to the driver, which displays it."""
        self._send("message", text)

    def log(self, text: str) -> None:
        """Send a message of the preparation, before the training starts, to the driver."""
        self._send("log", text)

    def log_step(self, record: dict[str, Any], fraction: float | None) -> None:
        """Send a training record of metrics.jsonl, and the used fraction of the training budget (None: unknown)."""
        self._send("log_step", record, fraction)

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Send the result of a validation at `step`; `best`: it is the best so far."""
        self._send("log_validation", step, result, best)

    def _send(self, method: str, *arguments: Any) -> None:
        """Let the driver call a method of its display with these arguments; do not wait for it."""
        self.channel.send.remote(method, arguments)


@dataclass(frozen=True)
class TrainingWorker:
    """What Ray Train runs in each process.

    Attributes:
        task: the training; a run that exists already is continued, since the processes may have been started again.
        channel: Ray actor of DriverChannel, to which the first process sends its progress.
        working_folder: of the driver, to which relative paths refer.
        version: version of Dragoman in the driver, which that of this process must equal.
    """

    task: TrainingTask
    channel: Any
    working_folder: str
    version: str = __version__

    def __call__(self) -> TrainingOutcome | str | None:
        """Train; return the outcome in the first process (rank 0), and None in the others.

        A UserError is returned as its message, because Ray would repeat a training that raises.
        """
        with suppress(OSError):  # the folder may not exist on this machine; absolute paths work without it
            os.chdir(self.working_folder)
        display = RemoteDisplay(self.channel)
        stopping = threading.Event()
        try:
            check_version(self.version)
            if os.environ.get("RANK", "0") == "0":  # its trainer tells the other processes to stop
                threading.Thread(target=self._watch, args=(stopping,), daemon=True).start()
            outcome = self.task.run(display, display.log, stopping.is_set)
        except LostProcessError:
            raise  # Ray starts all processes again
        except UserError as error:
            return str(error)
        except SystemExit:  # raised in the other processes after a UserError in the first one, which returns it
            return None
        return outcome

    def _watch(self, stopping: threading.Event) -> None:
        """Ask the driver every second whether the training should stop, and then set the event `stopping`."""
        import ray

        with suppress(ray.exceptions.RayError):  # the driver has ended, or cannot be reached
            while not stopping.wait(2 * DISPLAY_POLL_SECONDS):
                if ray.get(self.channel.is_stopping.remote()):
                    stopping.set()


@dataclass(frozen=True)
class RayTraining:
    """Trains on a Ray cluster. After a restart, it uses as many processes as the remaining machines can hold.

    Attributes:
        address: address of the cluster (host:port); "": the one running on this machine, or a new one.
        num_workers: largest number of processes; None: one per GPU, or without GPUs per `cpus_per_worker` CPUs.
        cpus_per_worker: number of CPUs that Ray reserves for a process.
        max_restarts: how often the processes are started again after one is lost.
    """

    address: str = ""
    num_workers: int | None = None
    cpus_per_worker: float = 1.0
    max_restarts: int = MAX_RESTARTS

    def train(self, task: TrainingTask, display: Display, log: Log) -> TrainingOutcome | None:
        """Train a run on the cluster, and return how it ended; progress and messages come from the first process.

        With a mirror (a copy of the run folder in a storage), the trained run is copied from there to this machine. A
        new run that would overwrite another one, a failed training and a missing package are a UserError.
        """
        folder = task.folder.resolve()
        mirror = None if task.mirror is None else RunMirror(folder, task.mirror)  # copy of the run in a storage
        if task.config is not None and not task.resume_if_exists:  # a new run must not overwrite anything
            check_new_folder(folder)
            if mirror is not None:
                mirror.check_free()
        ray = connect(self.address)
        try:
            # imported by name: type checkers see the classes of Ray Train's first version
            ray_train: Any = import_module("ray.train")
            ray_train_torch: Any = import_module("ray.train.torch")
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        except ImportError:
            raise UserError(
                "training on a Ray cluster (--on ray) needs the package ray[train]: install it with pip install "
                "'dragoman[cluster]'"
            ) from None
        resources = ray.cluster_resources()
        device = task.config.training.device if task.config else task.changes.get("training.device", "auto")
        num_gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        num_workers = self.num_workers or num_gpus or max(1, int(resources.get("CPU", 1) // self.cpus_per_worker))
        # on the machine of the driver, so that the channel survives the loss of any other machine
        on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        channel = ray.remote(num_cpus=0)(DriverChannel).options(scheduling_strategy=on_this_node).remote()
        worker = TrainingWorker(
            # processes that are started again find the run that the first ones have prepared
            replace(task, folder=folder, resume_if_exists=True, num_processes=num_workers),
            channel,
            working_folder=str(Path.cwd()),
        )
        with tempfile.TemporaryDirectory(prefix="dragoman-") as storage:  # Ray's own records, which are not needed
            trainer = ray_train_torch.TorchTrainer(
                lambda: worker(),  # what each process runs
                torch_config=ray_train_torch.TorchConfig(
                    "cpu:gloo,cuda:nccl" if num_gpus else "gloo", timeout_s=int(TIMEOUT.total_seconds())
                ),
                scaling_config=ray_train.ScalingConfig(
                    num_workers=(1, num_workers),  # smallest and largest number: fewer if machines are lost
                    use_gpu=num_gpus > 0,
                    resources_per_worker={"CPU": self.cpus_per_worker, **({"GPU": 1} if num_gpus else {})},
                    elastic_resize_monitor_interval_s=RESIZE_INTERVAL_SECONDS,
                ),
                run_config=ray_train.RunConfig(
                    name="training",
                    storage_path=storage,
                    failure_config=ray_train.FailureConfig(max_failures=self.max_restarts),
                    logging_config=ray_train.LoggingConfig("ERROR"),
                ),
            )
            result = _fit(trainer.fit, channel, display, log)
        if isinstance(result, str):
            raise UserError(result)
        if mirror is not None:  # copy the trained run to this machine, where the next commands need it
            mirror.fetch()
        return result


def _fit(fit: Callable[[], Any], channel: Any, display: Display, log: Log) -> TrainingOutcome | str | None:
    """Run `fit` of Ray Train in a thread, and show on the display what the first process sends through the channel.

    Ctrl-C or SIGTERM asks the first process to stop after its step, a second one stops at once. Returns what the first
    process returns: the outcome of the training, or the message of a UserError. A failure of Ray is a UserError.
    """
    import ray
    from ray.train import TrainingFailedError

    def stop() -> None:
        """Tell the first process to stop after the current step."""
        channel.stop.remote()
        log("stopping after this step; press Ctrl-C again to stop immediately")

    with ThreadPoolExecutor(1) as pool, stop_on_signals(stop):
        fitted: Future[Any] = pool.submit(fit)
        try:
            while not fitted.done():
                wait([fitted], DISPLAY_POLL_SECONDS)
                _show(ray.get(channel.take.remote()), display, log)
            _show(ray.get(channel.take.remote()), display, log)  # sent after the last poll
            result = fitted.result()
        except (ray.exceptions.RayError, TrainingFailedError) as error:
            if not fitted.done():  # the channel is lost, perhaps with its machine
                ray.shutdown()  # makes `fit` fail, which ends its thread
            raise UserError(
                f"the training on the Ray cluster failed ({first_line(error)}): solve this, and continue the run with "
                "--resume (in Python: resume=True)"
            ) from None
        except KeyboardInterrupt:
            ray.shutdown()  # makes `fit` fail, which ends its thread
            raise
        finally:
            display.__exit__(None, None, None)  # entered by `_show` when the training starts
    outcome: TrainingOutcome | str | None = result.return_value
    return outcome


def _show(calls: list[tuple[str, tuple[Any, ...]]], display: Display, log: Log) -> None:
    """Carry out what the first process has sent: calls (name of a method of the display, arguments).

    The method "log" stands for the function `log`; "start" also opens the display.
    """
    for method, arguments in calls:
        if method == "log":
            log(*arguments)
            continue
        if method == "start":
            display.__enter__()
        getattr(display, method)(*arguments)


def training_executor(place: str, num_workers: int | None = None, **options: Any) -> RayTraining | None:
    """Return where to train: None for the value "local" of `--on`, a Ray cluster for "ray" or "ray://ADDRESS".

    `num_workers` is the largest number of processes; `options` are other attributes of RayTraining.
    """
    executor = executor_from_text(place, num_workers)
    if not isinstance(executor, RayExecutor):
        return None
    return RayTraining(executor.address, num_workers, **options)
