"""The weights of a checkpoint of a run, complete and merged for inference."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from dragoman import checkpoint
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.parts.lora import LoRA, merge_adapters
from dragoman.run_files import CHECKPOINT_DIR, INITIAL_CHECKPOINT
from dragoman.tensor_files import LoadedTensors, WeightSource

#: entry of a checkpoint's values: the digest of the initial weights that the checkpoint complements
BASE_WEIGHTS = "base_weights"


def lora_of(config: Config) -> LoRA | None:
    """Return the hyper-parameters of LoRA in a configuration, by default with α = 2·rank; None if its rank is 0.

    Its `targets` name the weight matrices that get adapters, such as "attention".
    """
    settings = config.lora
    if not settings.rank:
        return None
    alpha = 2.0 * settings.rank if settings.alpha is None else settings.alpha
    return LoRA(rank=settings.rank, alpha=alpha, dropout=settings.dropout, targets=settings.targets)


def read_weights(folder: Path, checkpoint_name: str, model: nn.Module, config: Config) -> dict[str, Tensor]:
    """Return all weights of a checkpoint of the run in `folder`, by name, with LoRA adapters merged into them.

    A checkpoint of a run with frozen weights contains only the trained weights, and the digest of the run's initial
    checkpoint, from which the frozen ones are read; if that is missing or has changed, it is a UserError. `model` says
    which layers have adapters (its weights, which may be on the meta device, are not used), and `config`, the settings
    of the run, has the rank and scale of the adapters.
    """
    path = folder / CHECKPOINT_DIR / checkpoint_name
    weights, digest = checkpoint.read_tensors(path, "model"), checkpoint.read_values(path).get(BASE_WEIGHTS)
    if digest is None:  # the checkpoint has all weights
        return weights
    initial = folder / INITIAL_CHECKPOINT
    if not checkpoint.is_complete(initial) or checkpoint.tensors_digest(initial, "model") != digest:
        raise UserError(
            f"the checkpoint {path} contains only the trained weights, but {initial}, which should contain the frozen "
            "ones, is missing or has changed since: copy the whole run folder again"
        )
    weights = checkpoint.read_tensors(initial, "model") | weights
    lora = lora_of(config)
    return weights if lora is None else merge_adapters(weights, model, lora)


def weight_source(folder: Path, checkpoint_name: str, model: nn.Module, config: Config) -> WeightSource:
    """Return all weights of a checkpoint of the run in `folder` as an object from which they are loaded one by one.

    A checkpoint with all weights is read lazily: a weight stays in its file until it is used. Otherwise, if it has only
    the trained weights, the frozen ones are added and the LoRA adapters of `model` are merged first (`read_weights`),
    in memory; `config` has the settings of LoRA.
    """
    path = folder / CHECKPOINT_DIR / checkpoint_name
    if BASE_WEIGHTS not in checkpoint.read_values(path):
        return checkpoint.open_tensors(path, "model")
    return LoadedTensors(read_weights(folder, checkpoint_name, model, config))
