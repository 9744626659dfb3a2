"""Measures of the code base: size, repeated names, conditionals on kinds, and the depth of the two main call paths.

    python tools/code_metrics.py            # prints a table
    python tools/code_metrics.py --list     # and every repeated name and conditional it counted

The call depth needs torch and trains a tiny model on the phrasebook; `--static` leaves it out.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "dragoman"

#: Names whose value tells which kind of model, spec, search or objective something is.
KIND_NAMES = re.compile(
    r"^(EncoderDecoder|DecoderOnly|EncoderOnly|ReplacedTokens)(Model)?$"
    r"|^(Beam|Sample|Exact|MinimumRisk|Rerank|Speculative|Greedy|BeamSearch|Sampling)$"
    r"|(Mixer|Spec|Stack|Position|Visibility|Objective)$"
)
KIND_ATTRIBUTES = re.compile(r"(objective|system|reading)\.(name|kind)$|\.holds$")


def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def repeated_classes(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Class names that are defined in more than one file."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    return {name: files for name, files in places.items() if len(files) > 1}


def repeated_constants(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    """Upper-case module constants that are assigned in more than one file."""
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]*", target.id):
                    places[target.id].append(str(path.relative_to(PACKAGE)))
    return {name: files for name, files in places.items() if len(files) > 1}


def repeated_files(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for path in trees:
        if path.name not in ("__init__.py", "__main__.py"):
            places[path.name].append(str(path.relative_to(PACKAGE)))
    return {name: files for name, files in places.items() if len(files) > 1}


def kind_conditionals(trees: dict[Path, ast.Module]) -> list[str]:
    """Places outside parts/ that test which kind of model, spec, search or objective they have."""
    found = []
    for path, tree in trees.items():
        where = path.relative_to(PACKAGE)
        if where.parts[0] == "parts":
            continue
        for node in ast.walk(tree):
            if _tests_kind(node):
                found.append(f"{where}:{node.lineno}: {ast.unparse(node)[:100]}")
    return found


def _tests_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("isinstance", "issubclass") and len(node.args) == 2:
            return any(KIND_NAMES.search(name) for name in _names(node.args[1]))
        return node.func.id == "hasattr"
    if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
        sides = [node.left, *node.comparators]
        constant = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
        named = any(KIND_ATTRIBUTES.search(ast.unparse(side)) for side in sides)
        typed = any(isinstance(side, ast.Call) and ast.unparse(side.func) == "type" for side in sides)
        return (constant and named) or typed
    if isinstance(node, ast.Subscript):  # a table of types
        return isinstance(node.slice, ast.Call) and ast.unparse(node.slice.func) == "type"
    return False


def _names(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def _depth(caller: str) -> int:
    """Frames of this package between a function called `caller` and here, both counted."""
    frame, names = sys._getframe(1), []
    while frame is not None:
        if "dragoman" in frame.f_code.co_filename and str(PACKAGE) in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    outermost = len(names) - 1 - names[::-1].index(caller)
    return outermost + 1


def call_depths() -> dict[str, int]:
    """Frames from `Run.translate` to the model's `decode`, and from the trainer's `train` to `attend`."""
    import torch

    import dragoman
    from dragoman.cli import main
    from dragoman.models.encoder_decoder import EncoderDecoderModel
    from dragoman.parts import attention

    depths: dict[str, int] = {}
    decode, attend = EncoderDecoderModel.decode, attention.attend

    def watched_decode(*args: object, **kwargs: object) -> object:
        depths.setdefault("translate → decode", _depth("translate"))
        return decode(*args, **kwargs)  # type: ignore[arg-type]

    def watched_attend(*args: object, **kwargs: object) -> object:
        if "train → attend" not in depths and torch.is_grad_enabled():
            depths["train → attend"] = _depth("train")
        return attend(*args, **kwargs)  # type: ignore[arg-type]

    attention.attend = watched_attend  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            ["phrasebook", f"{folder}/pb"],
            [
                "train",
                f"{folder}/run",
                "--source",
                f"{folder}/pb/train.en",
                "--target",
                f"{folder}/pb/train.de",
                "--steps",
                "2",
            ],
        ):
            try:
                main(command)  # type: ignore[call-arg]
            except SystemExit as end:
                if end.code:
                    raise
        EncoderDecoderModel.decode = watched_decode  # type: ignore[method-assign, assignment]
        dragoman.load(f"{folder}/run").translate(["The dog sleeps."])
    return depths


def main_() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every repeated name and conditional")
    parser.add_argument("--static", action="store_true", help="do not train and translate to measure call depths")
    options = parser.parse_args()
    trees = modules()
    classes, constants, files = repeated_classes(trees), repeated_constants(trees), repeated_files(trees)
    kinds = kind_conditionals(trees)
    rows = {
        "files": len(trees),
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in trees),
        "class names defined in several files": len(classes),
        "file names used several times": len(files),
        "constants defined in several files": len(constants),
        "conditionals on kind outside parts/": len(kinds),
    }
    if not options.static:
        rows |= {f"frames, {path}": depth for path, depth in call_depths().items()}
    for name, value in rows.items():
        print(f"{name:42}{value:8,}")
    if options.list:
        for title, found in (("classes", classes), ("files", files), ("constants", constants)):
            print(f"\n{title}")
            for name, places in sorted(found.items()):
                print(f"  {name}: {', '.join(places)}")
        by_folder = Counter(line.split("/")[0] for line in kinds)
        print(f"\nconditionals on kind: {dict(by_folder)}")
        print("\n".join(f"  {line}" for line in kinds))


if __name__ == "__main__":
    main_()
