"""How the weights of a training lie among its processes, and so how gradients are added up and weights are kept.

Gradients are sums over all answers of a step, whoever computed them. Where every process has all weights, they are
added up after the last batch of a step and not, as torch's DistributedDataParallel does it, during its backward pass:
of a step that is compiled as a whole no gradient is there before all are, so that nothing would be gained; and so a
process may do as many batches as there are for it, none, or one in halves where memory is short, unknown to the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.parts.mixer import Ctx, Mixer
from dragoman.storage import plain_errors, remove_folder
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
    for tensor in checkpoint.weights_of(learner).values():
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
    kept = checkpoint.weights_of(learner).items()
    return [tensor for name, tensor in kept if name not in known and tensor.is_floating_point()]


def _even_out(statistics: Sequence[Tensor], world: World) -> None:
    """Every process has seen other batches: the mean of all of them."""
    for tensor in statistics:
        dist.all_reduce(tensor)
        tensor.div_(world.size)


class Sharded(Spread):
    """Every process keeps a part of each weight, of its gradient and of optimiser's (Rajbhandari et al. 2020).

    A layer is put together when it is needed and taken apart again (torch's fully_shard). Weights, gradients and their
    sums are float32; what is computed in bfloat16 is cast within the layer, as on one process.
    """

    compiles = False
    replays = False
    even = True
    name = "sharded"

    def divide(self, learner: nn.Module) -> None:
        _share(learner)
        # nothing is written into what a layer returns, so that views do no harm
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(self.device.type, (self.world.size,))
        for unit in units(learner):
            fully_shard(unit, mesh=mesh)
            if remembers(unit):
                register_fsdp_forward_method(unit, "remember")
            unit.register_forward_pre_hook(_hide, prepend=True)
            unit.register_forward_pre_hook(_show)
        fully_shard(learner, mesh=mesh)
        for module in learner.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums, no means
                module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, "flattens"):
                module.flattens = False  # type: ignore[assignment]
        self.statistics = _statistics(learner)

    def add_up(self, weights: Sequence[nn.Parameter]) -> None:
        _even_out(self.statistics, self.world)  # the gradients' sums came with the backward pass

    def whole(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():  # one at a time: the others keep none of it
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if self.world.rank == 0:
                found[name] = full.cpu()
        return found

    def write(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        shards = folder / ".shards.partial"

        def begin() -> None:
            with plain_errors(folder):
                remove_folder(shards)
                shards.mkdir()

        self.world.first(begin)
        if state:
            writer = HuggingFaceStorageWriter(str(shards), save_distributed=True)  # torch's own would be a pickle
            with _disk(folder):
                state_dict_saver.save(dict(state), storage_writer=writer)
        return shards

    @contextmanager
    def shown(self, model: nn.Module, copy: nn.Module, average: Average | None) -> Iterator[None]:
        weights = self.whole(usable(model, average))
        if self.world.rank == 0:
            checkpoint.set_weights(copy, weights, Path())
        yield


def spread(asked: str, world: World, device: torch.device) -> Spread:
    """As `training.distribution` asks: whole on every process unless sharded."""
    if world.size == 1:
        return Spread(world, device)
    return Sharded(world, device) if asked == "sharded" else Replicated(world, device)


def units(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of every stack, and the parts that look at the source before their layer does; inner ones first."""
    mixers = {path: part for path, part in model.named_modules() if isinstance(part, Mixer)}
    for path, part in reversed(mixers.items()):
        above = sum(path.startswith(f"{other}.") for other in mixers)
        if above == 1 or remembers(part):
            yield part


def remembers(part: nn.Module) -> bool:
    return isinstance(part, Mixer) and type(part).remember is not Mixer.remember


class _Hidden:
    """What fully_shard must not look into: it would make a copy, and what a layer leaves there would be lost."""

    def __init__(self, ctx: Ctx) -> None:
        self.ctx = ctx


def _hide(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_Hidden(one) if isinstance(one, Ctx) else one for one in arguments)


def _show(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.ctx if isinstance(one, _Hidden) else one for one in arguments)


def usable(model: nn.Module, average: Average | None) -> dict[str, Tensor]:
    """The weights that are to be used: where there is a running mean of them, that mean."""
    weights = checkpoint.weights_of(model)
    return weights if average is None else weights | average.tensors()


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """What this process is to have of a tensor."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def read_shards(folder: Path, state: dict[str, Tensor]) -> None:
    """Fill a state, in parts or whole, with what any number of processes has written."""
    if not state:
        return
    with warnings.catch_warnings(), _disk(folder):
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is meant
        state_dict_loader.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What the disk of any process refuses, as if it were this one's."""
    try:
        with plain_errors(folder):
            yield
    except CheckpointException as error:
        cause = next((one for one, _ in error.failures.values() if isinstance(one, OSError)), None)
        with plain_errors(folder):
            if cause is not None:
                raise cause from None
        raise UserError(f"{folder} cannot be written or read: {next(iter(error.failures.values()))[0]}") from None
