"""Blocks processed by Ray Data: actors that hold the run, on all machines of a cluster."""

from __future__ import annotations

import json
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dragoman import __version__
from dragoman.bulk.block_worker import BlockResult, BlockWorker, check_version
from dragoman.bulk.blocks import BlockTask
from dragoman.errors import UserError
from dragoman.processes import MAX_PENDING_PER_WORKER

MAX_ACTORS = 10_000  # of a pool that grows with the cluster
CONNECT_SECONDS = 5.0  # in which a cluster must answer
MAX_REASON = 300  # characters of an error of Ray

Item = TypeVar("Item")
Result = TypeVar("Result")


class RayBlockActor:
    """An actor of Ray Data that processes tasks, each given as a row of a dataset."""

    def __init__(self, worker: BlockWorker) -> None:
        """Keep the worker, which opens the run when the first task comes."""
        self.worker = worker

    def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Process the task in `row` (index of a file, and of a block in it; below 0: all blocks), and return one row.

        It has the results of the blocks as JSON, or the message of a UserError: Ray would repeat a task that raises.
        """
        block = None if row["block"] < 0 else int(row["block"])
        try:
            results = self.worker(BlockTask(int(row["file"]), block))
        except UserError as error:
            return [{"error": str(error), "results": "[]"}]
        return [{"error": "", "results": json.dumps([asdict(result) for result in results])}]


@dataclass(frozen=True)
class RayExecutor:
    """Actors on a Ray cluster.

    Attributes:
        address: of the cluster, such as 127.0.0.1:6379; "": the running cluster of this machine, or a new one.
        num_actors: None: as many as the cluster has room for, more when machines are added.
        gpus_per_actor, cpus_per_actor: share of GPUs and CPUs that an actor needs.
    """

    address: str = ""
    num_actors: int | None = None
    gpus_per_actor: float = 0.0
    cpus_per_actor: float = 1.0

    def check(self) -> None:
        """Connect to the cluster; a UserError says why that is not possible."""
        connect(self.address)

    def map(self, worker: BlockWorker, tasks: Iterable[BlockTask]) -> Iterator[list[BlockResult]]:
        """Yield for each task the results of its blocks, in any order; tasks of a machine that dies are repeated.

        A UserError of a worker, or a failure of the cluster, is raised as a UserError.
        """
        # -1: all blocks of a file (None), as `RayBlockActor` reads it
        rows = [{"file": task.file, "block": -1 if task.block is None else task.block} for task in tasks]
        if not rows:
            return
        ray = connect(self.address)
        _quiet_datasets()
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).flat_map(  # one task per block of Ray
            RayBlockActor,
            fn_constructor_args=(worker,),
            compute=self._actors(ray, len(rows)),
            num_gpus=self.gpus_per_actor or None,  # Ray Data accepts either GPUs or CPUs
            num_cpus=None if self.gpus_per_actor else self.cpus_per_actor,
        )
        try:
            for row in dataset.iter_rows():
                if row["error"]:
                    raise UserError(row["error"])
                yield [BlockResult.from_dict(values) for values in json.loads(row["results"])]
        except ray.exceptions.RayError as error:
            raise UserError(
                f"the Ray cluster failed: {first_line(error)}; continue with the same command and --resume"
            ) from None

    def map_in_order(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        """Yield `function(item)` for each item, in order; what a machine or process that dies computed is repeated.

        Every process of the cluster receives the function once. Only a few items per CPU are pending at a time.
        """
        ray = connect(self.address)
        apply = ray.remote(num_cpus=self.cpus_per_actor, max_retries=-1)(apply_function)  # -1: without limit
        reference = ray.put(function)
        workers = self.num_actors or int(ray.cluster_resources().get("CPU", 1))  # for the limit on pending items
        pending: deque[Any] = deque()  # references of results, in the order of the items
        try:
            for item in items:
                pending.append(apply.remote(__version__, reference.hex(), [reference], item))
                if len(pending) > MAX_PENDING_PER_WORKER * workers:
                    yield ray.get(pending.popleft())  # waits for the oldest item, which keeps the results in order
            while pending:
                yield ray.get(pending.popleft())
        except ray.exceptions.RayTaskError as error:  # `function` has raised an error
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise UserError(f"the Ray cluster failed: {first_line(error)}; start the command again") from None

    def _actors(self, ray: Any, num_tasks: int) -> Any:
        """Return the strategy for the pool of actors: `num_actors`, or (None) as many as fit, up to MAX_ACTORS.

        There is at most one per task. `ray` is the package.
        """
        if self.num_actors is not None:
            return ray.data.ActorPoolStrategy(size=min(self.num_actors, num_tasks))
        return ray.data.ActorPoolStrategy(min_size=1, max_size=min(MAX_ACTORS, num_tasks))


_functions: dict[str, Callable[[Any], Any]] = {}  # in a process of the cluster: by key, the last one that it applied


def apply_function(version: str, key: str, reference: list[Any], item: Any) -> Any:
    """Apply a function that is stored in Ray to an item; a process fetches it once, and keeps only the latest one.

    Args:
        version: of the program that submits the item; this process must have the same.
        key: identifies the function.
        reference: the reference of the function in Ray, in a list: Ray would replace one outside a list by its value.
        item: the argument.
    """
    check_version(version)
    if key not in _functions:
        import ray

        _functions.clear()
        _functions[key] = ray.get(reference[0])
    return _functions[key](item)


def connect(address: str = "") -> Any:
    """Connect to a Ray cluster, unless this process is connected, and return the package `ray`.

    `address` is HOST:PORT; "" stands for the running cluster of this machine, or a new one. It is a UserError if the
    package is missing, the connection fails, or a machine of the cluster has another version of this program.
    """
    try:
        import ray  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UserError("--on ray needs the package ray: install it with pip install 'dragoman[cluster]'") from None
    if not ray.is_initialized():
        _check_reachable(address)
        try:
            ray.init(address=address or None, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:  # such as another version of Ray or Python
            reason = " ".join(str(error).split())[:MAX_REASON]
            raise UserError(
                f"connecting to the Ray cluster failed ({reason}): it must have the same versions of Ray and Python as "
                "this machine"
            ) from None
    _check_nodes(ray)
    return ray


def _check_nodes(ray: Any) -> None:
    """Raise a UserError if a machine of the cluster has another version of this package, or none."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Ray sends the code of a local function, so it runs even where another version is installed
    def installed_version() -> str:
        """Return the version of dragoman that the machine has which runs this."""
        from dragoman import __version__ as version

        return version

    task = ray.remote(num_cpus=0)(installed_version)
    versions = []  # (address of a machine, reference of its version): all machines answer at the same time
    for node in ray.nodes():
        if node["Alive"]:
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)  # not on another machine instead
            versions.append((node["NodeManagerAddress"], task.options(scheduling_strategy=on_node).remote()))
    for address, reference in versions:
        try:
            version = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise UserError(
                f"the machine {address} of the Ray cluster has no dragoman ({error.cause}): install dragoman "
                f"{__version__} on it"
            ) from None
        except ray.exceptions.RayError:
            continue  # the machine has just been lost
        if version != __version__:
            raise UserError(
                f"the machine {address} of the Ray cluster has dragoman {version}, but this machine has {__version__}: "
                "install the same version on all machines"
            )


def _quiet_datasets() -> None:
    """Let Ray Data print neither progress bars nor execution plans."""
    import ray.data  # type: ignore[import-not-found, unused-ignore]

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _check_reachable(address: str) -> None:
    """Raise a UserError if nothing listens at the address of a cluster: Ray itself would try for minutes.

    "" is not checked: it stands for the cluster of this machine, or a new one.
    """
    if not address:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"there is no Ray cluster at {address!r} ({error}): start one with 'ray start --head --port 6379', and "
            "give its address as ray://HOST:6379"
        ) from None


def first_line(error: Exception) -> str:
    """Return the first line of an error message that is not empty, or the name of its class if there is none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
