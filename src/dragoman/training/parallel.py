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
HEARTBEAT_SECONDS = 20.0  # between messages of the first process while the others wait for it

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a training as torchrun numbers them; a single one without torchrun."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # number of this process on its machine

    @staticmethod
    def join() -> ProcessGroup:
        """Connect to the other processes that torchrun has started."""
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
        """Return the device of this process: its own GPU on a machine with several."""
        if self.world_size == 1 or device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"this machine has at least {self.local_rank + 1} processes but {torch.cuda.device_count()} GPUs: "
                "start torchrun with at most as many processes per machine (--nproc-per-node) as it has GPUs"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sum the values of all processes, element by element."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def on_first_rank(self, function: Callable[[], Result]) -> Result:
        """Call a function on the first process and return its result on all of them, however long it takes.

        If it raises a UserError, the first process raises it and the others exit.
        """
        if self.world_size == 1:
            return function()
        answer: list[Any] = [None]
        if self.rank == 0:
            with _heartbeat():
                try:
                    answer = [(function(), None)]
                except UserError as error:
                    answer = [(None, error)]
            _broadcast(answer)
        while answer[0] is None:  # a heartbeat
            _broadcast(answer)
        result, failure = answer[0]
        if failure is not None:
            raise failure if self.rank == 0 else SystemExit(2)
        return result

    @contextmanager
    def report_lost_process(self, message: Callable[[], str]) -> Iterator[None]:
        """Turn errors about an unreachable process inside the context into a UserError with the text of `message()`."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not _is_connection_error(error):
                raise
            raise UserError(message()) from error


def accumulate_for_processes(config: Config, processes: ProcessGroup) -> tuple[Config, list[str]]:
    """Raise the batches per step of a new run to the number of processes.

    Returns the configuration, and the change as a line of text to print; no line if nothing was changed.
    """
    if config.training.gradient_accumulation >= processes.world_size:
        return config, []
    training = replace(config.training, gradient_accumulation=processes.world_size)
    change = f"training.gradient_accumulation={processes.world_size}  (batches per step: one for each process)"
    return replace(config, training=training), [change]


def _broadcast(answer: list[Any]) -> None:
    """Send the first process's list of objects to all others, in place."""
    dist.broadcast_object_list(answer, src=0, device=torch.device("cpu"))


@contextmanager
def _heartbeat() -> Iterator[None]:
    """Send messages to the waiting processes, so that they do not time out while the first one is busy."""
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
    """Whether another process cannot be reached; gloo has no error class of its own."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo", "onnection", "NCCL"))


BUCKET_ELEMENTS = 2**23  # gradient elements that are reduced at a time


class ParallelStrategy:
    """A single process with all weights; base class of the strategies for several."""

    supports_compile = True
    supports_cuda_graphs = True
    lockstep = False  # all processes must compute the same number of batches
    name = ""

    def __init__(self, processes: ProcessGroup | None = None, device: torch.device | None = None) -> None:
        """Use these processes and this device; by default a single process on the CPU."""
        self.processes, self.device = processes or ProcessGroup(), device or torch.device("cpu")

    def distribute(self, module: nn.Module) -> None:
        """Distribute the weights over processes, before an optimizer is built; nothing to do for a single one."""

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes; nothing to do for a single one."""

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the full tensors on the first process: they are not sharded here."""
        return tensors

    def write_shards(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        """Return None: the first process has the full tensors, so that there are no shards to write."""
        return None

    def inference_weights(
        self, model: nn.Module, inference_model: nn.Module, average: WeightAverage | None
    ) -> AbstractContextManager[None]:
        """Inside the context, `inference_model` on the first process has the weights to validate and decode with.

        These are the moving average, if there is one. Here `inference_model` is the trained model itself.
        """
        return average.swap() if average is not None else nullcontext()


class ReplicatedStrategy(ParallelStrategy):
    """Every process has all weights and computes its own batches; summed gradients give all the same step."""

    supports_cuda_graphs = False
    name = "replicated"

    def distribute(self, module: nn.Module) -> None:
        """Copy the weights of the first process to all others, and remember the running statistics of norms."""
        broadcast_weights(module)
        self.statistics = running_statistics(module)

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes, in buckets; average the running statistics of norms."""
        average_statistics(self.statistics, self.processes)
        has_gradient = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.uint8)
        dist.all_reduce(has_gradient, dist.ReduceOp.MAX)  # weights unused by all batches keep no gradient
        gradients = [_gradient(weight) for weight, used in zip(weights, has_gradient.tolist()) if used]
        previous: tuple[list[Tensor], Tensor, Any] | None = None  # a bucket, its flat copy, and the pending all-reduce
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            pending = dist.all_reduce(flat, async_op=True)
            _copy_back(previous)  # while this bucket is being reduced
            previous = (bucket, flat, pending)
        _copy_back(previous)


def make_strategy(parallelism: str, processes: ProcessGroup, device: torch.device) -> ParallelStrategy:
    """Build the strategy of `training.parallelism`: replicated unless sharded."""
    if processes.world_size == 1:
        return ParallelStrategy(processes, device)
    if parallelism == "sharded":
        from dragoman.training.sharded import ShardedStrategy  # takes seconds to import

        return ShardedStrategy(processes, device)
    return ReplicatedStrategy(processes, device)


def broadcast_weights(module: nn.Module) -> None:
    """Copy the initial weights of the first process: other machines may initialize them with other last bits."""
    for tensor in checkpoint.named_weights(module).values():
        dist.broadcast(tensor, src=0)


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Return the buffers that change without gradients: the running statistics of norms."""
    parameters = dict(module.named_parameters())
    saved = checkpoint.named_weights(module).items()
    return [tensor for name, tensor in saved if name not in parameters and tensor.is_floating_point()]


def average_statistics(statistics: Sequence[Tensor], processes: ProcessGroup) -> None:
    """Average running statistics, since every process has seen other batches."""
    for tensor in statistics:
        dist.all_reduce(tensor)
        tensor.div_(processes.world_size)


def weights_for_inference(model: nn.Module, average: WeightAverage | None) -> dict[str, Tensor]:
    """Return the weights and buffers to infer with, by name: the moving average of weights, if there is one."""
    weights = checkpoint.named_weights(model)
    return weights if average is None else weights | average.averages


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has a shard of the tensor (torch's DTensor, whose import takes seconds)."""
    return getattr(tensor, "full_tensor", None) is not None


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in full: a sharded one is gathered from all processes."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Return the shard of a full tensor that corresponds to the shard `like`; the full tensor if `like` is one."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _gradient(weight: nn.Parameter) -> Tensor:
    """Return the gradient of a weight; it is set to zeros if this process has not used the weight."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Divide tensors, in their order, into lists of at least `BUCKET_ELEMENTS` elements; the last may have fewer."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(member.numel() for member in bucket) >= BUCKET_ELEMENTS:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _copy_back(reduced: tuple[list[Tensor], Tensor, Any] | None) -> None:
    """Wait for the all-reduce of a bucket, and copy the sums from the flat tensor into its gradients."""
    if reduced is not None:
        gradients, flat, pending = reduced
        pending.wait()
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients)])
