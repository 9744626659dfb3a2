"""How a model tells places apart: what its position parts add, turn or prefer, and how alike places are to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.mixer import Layout
from dragoman.parts.positions import Position
from dragoman.parts.relative_positions import ShawKeys

PositionMechanism = Literal["additive", "rotary", "relative_keys", "bias"]

MECHANISM_LABELS: dict[PositionMechanism, str] = {
    "additive": "added to the embeddings",
    "rotary": "queries and keys are turned by it",
    "relative_keys": "a vector for each distance, added to keys",
    "bias": "added to the scores of attention",
}


@dataclass(frozen=True)
class PositionEncoding:
    """One position part, or several that are alike.

    `encoding` P D is the vector of each place, or of each distance; where queries and keys are turned, what becomes of
    a vector of ones. `similarity` P P is their cosine: with turned ones cos(R_i u, R_j u), the kernel between places.
    `bias` H P P is what is added to the score of query i and key j.
    """

    name: str
    paths: tuple[str, ...]
    mechanism: PositionMechanism
    labels: tuple[int, ...]  # the places, or the distances
    encoding: Tensor | None = None
    similarity: Tensor | None = None
    bias: Tensor | None = None


@torch.inference_mode()
def position_encodings(model: Model, count: int = 64) -> list[PositionEncoding]:
    """Every way in which a model knows places, over the first `count` of them; parts that are alike are named once."""
    if count < 2:
        raise UserError(f"places are compared with each other, so at least 2 must be shown, not {count}")
    found: list[PositionEncoding] = []
    for path, part in model.named_modules():
        if isinstance(part, Position) and (one := _places(part, path, count)) is not None:
            for number, other in enumerate(found):
                if _alike(one, other):
                    found[number] = replace(other, paths=(*other.paths, path))
                    break
            else:
                found.append(one)
    return found


def _places(part: Position, path: str, count: int) -> PositionEncoding | None:
    """None for a part that says nothing of places."""
    kind, name = type(part), type(part).__name__.removesuffix("Position")
    device = next((leaf.device for leaf in (*part.parameters(), *part.buffers())), torch.device("cpu"))
    places = torch.arange(min(count, part.max_length or count), device=device)[None]  # 1 P
    labels = tuple(places[0].tolist())
    if isinstance(part, ShawKeys):
        around = tuple(range(-part.clip, part.clip + 1))
        return _compared(
            PositionEncoding("Shaw", (path,), "relative_keys", around, part.keys.weight.detach().float().cpu())
        )
    if kind.embed is not Position.embed:
        zeros = torch.zeros(1, len(labels), _width(part), device=device)
        added = part.embed(zeros, Layout(places))[0].float().cpu()
        return _compared(PositionEncoding(name, (path,), "additive", labels, added))
    if kind.rotate is not Position.rotate:
        ones = torch.ones(1, 1, len(labels), _width(part), device=device)
        turned = part.rotate(ones, places)[0, 0].float().cpu()
        return _compared(PositionEncoding(name, (path,), "rotary", labels, turned))
    if kind.score_bias is not Position.score_bias:
        heads = getattr(part, "heads", 1)
        bias = part.score_bias(torch.zeros(1, heads, len(labels), 1, device=device), places, places)
        assert bias is not None
        return PositionEncoding(name, (path,), "bias", labels, bias=bias[0].float().cpu())
    return None


def _width(part: Position) -> int:
    """Of the vectors that a position part works on."""
    if isinstance(table := getattr(part, "table", None), torch.nn.Embedding):
        return table.embedding_dim
    return getattr(part, "dim", 0) or 2 * len(getattr(part, "frequency", ()))


def _compared(one: PositionEncoding) -> PositionEncoding:
    assert one.encoding is not None
    vectors = torch.nn.functional.normalize(one.encoding, dim=-1)
    return replace(one, similarity=vectors @ vectors.T)


def _alike(one: PositionEncoding, other: PositionEncoding) -> bool:
    """Do they say the same of every place?"""
    if (one.name, one.mechanism, one.labels) != (other.name, other.mechanism, other.labels):
        return False
    own, its = (part.encoding if part.bias is None else part.bias for part in (one, other))
    return own is not None and its is not None and own.shape == its.shape and torch.equal(own, its)
