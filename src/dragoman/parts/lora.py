"""Low-rank adaptation (LoRA, Hu et al. 2021): frozen matrices with small trained updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.mixer import Mixer

#: words for several matrices of a layer, as targets
TARGET_GROUPS = {"attention": ("query", "key", "value", "output"), "feed-forward": ("widen", "gate", "narrow")}
FACTORS = ("lora_a", "lora_b")  # names of A and B in the layers


@dataclass(frozen=True)
class LoRA:
    """Hyper-parameters: the update of a matrix W is (alpha / rank) B A, with `rank` rows of A and columns of B.

    `targets` are words such as `attention` or `query`, or glob patterns over names such as
    `encoder.layers.0.0.body.query`. `dropout` is applied to the input of A.
    """

    rank: int
    alpha: float
    dropout: float = 0.0
    targets: tuple[str, ...] = ("attention",)

    @property
    def scaling(self) -> float:
        """The factor of B A in the update of a matrix: α / rank."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class AdaptedLayer:
    """A linear layer with adapted matrices.

    Attributes:
        path: name of the layer in the model.
        rows: rows of each matrix stacked in its weight, by the name of the matrix.
        adapted: names of the matrices that have an update.
    """

    path: str
    rows: Mapping[str, int]
    adapted: tuple[str, ...]


class LoRALinear(nn.Linear):
    """W x + b + (α/r) B A dropout(x) with rank r: A starts at random and B with zeros, so that training starts from W.

    A weight that stacks several matrices, such as queries, keys and values, has A and B for each of them, as separate
    layers would. Names and values of weight and bias are those of the original layer.
    """

    def __init__(self, linear: nn.Linear, layer: AdaptedLayer, lora: LoRA) -> None:
        """Adapt the matrices `layer.adapted` of `linear`, whose weight and bias are used and not copied.

        `lora` gives rank, α and dropout; `layer.rows` are the rows of each matrix that is stacked in the weight.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.rows, self.scaling = dict(layer.rows), lora.scaling
        self.dropout = nn.Dropout(lora.dropout)
        self.lora_a, self.lora_b = nn.ParameterDict(), nn.ParameterDict()  # A and B by the name of the matrix
        for name in layer.adapted:
            self.lora_a[name] = nn.Parameter(linear.weight.new_empty(lora.rank, self.in_features))
            self.lora_b[name] = nn.Parameter(linear.weight.new_zeros(layer.rows[name], lora.rank))
            # as in the authors' code: uniform within ±1/√in_features
            nn.init.kaiming_uniform_(self.lora_a[name], a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """x, … in → W x + b + (α/r) B A dropout(x), … out, with the factors A and B of all adapted matrices at once.

        `rows` are the rows of each matrix stacked in the weight; rows of a matrix that is not adapted get no update.
        """
        a, b = stack_factors(self.rows, dict(self.lora_a.items()), dict(self.lora_b.items()))
        update = F.linear(F.linear(self.dropout(x), a), self.scaling * b)
        return F.linear(x, self.weight, self.bias) + update


def stack_factors(rows: Mapping[str, int], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return one A and one B whose product B A is the update of a weight in which several matrices are stacked.

    The A of the matrices are stacked, too, and their B put along a diagonal, with zeros elsewhere. `rows` gives the
    number of rows of each matrix by its name; `a` (rank × inputs) and `b` (rows × rank) lack the names of matrices that
    are not adapted, whose rows of B A are zero.
    """
    stacked_a = torch.cat([a[name] for name in rows if name in a])
    like = next(iter(b.values()))
    blocks = [b[name] if name in b else like.new_empty(num_rows, 0) for name, num_rows in rows.items()]
    return stacked_a, torch.block_diag(*blocks)


def find_adapted_layers(model: nn.Module, targets: Sequence[str]) -> list[AdaptedLayer]:
    """Return the linear layers of a model with matrices that match one of the LoRA `targets`, and which of them match.

    A target is a word such as "attention" or "query", or a glob pattern over names of matrices. A name is that of the
    parent of the linear layer and the matrix, such as encoder.layers.0.0.body.query, because one layer may compute
    query, key and value. A target that matches nothing raises a UserError.
    """
    layers = list(_adaptable_layers(model))
    names = [f"{layer.path.rpartition('.')[0]}.{matrix}" for layer in layers for matrix in layer.rows]
    if not names:
        raise UserError(
            "LoRA (lora.rank) trains low-rank updates of the matrices of attention and feed-forward layers, but "
            "this system has no such layers: leave out lora.rank"
        )
    patterns = [pattern for target in targets for pattern in _patterns(target)]
    for target in targets:
        if not any(fnmatchcase(name, pattern) for name in names for pattern in _patterns(target)):
            words = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
            raise UserError(
                f"lora.targets contains {target!r}, but the model has no matrix of this name: use "
                f"{', '.join(TARGET_GROUPS)}, all, {words}, or a glob pattern for names such as {names[0]}"
            )
    matching = []
    for layer in layers:
        parent = layer.path.rpartition(".")[0]
        adapted = tuple(
            name for name in layer.rows if any(fnmatchcase(f"{parent}.{name}", pattern) for pattern in patterns)
        )
        if adapted:
            matching.append(AdaptedLayer(layer.path, layer.rows, adapted))
    return matching


def add_adapters(model: nn.Module, lora: LoRA) -> None:
    """Replace the linear layers of a model that match `lora.targets` by layers with LoRA updates, in place."""
    for layer in find_adapted_layers(model, lora.targets):
        parent_name, _, name = layer.path.rpartition(".")
        parent = model.get_submodule(parent_name)
        setattr(parent, name, LoRALinear(getattr(parent, name), layer, lora))


def merge_adapters(weights: Mapping[str, Tensor], model: nn.Module, lora: LoRA) -> dict[str, Tensor]:
    """Return weights by name with W + (α/r) B A for every adapted W, and without A and B.

    A and B have names that contain "lora_a" or "lora_b" (FACTORS). `model` has the layers to be adapted, on any device;
    its own weights are not used. `lora` says which matrices are adapted, and gives α and the rank r.
    """
    merged = {name: w for name, w in weights.items() if not any(f".{factor}." in name for factor in FACTORS)}
    for layer in find_adapted_layers(model, lora.targets):
        # updates that `training.freeze` excludes from training stay zero, and are not stored
        adapted = [name for name in layer.adapted if f"{layer.path}.lora_b.{name}" in weights]
        if not adapted:
            continue
        a = {name: weights[f"{layer.path}.lora_a.{name}"] for name in adapted}
        b = {name: weights[f"{layer.path}.lora_b.{name}"] for name in adapted}
        stacked_a, stacked_b = stack_factors(layer.rows, a, b)
        weight = merged[f"{layer.path}.weight"]
        merged[f"{layer.path}.weight"] = weight + (lora.scaling * (stacked_b @ stacked_a)).to(weight.dtype)
    return merged


def _adaptable_layers(model: nn.Module) -> Iterator[AdaptedLayer]:
    """Yield the linear layers that LoRA can adapt: those that a layer of the model lists in its `adaptable`.

    Each comes with all matrices that are stacked in its weight (`blocks`: rows of each); none is adapted yet.
    """
    for path, layer in model.named_modules():
        if not isinstance(layer, Mixer):
            continue
        for name, matrices in layer.adaptable.items():
            linear = getattr(layer, name)
            if isinstance(linear, nn.Linear):  # not if the spec leaves the projection out
                blocks = getattr(layer, "blocks", {}).get(f"{name}.weight", (linear.out_features,))
                yield AdaptedLayer(f"{path}.{name}", rows=dict(zip(matrices, blocks, strict=True)), adapted=())


def _patterns(target: str) -> list[str]:
    """Return the glob patterns of the matrices that an entry of the setting `lora.targets` selects.

    A word such as "query" gives "*.query", a group of words such as "attention" the patterns of its members, and "all"
    gives "*". Whole names and patterns stay as they are.
    """
    if target == "all":
        return ["*"]
    words = TARGET_GROUPS.get(target, (target,))
    return [word if "." in word or "*" in word else f"*.{word}" for word in words]
