"""Search space of a sweep: settings with the values to try, and the configurations of a grid or a random sample."""

from __future__ import annotations

import math
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import yaml

from dragoman.config import Config, parse_settings, replace_settings, setting_type
from dragoman.errors import UserError

MAX_GRID_CONFIGURATIONS = 10_000
MAX_DRAWS = 100  # attempts per configuration to draw one that is new

#: settings that a sweep sets itself, with what to use instead
ALTERNATIVES_TO_SWEEPING = {
    "training.seed": "use --seeds",
    "training.device": "use --device",
    "training.start_from": "give one run to start from with a single --set",
    "data.valid_source": "all configurations are validated on the same data",
    "data.valid_target": "all configurations are validated on the same data",
    "data.validation_size": "all configurations are validated on the same data",
}
RANGE_PATTERN = re.compile(r"(?P<low>[-+.\deE]+?)\.\.(?P<high>[-+.\deE]+?)(?P<log>:log)?(:(?P<points>\d+))?")
RANGE_KEYS = {"min", "max", "scale", "points"}

Accepts = Callable[[str | None, str], bool]  # whether a system (None: the default one) has a setting of this name


@dataclass(frozen=True)
class ValueRange:
    """Numbers from `low` to `high`: sampled uniformly, or `points` of them, evenly spaced, in a grid.

    With `log`, sampling and spacing are uniform in the logarithm. Integer limits give integers.
    """

    low: float
    high: float
    log: bool = False
    points: int | None = None

    def check(self, setting: str) -> None:
        """Raise a UserError about `setting` unless low < high, and low > 0 on a logarithmic scale."""
        if not (-math.inf < self.low < self.high < math.inf) or (self.log and self.low <= 0):
            raise UserError(
                f"the range of {setting} must go from a smaller to a larger number, both above 0 on a logarithmic "
                f"scale, but is {self.low:g}..{self.high:g}: change its limits"
            )

    def at(self, position: float) -> float | int:
        """Return the number at a position from 0 (`low`) to 1 (`high`), on a linear or, with `log`, logarithmic scale.

        It is an integer if both limits are, and is rounded to four digits otherwise.
        """
        if self.log:
            number = self.low * (self.high / self.low) ** position
        else:
            number = self.low + (self.high - self.low) * position
        if isinstance(self.low, int) and isinstance(self.high, int):
            return round(number)
        return float(f"{min(self.high, max(self.low, number)):.4g}")  # readable, and within the limits up to rounding

    def grid(self, setting: str) -> list[Any]:
        """Return `points` evenly spaced numbers from `low` to `high`, without repetitions.

        It is a UserError about `setting` if `points` is None or below 2.
        """
        if self.points is None or self.points < 2:
            raise UserError(
                f"{setting} has a range of values to try: sample it with --random N, or append the number of evenly "
                f"spaced values, such as {self.low:g}..{self.high:g}:3"
            )
        values = [self.at(index / (self.points - 1)) for index in range(self.points)]
        return list(dict.fromkeys(values))  # rounded integers may be equal

    def to_plain(self) -> dict[str, Any]:
        """Return the range as a mapping of min, max, scale and points, as it is written in a YAML file."""
        return {"min": self.low, "max": self.high, "scale": "log" if self.log else "linear", "points": self.points}


Values = list[Any] | ValueRange


@dataclass(frozen=True)
class SearchSpace:
    """What a sweep tries: settings by their dotted names, each with a list of values or a range."""

    values: dict[str, Values]

    def grid(self) -> list[dict[str, Any]]:
        """Return all combinations of values, each as a dict from the settings' dotted names to one value.

        More than 10,000 combinations, and a range without a number of points, are a UserError.
        """
        value_lists = [
            values.grid(name) if isinstance(values, ValueRange) else values for name, values in self.values.items()
        ]
        count = math.prod(map(len, value_lists))
        if count > MAX_GRID_CONFIGURATIONS:
            raise UserError(
                f"the values to try have {count:,} combinations, more than {MAX_GRID_CONFIGURATIONS:,}: give fewer "
                "values, or sample N combinations with --random N"
            )
        return [dict(zip(self.values, combination)) for combination in product(*value_lists)]

    def draw(self, random: Random) -> dict[str, Any]:
        """Draw one configuration, a value for each setting by dotted name: independently and uniformly."""
        return {
            name: values.at(random.random()) if isinstance(values, ValueRange) else random.choice(values)
            for name, values in self.values.items()
        }

    def configurations(self, samples: int | None, seed: int, accepts: Accepts) -> list[dict[str, Any]]:
        """Return the configurations to try, each as a dict from dotted names of settings to values.

        The first one is the default, which is empty; then follow those of the grid or a sample, without repetitions. A
        setting of systems is left out where the system has none of this name.

        Args:
            samples: number of configurations to draw, or as many as differ from each other; None: all combinations.
            seed: of the random numbers.
            accepts: called with the name of a system (None: the default) and of a setting; whether the system has it.
        """
        random = Random(seed)
        candidates: Iterator[dict[str, Any]] = iter(self.grid()) if samples is None else iter(())
        if samples is not None:
            candidates = (self.draw(random) for _ in range(MAX_DRAWS * samples))
        configurations: list[dict[str, Any]] = [{}]
        for candidate in candidates:
            system, prefix = candidate.get("system.name"), "system.settings."
            settings = {
                name: value
                for name, value in candidate.items()
                if not name.startswith(prefix) or accepts(system, name.removeprefix(prefix))
            }
            if settings not in configurations:
                configurations.append(settings)
            if samples is not None and len(configurations) == 1 + samples:  # besides the default one
                break
        return configurations

    def check(self) -> None:
        """Raise a UserError for settings that are unknown or that a sweep cannot vary, and for invalid values.

        Invalid are values of the wrong type or out of range, an empty list, and a range that does not increase.
        """
        for name, values in self.values.items():
            if alternative := ALTERNATIVES_TO_SWEEPING.get(name):
                raise UserError(f"{name} cannot be varied in a sweep: {alternative}")
            if isinstance(values, ValueRange):
                values.check(name)
                values = [values.low, values.high]  # if both limits are valid, so is what lies between them
            if not values:
                raise UserError(f"{name} has no values to try: give at least one")
            for value in values:
                replace_settings(Config(), {name: value})  # raises a UserError

    def to_plain(self) -> dict[str, Any]:
        """Return the space as JSON values: by dotted name of a setting, a list, or a dict for a range."""
        return {
            name: values.to_plain() if isinstance(values, ValueRange) else values
            for name, values in self.values.items()
        }


def parse_space(texts: Sequence[str]) -> dict[str, Values]:
    """Parse values of the option --set into the values to try, or their range, by dotted name of the setting.

    `texts` are such as "training.batch_tokens=1024,4096" and "training.learning_rate=1e-4..1e-2:log", a range on a
    logarithmic scale. Commas within brackets do not separate values. A range may end with its number of values in a
    grid: "0.1..0.5:5". A text without "=", or a setting that is named twice, is a UserError.
    """
    space: dict[str, Values] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(
                f"--set expects NAME=VALUE or NAME=VALUE,VALUE, such as system.size=tiny,small, got {text!r}"
            )
        if name in space:
            raise UserError(f"--set names {name} twice: give all its values at once, separated by commas")
        if match := RANGE_PATTERN.fullmatch(value.strip()):  # LOW..HIGH[:log][:POINTS]
            points = int(match["points"]) if match["points"] else None
            space[name] = _make_range(name, match["low"], match["high"], log=bool(match["log"]), points=points)
        else:
            values = [parse_settings([f"{name}={item}"])[name] for item in _split_at_commas(value)]
            space[name] = [value for index, value in enumerate(values) if value not in values[:index]]  # each once
    return space


def read_space(path: Path) -> dict[str, Values]:
    """Read the values to try for each setting, by dotted name, from a YAML file.

    The file maps settings, with dotted or nested names, to a value, a list of values, or a range {min: 1e-4, max: 1e-2,
    scale: log, points: 3}.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"the search space {path} cannot be read: {error.strerror}; name a YAML file that maps settings to values"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"the search space {path} is not valid YAML: {str(error).splitlines()[0]}; write lines such as "
            "'training.batch_tokens: [1024, 4096]'"
        ) from None
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"the search space {path} must map settings to values, such as 'training.batch_tokens: [1024, 4096]', but "
            f"holds {content!r}: correct it"
        )
    return space_from_mapping(content)


def space_from_mapping(values: Mapping[str, Any], path: str = "") -> dict[str, Values]:
    """Return the values to try for each setting, by dotted name.

    `values` maps dotted or nested names to a value, a list of values, a range, or the mapping of a range (min, max …).
    `path` is put before the names; for a nested mapping it is its own name, such as "training.".
    """
    space: dict[str, Values] = {}
    for key, value in values.items():
        name = f"{path}{key}"
        if isinstance(value, ValueRange):
            space[name] = value
        elif isinstance(value, Mapping) and "min" in value and set(value) <= RANGE_KEYS:
            space[name] = _range_from_mapping(name, value)
        elif isinstance(value, Mapping):
            space |= space_from_mapping(value, f"{name}.")
        else:
            space[name] = list(value) if isinstance(value, (list, tuple)) else [value]
    return space


def _range_from_mapping(name: str, value: Mapping[str, Any]) -> ValueRange:
    """Return the range of the setting `name` that a mapping with min, max, scale (linear, log) and points describes."""
    if "max" not in value or value.get("scale", "linear") not in ("linear", "log"):
        raise UserError(
            f"the range of {name} needs min and max, and as scale linear or log, as in {{min: 1e-4, max: 1e-2, scale: "
            f"log}}, but is {dict(value)}: correct it"
        )
    is_log = value.get("scale") == "log"
    return _make_range(name, value["min"], value["max"], log=is_log, points=value.get("points"))


def _make_range(name: str, low: Any, high: Any, log: bool, points: int | None) -> ValueRange:
    """Return the range of the setting `name` from `low` to `high`, which may be strings: YAML reads 1e-4 as a string.

    Its numbers are integers if both limits are, unless the type of the setting is float. `log`: on a logarithmic scale;
    `points`: number of values in a grid, None if not given.
    """
    type_hint = setting_type(name)
    try:
        if float in (type_hint, *typing.get_args(type_hint)):  # float, or a union with it, such as float | None
            return ValueRange(float(low), float(high), log, points)
        return ValueRange(_parse_number(low), _parse_number(high), log, points)
    except (TypeError, ValueError):
        raise UserError(
            f"the limits of the range of {name} must be numbers, such as 1e-4..1e-2, but are {low!r} and {high!r}: "
            "correct them"
        ) from None


def _parse_number(value: Any) -> float | int:
    """Return a number, or the number that a string represents: an int if possible, else a float."""
    try:
        return int(str(value))
    except ValueError:
        return float(value)


def _split_at_commas(text: str) -> list[str]:
    """Split a text at its commas, except within brackets."""
    items, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in "]})")  # of nested brackets
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return the last component of each dotted name, such as "dropout" for "system.settings.dropout", by full name.

    It is the full name if several names have the same last component, or if that is "name" or "settings".
    """
    last = {name: name.rpartition(".")[2] for name in names}
    ambiguous = {part for part, count in Counter(last.values()).items() if count > 1} | {"name", "settings"}
    return {name: name if part in ambiguous else part for name, part in last.items()}
