"""`dragoman systems` and `dragoman settings`: describe all systems and settings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_system
from dragoman.cli.options import Json, complete_systems
from dragoman.config import SECTIONS, Setting, settings_of
from dragoman.console import print_json, print_lines
from dragoman.errors import UserError, unknown_name

if TYPE_CHECKING:
    from dragoman.models import ModelSpec
    from dragoman.systems import System

VOCAB_SIZE = 8000  # shared vocabulary for which parameters are counted


def systems(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the system (architecture) to describe, such as transformer. Default: list all systems.",
            autocompletion=complete_systems,
        ),
    ] = None,
    diff: Annotated[str | None, "Show in which parts of the model the system differs from this other system."] = None,
    size: Annotated[str, "Model size: tiny, small, base or big."] = "base",
    as_json: Json = False,
) -> None:
    """List all systems, describe one, or compare two."""
    for system in (name, diff):
        if system is not None:
            check_system(system)

    from dragoman.evaluation import format_table
    from dragoman.systems import SYSTEMS

    if name is None:
        if diff:
            raise UserError(
                "--diff compares two systems, but only one is named: write 'dragoman systems NAME --diff OTHER'"
            )
        rows = [_system_values(key, system, size) for key, system in SYSTEMS.items()]
        print_json(rows) if as_json else print_lines(_system_lines(rows))
    elif diff:
        rows = _difference_rows(diff, name, size)
        print_json(rows) if as_json else print(format_table(rows) if rows else "no difference")
    else:
        _describe_system(name, size, as_json)


def _spec(system: System, size: str) -> ModelSpec:
    """Return the model specification of a system and size, for a shared vocabulary of VOCAB_SIZE tokens."""
    from dragoman.systems import VocabularySizes

    return system.spec(VocabularySizes(VOCAB_SIZE, VOCAB_SIZE, joint=True), size)


def _system_values(name: str, system: System, size: str) -> dict[str, Any]:
    """Describe a system in plain values: name, year, kind of model, number of parameters, paper, summary and parts."""
    from dragoman.models import count_parameters

    spec = _spec(system, size)
    return {
        "system": name,
        "year": str(system.year),
        "kind": spec.architecture,
        "parameters": count_parameters(spec),
        "paper": system.paper,
        "summary": system.summary,
        "parts": _part_names(spec),
    }


def _system_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield three lines for each system: name, year, kind, size and paper; summary; parts of the model.

    `rows` are the values of `_system_values`.
    """
    width = max(len(row["system"]) for row in rows)  # of the column of names
    for row in rows:
        size = f"{row['parameters'] / 1e6:,.1f} M"
        yield f"{row['system']:<{width}}  {row['year']}  {row['kind']:<15}  {size:>9}  {row['paper']}"
        yield f"{'':<{width}}  {row['summary']}"
        yield f"{'':<{width}}  {', '.join(row['parts'])}"


def _difference_rows(first: str, second: str, size: str) -> list[dict[str, str]]:
    """Return the parts in which the models of two systems differ, as rows of a table with a column for each system.

    `first` and `second` are names of systems; `size`, such as "base", is that of both models.
    """
    from dragoman.parts.spec import differences
    from dragoman.systems import SYSTEMS

    changes = differences(_spec(SYSTEMS[first], size), _spec(SYSTEMS[second], size))
    return [{"part": path, first: str(before), second: str(after)} for path, before, after in changes]


def _part_names(spec: object) -> list[str]:
    """Return the class names of the parts of a model specification, such as "SelfAttention", outer parts first.

    Each name occurs once. The class of the model itself, which is the first part found, is left out.
    """
    from dragoman.parts.spec import Spec, find_specs

    names = dict.fromkeys(type(part).__name__ for part in find_specs(spec, Spec))  # an ordered set
    return list(names)[1:]


def _describe_system(name: str, size: str, as_json: bool) -> None:
    """Print everything about a system: paper, sizes, settings, training defaults, and the parts of its model.

    `size`, such as "base", is that of the model whose parts are printed. With `as_json` the result is a JSON document.
    """
    from dragoman.models import count_parameters, model_to_dict
    from dragoman.parts.spec import outline
    from dragoman.systems import SYSTEMS
    from dragoman.systems.setting_help import SETTING_HELP

    system = SYSTEMS[name]
    spec, paper = _spec(system, size), system.paper_training
    sizes = {key: count_parameters(_spec(system, key)) for key in system.sizes}
    settings = {key: parameter.default for key, parameter in system.settings().items()}
    if as_json:
        document = _system_values(name, system, size) | {"sizes": sizes, "settings": settings}
        # `differences` are those between the paper's training and the recipe "textbook", which follows it
        more_facts = {"system_settings": paper.system_settings, "differences": system.differences}
        document |= {"paper_training": dataclasses.asdict(paper) | more_facts}
        document |= {"recipe": system.default_recipe}
        print_json(document | {"spec": model_to_dict(spec)})
        return
    # settings of the system that its default recipe (a set of training defaults) changes from those of the paper
    tuned = {**system.tuned_settings, **(system.modern_settings if system.default_recipe == "modern" else {})}
    counts = ", ".join(f"{key} {count / 1e6:.1f} M" for key, count in sizes.items())
    print(f"{name}: {inspect.getdoc(system.builder)}")
    print(f"\npaper     {system.paper}, {system.year}")
    print(f"sizes     {counts} parameters (shared vocabulary of {VOCAB_SIZE:,})")
    print(f"kind      {spec.architecture}")
    print(f"parts     {', '.join(_part_names(spec))}")
    print("settings  change one with --set system.settings.NAME=VALUE")
    texts = {key: f"{key}={value}" for key, value in settings.items()}
    width = max(map(len, texts.values()))
    print_lines(f"          {text:<{width}}  {SETTING_HELP[key]}" for key, text in texts.items())
    print(f"textbook  {paper}")
    if system.differences:
        print(f"          differences from the paper: {system.differences}")
    tuned_text = f" with {', '.join(f'{key}={value}' for key, value in tuned.items())}" if tuned else ""
    print(f"default   recipe {system.default_recipe}{tuned_text}")
    print(f"\n{size}:")
    print_lines(f"  {line}" for line in outline(spec))


def settings(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Setting or section of settings to describe, such as training.steps or training. Default: all "
            "settings."
        ),
    ] = None,
    markdown: Annotated[bool, "Print docs/settings.md."] = False,
) -> None:
    """List all settings, those of a section, or describe one. Change them with 'train --set NAME=VALUE'."""
    if markdown:
        print("\n".join(markdown_lines()))
        return
    declarations = {
        f"{section}.{declaration.name}": declaration
        for section, section_type in SECTIONS.items()
        for declaration in settings_of(section_type).values()
    }
    selected = [setting for setting in declarations if name in (None, setting) or setting.startswith(f"{name}.")]
    if not selected:
        raise unknown_name("setting", name or "", [*SECTIONS, *declarations])
    for setting in selected:
        declaration = declarations[setting]
        kind = _with_range("|".join(declaration.choices) or declaration.type_text, declaration)
        print(f"{setting}: {kind}; default {declaration.default_text}")
        print(f"    {declaration.help}")


def markdown_lines() -> Iterator[str]:
    """Yield the lines of docs/settings.md."""
    yield "# Settings"
    yield ""
    yield "This file is generated by `dragoman settings --markdown`. Set a setting with `dragoman train … --set"
    yield "NAME=VALUE`, in a YAML file (`--config`), or in Python (`dragoman.train(…, settings={NAME: VALUE})`)."
    for section, settings in SECTIONS.items():
        yield from ("", f"## {section}", "", (settings.__doc__ or "").splitlines()[0], "")
        yield "| setting | type | default | meaning |"
        yield "|---|---|---|---|"
        for name, declaration in settings_of(settings).items():
            kind = " \\| ".join(f"`{choice}`" for choice in declaration.choices) or declaration.type_text
            kind, meaning = _with_range(kind, declaration), declaration.help.replace("|", "\\|")
            yield f"| `{section}.{name}` | {kind} | {declaration.default_text} | {meaning} |"
    yield from ("", "## system.settings", "", "`dragoman systems NAME` shows the defaults of a system.", "")
    yield from ("| setting | meaning | systems |", "|---|---|---|", *_system_rows())
    yield from ("", "## objective.settings", "", "Set them as `objective.settings.NAME`.", "")
    yield from ("| objective | setting | default | meaning |", "|---|---|---|---|", *_objective_rows())


def _with_range(kind: str, setting: Setting) -> str:
    """Add the range of a setting to the text of its type: "integer, at least 1"."""
    return f"{kind}, {setting.range_text}" if setting.range_text else kind


def _system_rows() -> Iterator[str]:
    """Yield the rows of the table of system settings in docs/settings.md: name, meaning, systems that have it.

    If fewer systems lack a setting than have it, the text names those: "all except …".
    """
    from dragoman.systems import SYSTEMS
    from dragoman.systems.setting_help import SETTING_HELP

    for name in sorted({name for system in SYSTEMS.values() for name in system.settings()}):
        having = [system_name for system_name, system in SYSTEMS.items() if name in system.settings()]
        lacking = [system_name for system_name in SYSTEMS if system_name not in having]
        systems_text = ", ".join(having)
        if len(lacking) < len(having):  # write the shorter list
            systems_text = f"all except {', '.join(lacking)}" if lacking else "all"
        meaning = SETTING_HELP[name].replace("|", "\\|")  # | would end a cell
        yield f"| `system.settings.{name}` | {meaning} | {systems_text} |"


def _objective_rows() -> Iterator[str]:
    """Yield the rows of the table of objective settings in docs/settings.md.

    Meanings come from the section "Args:" of the docstring of each objective.
    """
    from dragoman.objectives import OBJECTIVES

    for objective, cls in OBJECTIVES.items():
        _, _, documented = (inspect.getdoc(cls) or "").partition("Args:")
        # "    name: meaning", continued on lines that are indented further
        meanings = dict(re.findall(r"^ {4}(\w+): ((?:.|\n {5,})+)", documented, re.MULTILINE))
        _task, *parameters = inspect.signature(cls).parameters.values()  # the task is no setting
        for parameter in parameters:
            meaning = " ".join(meanings[parameter.name].split()).replace("|", "\\|")
            default = str(parameter.default).lower() if isinstance(parameter.default, bool) else parameter.default
            yield f"| {objective} | `{parameter.name}` | {default} | {meaning[:1].upper()}{meaning[1:]} |"
