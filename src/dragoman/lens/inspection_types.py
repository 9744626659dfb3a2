"""The result of an inspection: attention maps, token probabilities, predictions by layer and the beam as a tree.

All types are frozen dataclasses of strings, numbers and tensors. `to_jsonable` converts them; the field names are the
keys of the JSON documents that docs/seeing.md describes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, cast

import torch
from torch import Tensor

from dragoman.run import Alignment

JSON_DECIMALS = 6  # decimal places of numbers in JSON

AttentionKind = Literal["encoder", "decoder", "cross"]
NodeStatus = Literal["kept", "pruned", "finished", "truncated"]


@dataclass(frozen=True)
class TokenizedText:
    """A text, its tokens with special tokens, and its words."""

    text: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_ids: tuple[int, ...]  # for each token its index in `words`, −1 for tokens of no word


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one attention layer; each row sums to 1.

    A decoder row is labeled with the token that was predicted there, its keys with the tokens that were fed.
    """

    path: str  # of the module in the model
    kind: AttentionKind
    layer: int  # among the layers of this kind, 1 for the lowest
    queries: tuple[str, ...]  # row labels
    keys: tuple[str, ...]  # column labels
    weights: Tensor  # H T S
    entropy: tuple[float, ...]  # H: entropy of each head in bits, averaged over rows


@dataclass(frozen=True)
class ExpertMap:
    """The experts to which a mixture of experts sent the tokens that it read; each row of the gates sums to 1.

    With one expert per token, the gate of `moe` is the probability of that expert, and may be less than 1.
    """

    path: str  # of the module in the model
    layer: str  # its name for readers, such as “encoder layer 1: mixture of experts”
    tokens: tuple[str, ...]  # that the layer read
    gates: Tensor  # T experts: 0 for experts that were not selected


@dataclass(frozen=True)
class TokenAlternative:
    """A token that the model could have predicted instead."""

    token: str
    token_id: int
    probability: float


@dataclass(frozen=True)
class TokenPrediction:
    """The probability of the token at one position, and the most probable tokens there."""

    token: str
    token_id: int
    probability: float
    log_probability: float
    rank: int  # 1: no token was more probable
    entropy: float  # of the distribution over the vocabulary, in bits
    alternatives: tuple[TokenAlternative, ...]  # most probable first, the token itself included


@dataclass(frozen=True)
class LayerPrediction:
    """Predictions of the output layer applied to the states after one layer (the logit lens)."""

    name: str
    steps: tuple[TokenPrediction, ...]


@dataclass(frozen=True)
class BeamNode:
    """A hypothesis of the search: the tokens of its parent and one more.

    Status: `kept` hypotheses were continued, `pruned` ones were among the best continuations but were not selected,
    `finished` ones end in EOS, and `truncated` ones reached the length limit.
    """

    index: int  # in `BeamTree.nodes`
    parent: int | None  # index of the parent; None for the root, which has no tokens
    step: int  # number of tokens
    beam_index: int  # slot of the beam in which it was continued; that of its parent if it was not
    token: str  # the last token
    token_id: int
    log_probability: float  # of the last token
    score: float  # log p of all tokens
    normalized_score: float  # score after length normalization, which ranks finished hypotheses
    status: NodeStatus
    rank: int | None = None  # among the hypotheses that the search returned, 1 for the best


@dataclass(frozen=True)
class BeamTree:
    """Every hypothesis that a search considered, parents before children."""

    search: str  # name of the search
    nodes: tuple[BeamNode, ...]

    def path(self, node: BeamNode) -> list[BeamNode]:
        """Return the nodes of a hypothesis, one per token, from the first token to `node`; the root is not included.

        `BeamNode.parent` is an index into `self.nodes`, None for the root.
        """
        path = [node]
        while (parent := path[-1].parent) is not None:
            path.append(self.nodes[parent])
        return path[-2::-1]  # reversed, without the root

    @property
    def best(self) -> BeamNode:
        """The last node of the best hypothesis: the one that the search ranked 1 among its results."""
        return next(node for node in self.nodes if node.rank == 1)

    def without(self, token: str) -> BeamTree:
        """Return a copy of the tree without the nodes whose token is `token` and without their descendants.

        The other nodes, in which parents precede their children, are renumbered.
        """
        new_index: dict[int, int] = {}  # by old index
        for node in self.nodes:
            if node.token != token and (node.parent is None or node.parent in new_index):
                new_index[node.index] = len(new_index)
        nodes = [
            replace(node, index=new_index[node.index], parent=None if node.parent is None else new_index[node.parent])
            for node in self.nodes
            if node.index in new_index
        ]
        return BeamTree(self.search, tuple(nodes))

    def children(self) -> dict[int, list[BeamNode]]:
        """Return the children of each node, highest log p first, by the index of the node; leaves have no entry."""
        children: dict[int, list[BeamNode]] = {}
        for node in sorted(self.nodes[1:], key=lambda node: -node.score):  # without the root, whose index is 0
            children.setdefault(node.parent or 0, []).append(node)
        return children


@dataclass(frozen=True)
class Inspection:
    """One sentence, its translation, and what the model computed for them."""

    system: str
    checkpoint: str
    source: TokenizedText | None = None  # None: a language model read the text as its target
    target: TokenizedText | None = None  # None: an encoder labels its source
    from_search: bool = False  # the translation was searched for, not given
    finished: bool = True  # False: truncated at the length limit
    score: float = 0.0  # log p of the target
    alignment: Alignment | None = None  # (source word, target word); None without cross-attention
    cross_attention: Tensor | None = None  # T S: mean over heads and layers; None without cross-attention
    attention: tuple[AttentionMap, ...] = ()
    steps: tuple[TokenPrediction, ...] = ()  # one for each target token
    layers: tuple[LayerPrediction, ...] = ()  # from the input of the stack to its output
    beam: BeamTree | None = None  # None if the search does not decode step by step
    experts: tuple[ExpertMap, ...] = ()  # one for each mixture of experts
    generation_probs: tuple[float, ...] = ()  # p_gen at each target token, if the model can copy source tokens

    def __repr__(self) -> str:
        """Return a short text with system, source, target and log p, in place of all tensors of the dataclass."""
        texts = " → ".join(repr(side.text) for side in (self.source, self.target) if side is not None)
        return f"<Inspection of {self.system}: {texts}, log p {self.score:.3f}>"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict that `json.dumps` accepts, by field name; docs/seeing.md describes it."""
        return to_jsonable(self)

    def _repr_svg_(self) -> str | None:
        """Return the cross-attention as an SVG heatmap, for Jupyter to display; None without cross-attention."""
        from dragoman.lens.charts import heatmap

        if self.cross_attention is None or self.source is None or self.target is None:
            return None
        return heatmap(self.cross_attention, self.target.tokens, self.source.tokens, "Cross-attention")

    def attention_of_kind(self, kind: AttentionKind) -> list[AttentionMap]:
        """Return the attention maps of one kind ("encoder", "decoder" or "cross"), one for each layer, lowest first."""
        return [attention for attention in self.attention if attention.kind == kind]


@cache
def _field_names(value_type: Hashable) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass or named tuple type; None for other types. Results are cached."""
    if isinstance(value_type, type) and is_dataclass(value_type):
        return tuple(field.name for field in fields(value_type))
    return getattr(value_type, "_fields", None)


def to_jsonable(value: Any) -> Any:
    """Convert a value, recursively, to what `json.dumps` accepts.

    Dataclasses and named tuples become dicts by field name, tuples and tensors lists, and non-finite numbers None.
    Floats are rounded to JSON_DECIMALS decimal places.
    """
    value_type = type(value)
    if value_type is float:  # exact types first: most values are numbers or text, and this test is fast
        return round(value, JSON_DECIMALS) if math.isfinite(value) else None
    if value_type is str or value_type is int or value is None:
        return value
    if value_type is list or value_type is tuple:
        return [to_jsonable(item) for item in value]
    names = _field_names(cast(Hashable, value_type))
    if names is not None:
        return {name: to_jsonable(getattr(value, name)) for name in names}
    if isinstance(value, Tensor):
        rounded = torch.round(value.cpu().double(), decimals=JSON_DECIMALS)
        # lists of finite numbers need no conversion of each number
        return rounded.tolist() if bool(rounded.isfinite().all()) else to_jsonable(rounded.tolist())
    if isinstance(value, dict):
        return {str(name): to_jsonable(item) for name, item in value.items()}
    if isinstance(value, float):  # a subclass, such as that of NumPy
        return to_jsonable(float(value))
    return value
