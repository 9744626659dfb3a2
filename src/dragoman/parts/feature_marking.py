"""Feature symbols in front of a source: what marks them, and positions that do not depend on their number and order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dragoman.parts.embedding import TokenEmbedding
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.spec import Spec


@dataclass(frozen=True)
class FeatureMarking(Spec):
    """Types and positions of feature symbols such as PST, which precede the tokens of a source (Wu et al. 2021, §3).

    Features and tokens are told apart by a learned vector each, added to their embeddings. With `invariant_positions`
    all features have position 0 and the tokens count from 1, so that an encoder without recurrence reads the features
    as a set. Recurrent and convolutional layers see the features in their order.
    """

    first: int  # id of the first feature symbol
    count: int  # number of feature symbols, which have consecutive ids
    invariant_positions: bool = True

    def build_marking(self, embedding: TokenEmbedding) -> FeatureTypeEmbedding:
        """Create a vector for feature symbols and one for tokens, which are added to the vectors of `embedding`."""
        return FeatureTypeEmbedding(self, embedding)


class FeatureTypeEmbedding(nn.Module):
    is_embedding_table = True

    def __init__(self, spec: FeatureMarking, embedding: TokenEmbedding) -> None:
        """Row 0 of `weight` is added to tokens, row 1 to feature symbols, with the width and scale of `embedding`.

        Feature symbols, such as PST for past tense, are the ids from `first` up to but excluding `end`. With
        `invariant_positions`, all have position 0, so that their order does not matter.
        """
        super().__init__()
        self.first, self.end, self.invariant_positions = spec.first, spec.first + spec.count, spec.invariant_positions
        self.scale = embedding.scale
        self.weight = nn.Parameter(torch.empty(2, embedding.width))

    def forward(self, x: Tensor, source: Tensor, layout: SequenceLayout) -> tuple[Tensor, SequenceLayout]:
        """Add to the embeddings x (B S D) of `source` (ids, B S) the vector of feature symbols, or that of tokens.

        With `invariant_positions`, the layout gets `position_ids` for position encodings: 0 for all features at the
        start of a sequence, and 1, 2, … for the tokens after them. A packed row has several sequences.
        """
        is_feature = (source >= self.first) & (source < self.end)  # B S
        x = x + nn.functional.embedding(is_feature.long(), self.weight) * self.scale
        if not self.invariant_positions:
            return x, layout
        columns = torch.arange(source.shape[1], device=source.device)
        starts = (columns - layout.positions).clamp(min=0)  # B S: column of the first token of the same sequence
        num_features = is_feature.long().cumsum(1)  # B S: features in the row up to each column
        num_earlier = (num_features - is_feature.long()).gather(1, starts.expand_as(num_features))  # of other sequences
        # the first token after n features has position n in its sequence, and gets 1
        position_ids = layout.positions + 1 - (num_features - num_earlier)
        return x, replace(layout, position_ids=position_ids.masked_fill(is_feature, 0))
