"""Checkpoints: folders of tensors (safetensors) and plain values (JSON), with a SHA-256 digest of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dragoman import legacy
from dragoman.errors import UserError
from dragoman.storage import as_os_error, atomic_folder, resolve_link, write_file
from dragoman.tensor_files import TensorFile, WeightSource

CHECKPOINT_VERSION = 1
MANIFEST_FILE = "checkpoint.json"


def named_weights(model: nn.Module, include_frozen: bool = True) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name; tied weights appear once, under their first name.

    Without `include_frozen`, parameters that need no gradient are left out, but no buffers.
    """
    persistent = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    parameters = {name: weight for name, weight in model.named_parameters() if include_frozen or weight.requires_grad}
    return {name: weight.detach() for name, weight in (parameters | buffers).items()}


def save(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    values: Mapping[str, Any],
    folders: Mapping[str, Path] | None = None,
) -> None:
    """Write a checkpoint atomically.

    Args:
        folder: the new checkpoint.
        tensors: `{file name: {tensor name: tensor}}`, one safetensors file each.
        values: plain values, stored as JSON.
        folders: `{new name: existing folder}`: folders on the same disk that are moved into the checkpoint.
    """
    with atomic_folder(folder) as partial:
        digests: dict[str, str] = {}
        for name, source in (folders or {}).items():
            source.rename(partial / name)
            digests |= {f"{name}/{path.name}": _file_digest(path) for path in sorted((partial / name).iterdir())}
        for name, content in tensors.items():
            path = partial / f"{name}.safetensors"
            _save_file({key: tensor.contiguous() for key, tensor in content.items()}, path)
            digests[path.name] = _file_digest(path)
        (partial / MANIFEST_FILE).write_text(_manifest_text(digests, values), encoding="utf-8")


def update_values(folder: Path, values: Mapping[str, Any]) -> None:
    """Replace the plain values of a checkpoint atomically; its tensors stay."""
    write_file(resolve_link(folder) / MANIFEST_FILE, _manifest_text(_read_manifest(folder)["files"], values))


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a checkpoint that was written to the end: `save` writes its manifest last."""
    return (resolve_link(folder) / MANIFEST_FILE).is_file()


def read_values(folder: Path) -> dict[str, Any]:
    """Return the plain values of a checkpoint.

    The fields of the training state ("progress") get their present names if an earlier version wrote them.
    """
    values = _read_manifest(folder)["values"]
    if isinstance(values.get("progress"), dict):
        values = values | {"progress": legacy.translate_train_state(values["progress"])}
    return values


def read_tensors(folder: Path, name: str, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return the tensors of the file `name`.safetensors after verifying its digest; a UserError if it is damaged."""
    path = _verified_file(folder, name)
    try:
        return load_file(path, device=str(device))
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def open_tensors(folder: Path, name: str) -> TensorFile:
    """Open the file `name`.safetensors after verifying its digest; its tensors are read on access.

    A missing or damaged file is a UserError.
    """
    path = _verified_file(folder, name)
    try:
        return TensorFile(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _verified_file(folder: Path, name: str) -> Path:
    """Return the path of the file `name`.safetensors after verifying its digest; a UserError if it is wrong."""
    path = resolve_link(folder) / f"{name}.safetensors"
    _verify_file(path, _read_manifest(folder)["files"].get(path.name))
    return path


def _unreadable(path: Path, error: Exception) -> UserError:
    """Return the error for a file of weights whose digest is right but which safetensors cannot read."""
    return UserError(f"the weights in {path} cannot be read ({error}): use another checkpoint")


def tensors_digest(folder: Path, name: str) -> str | None:
    """Return the SHA-256 of the file `name`.safetensors that the manifest holds; None if it lists no such file."""
    return _read_manifest(folder)["files"].get(f"{name}.safetensors")


def verify_subfolder(folder: Path, name: str) -> Path:
    """Return the path of the folder `name` inside a checkpoint after verifying the digests of its files.

    A file that is missing or was altered is a UserError.
    """
    folder = resolve_link(folder)
    for path, expected in _read_manifest(folder)["files"].items():
        if path.startswith(f"{name}/"):
            _verify_file(folder / path, expected)
    return folder / name


#: called with a checkpoint's tensor and the weight to load, returns the part that this process holds (FSDP)
Shard = Callable[[Tensor, Tensor], Tensor]


def load_weights(
    model: nn.Module, folder: Path, shard: Shard = lambda tensor, weight: tensor, include_frozen: bool = True
) -> None:
    """Load the weights of a checkpoint into the model; a UserError if it is damaged or belongs to another model.

    Args:
        model: the model to change.
        folder: the checkpoint.
        shard: `shard(tensor, weight)` returns the part of a checkpoint's tensor that the (sharded) weight holds.
        include_frozen: false for a checkpoint without the frozen weights (those that need no gradient), which are kept.
    """
    set_weights(model, open_tensors(folder, "model"), folder, shard, include_frozen)


def set_weights(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    folder: Path,
    shard: Shard = lambda tensor, weight: tensor,
    include_frozen: bool = True,
) -> None:
    """Copy tensors into the model's weights; a missing, additional or differently shaped tensor is a UserError.

    Args:
        model: the model to change.
        tensors: all weights by name.
        folder: the checkpoint, for error messages.
        shard: `shard(tensor, weight)` returns the part of a tensor that the (sharded) weight holds.
        include_frozen: whether `tensors` include the frozen weights (those that need no gradient).
    """
    weights = named_weights(model, include_frozen)
    if isinstance(tensors, TensorFile):  # its header has the shapes: the tensors are read one at a time below
        shapes = tensors.shapes
    else:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
    _check_shapes(weights, shapes, folder)
    for name, weight in weights.items():
        weight.copy_(shard(tensors[name], weight))


def assign_weights(model: nn.Module, source: WeightSource, folder: Path, device: torch.device) -> None:
    """Replace the parameters of a model, which are on the meta device, by those of `source`, and move it to `device`.

    Weights are loaded one by one, in the model's precision, so that there is never a second copy of them all. Those of
    a large file stay mapped where nothing has to be converted. Tied parameters stay tied. A missing, additional or
    differently shaped weight is a UserError.

    Args:
        model: the model, whose parameters are on the meta device.
        source: all weights by name.
        folder: the checkpoint, for error messages.
        device: the new device of the model.
    """
    weights = named_weights(model)
    _check_shapes(weights, source.shapes, folder)
    names = {parameter: name for name, parameter in model.named_parameters()}
    loaded: dict[str, nn.Parameter] = {}
    for module in model.modules():
        for attribute, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            name = names[parameter]
            if name not in loaded:  # otherwise it is tied to a parameter that has been loaded already
                loaded[name] = nn.Parameter(source.load(name, parameter.dtype, device), parameter.requires_grad)
            setattr(module, attribute, loaded[name])
    for name in weights.keys() - loaded.keys():  # buffers, such as the running averages of batch norms
        weights[name].copy_(source.load(name, weights[name].dtype, weights[name].device))
    model.to(device)


def _check_shapes(weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], folder: Path) -> None:
    """Raise a UserError unless the checkpoint in `folder` has exactly the model's weights, of the same shapes."""
    for name, weight in weights.items():
        if name not in shapes:
            raise UserError(
                f"the checkpoint {folder} lacks the weight {name} of this model: use a checkpoint of the run that the "
                "model belongs to"
            )
        if shapes[name] != weight.shape:
            raise UserError(
                f"the checkpoint {folder} has the weight {name} with shape {list(shapes[name])}, but in this model its "
                f"shape is {list(weight.shape)}: use a checkpoint of the run that the model belongs to"
            )
    if surplus := shapes.keys() - weights.keys():
        raise UserError(
            f"the checkpoint {folder} has the weight {min(surplus)}, which this model lacks: use a checkpoint of the "
            "run that the model belongs to"
        )


def _verify_file(path: Path, expected: str | None) -> None:
    """Raise a UserError if a file is missing or does not have the expected digest (None: the manifest lacks it)."""
    if expected is None or not path.exists():
        raise UserError(f"the checkpoint {path.parent} has no file {path.name}: use another checkpoint")
    if _file_digest(path) != expected:
        raise UserError(
            f"{path} is truncated or was altered after it was written: use another checkpoint, or remove the folder of "
            "this one, so that training resumes from the checkpoint before it"
        )


def _save_file(content: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; raise an OSError if that fails."""
    try:
        save_file(content, path)
    except SafetensorError as error:  # safetensors raises its own error for every OSError
        raise as_os_error(error) from None


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read checkpoint.json; raise a UserError if it is damaged or of another version."""
    try:
        manifest = json.loads((resolve_link(folder) / MANIFEST_FILE).read_text(encoding="utf-8"))
        version = manifest["version"]
        if version == CHECKPOINT_VERSION and manifest["digest"] == _manifest_digest(
            manifest["files"], manifest["values"]
        ):
            return manifest
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is not a checkpoint, or is damaged: use another checkpoint") from None
    if version == CHECKPOINT_VERSION:
        raise UserError(f"{folder / MANIFEST_FILE} was altered after it was written: use another checkpoint")
    raise UserError(
        f"{folder} has version {version!r} of the checkpoint format, but only version {CHECKPOINT_VERSION} is "
        "supported: update dragoman"
    )


def _manifest_text(digests: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Return the content of checkpoint.json: digests of the files, plain values, and a digest of both."""
    content = {"version": CHECKPOINT_VERSION, "files": dict(digests), "values": dict(values)}
    return json.dumps(content | {"digest": _manifest_digest(content["files"], content["values"])}, indent=1)


def _manifest_digest(files: Any, values: Any) -> str:
    """Return the SHA-256, in hexadecimal, of the entries `files` and `values` of a manifest."""
    return hashlib.sha256(json.dumps([files, values], sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
