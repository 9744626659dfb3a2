"""`dragoman systems`: what there is, and what changed between two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_system
from dragoman.cli.options import Json, complete_systems, print_json

if TYPE_CHECKING:
    from dragoman.systems import System

VOCABULARY = 8000  # joint, for counting parameters
KINDS = {
    "EncoderDecoder": "encoder–decoder",
    "DecoderOnly": "decoder",
    "EncoderOnly": "encoder",
    "ReplacedTokens": "two encoders",
}


def systems(
    name: Annotated[
        str | None, typer.Argument(help="A system to describe.", show_default=False, autocompletion=complete_systems)
    ] = None,
    diff: Annotated[str | None, typer.Option(help="Another system: show what changed from it.")] = None,
    size: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "base",
    as_json: Json = False,
) -> None:
    """List the systems, describe one, or compare two."""
    for given in (name, diff):
        if given is not None:
            check_system(given)

    from dragoman.errors import UserError
    from dragoman.evaluation import format_table
    from dragoman.systems import SYSTEMS, get_system

    if name is None:
        if diff:
            raise UserError("--diff compares two systems: dragoman systems NAME --diff OTHER")
        rows = [_row(key, known, size) for key, known in SYSTEMS.items()]
        print_json(rows) if as_json else print("\n".join(_lines(rows)))
    elif diff:
        rows = _differences(get_system(diff), get_system(name), size, (diff, name))
        print_json(rows) if as_json else print(format_table(rows) if rows else "no difference")
    else:
        _describe(name, get_system(name), size, as_json)


def _row(name: str, known: System, size: str) -> dict[str, Any]:
    from dragoman.systems import VocabularySizes

    spec = known.spec(VocabularySizes(VOCABULARY, VOCABULARY, joint=True), size)
    return {
        "system": name,
        "year": str(known.year),
        "kind": KINDS[type(spec).__name__],
        "parameters": _parameters(known, size),
        "paper": known.paper,
        "what it is": known.summary,
        "parts": _parts(spec),
    }


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A system in three lines: its name and paper, what it is, and what it is made of."""
    width = max(len(row["system"]) for row in rows)
    for row in rows:
        size = f"{row['parameters'] / 1e6:,.1f} M"
        yield f"{row['system']:<{width}}  {row['year']}  {row['kind']:<15}  {size:>9}  {row['paper']}"
        yield f"{'':<{width}}  {row['what it is']}"
        yield f"{'':<{width}}  {', '.join(row['parts'])}"


def _parameters(known: System, size: str) -> int:
    from dragoman.models import count_parameters
    from dragoman.systems import VocabularySizes

    return count_parameters(known.spec(VocabularySizes(VOCABULARY, VOCABULARY, joint=True), size))


def _differences(before: System, after: System, size: str, names: tuple[str, str]) -> list[dict[str, str]]:
    from dragoman.parts.spec import differences
    from dragoman.systems import VocabularySizes

    vocabulary = VocabularySizes(VOCABULARY, VOCABULARY, joint=True)
    found = differences(before.spec(vocabulary, size), after.spec(vocabulary, size))
    return [{"where": path, names[0]: str(left), names[1]: str(right)} for path, left, right in found]


def _parts(spec: object) -> list[str]:
    """The names of the parts that a system is made of, the largest first."""
    from dragoman.parts.spec import Spec, find_specs

    return list(dict.fromkeys(type(part).__name__ for part in find_specs(spec, Spec)))[1:]


def _describe(name: str, known: System, size: str, as_json: bool) -> None:
    import dataclasses
    import inspect

    from dragoman.models import model_to_dict
    from dragoman.parts.spec import outline
    from dragoman.systems import VocabularySizes
    from dragoman.systems.setting_help import SETTING_HELP

    spec = known.spec(VocabularySizes(VOCABULARY, VOCABULARY, joint=True), size)
    sizes = {key: _parameters(known, key) for key in known.sizes}
    settings = {key: setting.default for key, setting in known.settings().items()}
    if as_json:
        about = _row(name, known, size) | {"sizes": sizes, "settings": settings}
        about |= {"paper_training": dataclasses.asdict(known.paper_training), "recipe": known.default_recipe}
        print_json(about | {"spec": model_to_dict(spec)})
        return
    print(f"{name}: {inspect.getdoc(known.builder)}")
    print(f"\npaper     {known.paper}, {known.year}")
    counts = ", ".join(f"{key} {count / 1e6:.1f} M" for key, count in sizes.items())
    print(f"sizes     {counts} parameters (joint vocabulary of {VOCABULARY:,})")
    print(f"kind      {KINDS[type(spec).__name__]}")
    print(f"parts     {', '.join(_parts(spec))}")
    print("settings  change one with --set system.settings.NAME=VALUE")
    shown = {key: f"{key}={value}" for key, value in settings.items()}
    width = max(map(len, shown.values()))
    for key, text in shown.items():
        print(f"          {text:<{width}}  {SETTING_HELP[key]}")
    trained = known.paper_training
    print(f"textbook  {trained}")
    if trained.differences:
        print(f"          not as in the paper: {trained.differences}")
    tuned = {**known.tuned_settings, **(known.modern_settings if known.default_recipe == "modern" else {})}
    better = f" with {', '.join(f'{key}={value}' for key, value in tuned.items())}" if tuned else ""
    print(f"default   recipe {known.default_recipe}{better}")
    print(f"\n{size}:")
    for line in outline(spec):
        print(f"  {line}")
