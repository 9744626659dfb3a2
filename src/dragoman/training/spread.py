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
from dragoman.training.distribution import World
from dragoman.training.ema import Average

BUCKET = 2**23  # numbers that are added up at a time


class Spread:
    """One process, which has everything."""

    compiles = True  # may a step be compiled?
    replays = True  # may it be replayed as a CUDA graph?
    even = False  # must all processes do the same number of batches?
    name = ""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device

    def divide(self, learner: nn.Module) -> None:
        """Lay the weights out, before an optimiser is made for them."""

    def add_up(self, weights: Sequence[nn.Parameter]) -> None:
        """Make the gradients of this process those of all."""

    def whole(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Tensors that are whole, on the first process; the others need not have them."""
        return tensors

    def write(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        """A new folder with what each process has of these tensors; None where the first one has them all."""
        return None

    def shown(self, model: nn.Module, copy: nn.Module, average: Average | None) -> AbstractContextManager[None]:
        """Within it, on the first process, `copy` has the weights that are to be used.

        It is the model itself, unless that is in parts.
        """
        return average.swap() if average is not None else nullcontext()


class Replicated(Spread):
    """Every process has all weights and its own batches; gradients are added up, and so all take the same step."""

    replays = False
    name = "replicated"

    def divide(self, learner: nn.Module) -> None:
        _share(learner)
        self.statistics = _statistics(learner)

    def add_up(self, weights: Sequence[nn.Parameter]) -> None:
        """The sum is the same to the bit on all processes, and so are the norm and what is decided by it."""
        _even_out(self.statistics, self.world)
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


def _share(learner: nn.Module) -> None:
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


def _statistics(learner: nn.Module) -> list[Tensor]:
    """What is learned without gradients: the running statistics of norms."""
    known = dict(learner.named_parameters())
    kept = checkpoint.named_weights(learner).items()
    return [tensor for name, tensor in kept if name not in known and tensor.is_floating_point()]


def _even_out(statistics: Sequence[Tensor], world: World) -> None:
    """Every process has seen other batches: the mean of all of them."""
    for tensor in statistics:
        dist.all_reduce(tensor)
        tensor.div_(world.size)


def spread(asked: str, world: World, device: torch.device) -> Spread:
    """As `training.parallelism` asks: whole on every process unless sharded."""
    if world.size == 1:
        return Spread(world, device)
    if asked == "sharded":
        from dragoman.training.sharding import Sharded  # which takes seconds to import

        return Sharded(world, device)
    return Replicated(world, device)


def usable(model: nn.Module, average: Average | None) -> dict[str, Tensor]:
    """The weights that are to be used: where there is a running mean of them, that mean."""
    weights = checkpoint.named_weights(model)
    return weights if average is None else weights | average.tensors()


def is_part(tensor: Tensor) -> bool:
    """Has this process but a part of it (torch's DTensor)?"""
    return hasattr(tensor, "full_tensor")


def whole_of(tensor: Tensor) -> Tensor:
    """All of a tensor, put together from its parts."""
    return tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """What this process is to have of a tensor."""
    if not is_part(like):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
