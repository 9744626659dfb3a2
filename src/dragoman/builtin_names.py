"""Names of the built-in systems and of their settings, read from source code, because importing it needs torch."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SYSTEMS_FOLDER = Path(__file__).parent / "systems"


@cache
def system_names() -> tuple[str, ...]:
    """Return the names of all systems: the keys of the dictionaries `…_SYSTEMS` in dragoman/systems."""
    return tuple(name for path in sorted(SYSTEMS_FOLDER.glob("[!_]*.py")) for name in _keys(path, "_SYSTEMS"))


def system_setting_names() -> list[str]:
    """Return the names of the settings that systems have: the keys of `SETTING_HELP`."""
    return _keys(SYSTEMS_FOLDER / "setting_help.py", "SETTING_HELP")


def _keys(path: Path, variable: str) -> list[str]:
    """Return the keys of the dictionaries that a module assigns to variables whose names end like this."""
    keys: list[ast.expr | None] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            keys += node.value.keys if ast.unparse(target).endswith(variable) else []
    return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
