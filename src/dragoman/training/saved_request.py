"""The settings of a folder of several runs, saved so that it is continued with the same settings."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dragoman import legacy
from dragoman.config import flatten_settings
from dragoman.errors import UserError
from dragoman.storage import write_file


def save_or_check_request(path: Path, request: dict[str, Any], kind: str, changeable: Collection[str] = ()) -> bool:
    """Save the settings that all runs of a folder share, or raise a UserError if `path` has other ones.

    Different values of the keys in `changeable` are no error: they are saved.

    Args:
        path: JSON file in the folder of the runs.
        request: the settings, as nested dicts.
        kind: what the folder contains, for the message, such as "comparison".
        changeable: top-level keys of `request` whose values may differ from the saved ones.

    Returns:
        Whether anything differs from what was saved, or nothing was saved before.
    """
    request = json.loads(json.dumps(request))  # tuples become lists, as in the file
    if not path.exists():
        write_file(path, json.dumps(request, indent=1, ensure_ascii=False) + "\n")
        return True
    # with the present names of settings that earlier versions have named differently
    saved = legacy.translate_settings(json.loads(path.read_text(encoding="utf-8")))
    before, now = flatten_settings(saved), flatten_settings(request)  # by dotted names
    different = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    for name in different:
        if name.split(".")[0] not in changeable:  # the top-level key
            old_value, new_value = before.get(name), now.get(name)
            raise UserError(
                f"{path.parent} has a {kind} that was started with {name}={old_value}, but now {name}={new_value} is "
                "given: repeat the first command to continue it, or choose another folder"
            )
    if different:
        write_file(path, json.dumps(request, indent=1, ensure_ascii=False) + "\n")
    return bool(different)
