"""The weights of an export under the names of transformers: the inverse of `Conversion.convert`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import ReversibleTransform, unchanged
from dragoman.interop.huggingface.export_classes import ExportPlan
from dragoman.interop.huggingface.safetensors_weights import SINGLE_FILE
from dragoman.models import meta_model

#: weights that are not part of the base model, so that the prefix of its weights is not written before their names
HEADS = (
    r"(lm_head|final_logits_bias|cls|classifier|discriminator_predictions|generator_predictions|generator_lm_head|"
    r"vocab_transform|vocab_layer_norm|vocab_projector)\b.*"
)


def write_weights(plan: ExportPlan, folder: Path, dtype: torch.dtype) -> None:
    """Write the weights of the plan's model as safetensors; tied weights are stored once."""
    prefix = plan.export_class.prefix
    stored = dict(stored_weights(plan))
    # further weights that transformers wants to have a tensor of their own, although they repeat others
    stored |= {name: stored[other].clone() for name, other in plan.copies.items() if other in stored}
    stored = {name: weight.detach().cpu().to(dtype).contiguous() for name, weight in stored.items()}
    stored |= computed_tables(plan)  # in float32, because rounded sinusoids would be other positions
    weights = {name if re.fullmatch(HEADS, name) else f"{prefix}{name}": weight for name, weight in stored.items()}
    save_file(weights, folder / SINGLE_FILE, metadata={"format": "pt"})


def stored_weights(plan: ExportPlan) -> Iterator[tuple[str, Tensor]]:
    """Yield the name in transformers, without the prefix of the base model, and the value of every weight.

    A weight of ours that stacks several matrices of theirs, such as queries, keys and values, is split into them.
    """
    model = meta_model(plan.model.spec)  # modules and shapes, but no values
    for parameter, weight in plan.model.weights.items():
        names, transform, layer = plan.conversion.locate(parameter)
        if isinstance(transform, ReversibleTransform):
            weight = transform.undo(weight, layer)
        elif transform is not unchanged:
            raise UserError(
                f"the weight {parameter} cannot be exported, because it was converted when its checkpoint was "
                "imported, which cannot be undone: choose another format with --to"
            )
        row_counts = _block_sizes(model, parameter) if len(names) > 1 else [len(weight)]  # of each stored weight
        yield from zip(names, weight.split(row_counts), strict=True)


def _block_sizes(model: torch.nn.Module, parameter: str) -> list[int]:
    """Return the number of rows of each matrix that is stacked in a weight, such as queries, keys and values."""
    module, projection, _ = parameter.rsplit(".", 2)  # such as "decoder.layers.0.0.body", "project", "weight"
    # `blocks`: name of a matrix → rows of each matrix stacked in it; a bias is stacked like its matrix
    return list(model.get_submodule(module).blocks[f"{projection}.weight"])  # type: ignore[index]


def computed_tables(plan: ExportPlan) -> dict[str, Tensor]:
    """Return the position tables that our model computes and the class of transformers stores, by name; none else."""
    if not plan.export_class.stores_positions:
        return {}
    tables = plan.conversion.computed.items()
    return {name: position.encoding(torch.arange(plan.fields["max_position_embeddings"])) for name, position in tables}
