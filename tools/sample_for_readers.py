"""Draw a random sample of functions, settings and messages for blind readers.

    python tools/sample_for_readers.py --count 20 --seed 1 --output sample.md --key key.md

A reader who knows the field, but not this project, grades each item as clear, guessed or not understandable, without
looking at other code. The sample shows neither file names nor paths; the key, written on request, lists them.

- Functions and methods are shown with their decorators and their whole source.
- Settings of the configuration and of systems are shown with name, type, default and documentation.
- Messages are the texts of UserErrors, with their format holes, and the help texts of command-line options.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "dragoman"
GRADES = "Grade: [ ] clear  [ ] guessed  [ ] not understandable. What it does, in one sentence: ____"


@dataclass(frozen=True)
class Item:
    text: str  # Markdown
    origin: str  # for the key


def parse_modules() -> Iterator[tuple[Path, str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        yield path, source, ast.parse(source)


def functions() -> Iterator[Item]:
    """All functions and methods, but not those that are nested in functions."""
    for path, source, tree in parse_modules():
        lines = source.splitlines()
        owners: list[tuple[ast.Module | ast.ClassDef, str]] = [(tree, "")]
        while owners:
            owner, prefix = owners.pop()
            for node in owner.body:
                if isinstance(node, ast.ClassDef):
                    owners.append((node, f"{prefix}{node.name}."))
                elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    code = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
                    method = f"A method of the class `{prefix[:-1]}`.\n\n" if prefix else ""
                    origin = f"{path.relative_to(ROOT)}:{first} {prefix}{node.name}"
                    yield Item(f"{method}```python\n{code}\n```", origin)


def settings() -> Iterator[Item]:
    """The settings of the configuration and of all systems."""
    from dragoman.config import Config, settings_of
    from dragoman.systems import SYSTEMS
    from dragoman.systems.setting_help import SETTING_HELP

    hints = typing.get_type_hints(Config)
    for section in fields(Config):
        if not hasattr(hints[section.name], "section"):
            continue
        for name, about in settings_of(hints[section.name]).items():
            full_name = f"{section.name}.{name}"
            yield _setting(full_name, about.hint, about.default_text, about.help, full_name)
    parameters = {name: p for system in SYSTEMS.values() for name, p in system.settings().items()}
    for name, parameter in parameters.items():
        users = [key for key, system in SYSTEMS.items() if name in system.settings()]
        documentation = f"{SETTING_HELP[name]} Systems: {', '.join(users[:3])}{' …' if len(users) > 3 else ''}"
        full_name = f"system.settings.{name}"
        default = f"{SYSTEMS[users[0]].settings()[name].default} ({users[0]}, size base)"
        yield _setting(full_name, parameter.annotation, default, documentation, full_name)


def _setting(name: str, hint: Any, default: str, documentation: str, origin: str) -> Item:
    kind = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    quoted = "\n".join(f"> {line}".rstrip() for line in documentation.splitlines())
    return Item(f"`{name}`, type `{kind}`, default: {default}\n\n{quoted}", origin)


def messages() -> Iterator[Item]:
    """The texts of UserErrors and of `help` arguments."""
    for path, _, tree in parse_modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func).rpartition(".")[2]
            texts = [node.args[0]] if called.endswith("UserError") and node.args else []
            if called in ("Option", "Argument", "Typer"):
                texts += [keyword.value for keyword in node.keywords if keyword.arg == "help"]
            for text in texts:
                message = _template(text)
                if message and " " in re.sub(r"\{[^}]*\}", "", message).strip():  # has words besides its holes
                    kind = "Error message" if called.endswith("UserError") else "Help text of a command-line option"
                    quoted = "\n".join(f"> {line}".rstrip() for line in message.splitlines())
                    yield Item(f"{kind}:\n\n{quoted}", f"{path.relative_to(ROOT)}:{text.lineno}")


def _template(node: ast.expr) -> str | None:
    """Return a string literal or an f-string with its holes as `{expression}`; None for other expressions."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"  # type: ignore[attr-defined]
            for part in node.values
        )
        return "".join(map(str, parts))
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="items of each of the three kinds (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random sample (default: 1)")
    parser.add_argument("--output", type=Path, help="Markdown file of the sample (default: standard output)")
    parser.add_argument("--key", type=Path, help="Markdown file with the origin of every item")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    sample = ["# A sample of the code base", "", "Grade each item on its own, without looking at other code.", ""]
    key = ["# Origins of the sample", ""]
    for title, source in (("Function", functions()), ("Setting", settings()), ("Message", messages())):
        items = list(source)
        for number, item in enumerate(generator.sample(items, min(options.count, len(items))), 1):
            sample += [f"## {title} {number}", "", item.text, "", GRADES, ""]
            key.append(f"- {title} {number}: {item.origin}")
        print(f"{title.lower()}s: {min(options.count, len(items))} of {len(items):,}", file=sys.stderr)
    if options.output:
        options.output.write_text("\n".join(sample), encoding="utf-8")
    else:
        print("\n".join(sample))
    if options.key:
        options.key.write_text("\n".join(key) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
