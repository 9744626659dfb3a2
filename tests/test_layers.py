"""The layers of the package: a folder imports only from folders before it in the data flow, and only public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dragoman

ROOT = Path(dragoman.__file__).parent

#: the folders in the order of the data flow: each may import from itself and from those before it
LAYERS = (
    *("text", "data", "parts", "models", "systems", "search", "evaluation"),
    *("objectives", "run", "bulk", "training", "lens", "watch", "serving", "interop", "api", "cli"),
)
#: modules that every folder may import
SHARED = {
    "builtin_names",
    "errors",
    "run_files",
    "storage",
    "tensor_files",
    "config",
    "checkpoint",
    "console",
    "memory",
    "processes",
    "legacy",
    "cuda_graphs",
    "preemption",
    "seeding",
    "__version__",
}
#: imports against the order, each with its reason
EXCEPTIONS = {
    ("run/run.py", "lens"),  # Run.lens delegates to the lens when it is called
    ("run/run.py", "api"),  # Run.evaluate and Run.export delegate to functions of dragoman
    ("run/run.py", "interop"),  # type of the result of Run.export
    ("run/run.py", "load"),  # Run.opened opens another run through the public function
}
#: attributes with an underscore that belong to named tuples and to PyTorch
FOREIGN = {"_replace", "_make", "_asdict", "_fields", "_modules", "_parameters", "_version"}
#: what the modules directly in the package may import beside each other
PUBLIC_MODULES = {
    "__init__.py": {"run", "cli", "interop", "parts", "api", "search", "evaluation", "systems"},
    "__main__.py": {"cli"},
}


@cache
def modules() -> dict[str, ast.Module]:
    """All files of the package, parsed, by their path in it."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


def imported_modules(path: str, tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of every import of our own: plain, relative, inside functions and under TYPE_CHECKING."""
    package = ["dragoman", *Path(path).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name.split(".")[0] == "dragoman")
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            if module.split(".")[0] == "dragoman":
                yield from ((node.lineno, module, alias.name) for alias in node.names)


def test_a_folder_imports_only_from_folders_before_it() -> None:
    violations = []
    for path, tree in modules().items():
        folder = path.split("/")[0]
        if folder in LAYERS:
            allowed = {
                *LAYERS[: LAYERS.index(folder) + 1],
                *SHARED,
                *({"load", ""} if folder in ("api", "cli") else ()),
            }
        else:
            allowed = SHARED | PUBLIC_MODULES.get(path, set())
        for line, module, name in imported_modules(path, tree):
            first = module.split(".")[1] if "." in module else name
            if first not in allowed and (path, first) not in EXCEPTIONS:
                violations.append(f"{path}:{line} imports {first}")
    assert not violations, "\n".join(violations)


def test_private_names_stay_in_their_folder() -> None:
    """No folder imports a private name of another one, or reads a private attribute that another one defines."""
    violations = []
    defined: dict[str, set[str]] = {}  # private attribute → folders that define it
    for path, tree in modules().items():
        folder = path.split("/")[0]
        for node in ast.walk(tree):
            name = ""
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            if name.startswith("_") and not name.startswith("__"):
                defined.setdefault(name, set()).add(folder)
    for path, tree in modules().items():
        folder = path.split("/")[0]
        for line, module, name in imported_modules(path, tree):
            if name.startswith("_") and not name.startswith("__") and module.split(".")[1:2] != [folder]:
                violations.append(f"{path}:{line} imports {module}.{name}")
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr in FOREIGN:
                continue
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in ("self", "cls", "torch") and folder not in defined.get(node.attr, {folder}):
                violations.append(f"{path}:{node.lineno} reads {ast.unparse(node)}")
    assert not violations, "\n".join(violations)


def modules_after(code: str) -> set[str]:
    """The modules that are loaded after `code` has run in a process of its own."""
    code = f"try:\n{code}\nfinally:\n import sys; print('\\n' + '\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return set(done.stdout.splitlines())


def test_help_imports_no_torch() -> None:
    loaded = modules_after(" import sys, dragoman.cli; sys.argv = ['dragoman', '--help']; dragoman.cli.main()")
    assert "dragoman.cli" in loaded
    assert "torch" not in loaded
