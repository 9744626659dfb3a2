"""Names of the built-in systems and of their settings, read from source code, because importing it needs torch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SYSTEMS_FOLDER = Path(__file__).parent / "systems"


@cache
def system_names() -> tuple[str, ...]:
    """Return the names of all systems (architectures such as "transformer").

    They are the keys of the dictionaries `…_SYSTEMS` in dragoman/systems.
    """
    paths = sorted(SYSTEMS_FOLDER.glob("[!_]*.py"))
    return tuple(name for path in paths for name in _dictionary_keys(path, variable_suffix="_SYSTEMS"))


def system_setting_names() -> list[str]:
    """Return the names of the settings that systems have: the keys of `SETTING_HELP`."""
    return _dictionary_keys(SYSTEMS_FOLDER / "setting_help.py", variable_suffix="SETTING_HELP")


def _dictionary_keys(path: Path, variable_suffix: str) -> list[str]:
    """Return the string keys of all dictionaries in a Python file whose variables have names with this suffix."""
    keys: list[ast.expr | None] = []  # None: of an entry `**other`
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Dict):
            variable = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            if ast.unparse(variable).endswith(variable_suffix):
                keys += statement.value.keys
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
