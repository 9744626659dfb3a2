"""Data parallelism: how weights lie on the processes of a training, how gradients are summed and weights gathered.

Gradients are sums over all labels of a step. With replicated weights they are summed after the last batch of a step
and not, as in torch's DistributedDataParallel, during its backward pass: a compiled step has no gradient before it has
all, so nothing would be gained. And a process may compute any number of batches, or a batch in parts if memory is
short, independently of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.training.ema import WeightAverage
from dragoman.training.process_group import ProcessGroup

BUCKET_ELEMENTS = 2**23  # gradient elements that are reduced at a time


class ParallelStrategy:
    """A single process with all weights; base class of the strategies for several."""

    supports_compile = True
    supports_cuda_graphs = True
    lockstep = False  # all processes must compute the same number of batches
    name = ""

    def __init__(self, processes: ProcessGroup, device: torch.device) -> None:
        self.processes, self.device = processes, device

    def distribute(self, module: nn.Module) -> None:
        """Distribute the weights, before an optimizer is built for them."""

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes."""

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the full tensors on the first process."""
        return tensors

    def write_shards(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        """Write the shards of all processes into a new folder; None if the first process has the full tensors."""
        return None

    def inference_weights(
        self, model: nn.Module, inference_model: nn.Module, average: WeightAverage | None
    ) -> AbstractContextManager[None]:
        """Give `inference_model` on the first process the weights to be used, inside the context.

        It is the trained model itself, unless that is sharded.
        """
        return average.swap() if average is not None else nullcontext()


class ReplicatedStrategy(ParallelStrategy):
    """Every process has all weights and computes its own batches; summed gradients give all the same step."""

    supports_cuda_graphs = False
    name = "replicated"

    def distribute(self, module: nn.Module) -> None:
        broadcast_weights(module)
        self.statistics = running_statistics(module)

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Sum the gradients; sums, norm and skipped steps are identical on all processes."""
        average_statistics(self.statistics, self.processes)
        has_gradient = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.uint8)
        dist.all_reduce(has_gradient, dist.ReduceOp.MAX)  # weights unused by all batches keep no gradient
        gradients = [_gradient(weight) for weight, used in zip(weights, has_gradient.tolist()) if used]
        previous: tuple[list[Tensor], Tensor, Any] | None = None
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            work = dist.all_reduce(flat, async_op=True)
            _copy_back(previous)  # while this bucket is being reduced
            previous = (bucket, flat, work)
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
        dist.broadcast(tensor, 0)


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
    """Return the weights to be used: the moving average, if there is one."""
    weights = checkpoint.named_weights(model)
    return weights if average is None else weights | average.state_tensors()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has a shard of the tensor (torch's DTensor, whose import takes seconds)."""
    return getattr(tensor, "full_tensor", None) is not None


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(full: Tensor, like: Tensor) -> Tensor:
    """Return the shard of a full tensor that this process has of `like`."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _gradient(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(member.numel() for member in bucket) >= BUCKET_ELEMENTS:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _copy_back(reduced: tuple[list[Tensor], Tensor, Any] | None) -> None:
    if reduced is not None:
        gradients, flat, work = reduced
        work.wait()
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients)])
