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

from dragoman.run import Alignment

DIGITS = 6  # of numbers in JSON, after the point

AttentionKind = Literal["encoder", "decoder", "cross"]
NodeStatus = Literal["kept", "pruned", "finished", "truncated"]


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model has it: its pieces, and the words that they belong to, −1 for pieces of none."""

    text: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]  # a place in `words`


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention, H T S: how much each query looked at each key; every row sums to 1.

    A row of a decoder is named by the piece that was chosen there, its keys are the pieces that it had been given.
    """

    path: str  # of the part in the model
    kind: AttentionKind
    layer: int  # among those of its kind, from 1 at the bottom
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: Tensor
    entropy: tuple[float, ...]  # of each head in bits, mean over rows: 0 for looks at one key alone


@dataclass(frozen=True)
class TokenAlternative:
    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class TokenPrediction:
    """What was chosen at one place, how likely it was, and what else was likely, likeliest first."""

    token: str
    token_id: int
    probability: float
    log_probability: float
    rank: int  # 1: nothing was likelier
    entropy: float  # of the whole distribution, in bits
    alternatives: tuple[TokenAlternative, ...]


@dataclass(frozen=True)
class LayerPrediction:
    """What the output layer would say if the stack ended here: of every piece that was chosen in the end."""

    name: str
    steps: tuple[TokenPrediction, ...]


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis of the beam: its parent's words and one more.

    Scores are log p of all its words; normalised ones are what complete hypotheses are chosen by. `kept` ones went on,
    `pruned` ones were among the best continuations and did not, because others were better or the search was over,
    `finished` ones wrote END, and what the length limit ended is `cut`. `rank` counts those that were given back, from
    1 for the best.
    """

    index: int
    parent: int | None  # None: the beginning, which has no words
    step: int  # how many words it has
    beam_index: int  # of the beam, in which it went on; that of its parent where it did not
    token: str
    token_id: int
    log_probability: float  # of its last word
    score: float
    normalized_score: float
    status: NodeStatus
    rank: int | None = None


@dataclass(frozen=True)
class BeamTree:
    """Every hypothesis that a search has looked at, parents before children; number n stands at place n."""

    search: str
    nodes: tuple[BeamNode, ...]

    def path(self, node: BeamNode) -> list[BeamNode]:
        """From the first word to this one."""
        found = [node]
        while (parent := found[-1].parent) is not None:
            found.append(self.nodes[parent])
        return found[-2::-1]

    @property
    def best(self) -> BeamNode:
        return next(node for node in self.nodes if node.rank == 1)

    def children(self) -> dict[int, list[BeamNode]]:
        """Of every node that has some, best first."""
        found: dict[int, list[BeamNode]] = {}
        for node in self.nodes:
            if node.parent is not None:
                found.setdefault(node.parent, []).append(node)
        return {parent: sorted(some, key=lambda node: -node.score) for parent, some in found.items()}


@dataclass(frozen=True)
class Inspection:
    """One sentence and its translation, and all that the model did with them."""

    system: str
    checkpoint: str
    source: TokenizedText | None = None  # None: a text alone was read
    target: TokenizedText | None = None  # None: an encoder alone labels its source
    from_search: bool = False  # the translation is the run's own, not one that was given
    finished: bool = True  # False: cut off at the length limit
    score: float = 0.0  # log p of what was written or read
    alignment: Alignment | None = None  # (source word, target word); None where nothing looks at the source
    cross_attention: Tensor | None = None  # T S: the looks at the source, mean over heads and layers
    attention: tuple[AttentionMap, ...] = ()
    steps: tuple[TokenPrediction, ...] = ()
    layers: tuple[LayerPrediction, ...] = ()  # from what goes in to what the output layer reads
    beam: BeamTree | None = None  # None where nothing was searched for step by step

    def to_dict(self) -> dict[str, Any]:
        return to_jsonable(self)

    def attention_of_kind(self, kind: AttentionKind) -> list[AttentionMap]:
        return [looks for looks in self.attention if looks.kind == kind]


def to_jsonable(value: Any) -> Any:
    """Dataclasses as objects, tensors as nested lists, numbers that JSON does not know as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Tensor):
        return to_jsonable(torch.round(value.double(), decimals=DIGITS).tolist())
    if isinstance(value, dict):
        return {str(name): to_jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    return value
