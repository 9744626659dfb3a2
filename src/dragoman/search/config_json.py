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
    """Return a search configuration as JSON values; open runs in it, such as a draft model, become their folders."""
    return _with_folders(to_dict(search))


def search_from_dict(data: Any, where: str = "a search") -> SearchConfig:
    """Return the search configuration that a parsed JSON object describes; missing fields have their defaults.

    Args:
        data: The object, such as `{"kind": "Beam", "size": 5}`; `kind` is the name of the configuration's class.
        where: The name of the file or setting that holds the object, for error messages.
    """
    if not isinstance(data, dict):
        raise UserError(
            f'{where} must be a JSON object that describes a search, such as {{"kind": "Beam", "size": 5}}, but is '
            f"{data!r}: correct it"
        )
    try:
        search = from_dict(_rename_stopping_settings(data), classes=CONFIG_KINDS, what="search")
    except FieldError as error:  # name the file or setting too; `error.owner` is the class with the wrong field
        raise error.named(f"{where}: {error.field!r} of {error.owner}") from None
    if not isinstance(search, SearchConfig):
        raise UserError(
            f"{where}: {type(search).__name__} is a setting of a search, not a search: use one of "
            f"{', '.join(SEARCHES)} as its kind"
        )
    return search


def read_search_config(text: str) -> SearchConfig:
    """Return the search configuration in `text`, a JSON object, or else the path of a file that contains one."""
    configuration = "the search configuration"  # in error messages
    if not text.lstrip().startswith("{"):
        configuration += f" {text}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(
                f"cannot read {configuration}: {reason}; give a JSON object, or the path of a file that contains one"
            ) from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{configuration} is not valid JSON ({error}): correct it") from None
    return search_from_dict(data, configuration)


def _rename_stopping_settings(value: Any) -> Any:
    """Return JSON values in which two settings of `Beam` with former names, as in older run folders, are renamed.

    `stop` is now `early_stopping`, and `complete` is `num_finished`. Searches within searches are changed too.
    """
    if not isinstance(value, dict):
        return value
    current = {name: _rename_stopping_settings(item) for name, item in value.items()}
    # `where` precedes the setting's name in error messages
    return rename_stopping_settings(current, where="Beam.") if value.get("kind") == "Beam" else current


def _with_folders(value: Any) -> Any:
    """Replace open runs (`OtherRun`) in JSON values by the paths of their folders, also in nested searches."""
    if isinstance(value, dict):
        return {name: _with_folders(item) for name, item in value.items()}
    return str(value.folder) if isinstance(value, OtherRun) else value
