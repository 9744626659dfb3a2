"""How a model encodes positions: vectors, rotations or attention biases, and the similarity of positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.layer_names import layer_name
from dragoman.models import Model
from dragoman.parts.positions import Position

PositionMechanism = Literal["additive", "concatenated", "rotary", "relative_keys", "bias"]

MECHANISM_LABELS: dict[PositionMechanism, str] = {
    "additive": "added to the embeddings",
    "concatenated": "concatenated to the embeddings",
    "rotary": "rotates queries and keys",
    "relative_keys": "a vector for each distance, added to the keys",
    "bias": "added to the attention scores",
}


@dataclass(frozen=True)
class PositionEncoding:
    """The encoding of one position module, or of several modules with equal encodings."""

    name: str
    paths: tuple[str, ...]  # of the modules
    layers: tuple[str, ...]  # their names for readers: “encoder”, “decoder layer 2”
    mechanism: PositionMechanism
    labels: tuple[int, ...]  # P positions, or distances for relative keys
    encoding: Tensor | None = None  # P D: the vectors; for rotary positions a rotated vector of ones
    similarity: Tensor | None = None  # P P: cosine of the vectors
    bias: Tensor | None = None  # H P P: added to the score of query i and key j

    @property
    def modules_label(self) -> str:
        """The layer of the first module, and how many other modules have equal values: “encoder, and 5 more …”."""
        first, others = self.layers[0], len(self.layers) - 1
        return f"{first}, and {others} more with equal values" if others else first

    def equals(self, other: PositionEncoding) -> bool:
        """Whether two modules have the same type, mechanism and positions, and equal vectors or biases."""
        if (self.name, self.mechanism, self.labels) != (other.name, other.mechanism, other.labels):
            return False
        values = self.encoding if self.bias is None else self.bias
        other_values = other.encoding if other.bias is None else other.bias
        return values is not None and other_values is not None and torch.equal(values, other_values)


@torch.inference_mode()
def position_encodings(model: Model, count: int = 64) -> list[PositionEncoding]:
    """Return how each position module of a model encodes the first `count` positions.

    Modules with equal encodings, such as those of all layers, are merged into one entry. Modules that encode nothing
    are omitted. A `count` below 2 is a UserError.
    """
    if count < 2:
        raise UserError(
            "the number of token positions whose encodings are shown (--num-positions) must be at least 2, but is "
            f"{count}: raise it"
        )
    encodings: list[PositionEncoding] = []
    for path, module in model.named_modules():
        encoding = _encoding(module, path, layer_name(model, path), count) if isinstance(module, Position) else None
        if encoding is None:  # not a position module, or one that encodes nothing
            continue
        equal_index = next((n for n, other in enumerate(encodings) if encoding.equals(other)), None)
        if equal_index is None:
            encodings.append(encoding)
        else:
            equal = encodings[equal_index]
            encodings[equal_index] = replace(
                equal, paths=equal.paths + encoding.paths, layers=equal.layers + encoding.layers
            )
    return encodings


def _encoding(module: Position, path: str, layer: str, count: int) -> PositionEncoding | None:
    """Return how a position module encodes the first `count` positions; None if it encodes nothing.

    A module has one of four mechanisms: a vector for each relative distance, a vector for each position, a rotation of
    queries and keys (shown as the rotation of a vector of ones), or a bias of attention scores.

    Args:
        path: path of the module in the model.
        layer: name of its layer for readers, such as “encoder layer 2”.

    Shapes: P positions (at most `count`, and at most the module's maximum length), H heads, E width of a head.
    """
    name = type(module).__name__.removesuffix("Position")
    device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    positions = torch.arange(min(count, module.max_length or count), device=device)[None]  # 1 P; no limit: None
    labels = tuple(positions[0].tolist())
    mechanism: PositionMechanism
    if (vectors := module.distance_vectors()) is not None:
        clip = len(vectors) // 2  # there are vectors for the distances −clip … clip
        mechanism, labels = "relative_keys", tuple(range(-clip, clip + 1))
    elif (vectors := module.encoding(positions[0])) is not None:
        mechanism = "concatenated" if module.is_concatenated else "additive"
    elif module.rotates:
        width = 2 * len(getattr(module, "frequency", ()))  # one frequency for each pair of elements that is rotated
        ones = torch.ones(1, 1, len(labels), width, device=device)  # 1 1 P E
        mechanism, vectors = "rotary", module.rotate(ones, positions)[0, 0]
    elif module.has_score_bias:
        # these biases depend on the shape of the query only
        query = torch.zeros(1, getattr(module, "heads", 1), len(labels), 1, device=device)  # 1 H P 1
        bias = module.score_bias(query, positions, positions)  # 1 H P P
        assert bias is not None
        return PositionEncoding(name, (path,), (layer,), mechanism="bias", labels=labels, bias=bias[0].float().cpu())
    else:
        return None
    vectors = vectors.detach().float().cpu()  # P D
    unit_vectors = torch.nn.functional.normalize(vectors, dim=-1)
    similarity = unit_vectors @ unit_vectors.T
    return PositionEncoding(name, (path,), (layer,), mechanism, labels, encoding=vectors, similarity=similarity)
