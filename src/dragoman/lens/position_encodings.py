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
        """The layer of the first module, and the number of others with equal values."""
        first, others = self.layers[0], len(self.layers) - 1
        return f"{first}, and {others} more with equal values" if others else first

    def equals(self, other: PositionEncoding) -> bool:
        """Whether two modules encode positions in the same way with equal values (vectors or biases)."""
        values, other_values = (
            positions.encoding if positions.bias is None else positions.bias for positions in (self, other)
        )
        same_kind = (self.name, self.mechanism, self.labels) == (other.name, other.mechanism, other.labels)
        return same_kind and values is not None and other_values is not None and torch.equal(values, other_values)


@torch.inference_mode()
def position_encodings(model: Model, count: int = 64) -> list[PositionEncoding]:
    """Return the encodings of the first `count` positions by every position module; equal ones are merged."""
    if count < 2:
        raise UserError(f"the number of positions to show (--num-positions) must be at least 2, but is {count}")
    encodings: list[PositionEncoding] = []
    for path, part in model.named_modules():
        if (
            not isinstance(part, Position)
            or (encoding := _encoding(part, path, layer_name(model, path), count)) is None
        ):
            continue
        equal_index = next((n for n, other in enumerate(encodings) if encoding.equals(other)), None)
        if equal_index is None:
            encodings.append(encoding)
        else:
            equal = encodings[equal_index]
            encodings[equal_index] = replace(
                equal, paths=(*equal.paths, path), layers=(*equal.layers, layer_name(model, path))
            )
    return encodings


def _encoding(part: Position, path: str, layer: str, count: int) -> PositionEncoding | None:
    """Return the encoding of the first `count` positions by a module, or None if it does not encode positions.

    The vectors are those of positions, those of relative distances, or how the module rotates a vector of ones. `path`
    is the name of the module in the model, `layer` the one for readers.
    """
    name = type(part).__name__.removesuffix("Position")
    device = next((leaf.device for leaf in (*part.parameters(), *part.buffers())), torch.device("cpu"))
    positions = torch.arange(min(count, part.max_length or count), device=device)[None]  # 1 P
    labels = tuple(positions[0].tolist())
    mechanism: PositionMechanism
    if (vectors := part.distance_vectors()) is not None:
        clip = len(vectors) // 2  # there are vectors for the distances −clip … clip
        mechanism, labels = "relative_keys", tuple(range(-clip, clip + 1))
    elif (vectors := part.encoding(positions[0])) is not None:
        mechanism = "concatenated" if part.is_concatenated else "additive"
    elif part.rotates:
        ones = torch.ones(1, 1, len(labels), 2 * len(getattr(part, "frequency", ())), device=device)
        mechanism, vectors = "rotary", part.rotate(ones, positions)[0, 0]
    elif part.has_score_bias:
        query = torch.zeros(1, getattr(part, "heads", 1), len(labels), 1, device=device)
        bias = part.score_bias(query, positions, positions)
        assert bias is not None
        return PositionEncoding(name, (path,), (layer,), mechanism="bias", labels=labels, bias=bias[0].float().cpu())
    else:
        return None
    vectors = vectors.detach().float().cpu()  # P D
    unit_vectors = torch.nn.functional.normalize(vectors, dim=-1)
    similarity = unit_vectors @ unit_vectors.T
    return PositionEncoding(name, (path,), (layer,), mechanism, labels, encoding=vectors, similarity=similarity)
