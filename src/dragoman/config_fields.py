"""Declaration, validation and parsing of settings: dataclass fields that carry their help text and range."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from dragoman.errors import UserError, unknown_name

TYPE_NAMES: dict[type, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a mapping",
}


@dataclass(frozen=True)
class Setting:
    """What is known about one setting: how it is explained, checked and resolved."""

    help: str  # one or two sentences, with the unit
    range: tuple[float | None, float | None] = (None, None)  # smallest and largest value; None: no limit
    fallback: Any = None  # value used if neither the user nor the training recipe sets it
    auto: str = ""  # how a value is chosen if the setting is None


def setting(
    default: Any,
    help: str,
    *,
    range: tuple[float | None, float | None] = (None, None),
    fallback: Any = None,
    auto: str = "",
) -> Any:
    """Declare a dataclass field with its default value and a `Setting` as metadata."""
    metadata = {"setting": Setting(help, range, fallback, auto)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


class Section:
    """Base of the sections of a configuration: converts and validates every field when it is constructed."""

    section: ClassVar[str]  # the name of the section, the first part of the dotted names of its settings

    def __post_init__(self) -> None:
        for name, hint, about in settings_of(type(self)):
            path, value = f"{self.section}.{name}", getattr(self, name)
            converted = convert(value, hint, path)
            check_range(converted, about, path)
            object.__setattr__(self, name, converted)


@cache
def _settings_of(cls: type) -> tuple[tuple[str, Any, Setting], ...]:
    hints = typing.get_type_hints(cls)
    fields: list[dataclasses.Field[Any]] = list(dataclasses.fields(cls))
    return tuple((field.name, hints[field.name], field.metadata["setting"]) for field in fields)


def settings_of(cls: type) -> Iterator[tuple[str, Any, Setting]]:
    """Yield the name, the declared type and the description of every setting of a section."""
    yield from _settings_of(cls)


def convert(value: Any, hint: Any, path: str) -> Any:
    """Return the value as the declared type; raise a UserError that names the setting if it is of another type.

    Integers become floats, numbers written as text (YAML reads 1e-3 as text) become floats, paths become text, and a
    list or a single value becomes a tuple where the type is a tuple.
    """
    hint, optional = _without_none(hint)
    if hint is Any or (optional and value is None):
        return value
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not any(value == option and type(value) is type(option) for option in options):
            raise unknown_name(f"value of {path}", str(value), map(_spelled, options))
        return value
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(convert(item, options[0], path) for item in items)
    expected = origin or hint
    if expected is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    if expected is str and isinstance(value, (int, str, Path)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, expected) and not (expected is int and isinstance(value, bool)):
        return value
    quotes = " (in a YAML file, put it in quotes)" if expected is str and not isinstance(value, (list, dict)) else ""
    raise UserError(f"{path} must be {TYPE_NAMES[expected]}, got {value!r}{quotes}")


def check_range(value: Any, about: Setting, path: str) -> None:
    """Raise a UserError if a number lies outside the range of its setting."""
    low, high = about.range
    if value is not None and not ((low is None or value >= low) and (high is None or value <= high)):
        raise UserError(f"{path} must be {range_text(about)}, got {value}")


def range_text(about: Setting) -> str:
    """Describe the range of a setting in words; empty if it has none."""
    low, high = about.range
    if low is not None and high is not None:
        return f"between {low:g} and {high:g}"
    return f"at least {low:g}" if low is not None else f"at most {high:g}" if high is not None else ""


def parse_text(text: str, hint: Any, path: str) -> Any:
    """Parse the text of a setting from the command line.

    The text of a string setting is its value, whatever it contains. Lists are written `[a, b]`. Everything else is a
    number or YAML. An empty text, and `null` for settings other than strings, mean None.
    """
    hint, optional = _without_none(hint)
    if hint is str:
        return None if optional and not text else text
    if typing.get_origin(hint) is tuple:
        if not text.lstrip().startswith("["):
            return (text,) if text else ()
        return tuple(_parse_yaml(text, path, yaml.BaseLoader))  # leaves every item a text, to be converted
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return _parse_yaml(text, path, yaml.SafeLoader)


def choices_of(hint: Any) -> list[str]:
    """Return the values that a setting accepts, as they are written; empty if they are not limited to a few."""
    hint, _ = _without_none(hint)
    return [_spelled(option) for option in typing.get_args(hint)] if typing.get_origin(hint) is Literal else []


def type_text(hint: Any) -> str:
    """Describe the type of a setting for its documentation, such as "integer" or "one of a, b"."""
    hint, _ = _without_none(hint)
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " \\| ".join(f"`{_spelled(option)}`" for option in options)
    if origin is tuple:
        return f"list of {type_text(options[0])}"
    return TYPE_NAMES[origin or hint].removeprefix("an ").removeprefix("a ")


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Split `T | None` into T and True; any other type is returned with False."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    return next(option for option in typing.get_args(hint) if option is not type(None)), True


def _spelled(option: Any) -> str:
    return str(option).lower() if isinstance(option, bool) else str(option)


def _parse_yaml(text: str, path: str, loader: type[yaml.BaseLoader] | type[yaml.SafeLoader]) -> Any:
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}={text} is not valid YAML ({reason}): quote special characters") from None
