"""Search: from a model and a source to targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.search.beam import BeamSearch
from dragoman.search.constraints import ConstrainedBeam
from dragoman.search.description import Decision, described, from_description, read_description
from dragoman.search.diverse import DiverseBeamSearch
from dragoman.search.engine import Engine, Hypothesis, Rule, Strategy, Symbols
from dragoman.search.exact import Exact
from dragoman.search.exhaustive import exhaustive_search
from dragoman.search.greedy import Greedy
from dragoman.search.reranking import Rerank, Weights
from dragoman.search.risk import MinimumRisk
from dragoman.search.rules import NoRepeat
from dragoman.search.sampling import Sampling
from dragoman.search.settings import Beam, Length, Sample, Search
from dragoman.search.speculative import Speculative

__all__ = [
    "Beam",
    "Decision",
    "Exact",
    "Hypothesis",
    "Length",
    "MinimumRisk",
    "Rerank",
    "Sample",
    "Search",
    "Speculative",
    "Symbols",
    "Weights",
    "described",
    "engine",
    "exhaustive_search",
    "from_description",
    "read_description",
    "search",
    "strategy",
]


def search(
    model: Model,
    source: Tensor,
    lengths: Tensor,
    symbols: Symbols,
    settings: Search,
    keys: Tensor,
    limits: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """B S padded sources → the hypotheses of each, best first; `keys` (B) number the sources, for sampling.

    `limits` (B) say how long the targets may get, END counted in; unless told, the settings do.
    """
    if limits is None:
        limits = settings.length.limits(lengths, model.room(lengths))
    return engine([model], symbols, settings).search(source, lengths, limits, keys)


def engine(
    models: Sequence[Model],
    symbols: Symbols,
    settings: Search,
    rules: Sequence[Rule] = (),
    required: bool = False,
    compiled: bool = False,
) -> Engine:
    """What searches with these models, as the settings say; `required`: for phrases that must be written.

    `compiled`: with kernels that are made for it, on a GPU.
    """
    room = models[0].vocabulary - len(symbols.banned) - 1
    if isinstance(settings, Beam) and settings.size > room:
        raise UserError(f"a beam of {settings.size} is wider than the {room} words of the vocabulary: narrow it")
    own = [NoRepeat(settings.no_repeat)] if settings.no_repeat else []
    symbols = replace(symbols, least=settings.length.least)
    return Engine(models, symbols, strategy(settings, symbols.end, required), [*own, *rules], compiled)


def strategy(settings: Search, end: int, required: bool = False) -> Strategy:
    """The way of choosing words that the settings describe."""
    if required and (isinstance(settings, Sample) or settings.groups > 1):
        raise UserError("required phrases are looked for by a plain beam: sample nothing, and part it into no groups")
    if isinstance(settings, Sample):
        return Sampling(settings, end)
    if required:
        return ConstrainedBeam(settings, end)
    if settings.groups > 1:
        return DiverseBeamSearch(settings, end)
    return Greedy(1, end, settings.penalty) if settings.greedy else BeamSearch(settings, end)
