"""Generated corpora of tasks: small grammars that write training, validation and test sets, without a download."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dragoman.data import phrasebook
from dragoman.errors import UserError, unknown_name


def write_generated(name: str, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the corpus of the generator `name` to a new folder; `settings` are arguments of the generator."""
    if name not in GENERATORS:
        raise unknown_name("generator", name, GENERATORS)
    try:
        GENERATORS[name](folder, **settings)
    except TypeError as error:
        raise UserError(f"the settings of the generator {name} are wrong ({error}): correct them") from None


GENERATORS: Mapping[str, Callable[..., None]] = {"phrasebook": phrasebook.write}
