"""Weights of a training in parts, one a process; and what was written in parts read again by any number of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from dragoman import checkpoint
from dragoman.errors import UserError
from dragoman.parts.mixer import Mixer
from dragoman.storage import os_errors_as_user_errors, remove_folder
from dragoman.training.ema import WeightAverage
from dragoman.training.parallel import (
    ParallelStrategy,
    average_statistics,
    broadcast_weights,
    full_tensor,
    running_statistics,
    weights_for_inference,
)


class ShardedStrategy(ParallelStrategy):
    """Every process keeps a part of each weight, of its gradient and of optimiser's (Rajbhandari et al. 2020).

    A layer is put together when it is needed and taken apart again (torch's fully_shard). Weights, gradients and their
    sums are float32; what is computed in bfloat16 is cast within the layer, as on one process.
    """

    supports_compile = False
    supports_cuda_graphs = False
    lockstep = True
    name = "sharded"

    def distribute(self, learner: nn.Module) -> None:
        broadcast_weights(learner)
        # nothing is written into what a layer returns, so that views do no harm
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(self.device.type, (self.processes.world_size,))
        for unit in shard_units(learner):
            fully_shard(unit, mesh=mesh)
        fully_shard(learner, mesh=mesh)
        for module in learner.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums, no means
                module.set_force_sum_reduction_for_comms(True)
            if hasattr(module, "flatten_weights"):
                module.flatten_weights = False  # type: ignore[assignment]
        self.statistics = running_statistics(learner)

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        average_statistics(self.statistics, self.processes)  # the gradients' sums came with the backward pass

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found = {}
        for name, tensor in tensors.items():  # one at a time: the others keep none of it
            full = full_tensor(tensor)
            if self.processes.rank == 0:
                found[name] = full.cpu()
        return found

    def write_shards(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        shards = folder / ".shards.partial"

        def begin() -> None:
            with os_errors_as_user_errors(folder):
                remove_folder(shards)
                shards.mkdir()

        self.processes.on_first_rank(begin)
        if state:
            writer = HuggingFaceStorageWriter(str(shards), save_distributed=True)  # torch's own would be a pickle
            with _disk(folder):
                state_dict_saver.save(dict(state), storage_writer=writer)
        return shards

    @contextmanager
    def inference_weights(self, model: nn.Module, copy: nn.Module, average: WeightAverage | None) -> Iterator[None]:
        weights = self.gather(weights_for_inference(model, average))
        if self.processes.rank == 0:
            checkpoint.set_weights(copy, weights, Path())
        yield


def shard_units(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of every stack, last first."""
    mixers = {path: part for path, part in model.named_modules() if isinstance(part, Mixer)}
    for path, part in reversed(mixers.items()):
        if sum(path.startswith(f"{other}.") for other in mixers) == 1:
            yield part


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
        with os_errors_as_user_errors(folder):
            yield
    except CheckpointException as error:
        cause = next((one for one, _ in error.failures.values() if isinstance(one, OSError)), None)
        with os_errors_as_user_errors(folder):
            if cause is not None:
                raise cause from None
        raise UserError(f"{folder} cannot be written or read: {next(iter(error.failures.values()))[0]}") from None
