"""Search configurations as JSON, for run folders, the command line and services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.errors import FieldError, UserError
from dragoman.legacy import rename_stopping_settings
from dragoman.parts.spec import Configurable, from_dict, to_dict
from dragoman.search.configs import Beam, Sample
from dragoman.search.exact_search import ExactSearch
from dragoman.search.minimum_bayes_risk import MinimumBayesRisk
from dragoman.search.reranking import Rerank, RerankWeights
from dragoman.search.search_config import LengthLimit, OtherRun, SearchConfig
from dragoman.search.speculative import Speculative

SEARCHES: dict[str, type[SearchConfig]] = {
    kind.__name__: kind for kind in (Beam, Sample, MinimumBayesRisk, Rerank, ExactSearch, Speculative)
}
CONFIG_KINDS: dict[str, type[Configurable]] = {**SEARCHES, "LengthLimit": LengthLimit, "RerankWeights": RerankWeights}


def search_to_dict(search: SearchConfig) -> dict[str, Any]:
    """Return a search as JSON values; a run object in it (such as a draft model) is replaced by its folder."""
    return _with_folders(to_dict(search))


def search_from_dict(data: Any, where: str = "a search") -> SearchConfig:
    """Return the search that plain values describe; fields that are left out have their defaults.

    Args:
        data: Such as `{"kind": "Beam", "size": 5}`.
        where: The name of the file or setting that holds the values, for error messages.
    """
    if not isinstance(data, dict):
        raise UserError(f"{where} must be a mapping such as {{'kind': 'Beam', 'size': 5}}, but is {data!r}: correct it")
    try:
        search = from_dict(_rename_stopping_settings(data), known=CONFIG_KINDS, what="search")
    except FieldError as error:
        raise error.named(f"{where}: {error.field!r} of {error.owner}") from None
    if not isinstance(search, SearchConfig):
        raise UserError(
            f"{type(search).__name__} is a setting of a search, not a search: use one of {', '.join(SEARCHES)}"
        )
    return search


def read_search_config(text: str) -> SearchConfig:
    """Read a search from a text that is JSON, or else the path of a file that contains JSON."""
    where = "the search"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"cannot read {where}: {reason}; give JSON, or a file that contains JSON") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({error}): correct it") from None
    return search_from_dict(data, where)


def _rename_stopping_settings(value: Any) -> Any:
    """Rename the former stopping settings of `Beam` in JSON values to `early_stopping`, also in nested searches."""
    if not isinstance(value, dict):
        return value
    current = {name: _rename_stopping_settings(item) for name, item in value.items()}
    return rename_stopping_settings(current, where="Beam.") if value.get("kind") == "Beam" else current


def _with_folders(value: Any) -> Any:
    """Replace run objects in JSON values by the paths of their folders, also in nested searches."""
    if isinstance(value, dict):
        return {name: _with_folders(item) for name, item in value.items()}
    return str(value.folder) if isinstance(value, OtherRun) else value
