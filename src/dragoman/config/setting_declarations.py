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
        """The range of the setting in words, such as "at least 1"; empty if it has neither `min` nor `max`."""
        if self.min is not None and self.max is not None:
            return f"between {self.min:,} and {self.max:,}"
        if self.min is not None:
            return f"at least {self.min:,}"
        return f"at most {self.max:,}" if self.max is not None else ""

    @property
    def choices(self) -> list[str]:
        """The values besides None that the setting accepts, as YAML writes them; empty unless its type is a Literal."""
        hint, _ = _without_none(self.hint)
        return [_yaml_text(option) for option in typing.get_args(hint)] if typing.get_origin(hint) is Literal else []

    @property
    def type_text(self) -> str:
        """The type of a setting without choices in words, such as "integer" or "list of text"."""
        hint, _ = _without_none(self.hint)
        is_list = typing.get_origin(hint) is tuple  # lists are declared as tuple[type, ...]
        plain_type = typing.get_args(hint)[0] if is_list else typing.get_origin(hint) or hint  # dict for dict[str, Any]
        return ("list of " if is_list else "") + TYPE_NAMES[plain_type].removeprefix("an ").removeprefix("a ")

    def check_range(self, value: Any, setting_name: str) -> None:
        """Raise a UserError if a value is a number outside the range from `min` to `max`.

        `setting_name` is the dotted name of the setting, such as "training.steps".
        """
        low, high = -math.inf if self.min is None else self.min, math.inf if self.max is None else self.max
        if isinstance(value, (int, float)) and not low <= value <= high:
            raise UserError(f"the setting {setting_name} must be {self.range_text}, got {value}")

    @property
    def default_text(self) -> str:
        """What is used if the user does not set the setting, in words: a value, or how it is chosen (`auto`).

        The recipe (`training.recipe`), a set of training defaults, has priority over the value `fallback`. Of the named
        recipes, `textbook` sets settings with a fallback; the other ones set only optimizer and schedule, which have a
        text `auto`.
        """
        if self.auto:
            return self.auto
        value = self.default if self.fallback is None else self.fallback
        if value in ((), "") or typing.get_origin(self.hint) is dict:  # the default of a mapping is {}, given as None
            return "empty"
        text = "none" if value is None else _yaml_text(value)
        paper = "; with training.recipe=textbook, the value of the system's paper, if it states one"
        return text if self.fallback is None else f"{text}{paper}"


def setting(
    default: Any, help: str, *, min: float | None = None, max: float | None = None, fallback: Any = None, auto: str = ""
) -> Any:
    """Declare a dataclass field with its default value, and a `Setting` (help text and range) as metadata.

    `default` is what the field holds if the user sets nothing: None for a setting that the training recipe may set.
    `fallback` then takes the place of None if the recipe has no value either. `auto` says in words how a value is
    chosen if the setting is None. `min` and `max` are the limits of a number; None: no limit. A `default` that is a
    dictionary must be empty.
    """
    metadata = {"setting": Setting(help, min=min, max=max, fallback=fallback, auto=auto)}
    if isinstance(default, dict):  # dataclasses refuse mutable defaults
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


_settings_of_section: dict[type, dict[str, Setting]] = {}  # cache of `settings_of`


class Section:
    """Base class of the sections of a configuration; a section converts and validates its fields when constructed."""

    section: ClassVar[str]  # the name of the section, the first part of the dotted names of its settings

    def __init_subclass__(cls, section: str) -> None:
        """Set the name of the section (a subclass): the part before the dot in `training.steps`."""
        cls.section = section

    def __post_init__(self) -> None:
        """Convert every setting to its declared type and check its range; raise a UserError if that fails."""
        for name, declaration in settings_of(type(self)).items():
            setting_name = f"{self.section}.{name}"
            converted = convert(getattr(self, name), declaration.hint, setting_name)
            declaration.check_range(converted, setting_name)
            object.__setattr__(self, name, converted)  # the dataclass is frozen


def settings_of(section: type) -> dict[str, Setting]:
    """Return the declared settings of a section (a dataclass such as TrainingConfig) by field name; computed once.

    The default of a field with a `default_factory`, such as an empty dictionary, is given as None.
    """
    if section not in _settings_of_section:
        hints, fields = typing.get_type_hints(section), dataclasses.fields(section)
        _settings_of_section[section] = {
            field.name: dataclasses.replace(
                field.metadata["setting"],
                name=field.name,
                hint=hints[field.name],
                default=None if field.default is dataclasses.MISSING else field.default,
            )
            for field in fields
        }
    return _settings_of_section[section]


def convert(value: Any, hint: Any, setting_name: str) -> Any:
    """Return a value of the declared type (`hint`); raise a UserError that names the setting for any other value.

    Where a float is declared, integers and numbers written as text (YAML reads 1e-3 as text) become floats; where text
    is declared, integers and paths become text; where a tuple is declared, a list or a single value becomes one. True
    and False are no numbers here, and None is valid only for a type such as `int | None`.
    """
    hint, optional = _without_none(hint)
    if hint is Any or (optional and value is None):
        return value
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not any(value == option and type(value) is type(option) for option in options):  # 1 == True in Python
            raise unknown_name(f"value of {setting_name}", str(value), map(_yaml_text, options))
        return value
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(convert(item, options[0], setting_name) for item in items)
    expected = origin or hint  # dict for dict[str, Any]
    if expected is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    if expected is str and isinstance(value, (int, str, Path)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, expected) and not (expected is int and isinstance(value, bool)):  # bool is a subclass of int
        return value
    is_unquoted_text = expected is str and not isinstance(value, (list, dict))
    quoting_advice = " (in a YAML file, put it in quotes)" if is_unquoted_text else ""
    expected_type = TYPE_NAMES[expected]  # such as "a number"
    raise UserError(f"{setting_name} must be {expected_type}, got {value!r}{quoting_advice}")


def parse_text(text: str, hint: Any, setting_name: str) -> Any:
    """Parse the value of a setting (`text`) of the declared type `hint` from the command line; `convert` checks it.

    For a string setting, the text is the value; an empty text is None if the type allows None. For a list, the text is
    `[a, b]`, or a single item; an empty text is an empty list. Any other text is a number or YAML, where `null` and an
    empty text are None.
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
    """Return (T, True) for a type `T | None`, and (T, False) for any other type T."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    return next(option for option in typing.get_args(hint) if option is not type(None)), True


def _yaml_text(value: Any) -> str:
    """Return a value as it is written in YAML: true and false for booleans, else its text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_yaml(text: str, setting_name: str, loader: type[yaml.BaseLoader] | type[yaml.SafeLoader]) -> Any:
    """Parse the value of a setting (`text`) as YAML with a loader of PyYAML; raise a UserError if that fails."""
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(
            f"the value of the setting {setting_name}={text} is not valid YAML ({problem}): put special characters in "
            "quotes"
        ) from None
