"""Intermediate results of layers: what a walk through a model shows. They are kept only in an inspection."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Quantity:
    """An intermediate result of a layer, with the words that explain it to somebody who sees its numbers.

    `axes` names the axes after the batch: T for positions of the sequence that the layer reads, S for keys, H for
    heads; E for everything else. Without H, the numbers belong to all heads.
    """

    name: str
    axes: str
    formula: str
    explanation: str


@dataclass(frozen=True)
class TracedValue:
    """The value of a quantity in one layer, for a batch of one sentence."""

    path: str  # of the layer in the model
    quantity: Quantity
    value: Tensor  # 1 and the axes of the quantity


class Trace(dict[str, list[Tensor]]):
    """A recorder of attention weights that also keeps the intermediate results of all layers, in order.

    Of a layer that is called token by token, the results of the last token remain.
    """

    def __init__(self) -> None:
        """Start without results: layers add them by path and name of the quantity."""
        super().__init__()
        self.results: dict[tuple[str, str], TracedValue] = {}

    def add(self, path: str, quantity: Quantity, value: Tensor) -> None:
        """Keep the value of a quantity of the layer `path` in place of an earlier one, as the last of all results.

        `value` is detached from the graph of gradients.
        """
        key = (path, quantity.name)
        self.results.pop(key, None)  # a new key comes last in a dict
        self.results[key] = TracedValue(path, quantity, value.detach())
