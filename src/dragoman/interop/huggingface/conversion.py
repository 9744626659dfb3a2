"""How a checkpoint becomes a model of ours: its spec, and a table of module names for its weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.models import ModelSpec
from dragoman.parts.positions import SinusoidalPosition
from dragoman.tensor_files import CPU
from dragoman.text.framing import Framing

HALF_TYPES = (torch.float16, torch.bfloat16)
WeightTransform = Callable[[Tensor, int], Tensor]  # of a weight and the number of its layer


class StoredSource(NamedTuple):
    """Where a parameter of our model comes from: stored weights to concatenate, their transform, and their layer.

    The number of the layer counts from 0; it is 0 for parameters outside of layers.
    """

    names: list[str]
    transform: WeightTransform
    layer: int


@dataclass(frozen=True)
class Conversion:
    """How a checkpoint becomes a model of ours: its spec, the sources of its weights, and special tokens (framing).

    Attributes:
        system: name of the most similar named system.
        modules: our module names → names of their modules, of which `weight` and `bias` are taken. `*` is the number
            of a layer, `norm` stands for the norm before or after a residual branch, and `{q,k}` for several modules
            that are concatenated to one of ours. A key may also be the full name of a parameter of ours; its value is
            then the full name of theirs. Entries without a parameter in the model are not used.
        transforms: changes of weights, by the same keys.
        optional: parameters of ours that are zero if they are not stored.
        labels: names of the labels of a token or text classifier.
        unused: patterns of stored weights that the model does not need.
        computed: stored tables that we compute instead; they must follow the formula.
        feature_settings: settings of the section `features`, of a model that reads recordings.
        first_layer: number of the first layer in the names of stored weights.
        config_name: where the checkpoint has its hyper-parameters, for messages.
    """

    system: str
    spec: ModelSpec
    modules: Mapping[str, str]
    framing: Framing
    transforms: Mapping[str, WeightTransform] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    computed: Mapping[str, SinusoidalPosition] = field(default_factory=dict)
    feature_settings: Mapping[str, Any] = field(default_factory=dict)
    first_layer: int = 0
    config_name: str = "config.json"

    def locate(self, parameter: str) -> StoredSource:
        """Look up where a parameter of our model, such as `encoder.layers.3.0.body.output.bias`, is stored.

        Keys of `modules` have `*` for the number of the layer and `norm` for the norms `before` or `after` a branch.
        Stored layers are numbered from `first_layer`, ours from 0.
        """
        match = re.search(r"\.layers\.(\d+)\.", parameter)
        layer = int(match[1]) if match else 0
        key = parameter.replace(f".layers.{layer}.", ".layers.*.", 1)
        key = re.sub(r"\.(before|after)\.(?=weight|bias)", ".norm.", key)
        module, _, kind = key.rpartition(".")  # kind: weight or bias
        if key in self.modules:
            names = _expand_braces(self.modules[key])
        else:
            names = [f"{stored}.{kind}" for stored in _expand_braces(self.modules[module])]
        stored_layer = str(layer + self.first_layer)
        transform = self.transforms.get(key, self.transforms.get(module, unchanged))
        return StoredSource([name.replace("*", stored_layer) for name in names], transform, layer)

    def convert(
        self, weights: StoredWeights, shapes: Mapping[str, torch.Size], config_fields: Mapping[str, Any]
    ) -> ConvertedWeights:
        """Return the parameters of our model, each converted from stored weights when it is accessed.

        Raise a UserError with examples if weights are missing, are not used, have other shapes or are integers.

        Args:
            weights: the stored weights of the checkpoint.
            shapes: shapes of the parameters of our model by name.
            config_fields: the fields of config.json; the error names those that contradict a stored shape.
        """
        converted = ConvertedWeights(self, weights, shapes)
        missing: list[str] = []
        misshapen: list[str] = []
        used: set[str] = set()
        for parameter, shape in shapes.items():
            names = self.locate(parameter).names
            absent = [name for name in names if name not in weights]
            if absent and parameter in self.optional:
                continue
            missing += absent
            used.update(names)
            for name in set(names) - set(absent):
                weights.float_dtype(name)  # raises an error for integers
            if not absent and (stored_shape := converted.stored_shape(parameter)) != shape:
                stored = " and ".join(f"{name} of {list(weights.shape(name))}" for name in names)
                contradiction = self._contradiction(config_fields, stored_shape, shape)
                misshapen.append(f"{stored} instead of {list(shape)}{contradiction}")
        ignored = re.compile("|".join([*self.unused, *map(re.escape, self.computed)]))
        unused = [name for name in weights if name not in used and not ignored.fullmatch(name)]
        problems = [
            f"{len(examples)} {problem}, such as {examples[0]}"
            for problem, examples in (("missing", missing), ("not used", unused), ("of another shape", misshapen))
            if examples
        ]
        if problems:
            raise UserError(
                f"the weights in {weights.folder} do not fit its configuration file {self.config_name}: "
                f"{'; '.join(problems)}. Get all files of the checkpoint again"
            )
        return converted

    def _contradiction(
        self, config_fields: Mapping[str, Any], stored_shape: torch.Size | None, expected_shape: torch.Size
    ) -> str:
        """Return in words which fields of config.json say another dimension than a stored weight has; "" for none.

        A field is named if its value is the expected dimension.
        """
        if stored_shape is None or len(stored_shape) != len(expected_shape):
            return ""
        for found, expected in zip(stored_shape, expected_shape):
            # `type`: True and False are instances of int, too
            names = [name for name, value in config_fields.items() if value == expected and type(value) is int]
            if found != expected and names:
                return f" ({self.config_name} has {' and '.join(names)} {expected}, the weights have {found})"
        return ""

    def check_computed_tables(self, weights: StoredWeights) -> None:
        """Raise an error if a stored position table differs from the sinusoids that our model computes instead."""
        for name, position in self.computed.items():
            if name in weights:
                table = weights[name]
                formula = position.encoding(torch.arange(len(table)))
                # the tolerance allows for tables that were stored in float16
                if table.shape != formula.shape or not torch.allclose(table, formula, rtol=0, atol=2e-3):
                    raise UserError(
                        f"{weights.folder} cannot be imported, because its position table {name} is learned, but only "
                        "sinusoidal positions are supported for this architecture: use another checkpoint"
                    )


class ConvertedWeights(Mapping[str, Tensor]):
    """The parameters of our model, each converted from the stored weights of a checkpoint when it is accessed.

    A parameter has the stored precision, unless its conversion computes numbers that need float32.
    """

    def __init__(self, conversion: Conversion, weights: StoredWeights, shapes: Mapping[str, torch.Size]) -> None:
        """Convert stored `weights` by `conversion`; `shapes` are those of the parameters of our model by name."""
        self.conversion, self.weights, self.shapes = conversion, weights, shapes

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self.shapes)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the parameters."""
        return iter(self.shapes)

    def __getitem__(self, parameter: str) -> Tensor:
        """Return a parameter in float16 or bfloat16 if it is stored so and this type holds it exactly, else in float32.

        A transform, such as a scale, may give numbers that need float32.
        """
        names, transform, _ = self.conversion.locate(parameter)
        dtypes = {self.weights.float_dtype(name) for name in names if name in self.weights}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        if dtype not in HALF_TYPES:
            return self.load(parameter, torch.float32)
        if transform is unchanged:
            return self.load(parameter, dtype)
        exact = self.load(parameter, torch.float32)
        rounded = exact.to(dtype)
        return rounded if torch.equal(rounded.float(), exact) else exact

    def load(self, parameter: str, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return a parameter of this dtype on the device.

        If it is stored unchanged in a large file, it is mapped into memory (mmap) instead of being read.
        """
        names, transform, layer = self.conversion.locate(parameter)
        if any(name not in self.weights for name in names):  # an optional parameter, which is not stored
            return torch.zeros(self.shapes[parameter], dtype=dtype, device=device)
        if transform is unchanged and len(names) == 1:
            return self.weights.load(names[0], dtype, device)
        # a transform may compute with the numbers, which float16 and bfloat16 would round
        working_dtype = dtype if transform is unchanged else torch.float32
        stored = torch.cat([self.weights.load(name, working_dtype) for name in names])
        return transform(stored, layer).to(device, dtype).contiguous()

    def stored_shape(self, parameter: str) -> torch.Size | None:
        """Return the shape that a parameter gets from the stored weights; None if their shapes do not fit together.

        It is found by a transform of tensors without data (device "meta").
        """
        names, transform, layer = self.conversion.locate(parameter)
        try:
            stored = torch.cat([torch.empty(self.weights.shape(name), device="meta") for name in names])
            return transform(stored, layer).shape
        except (RuntimeError, IndexError):
            return None


def _expand_braces(names: str) -> list[str]:
    """Expand alternatives in braces: `self_attn.{q,k}_proj` → `self_attn.q_proj`, `self_attn.k_proj`."""
    match = re.fullmatch(r"(.*)\{(.*)\}(.*)", names)
    return [match[1] + name + match[3] for name in match[2].split(",")] if match else [names]


def unchanged(weight: Tensor, layer: int) -> Tensor:
    """Return the weight as it is stored: the default transform; the number of its layer is not used."""
    return weight


@dataclass(frozen=True)
class ReversibleTransform:
    """A transform of stored weights into ours (`apply`), and its inverse (`undo`), which an export needs."""

    apply: WeightTransform
    undo: WeightTransform

    def __call__(self, weight: Tensor, layer: int) -> Tensor:
        """Transform a stored weight of a layer to ours."""
        return self.apply(weight, layer)


def permutation(apply: WeightTransform) -> ReversibleTransform:
    """Return a transform that only reorders the numbers of a weight, with its inverse, which follows from it."""

    def undo(weight: Tensor, layer: int) -> Tensor:
        """Put every number back where `apply`, applied to a tensor of indices, shows that it was taken from."""
        indices = torch.arange(weight.numel()).view(weight.shape)
        taken_from = apply(indices, layer).flatten().to(weight.device)
        return torch.empty_like(weight.flatten()).scatter_(0, taken_from, weight.flatten()).view(weight.shape)

    return ReversibleTransform(apply, undo)


def _transpose(weight: Tensor, layer: int) -> Tensor:
    """Transpose a matrix; a bias stays as it is. The number of its layer is not used."""
    return weight.T if weight.dim() == 2 else weight


transposed = ReversibleTransform(_transpose, _transpose)
#: turns the output bias, which is stored as a matrix of one row, into a vector
flattened = ReversibleTransform(lambda bias, layer: bias.flatten(), lambda bias, layer: bias[None])


def without_first_rows(rows: int) -> ReversibleTransform:
    """Return a transform that removes the first `rows` rows, which are not used, of a table such as that of positions.

    The inverse transform puts rows of zeros there.
    """
    return ReversibleTransform(
        lambda weight, layer: weight[rows:],
        lambda weight, layer: torch.cat((weight.new_zeros(rows, *weight.shape[1:]), weight)),
    )


EMBEDDING_TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


class EmbeddingTables(NamedTuple):
    """Where the embeddings and the output matrix of an encoder–decoder are stored, and which of them are equal."""

    modules: dict[str, str]  # names of our parameters → those of the checkpoint
    shared: bool  # one embedding table for source and target
    tied: bool  # the output matrix is the target's embedding table


def find_embedding_tables(weights: StoredWeights, share: bool, tie: bool) -> EmbeddingTables:
    """Find under which names an encoder–decoder checkpoint stores its two embedding tables and its output matrix.

    Names are looked up in order of preference. Tables that config.json declares equal are stored under one or several
    names. If the stored tables differ nevertheless, they stay separate, as in transformers. Tables that it declares
    different may be stored as one, by older versions of transformers.

    Args:
        weights: the stored weights.
        share: whether config.json shares the embedding table of source and target, which has an effect only with `tie`.
        tie: whether config.json ties the output matrix to the target's embedding table.
    """
    shared, encoder, decoder, head = EMBEDDING_TABLES
    # without `tie`, each table is stored separately, even if `share`; with both, under the name of any of them
    all_tied = share and tie
    source = weights.first_present(encoder, shared, *((decoder, head) if all_tied else ()))
    target = weights.first_present(decoder, shared, *((encoder,) if all_tied else ()), *((head,) if tie else ()))
    output = weights.first_present(head, *((shared, decoder) if tie else ()), *((encoder,) if all_tied else ()))
    return EmbeddingTables(
        {"source_embedding.weight": source, "target_embedding.weight": target, "output.weight": output},
        shared=source == target or (all_tied and weights.equal(source, target)),
        tied=output == target or (tie and weights.equal(output, target)),
    )


def prefixed(prefix: str, modules: Mapping[str, str]) -> dict[str, str]:
    """Put a prefix, such as "encoder.", before our module names (keys) and those of the checkpoint (values)."""
    return {f"{prefix}{ours}": f"{prefix}{theirs}" for ours, theirs in modules.items()}
