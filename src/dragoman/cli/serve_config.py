"""Options of `dragoman serve` from a file and from the environment.

An option of the command line counts before an environment variable, that before the file, and that before the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import yaml

from dragoman.errors import UserError, unknown_name

ENVIRONMENT_PREFIX = "DRAGOMAN_SERVE"
#: parameters of the command that are not part of a configuration
OPTIONS_WITHOUT_SETTING = ("config", "print_config", "help")
PATH_TYPES = ("path", "file", "directory")  # names of the types of options that are paths
#: where the value of a parameter comes from: names of `ParameterSource` in Typer, and what is printed
ORIGINS = {"COMMANDLINE": "option", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file", "DEFAULT": "default"}


def _parameters(ctx: typer.Context) -> dict[str, Any]:
    """Return the parameters of the command by their names in a configuration file: options without "--", and runs."""
    by_name = {}
    for parameter in ctx.command.params:
        if parameter.name not in OPTIONS_WITHOUT_SETTING:
            is_option = parameter.param_type_name == "option"  # not an argument
            # the longest form of an option is its name: --quiet, not -q
            name = max(parameter.opts, key=len).lstrip("-") if is_option else str(parameter.name)
            by_name[name] = parameter
    return by_name


def apply_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of --config: make environment variables, then values of the file, the defaults of the options.

    `path` is the file, or None. An unknown name in the file or of a variable DRAGOMAN_SERVE_… is a UserError. The path
    is returned as it is, the value of --config.
    """
    if ctx.resilient_parsing:  # shell completion
        return path
    parameters = _parameters(ctx)
    ctx.auto_envvar_prefix = ENVIRONMENT_PREFIX
    variables = {f"{ENVIRONMENT_PREFIX}_{parameter.name.upper()}" for parameter in parameters.values()}
    for name in os.environ:
        if name.startswith(f"{ENVIRONMENT_PREFIX}_") and name not in {*variables, f"{ENVIRONMENT_PREFIX}_CONFIG"}:
            raise unknown_name("environment variable", name, variables)
    if path is not None:
        values = _read_yaml(path)
        ctx.default_map = dict(_parameter_value(ctx, path, name, value, parameters) for name, value in values.items())
    return path


def _read_yaml(path: Path) -> Mapping[str, Any]:
    """Read the configuration file: a YAML mapping of options to values; that of an empty file is empty.

    A file that cannot be read, or holds anything else, is a UserError.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"the file {path} of --config cannot be read: {reason}; check its path and content") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" (line {mark.line + 1})"
        raise UserError(
            f"the file {path} of --config is not valid YAML{line}: write lines such as 'port: 8080'"
        ) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UserError(
            f"the file {path} of --config must map options to values in lines such as 'port: 8080', but holds a "
            f"{type(document).__name__}: correct it"
        )
    # YAML 1.1 reads the name of the option "on" as true
    return {"on" if name is True else str(name): value for name, value in document.items()}


def _parameter_value(
    ctx: typer.Context, path: Path, name: str, value: Any, parameters: Mapping[str, Any]
) -> tuple[str, Any]:
    """Convert an entry `name: value` of the file `path`; return the name of a parameter of the command and its value.

    Repeatable options may be written in the plural, such as allowed-hosts. Paths are relative to the file. A `value` of
    None stands for the default of the option. An unknown name and a wrong value are UserErrors. `parameters` are those
    of the command by their names in a file.
    """
    option = name.replace("_", "-")
    # the singular of a repeatable option in the plural
    option = next((known for known in parameters if option == f"{known}s" and parameters[known].multiple), option)
    if option not in parameters:
        unknown_option = unknown_name("option", name, parameters)
        raise UserError(f"the file {path} of --config has an {unknown_option}")
    parameter = parameters[option]
    if value is None:  # the default
        return parameter.name, None
    is_list = parameter.nargs == -1 or getattr(parameter, "multiple", False)  # −1: any number of arguments
    if isinstance(value, list) and not is_list:
        raise UserError(
            f"the file {path} of --config: the option '{name}' takes one value, but is a list of {len(value)} values: "
            "give one value"
        )
    plain = [_plain_value(path, name, item, parameter) for item in (value if isinstance(value, list) else [value])]
    try:  # only to check the value: the command line converts the default again
        converted = parameter.process_value(ctx, plain if is_list else plain[0])
    except Exception as error:  # of Typer, which parses the command line
        reason = getattr(error, "message", str(error))
        raise UserError(
            f"the file {path} of --config: the option '{name}' has a wrong value: {reason[:1].lower()}{reason[1:]}; "
            "correct it"
        ) from None
    is_path = isinstance(converted, Path) or getattr(getattr(parameter, "type", None), "name", "") in PATH_TYPES
    if is_path or parameter.name == "runs":  # runs are folders, but may have languages: RUN=en-de
        plain = [str(path.parent / item) for item in plain]
    return parameter.name, plain if is_list else plain[0]


def _plain_value(path: Path, name: str, value: Any, parameter: Any) -> Any:
    """Return a value from the file `path` in the form in which the command line has it: text, or true or false.

    `parameter` is that of the command, `name` that of the option in the file, for error messages. The option `route`
    may also be a mapping. A value of the wrong type is a UserError.
    """
    is_flag = getattr(parameter, "is_flag", False)
    if isinstance(value, dict) and parameter.name == "route":
        return _route(path, value)
    if is_flag != isinstance(value, bool) or not isinstance(value, bool | int | float | str):
        expected = "true or false" if is_flag else "a number or text"
        raise UserError(
            f"the file {path} of --config: the option '{name}' must be {expected}, but is {value!r}: correct it"
        )
    return value if is_flag else str(value)


def _route(path: Path, value: dict[str, Any]) -> str:
    """Return a route, which divides requests between runs, in the form of the option --route.

    `value`, from the file `path`, is {name: test, runs: {a: 0.9, b: 0.1}} for test=a:0.9,b:0.1. Other keys, and a route
    without runs, are a UserError.
    """
    runs = value.get("runs")
    if set(value) != {"name", "runs"} or not isinstance(runs, dict) or not runs:
        raise UserError(
            f"the file {path} of --config: a route must have a name, and runs with weights (their shares of the "
            f"requests to this name), such as {{name: test, runs: {{a: 0.9, b: 0.1}}}}, but is {value!r}: correct it"
        )
    return f"{value['name']}={','.join(f'{run}:{weight}' for run, weight in runs.items())}"


def print_configuration(ctx: typer.Context) -> None:
    """Print all options as a YAML file for --config; a comment says where each value comes from."""
    for name, parameter in _parameters(ctx).items():
        value, origin = ctx.params.get(parameter.name), ctx.get_parameter_source(parameter.name)
        if isinstance(value, Path | tuple | list):  # as text; an empty list is no value
            value = str(value) if isinstance(value, Path) else [*map(str, value)] or None
        # on one line, without the mark "..." that YAML writes after a plain value
        text = yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True)
        text = text.removesuffix("\n").removesuffix("...").strip()
        print(f"{name}: {text}  # {ORIGINS.get(getattr(origin, 'name', ''), 'default')}")
