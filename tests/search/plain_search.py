"""A search with a model alone, without a run."""

from __future__ import annotations

from torch import Tensor

from dragoman.models import Model
from dragoman.search import Hypothesis, SpecialTokens, TokenSearch, build_engine


def search(
    model: Model,
    source: Tensor,
    lengths: Tensor,
    special_tokens: SpecialTokens,
    config: TokenSearch,
    keys: Tensor,
    max_lengths: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first; `max_lengths` are by default those of the configuration."""
    if max_lengths is None:
        max_lengths = config.length_limit.max_lengths(lengths, [model])
    return build_engine([model], special_tokens, config).search(source, lengths, max_lengths, keys)
