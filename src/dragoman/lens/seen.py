"""What the lens sees of a sentence, as plain data: attention, probabilities, layers, the beam as a tree.

Everything is a frozen dataclass of words, numbers and tensors; `to_json` turns any of it into what JSON can hold. The
names of the fields are those of the documents, which docs/seeing.md describes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.run import Links

DIGITS = 6  # of numbers in JSON, after the point

Kind = Literal["encoder", "decoder", "cross"]
Fate = Literal["kept", "pruned", "finished", "cut"]


@dataclass(frozen=True)
class Side:
    """A text as the model has it: its pieces, and the words that they belong to, −1 for pieces of none."""

    text: str
    pieces: tuple[str, ...]
    words: tuple[str, ...]
    word_of_piece: tuple[int, ...]  # a place in `words`


@dataclass(frozen=True)
class Looks:
    """The weights of one attention, H T S: how much each query looked at each key; every row sums to 1.

    A row of a decoder is named by the piece that was chosen there, its keys are the pieces that it had been given.
    """

    path: str  # of the part in the model
    kind: Kind
    layer: int  # among those of its kind, from 1 at the bottom
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Tensor
    entropy: tuple[float, ...]  # of each head in bits, mean over rows: 0 for looks at one key alone


@dataclass(frozen=True)
class Alternative:
    piece: str
    token: int
    probability: float


@dataclass(frozen=True)
class Step:
    """What was chosen at one place, how likely it was, and what else was likely, likeliest first."""

    piece: str
    token: int
    probability: float
    log_probability: float
    rank: int  # 1: nothing was likelier
    entropy: float  # of the whole distribution, in bits
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class Layer:
    """What the output layer would say if the stack ended here: of every piece that was chosen in the end."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Node:
    """A hypothesis of the beam: its parent's words and one more.

    Scores are log p of all its words; normalised ones are what complete hypotheses are chosen by. `kept` ones went on,
    `pruned` ones were among the best continuations and did not, because others were better or the search was over,
    `finished` ones wrote END, and what the length limit ended is `cut`. `rank` counts those that were given back, from
    1 for the best.
    """

    number: int
    parent: int | None  # None: the beginning, which has no words
    step: int  # how many words it has
    row: int  # of the beam, in which it went on; that of its parent where it did not
    piece: str
    token: int
    log_probability: float  # of its last word
    score: float
    normalised: float
    fate: Fate
    rank: int | None = None


@dataclass(frozen=True)
class Tree:
    """Every hypothesis that a search has looked at, parents before children; number n stands at place n."""

    search: str
    nodes: tuple[Node, ...]

    def path(self, node: Node) -> list[Node]:
        """From the first word to this one."""
        found = [node]
        while (parent := found[-1].parent) is not None:
            found.append(self.nodes[parent])
        return found[-2::-1]

    @property
    def best(self) -> Node:
        return next(node for node in self.nodes if node.rank == 1)

    def children(self) -> dict[int, list[Node]]:
        """Of every node that has some, best first."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            if node.parent is not None:
                found.setdefault(node.parent, []).append(node)
        return {parent: sorted(some, key=lambda node: -node.score) for parent, some in found.items()}


@dataclass(frozen=True)
class Seen:
    """One sentence and its translation, and all that the model did with them."""

    system: str
    checkpoint: str
    source: Side | None = None  # None: a text alone was read
    target: Side | None = None  # None: an encoder alone labels its source
    found: bool = False  # the translation is the run's own, not one that was given
    finished: bool = True  # False: cut off at the length limit
    score: float = 0.0  # log p of what was written or read
    alignment: Links | None = None  # (source word, target word); None where nothing looks at the source
    cross: Tensor | None = None  # T S: the looks at the source, mean over heads and layers
    attention: tuple[Looks, ...] = ()
    steps: tuple[Step, ...] = ()
    layers: tuple[Layer, ...] = ()  # from what goes in to what the output layer reads
    beam: Tree | None = None  # None where nothing was searched for step by step

    def to_json(self) -> dict[str, Any]:
        return to_json(self)

    def of_kind(self, kind: Kind) -> list[Looks]:
        return [looks for looks in self.attention if looks.kind == kind]


def to_json(value: Any) -> Any:
    """Dataclasses as objects, tensors as nested lists, numbers that JSON does not know as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Tensor):
        return to_json(torch.round(value.double(), decimals=DIGITS).tolist())
    if isinstance(value, dict):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    return value
