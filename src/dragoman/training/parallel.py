"""Data parallelism: how weights lie on the processes of a training, how gradients are summed and weights gathered.

Gradients are sums over all labels of a step. With replicated weights they are summed after the last batch of a step
and not, as in torch's DistributedDataParallel, during its backward pass: a compiled step has no gradient before it has
all, so nothing would be gained. And a process may compute any number of batches, or a batch in parts if memory is
short, independently of the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.training.ema import WeightAverage

TIMEOUT = timedelta(minutes=10)  # for a process that does not answer; one that has ended is noticed at once
LONG_TIMEOUT = timedelta(days=1)  # while processes do different things, such as fetching files
HEARTBEAT_SECONDS = 20.0  # between messages of the first process while the others wait for it

Result = TypeVar("Result")


class LostProcessError(UserError):
    """Another process of the training has ended, or does not answer: all can be started again."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a training as torchrun numbers them; a single one without torchrun."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # number of this process on its machine

    @staticmethod
    def join() -> ProcessGroup:
        """Connect to the other processes that torchrun has started, and return the group; of one process without it.

        torchrun sets the environment variables RANK, WORLD_SIZE and LOCAL_RANK.
        """
        world_size = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
        if world_size == 1:
            return ProcessGroup()
        rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", 0))
        processes = ProcessGroup(rank, world_size, local_rank)
        if not dist.is_initialized():
            with processes.report_lost_process(
                lambda: "the processes of this training did not find each other: start all of them"
            ):
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group(backend, timeout=TIMEOUT)
        return processes

    def destroy(self) -> None:
        """Disconnect from the other processes."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def assign_device(self, device: torch.device) -> torch.device:
        """Return the device of this process: `device` itself, or the GPU `local_rank` if several processes use GPUs."""
        if self.world_size == 1 or device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"at least {self.local_rank + 1} processes were started on this machine, which has "
                f"{torch.cuda.device_count()} GPUs: start torchrun with at most as many processes per machine "
                "(--nproc-per-node) as it has GPUs"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, element by element; each process passes a list of the same length."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def on_first_rank(self, function: Callable[[], Result]) -> Result:
        """Call a function on the first process only, and return its result on all of them, however long it takes.

        Meanwhile the others receive heartbeats, so that they do not time out. If the function raises a UserError, the
        first process raises it and the others exit with status 2.
        """
        if self.world_size == 1:
            return function()
        message: list[Any] = [None]  # None is a heartbeat; otherwise (result, None) or (None, error)
        if self.rank == 0:
            with _heartbeat():
                try:
                    message = [(function(), None)]
                except UserError as error:
                    message = [(None, error)]
            _broadcast(message)
        while message[0] is None:  # on the other processes: receive heartbeats until the result arrives
            _broadcast(message)
        result, user_error = message[0]
        if user_error is not None:
            raise user_error if self.rank == 0 else SystemExit(2)
        return result

    @contextmanager
    def report_lost_process(self, message: Callable[[], str]) -> Iterator[None]:
        """Turn torch's errors about an unreachable process inside the context into a UserError with `message()`."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not _is_connection_error(error):
                raise
            raise LostProcessError(message()) from error

    def wait_for_all(self, function: Callable[[], None]) -> None:
        """Call a function on every process, and wait until all have returned from it, however long it takes."""
        function()
        if self.world_size > 1:  # a new group, because the timeout of the default one is only ten minutes
            dist.barrier(dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))


def accumulate_for_processes(config: Config, num_processes: int) -> tuple[Config, list[str]]:
    """Set `training.gradient_accumulation`, the batches per step of all processes together, to at least their number.

    Each process then has a batch in every step. Returns the configuration of the new run, and the change as a list of
    one line of text to print; empty if nothing was changed.
    """
    if config.training.gradient_accumulation >= num_processes:
        return config, []
    training = replace(config.training, gradient_accumulation=num_processes)
    change = f"training.gradient_accumulation={num_processes}  (batches per step: one for each process)"
    return replace(config, training=training), [change]


def _broadcast(objects: list[Any]) -> None:
    """Replace the elements of the list by those of the first process, which sends them to all others."""
    dist.broadcast_object_list(objects, src=0, device=torch.device("cpu"))


@contextmanager
def _heartbeat() -> Iterator[None]:
    """On the first process: broadcast None every 20 seconds while the context is active, in a thread.

    The other processes, which wait for a broadcast, then do not time out.
    """
    done = Event()

    def beat() -> None:
        """Broadcast None regularly until `done` is set."""
        with suppress(RuntimeError):  # the main thread will get the same error
            while not done.wait(HEARTBEAT_SECONDS):
                _broadcast([None])

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _is_connection_error(error: RuntimeError) -> bool:
    """Whether an error of torch.distributed means that another process cannot be reached.

    The backend gloo raises plain RuntimeErrors, which are recognized by their text ("Connection closed by peer").
    """
    words = ("gloo", "NCCL", "Connection", "connection")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


BUCKET_ELEMENTS = 2**23  # gradient elements that are reduced at a time


class ParallelStrategy:
    """A single process with all weights; base class of the strategies for several."""

    supports_compile = True
    supports_cuda_graphs = True
    lockstep = False  # whether all processes must compute the same number of batches
    name = ""  # value of training.parallelism; empty for a single process

    def __init__(self, processes: ProcessGroup | None = None, device: torch.device | None = None) -> None:
        """Train with these processes, of which this one uses `device`; by default a single process on the CPU."""
        self.processes, self.device = processes or ProcessGroup(), device or torch.device("cpu")

    def distribute(self, module: nn.Module) -> None:
        """Distribute the weights of a module over processes, before an optimizer is built; here there is only one."""

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes at the end of a step; nothing to do here, for a single process."""

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the full tensors by name, gathered from all processes; here the single process has them."""
        return tensors

    def write_shards(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        """Write this process's shards of `state` into a new folder within `folder`, and return it; None if not sharded.

        Here it is None: the first process has the full tensors.
        """
        return None

    def inference_weights(
        self, model: nn.Module, inference_model: nn.Module, average: WeightAverage | None
    ) -> AbstractContextManager[None]:
        """Return a context inside which `inference_model` on the first process has the weights to validate with.

        These are the moving average of the weights of `model`, if there is one. Here `inference_model` and `model` are
        the same object.
        """
        return average.swap() if average is not None else nullcontext()


class ReplicatedStrategy(ParallelStrategy):
    """Every process has all weights and computes its own batches; summed gradients give all the same step."""

    supports_cuda_graphs = False
    name = "replicated"

    def distribute(self, module: nn.Module) -> None:
        """Copy the weights of the first process to all others; keep references to the running statistics of norms."""
        broadcast_weights(module)
        self.statistics = running_statistics(module)

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes, in buckets of many weights, and average the running statistics of norms.

        While a bucket is reduced, the sums of the previous one are copied back. A weight that this process has not used
        gets the gradient of the others; one that no process has used keeps none.
        """
        average_statistics(self.statistics, self.processes)
        has_gradient = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.uint8)
        dist.all_reduce(has_gradient, dist.ReduceOp.MAX)  # 1: some process has a gradient
        gradients = [_gradient_or_zeros(weight) for weight, used in zip(weights, has_gradient.tolist()) if used]
        previous: tuple[list[Tensor], Tensor, Any] | None = None  # a bucket, its flat copy, and the pending all-reduce
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            pending = dist.all_reduce(flat, async_op=True)
            _copy_back(previous)  # while this bucket is being reduced
            previous = (bucket, flat, pending)
        _copy_back(previous)


def make_strategy(parallelism: str, processes: ProcessGroup, device: torch.device) -> ParallelStrategy:
    """Build the strategy of `training.parallelism` ("replicated" or "sharded"), or the base class for one process."""
    if processes.world_size == 1:
        return ParallelStrategy(processes, device)
    if parallelism == "sharded":
        from dragoman.training.sharded import ShardedStrategy  # takes seconds to import

        return ShardedStrategy(processes, device)
    return ReplicatedStrategy(processes, device)


def broadcast_weights(module: nn.Module) -> None:
    """Copy the weights and buffers of the first process to all others.

    They are initialized with the same seed, but on other machines the last bits may differ.
    """
    for tensor in checkpoint.named_weights(module).values():
        dist.broadcast(tensor, src=0)


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the persistent floating-point buffers of a module: the running statistics of norms, such as batch norm."""
    parameters = dict(module.named_parameters())
    saved = checkpoint.named_weights(module).items()
    return [tensor for name, tensor in saved if name not in parameters and tensor.is_floating_point()]


def average_statistics(statistics: Sequence[Tensor], processes: ProcessGroup) -> None:
    """Average running statistics of norms over processes, in place, since every process has seen other batches."""
    for tensor in statistics:
        dist.all_reduce(tensor)
        tensor.div_(processes.world_size)


def weights_for_inference(model: nn.Module, average: WeightAverage | None) -> dict[str, Tensor]:
    """Return the weights and buffers to infer with, by name: the moving average of weights, if there is one."""
    weights = checkpoint.named_weights(model)
    return weights if average is None else weights | average.averages


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this process has only a shard.

    DTensor's import takes seconds: its method `full_tensor` is looked for instead.
    """
    return getattr(tensor, "full_tensor", None) is not None


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in full: a sharded one is gathered from all processes."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Return the full tensor sharded over the processes as `like` is, or unchanged if `like` is no DTensor."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    # every process has the full tensor, so that nothing is sent (src_data_rank=None)
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _gradient_or_zeros(weight: nn.Parameter) -> Tensor:
    """Return the gradient of a weight, after setting it to zeros if this process has not used the weight."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Divide tensors, in their order, into lists of at least `BUCKET_ELEMENTS` elements in total, but for the last."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(member.numel() for member in bucket) >= BUCKET_ELEMENTS:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _copy_back(reduced: tuple[list[Tensor], Tensor, Any] | None) -> None:
    """Wait for the all-reduce of a bucket, and copy the sums into its gradients; do nothing for None.

    `reduced` has the gradients of the bucket, their concatenation, which is being reduced, and the pending operation.
    """
    if reduced is not None:
        gradients, flat, pending = reduced
        pending.wait()
        sums = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [total.view_as(gradient) for total, gradient in zip(sums, gradients)])
