"""Measure the code base: size, repeated names, conditionals on kinds, and the depth of the two main call paths.

    python tools/code_metrics.py            # print a table
    python tools/code_metrics.py --list     # also print every repeated name, conditional and call path
    python tools/code_metrics.py --static   # without call paths, which need torch

Repeated names are classes, files and upper-case constants that are defined in more than one place. Conditionals on
kind are tests outside parts/ of which kind of model, spec, search or objective an object is: `isinstance`, `hasattr`,
comparisons of type or name, and tables of types. They should be methods or properties of the objects.

Call depth counts the functions of this package on the stack, including both ends: from `Run.translate` to the model's
`decode`, and from the trainer's `train` to `attend`, which computes attention. A small Transformer is trained for two
steps in a temporary folder; a profile function looks at the stack at the first call of the inner function. Shorter
paths are easier to follow with a debugger.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "dragoman"

#: names of classes that are kinds of models, specs, searches or objectives
KIND_NAMES = re.compile(
    r"^(EncoderDecoder|DecoderOnly|EncoderOnly|ReplacedTokens)(Model)?$"
    r"|^(Beam|Sample|ExactSearch|MinimumBayesRisk|Rerank|Speculative|Greedy|BeamSearch|Sampling)$"
    r"|(Mixer|Spec|Stack|Position|Visibility|Objective)$"
)
#: attributes that hold the name of a kind
KIND_ATTRIBUTES = re.compile(r"(objective|system|reading|data_format)\.(name|kind)$|\.(holds|data_format)$")

Definitions = dict[str, list[str]]  # name → files that define it


def parse_modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def repeated(definitions: Iterator[tuple[str, Path]]) -> Definitions:
    """Return the names that are defined more than once, with their files."""
    files = defaultdict(list)
    for name, path in definitions:
        files[name].append(str(path.relative_to(PACKAGE)))
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def classes(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, Path]]:
    for path, tree in trees.items():
        yield from ((node.name, path) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def constants(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, Path]]:
    """Upper-case names that modules assign."""
    for path, tree in trees.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]*", target.id):
                    yield target.id, path


def files(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, Path]]:
    return ((path.name, path) for path in trees if path.name not in ("__init__.py", "__main__.py"))


def kind_conditionals(trees: dict[Path, ast.Module]) -> list[str]:
    """Return the tests of kinds outside parts/ as `file:line: code`."""
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)[:100]}"
        for path, tree in trees.items()
        if path.relative_to(PACKAGE).parts[0] != "parts"
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and _tests_kind(node)
    ]


def _tests_kind(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
            return any(KIND_NAMES.search(name) for name in _names(node.args[1]))
        # what a module such as os offers depends on the platform, not on a kind
        return node.func.id == "hasattr" and ast.unparse(node.args[0]) not in sys.stdlib_module_names
    if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
        sides = [node.left, *node.comparators]
        constant = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
        named = any(KIND_ATTRIBUTES.search(ast.unparse(side)) for side in sides)
        typed = any(isinstance(side, ast.Call) and ast.unparse(side.func) == "type" for side in sides)
        return (constant and named) or typed
    # TABLE[type(value)]
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Call) and ast.unparse(node.slice.func) == "type"
    )


def _names(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def call_path(outer: str, inner: str, action: Callable[[], object]) -> list[str]:
    """Return the functions of this package on the stack from `outer` to `inner` at the first such call in `action`.

    Functions are `file.py:function`. Frames of comprehensions and lambdas are not counted.
    """
    path: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or path or _location(frame) != inner:
            return
        stack = []
        current: FrameType | None = frame
        while current is not None:
            if current.f_code.co_filename.startswith(str(PACKAGE)) and not current.f_code.co_name.startswith("<"):
                stack.append(_location(current))
            current = current.f_back
        if outer in stack:
            path.extend(reversed(stack[: stack.index(outer) + 1]))
            sys.setprofile(None)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    if not path:
        raise RuntimeError(f"{outer} did not call {inner}: adapt the names in tools/code_metrics.py")
    return path


def _location(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"


def call_paths() -> dict[str, list[str]]:
    """Return the functions from translate to decode and from train to attend, in a run that is trained for it."""
    import dragoman
    from dragoman.cli import app

    def command(*arguments: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            app(list(arguments), standalone_mode=False)

    with tempfile.TemporaryDirectory() as folder:
        corpus, run = f"{folder}/corpus", f"{folder}/run"
        command("phrasebook", corpus)
        train = ["train", run, "--source", f"{corpus}/train.en", "--target", f"{corpus}/train.de", "--size", "tiny"]
        train += ["--steps", "2", "--device", "cpu", "--quiet"]
        training = call_path("trainer.py:train", "attention_function.py:attend", lambda: command(*train))
        loaded = dragoman.load(run, device="cpu")
        translation = call_path("run.py:translate", "model.py:decode", lambda: loaded.translate(["The dog sleeps."]))
    return {"translate → decode": translation, "train → attend": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every repeated name, conditional and call path")
    parser.add_argument("--static", action="store_true", help="do not train and translate to measure call depths")
    options = parser.parse_args()
    trees = parse_modules()
    names = {
        "class names defined in several files": repeated(classes(trees)),
        "file names used several times": repeated(files(trees)),
        "constants defined in several files": repeated(constants(trees)),
    }
    kinds = kind_conditionals(trees)
    paths = {} if options.static else call_paths()
    rows = {"files": len(trees), "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in trees)}
    rows |= {title: len(definitions) for title, definitions in names.items()}
    rows |= {"conditionals on kind outside parts/": len(kinds)}
    rows |= {f"functions, {title}": len(path) for title, path in paths.items()}
    for title, value in rows.items():
        print(f"{title:42}{value:8,}")
    if options.list:
        for title, definitions in names.items():
            print(f"\n{title}")
            for name, defined_in in sorted(definitions.items()):
                print(f"  {name}: {', '.join(defined_in)}")
        print(f"\nconditionals on kind: {dict(Counter(line.split('/')[0] for line in kinds))}")
        print("\n".join(f"  {line}" for line in kinds))
        for title, path in paths.items():
            print(f"\n{title}\n" + "\n".join(f"  {function}" for function in path))


if __name__ == "__main__":
    main()
