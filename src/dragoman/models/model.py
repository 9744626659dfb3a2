"""What every model can do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models.usage import Usage
from dragoman.parts.embedding import OutputLayer, TokenEmbedding
from dragoman.parts.mixer import Context, Layout, Memory, Mixer, State
from dragoman.parts.positions import Position
from dragoman.parts.spec import Spec
from dragoman.text.framing import Framing


@dataclass
class DecodingStart:
    """Where a search begins."""

    memory: Memory | None
    state: State
    tokens: Tensor  # R: the token that is fed first
    positions: Tensor  # R: its position
    max_length: int  # how many positions there is room for; rows that are over stay at the last one


class BaseModelSpec(Spec):
    """Base class of the specs of models."""

    default_framing: ClassVar[Framing]
    default_objectives: ClassVar[Mapping[str, str]]  # by the content of the data: pairs, text, turns or features

    def with_labels(self, num_labels: int) -> Any:
        """Return the spec of the encoder with an output layer for labels of words."""
        raise UserError(f"words are tagged by an encoder-only model, but the system is of kind {type(self).__name__}")


class Model(nn.Module):
    """Reads a source, writes or labels: p(y|x), p(y), or one label a token.

    Whole sequences are given as ids and where they lie, or padded with their lengths. A decoder alone reads its source
    as the beginning of its own sequence, which may be empty (B 0); an encoder alone has no target.
    """

    spec: Spec
    output: OutputLayer
    decoder: Mixer
    vocab_size: int  # how many tokens the output layer tells apart
    can_generate = True  # can it go on token by token?
    is_decoder_only = False  # are source and target one sequence?
    source_features: int | None = None  # numbers a vector, where a source is vectors (B S F) and not tokens (B S)

    @property
    def embedding_tables(self) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
        """The token embeddings of source and target; None where there are none."""
        return None, None

    @property
    def usage(self) -> Usage | None:
        """The command that uses a model of this kind, where nothing is known of how it was trained."""
        return None

    @property
    def num_labels(self) -> int:
        """Number of labels of a tagger; 0 for models that predict tokens."""
        return 0

    @property
    def mask_predictor(self) -> Model | None:
        """The encoder that predicts masked tokens; None for models that are not trained for it."""
        return None

    def forward_features(
        self,
        source: Tensor,
        source_layout: Layout,
        target: Tensor,
        target_layout: Layout,
        recorder: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, Context]:
        """What the output layer reads at every target position, B T D, and what the call has left in its context."""
        raise NotImplementedError

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor) -> Tensor:
        """Teacher forcing: padded tokens, B S and B T → B T V logits of the token after each."""
        layouts = Layout.padded(source.shape[1], source_lengths), Layout.padded(target.shape[1], target_lengths)
        return self.output(self.forward_features(source, layouts[0], target, layouts[1])[0])

    def decode(self, target: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        """B T tokens → B T V logits of the token after each, and the state to go on from."""
        raise NotImplementedError

    def start_decoding(
        self, source: Tensor, lengths: Tensor, beam: int, longest: int, first: int | Tensor
    ) -> DecodingStart:
        """Everything that a search begins with: `beam` rows a source, room for `longest` tokens after the source.

        `first` is the token that is fed first, the same for all or one a source (B).
        """
        raise UserError("this model labels its source and writes no text: use a system with a decoder")

    def restrict_vocabulary(self, tokens: Tensor) -> Model:
        """The model that writes only some tokens (N), by their numbers among these; the weights are shared."""
        raise UserError(
            "this model reads what it writes as one sequence, which needs all words: leave the shortlist out"
        )

    def reorder_state(self, state: State, rows: Tensor) -> State:
        """The state whose row r goes on with what row `rows[r]` has seen."""
        return self.decoder.reorder_state(state, rows)

    def grow_state(self, state: State, rows: int, places: int) -> tuple[State, int]:
        """The state with room for so many positions, or for as many as there can be; and how many there are now."""
        places = min(places, position_limit(self.decoder) or places)
        return _filled(self.decoder.init_state(rows, places, next(self.decoder.parameters())), state), places

    def max_target_length(self, source_lengths: Tensor) -> Tensor | None:
        """B: how many target tokens can be placed after such sources; None where there is no limit."""
        return None

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """How many places rows with sources and targets of such lengths take up: the longer of the two."""
        return np.maximum(source, target)

    @property
    def max_source_length(self) -> int | None:
        """How many source tokens can be placed."""
        return None

    @property
    def supports_packing(self) -> bool:
        """Can it read packed rows?"""
        return all(getattr(part, "supports_packing", True) for part in self.modules() if part is not self)

    @property
    def memory_paths(self) -> list[str]:
        """The parts that look at the source, in order."""
        return []


def position_limit(stack: nn.Module) -> int | None:
    """The longest sequence that a stack's positions can place."""
    limits = [part.max_length for part in stack.modules() if isinstance(part, Position) and part.max_length is not None]
    return min(limits, default=None)


def _filled(wide: State, state: State) -> State:
    """A state with what a narrower one holds in its first places."""
    for name, leaf in state.items():
        if isinstance(leaf, dict):
            wide[name] = _filled(wide[name], leaf)
        elif wide[name].shape == leaf.shape:
            wide[name] = leaf
        else:
            wide[name] = wide[name].to(leaf.dtype)
            wide[name][tuple(slice(size) for size in leaf.shape)] = leaf
    return wide
