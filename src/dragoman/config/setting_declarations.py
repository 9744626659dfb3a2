"""Declaration, validation and parsing of settings: dataclass fields that carry their help text and range."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from dragoman.errors import UserError, unknown_name

TYPES = (int, float, bool, str, dict)
TYPE_NAMES = dict(zip(TYPES, ("an integer", "a number", "true or false", "text", "a mapping")))


@dataclass(frozen=True)
class Setting:
    """Declaration of a setting: help text, range, default, and how a value is chosen if the user gives none."""

    help: str  # one or two sentences, with the unit
    min: float | None = None
    max: float | None = None
    fallback: Any = None  # value used if neither the user nor the training recipe sets it
    auto: str = ""  # how a value is chosen if the setting is None
    # set by `settings_of`:
    name: str = ""  # without the section
    hint: Any = None  # the declared type
    default: Any = None

    @property
    def range_text(self) -> str:
        """The range in words, such as "at least 1"; empty if there is none."""
        if self.min is not None and self.max is not None:
            return f"between {self.min:,} and {self.max:,}"
        if self.min is not None:
            return f"at least {self.min:,}"
        return f"at most {self.max:,}" if self.max is not None else ""

    @property
    def choices(self) -> list[str]:
        """The values that the setting accepts, as they are written; empty if they are not limited to a few."""
        hint, _ = _without_none(self.hint)
        return [_spelled(option) for option in typing.get_args(hint)] if typing.get_origin(hint) is Literal else []

    @property
    def type_text(self) -> str:
        """The type of a setting without choices in words, such as "integer" or "list of text"."""
        hint, _ = _without_none(self.hint)
        is_list = typing.get_origin(hint) is tuple  # lists are declared as tuple[type, ...]
        item_type = typing.get_args(hint)[0] if is_list else typing.get_origin(hint) or hint
        return ("list of " if is_list else "") + TYPE_NAMES[item_type].removeprefix("an ").removeprefix("a ")

    def check_range(self, value: Any, setting_name: str) -> None:
        """Raise a UserError if a number lies outside the range; `setting_name` is the dotted name of the setting."""
        low, high = -math.inf if self.min is None else self.min, math.inf if self.max is None else self.max
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise UserError(f"the setting {setting_name} must be {self.range_text}, got {value}")

    @property
    def default_text(self) -> str:
        """What is used if the user does not set the setting, in words: a value, or how it is chosen.

        A recipe (`training.recipe`) is a set of defaults, which has priority over `fallback`.
        """
        if self.auto:
            return self.auto
        value = self.default if self.fallback is None else self.fallback
        text = "none" if value in (None, (), "", {}) and value is not False else _spelled(value)
        return text if self.fallback is None else f"{text}, unless the recipe sets it"


def setting(
    default: Any, help: str, *, min: float | None = None, max: float | None = None, fallback: Any = None, auto: str = ""
) -> Any:
    """Declare a dataclass field with its default value, and a `Setting` (help text and range) as metadata.

    `fallback` is used if neither the user nor the training recipe sets the setting. `auto` says in words how a value
    is chosen if the setting is None.
    """
    metadata = {"setting": Setting(help, min, max, fallback, auto)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


_settings: dict[type, dict[str, Setting]] = {}  # by section, filled by `settings_of`


class Section:
    """Base of the sections of a configuration: converts and validates every field when it is constructed."""

    section: ClassVar[str]  # the name of the section, the first part of the dotted names of its settings

    def __init_subclass__(cls, section: str) -> None:
        """Set the name of the section, the part before the dot in `training.steps`."""
        cls.section = section

    def __post_init__(self) -> None:
        """Convert every setting to its declared type and check its range; raise a UserError if that fails."""
        for name, declaration in settings_of(type(self)).items():
            setting_name = f"{self.section}.{name}"
            converted = convert(getattr(self, name), declaration.hint, setting_name)
            declaration.check_range(converted, setting_name)
            object.__setattr__(self, name, converted)  # the dataclass is frozen


def settings_of(section: type) -> dict[str, Setting]:
    """Return the declared settings of a section (a dataclass such as TrainingConfig) by name; computed once."""
    if section not in _settings:
        hints, fields = typing.get_type_hints(section), dataclasses.fields(section)
        _settings[section] = {
            field.name: dataclasses.replace(
                field.metadata["setting"],
                name=field.name,
                hint=hints[field.name],
                default=None if field.default is dataclasses.MISSING else field.default,
            )
            for field in fields
        }
    return _settings[section]


def convert(value: Any, hint: Any, setting_name: str) -> Any:
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
            raise unknown_name(f"value of {setting_name}", str(value), map(_spelled, options))
        return value
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(convert(item, options[0], setting_name) for item in items)
    expected = origin or hint
    if expected is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    if expected is str and isinstance(value, (int, str, Path)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, expected) and not (expected is int and isinstance(value, bool)):
        return value
    quotes = " (in a YAML file, put it in quotes)" if expected is str and not isinstance(value, (list, dict)) else ""
    raise UserError(f"{setting_name} must be {TYPE_NAMES[expected]}, got {value!r}{quotes}")


def parse_text(text: str, hint: Any, setting_name: str) -> Any:
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
        return tuple(_parse_yaml(text, setting_name, yaml.BaseLoader))  # items are texts, which `convert` converts
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return _parse_yaml(text, setting_name, yaml.SafeLoader)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Split `T | None` into T and True; any other type is returned with False."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    return next(option for option in typing.get_args(hint) if option is not type(None)), True


def _spelled(option: Any) -> str:
    """Return a value as it is written in YAML: true and false for booleans, else its text."""
    return str(option).lower() if isinstance(option, bool) else str(option)


def _parse_yaml(text: str, setting_name: str, loader: type[yaml.BaseLoader] | type[yaml.SafeLoader]) -> Any:
    """Parse the value of a setting; raise a UserError that names it if that fails."""
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(
            f"the value of the setting {setting_name}={text} is not valid YAML ({problem}): put special characters in "
            "quotes"
        ) from None
