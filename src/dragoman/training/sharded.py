"""Sharded weights (FSDP), and checkpoints of shards that any number of processes can read."""

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
from dragoman.parts.mixer import stack_layers
from dragoman.storage import os_errors_as_user_errors, remove_folder
from dragoman.training import parallel
from dragoman.training.ema import WeightAverage


class ShardedStrategy(parallel.ParallelStrategy):
    """Every process keeps a shard of each weight, its gradient and optimizer state (Rajbhandari et al. 2020).

    torch's fully_shard gathers the weights of a layer when they are needed. Weights, gradients and their sums are
    float32; computations in bfloat16 cast within the layer, as on a single process.
    """

    supports_compile = False
    supports_cuda_graphs = False
    lockstep = True
    name = "sharded"

    def distribute(self, module: nn.Module) -> None:
        """Shard the weights of every layer, then those of the rest of the module, over all processes, by FSDP2.

        Before that, all processes get the weights of the first one. Gradients are summed, not averaged. References to
        the running statistics of norms, which are not sharded, are kept.
        """
        parallel.broadcast_weights(module)
        # outputs of layers are never modified in place, so that views are safe
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(self.device.type, (self.processes.world_size,))
        for layer in stack_layers(module):
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)  # sums instead of means
                part.set_force_sum_reduction_for_comms(True)  # by the operation SUM, without scaling
            if getattr(part, "flatten_weights", False):  # no contiguous copy for cuDNN: it needs full weights
                part.flatten_weights = False  # type: ignore[assignment]
        self.statistics = parallel.running_statistics(module)

    def reduce_gradients(self, weights: Sequence[nn.Parameter]) -> None:
        """Average the running statistics of norms over all processes at the end of a step.

        Gradients need no reduction here: FSDP's backward pass has summed them.
        """
        parallel.average_statistics(self.statistics, self.processes)

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the full tensors by name, on the CPU of the first process; an empty mapping on all other processes."""
        gathered = {}
        for name, tensor in tensors.items():  # one at a time, to keep only one full tensor on the device
            full = parallel.full_tensor(tensor)
            if self.processes.rank == 0:
                gathered[name] = full.cpu()
        return gathered

    def write_shards(self, state: Mapping[str, Tensor], folder: Path) -> Path | None:
        """Write the shards of the tensors `state`, as safetensors, to a temporary folder in `folder`, and return it.

        All processes call this; each writes its own shards.
        """
        shards = folder / ".shards.partial"

        def create_folder() -> None:
            """Create the temporary folder; one that a killed process left is removed."""
            with os_errors_as_user_errors(folder):
                remove_folder(shards)
                shards.mkdir()

        self.processes.on_first_rank(create_folder)
        if state:
            writer = HuggingFaceStorageWriter(str(shards), save_distributed=True)  # torch's default format is a pickle
            with _disk_errors(folder):
                state_dict_saver.save(dict(state), storage_writer=writer)
        return shards

    @contextmanager
    def inference_weights(
        self, model: nn.Module, inference_model: nn.Module, average: WeightAverage | None
    ) -> Iterator[None]:
        """Context inside which `inference_model` on the first process has the full weights to validate with.

        These are the weights of the sharded `model`, or their moving average if there is one. They are gathered from
        all processes.
        """
        weights = self.gather(parallel.weights_for_inference(model, average))
        if self.processes.rank == 0:
            checkpoint.set_weights(inference_model, weights, folder=Path())  # the folder is only for error messages
        yield


def read_shards(folder: Path, state: dict[str, Tensor]) -> None:
    """Load the tensors `state` in place from the shards that any number of processes wrote to `folder`.

    The tensors of this process may be sharded in another way, or full.
    """
    if not state:
        return
    with warnings.catch_warnings(), _disk_errors(folder):
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a single process reads
        state_dict_loader.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn disk errors of torch.distributed.checkpoint inside the context into a UserError about `folder`.

    Those of other processes arrive as a CheckpointException.
    """
    try:
        with os_errors_as_user_errors(folder):
            yield
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        with os_errors_as_user_errors(folder):
            for cause in causes:
                if isinstance(cause, OSError):
                    raise cause from None
        raise UserError(
            f"the checkpoint in {folder} cannot be written or read: {causes[0]}; check the disk; if the checkpoint is "
            "damaged, remove its folder, so that training resumes from the checkpoint before it"
        ) from None
