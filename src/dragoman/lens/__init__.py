"""The lens: what a model thinks, as data, as text and as pictures."""

from __future__ import annotations

from dragoman.lens.look import look
from dragoman.lens.seen import Alternative, Layer, Looks, Node, Seen, Side, Step, Tree

__all__ = ["Alternative", "Layer", "Looks", "Node", "Seen", "Side", "Step", "Tree", "look"]
