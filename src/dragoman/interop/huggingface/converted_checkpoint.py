"""A checkpoint of another library as one of our models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dragoman.interop.huggingface.conversion import ConvertedWeights
from dragoman.models import ModelSpec, Usage, meta_model
from dragoman.text import Tokenizer
from dragoman.text.framing import Framing


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A checkpoint as one of our models."""

    architecture: str  # class name in transformers, or what the other library calls it
    system: str  # name of the most similar named system
    spec: ModelSpec
    weights: ConvertedWeights  # by the parameter names of the model that the spec builds
    framing: Framing
    generation: dict[str, Any]  # generation settings under transformers' names
    labels: tuple[str, ...] = ()  # of a token or text classifier
    feature_settings: Mapping[str, Any] = field(default_factory=dict)  # how recordings become feature vectors

    @property
    def usage(self) -> Usage | None:
        """The command that uses the model, such as translate, with an example of its input; None if there is none."""
        return meta_model(self.spec).usage

    @property
    def embedding_counts(self) -> tuple[int, int]:
        """Number of embeddings (rows of the tables) of source and target; equal if the model has only one table."""
        tables, shapes = ("source_embedding.weight", "target_embedding.weight"), self.weights.shapes
        counts = [shapes[name][0] for name in tables if name in shapes]
        return counts[0], counts[-1]


class OpenedCheckpoint(NamedTuple):
    """A checkpoint with its tokenizers."""

    checkpoint: ConvertedCheckpoint
    source: Tokenizer
    target: Tokenizer
    messages: list[str]  # for the user who imports it
