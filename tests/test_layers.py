"""A folder imports only from folders above it in the way of the data."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dragoman

ROOT = Path(dragoman.__file__).parent
ORDER = [
    "text",
    "data",
    "parts",
    "models",
    "systems",
    "search",
    "evaluation",
    "objectives",
    "run",
    "training",
    "lens",
    "serving",
    "interop",
    "cli",
]
ANYWHERE = {
    "errors",
    "storage",
    "config",
    "config_fields",
    "checkpoint",
    "console",
    "memory",
    "processes",
    "legacy",
    "__version__",
}


def imports(path: Path) -> set[str]:
    """The parts of the package that a file imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "dragoman":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dragoman."):
            found.add((node.module or "").split(".")[1])
    return found - ANYWHERE


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_up_the_list_alone(path: Path) -> None:
    name = path.relative_to(ROOT).parts[0].removesuffix(".py")
    allowed = set(ORDER[: ORDER.index(name) + 1]) if name in ORDER else set()
    if name == "cli":
        allowed.add("load")  # the public way to open a run
    if path == ROOT / "run" / "run.py":
        allowed |= {"lens", "load"}  # Run.lens and Run.opened, imported when they are called
    if name in ("__init__", "__main__"):
        allowed = {"run", "cli", "interop", "parts"}  # parts for a type alone
    assert imports(path) <= allowed


def test_help_imports_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys; sys.argv = ['dragoman', '--help']\ntry:\n import dragoman.cli; dragoman.cli.main()\n" + (
        "finally:\n print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "quickstart" in answer.stdout
    assert answer.stdout.strip().endswith("False")
