"""Searches as plain values: what Python, the command line, the run folder and a service say to one another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman import legacy
from dragoman.errors import UserError
from dragoman.parts.spec import Configurable, from_dict, to_dict
from dragoman.search.configs import Beam, LengthLimit, OtherRun, Sample
from dragoman.search.exact_search import ExactSearch
from dragoman.search.minimum_bayes_risk import MinimumBayesRisk
from dragoman.search.reranking import Rerank, RerankWeights
from dragoman.search.speculative import Speculative

#: what is searched for, or how to choose among what was found
SearchConfig = Beam | Sample | MinimumBayesRisk | Rerank | ExactSearch | Speculative

SEARCHES: dict[str, type[Configurable]] = {
    kind.__name__: kind for kind in (Beam, Sample, MinimumBayesRisk, Rerank, ExactSearch, Speculative)
}
KINDS: dict[str, type[Configurable]] = SEARCHES | {kind.__name__: kind for kind in (LengthLimit, RerankWeights)}


def search_to_dict(search: SearchConfig) -> dict[str, Any]:
    """A search as JSON has it; a run that is open is named by its folder."""
    return _named(to_dict(search))


def search_from_dict(data: Any, where: str = "a search") -> SearchConfig:
    """The search that was described; what is left out is as in Python, what is unknown or contradictory is refused."""
    if not isinstance(data, dict):
        raise UserError(f"{where} must be names and values such as {{'kind': 'Beam', 'size': 5}}, but is {data!r}")
    found = from_dict(_current(data), KINDS, "search")
    if type(found).__name__ not in SEARCHES:
        raise UserError(f"{type(found).__name__} is a part of a search: describe one of {', '.join(SEARCHES)}")
    return found


def read_search_config(text: str) -> SearchConfig:
    """From JSON, or from a file that holds it."""
    where = "the search"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"{where} cannot be read: {reason}; name a file of JSON, or give JSON itself") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no JSON: {error}") from None
    return search_from_dict(data, where)


def _current(value: Any) -> Any:
    """A description with the names that earlier versions used replaced by the present ones."""
    if not isinstance(value, dict):
        return value
    current = {name: _current(item) for name, item in value.items()}
    return legacy.translate_stopping(current, "Beam.") if value.get("kind") == "Beam" else current


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _named(item) for name, item in value.items()}
    return str(value.folder) if isinstance(value, OtherRun) else value
