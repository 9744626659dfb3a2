"""States of searches without models, for tests of strategies and logits processors."""

from __future__ import annotations

import torch

from dragoman.search import SearchState
from dragoman.search.search_state import ConstraintTensors


def initial_state(batch: int, rows: int, max_length: int) -> SearchState:
    """The state of a search before its first step."""
    zeros = torch.zeros(batch, dtype=torch.long)
    tokens = torch.zeros(batch, rows, dtype=torch.long)
    return SearchState(tokens, zeros, zeros + max_length, zeros > 0, zeros, [], ConstraintTensors())
