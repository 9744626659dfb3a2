"""Search: from a model and a source to targets."""

from __future__ import annotations

from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.search.beam import beam_search
from dragoman.search.engine import Hypothesis, Symbols
from dragoman.search.exhaustive import exhaustive_search
from dragoman.search.greedy import greedy_search
from dragoman.search.sampling import sample
from dragoman.search.settings import Beam, Length, Sample, Search

__all__ = ["Beam", "Hypothesis", "Length", "Sample", "Search", "Symbols", "exhaustive_search", "search"]


def search(
    model: Model, source: Tensor, lengths: Tensor, symbols: Symbols, settings: Search, keys: Tensor
) -> list[list[Hypothesis]]:
    """B S padded sources → the hypotheses of each, best first; `keys` (B) number the sources, for sampling."""
    limits = settings.length.limits(lengths, model.room(lengths))
    if isinstance(settings, Sample):
        return sample(model, source, lengths, symbols, limits, settings, keys)
    room = model.vocabulary - len(symbols.banned) - 1
    if settings.size > room:
        raise UserError(f"a beam of {settings.size} is wider than the {room} words of the vocabulary: narrow it")
    if settings.greedy:
        return greedy_search(model, source, lengths, symbols, limits, settings.penalty)
    return beam_search(model, source, lengths, symbols, limits, settings)
