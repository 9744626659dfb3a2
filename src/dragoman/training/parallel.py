"""How the weights of a training lie among its processes, and so how gradients are added up and weights are kept.

Gradients are sums over all answers of a step, whoever computed them. Where every process has all weights, they are
added up after the last batch of a step and not, as torch's DistributedDataParallel does it, during its backward pass:
of a step that is compiled as a whole no gradient is there before all are, so that nothing would be gained; and so a
process may do as many batches as there are for it, none, or one in halves where memory is short, unknown to the others.
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

BUCKET = 2**23  # numbers that are added up at a time


class ParallelStrategy:
    """One process, which has everything."""

    supports_compile = True  # may a step be compiled?
    supports_cuda_graphs = True  # may it be replayed as a CUDA graph?
    lockstep = False  # must all processes do the same number of batches?
    name = ""

    def __init__(self, world: ProcessGroup, device: torch.device) -> None:
        self.processes, self.device = world, device

    def distribute(self, learner: nn.Module) -> None:
        """Lay the weights out, before an optimiser is made for them."""

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Make the gradients of this process those of all."""

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors that are whole, on the first process; the others need not have them."""
        return tensors

    def write_shards(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        """A new folder with what each process has of these tensors; None where the first one has them all."""
        return None

    def inference_weights(
        self, model: nn.Module, copy: nn.Module, average: WeightAverage | None
    ) -> AbstractContextManager[None]:
        """Within it, on the first process, `copy` has the weights that are to be used.

        It is the model itself, unless that is in parts.
        """
        return average.swap() if average is not None else nullcontext()


class ReplicatedStrategy(ParallelStrategy):
    """Every process has all weights and its own batches; gradients are added up, and so all take the same step."""

    supports_cuda_graphs = False
    name = "replicated"

    def distribute(self, learner: nn.Module) -> None:
        broadcast_weights(learner)
        self.statistics = running_statistics(learner)

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """The sum is the same to the bit on all processes, and so are the norm and what is decided by it."""
        average_statistics(self.statistics, self.processes)
        reached = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.uint8)
        dist.all_reduce(reached, dist.ReduceOp.MAX)  # a weight that no batch has reached must stay without a gradient
        gradients = [_gradient(weight) for weight, yes in zip(weights, reached.tolist()) if yes]
        before: tuple[list[Tensor], Tensor, Any] | None = None
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            work = dist.all_reduce(flat, async_op=True)
            _put_back(before)  # while this one is under way
            before = (bucket, flat, work)
        _put_back(before)


def broadcast_weights(learner: nn.Module) -> None:
    """The first weights: drawn alike everywhere, but on another machine perhaps not to the last bit."""
    for tensor in checkpoint.named_weights(learner).values():
        dist.broadcast(tensor, 0)


def _gradient(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(one.numel() for one in bucket) >= BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def _put_back(summed: tuple[list[Tensor], Tensor, Any] | None) -> None:
    if summed is not None:
        gradients, flat, work = summed
        work.wait()
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(gradient) for part, gradient in zip(parts, gradients)])


def running_statistics(learner: nn.Module) -> list[Tensor]:
    """What is learned without gradients: the running statistics of norms."""
    known = dict(learner.named_parameters())
    kept = checkpoint.named_weights(learner).items()
    return [tensor for name, tensor in kept if name not in known and tensor.is_floating_point()]


def average_statistics(statistics: Sequence[Tensor], world: ProcessGroup) -> None:
    """Every process has seen other batches: the mean of all of them."""
    for tensor in statistics:
        dist.all_reduce(tensor)
        tensor.div_(world.world_size)


def make_strategy(asked: str, world: ProcessGroup, device: torch.device) -> ParallelStrategy:
    """As `training.parallelism` asks: whole on every process unless sharded."""
    if world.world_size == 1:
        return ParallelStrategy(world, device)
    if asked == "sharded":
        from dragoman.training.sharded import ShardedStrategy  # which takes seconds to import

        return ShardedStrategy(world, device)
    return ReplicatedStrategy(world, device)


def weights_for_inference(model: nn.Module, average: WeightAverage | None) -> dict[str, Tensor]:
    """The weights that are to be used: where there is a running mean of them, that mean."""
    weights = checkpoint.named_weights(model)
    return weights if average is None else weights | average.state_tensors()


def is_sharded(tensor: Tensor) -> bool:
    """Has this process but a part of it (torch's DTensor)?"""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, put together from its parts."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """What this process is to have of a tensor."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
