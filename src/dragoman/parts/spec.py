"""Specs: frozen descriptions of parts, which build modules, are saved as JSON, and can be compared."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, TypeVar

from torch import nn

from dragoman import legacy
from dragoman.errors import FieldError, UserError, unknown_name

AnySpec = TypeVar("AnySpec", bound="Spec")
Part = TypeVar("Part")


class Configurable:
    """Base class of frozen dataclasses of plain values and other configurables, which are saved as JSON."""


class Spec(Configurable):
    """Description of a part: a frozen dataclass of plain values and other specs.

    `build(dim)` creates the module. The model's width is passed down when building, so that specs do not repeat it.
    """

    def build(self, dim: int) -> nn.Module:
        """Create the module for a model of width `dim`."""
        raise NotImplementedError


def build_part(spec: Spec, dim: int, kind: type[Part]) -> Part:
    """Build the module that a spec describes, for width `dim`; raise an error if it is not of the class `kind`.

    Specs without a module of their own, such as attention masks, do not override `build`: they are returned as they
    are.
    """
    part = spec if isinstance(spec, kind) or type(spec).build is Spec.build else spec.build(dim)
    if not isinstance(part, kind):
        raise UserError(
            f"the description of the model has a {type(spec).__name__} in a place that needs a {kind.__name__}: put a "
            f"{kind.__name__} there"
        )
    return part


def to_dict(value: Any) -> Any:
    """Convert a spec or another configurable dataclass to JSON values: its fields, and its class name as `kind`."""
    if isinstance(value, Configurable):
        return {"kind": type(value).__name__} | {f.name: to_dict(getattr(value, f.name)) for f in _fields(value)}
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    return value


def from_dict(data: Any, classes: Mapping[str, type[Configurable]], what: str = "part") -> Any:
    """Create specs (or other configurable dataclasses) from JSON values that `to_dict` has written.

    Lists become tuples; plain values stay as they are. Only the given `classes`, by name, can be created, so that
    reading an untrusted file runs no foreign code. Unknown kinds or fields, missing fields and wrong types raise
    errors, in which `what` names the kind of object.
    """
    if isinstance(data, list):
        return tuple(from_dict(item, classes, what) for item in data)
    if not isinstance(data, dict):
        return data
    data = legacy.translate_description(data)  # renames kinds and fields that older versions have written
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise UserError(
            f"the description of a {what} must have a field 'kind' with the name of its class, but has only the fields "
            f"{sorted(data)}: add this field"
        )
    if kind not in classes:
        raise unknown_name(what, kind, classes)
    cls = classes[kind]
    annotations = typing.get_type_hints(cls)
    field_names = {f.name for f in _fields(cls)}
    values = {name: from_dict(value, classes, what) for name, value in data.items() if name != "kind"}
    for name, value in values.items():
        if name not in field_names:
            raise unknown_name(f"field of {kind}", name, field_names)
        if not _fits(value, annotations[name]):
            raise FieldError(kind, name, _type_problem(value, annotations[name]))
    required = {f.name for f in _fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    if missing := required - values.keys():
        raise UserError(f"the description of {kind} lacks the fields {', '.join(sorted(missing))}: add them")
    return cls(**values)


def _fields(spec: Configurable | type[Configurable]) -> tuple[Field[Any], ...]:
    """Return the dataclass fields of a spec: a `Configurable` is always a dataclass, which its type does not say."""
    return fields(spec)  # type: ignore[arg-type]


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise an error that names the setting `name` if its value does not have the annotated type `hint`."""
    if not _fits(value, hint):
        raise UserError(f"{name} must be {_readable(hint)}, but is {value!r}")


def _type_problem(value: Any, hint: Any) -> str:
    """Return the part of an error message that says which type is expected, and which value was found."""
    return f"must be {_readable(hint)}, but is {value!r}"


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type `hint`; an int is also a float, but a bool is neither.

    Unions, literals and tuples of any length are supported, and plain classes.
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin is tuple:
        item_type = typing.get_args(hint)[0]  # of tuple[item, ...]
        return isinstance(value, tuple) and all(_fits(item, item_type) for item in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is typing.Any or isinstance(value, hint)


def _readable(hint: Any) -> str:
    """Return a type annotation in words, such as "int or None" or "'before' or 'after'"."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_readable(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if type(hint) is type:  # a plain class
        return "None" if hint is type(None) else hint.__name__
    return re.sub(r"\b(\w+\.)+", "", str(hint))  # without module names


def replace_parts(spec: Any, kind: type[AnySpec], replacement: Callable[[AnySpec], Spec]) -> Any:
    """Return the spec of a model with every part (spec of class `kind`) in it replaced by `replacement(part)`.

    Inner parts are replaced first.

    Examples:
        replace_parts(spec, FeedForward, lambda layer: SquaredReLU(layer.inner_dim))
    """
    if isinstance(spec, tuple):
        return tuple(replace_parts(item, kind, replacement) for item in spec)
    if not isinstance(spec, Spec):
        return spec
    inner = {f.name: replace_parts(getattr(spec, f.name), kind, replacement) for f in _fields(spec)}
    changed = replace(spec, **inner)  # type: ignore[type-var]
    return replacement(changed) if isinstance(changed, kind) else changed


def replace_everywhere(spec: Any, kind: type[Spec], **changes: Any) -> Any:
    """Return the spec of a model with the fields `changes` set in every part (spec of class `kind`) in it."""
    return replace_parts(spec, kind, lambda part: replace(part, **changes))  # type: ignore[type-var]


def without_dropout(spec: AnySpec) -> AnySpec:
    """Return the spec with all rates of dropout 0: fields whose names end in "dropout"."""

    def without_own_dropout(part: Spec) -> Spec:
        """Return the spec of a part with its dropout rates set to 0."""
        rates = {f.name: 0.0 for f in _fields(part) if f.name.endswith("dropout")}
        return replace(part, **rates)  # type: ignore[type-var]

    return replace_parts(spec, Spec, without_own_dropout)


def find_specs(spec: Any, kind: type[AnySpec]) -> Iterator[AnySpec]:
    """Yield the spec and all specs inside it that are of class `kind`, outermost first."""
    if isinstance(spec, kind):
        yield spec
    if isinstance(spec, tuple):
        for item in spec:
            yield from find_specs(item, kind)
    elif isinstance(spec, Spec):
        for f in _fields(spec):
            yield from find_specs(getattr(spec, f.name), kind)


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two specs: (path such as "decoder.block[0].norm", value before, value after).

    Fields are compared one by one. Two parts of different classes are one difference; but if they contain other parts
    (as PreNorm and PostNorm do), the difference is their class names, and their common fields are compared too.
    """
    if isinstance(before, Configurable) and isinstance(after, Configurable):
        old_fields, new_fields = ({f.name: getattr(part, f.name) for f in _fields(part)} for part in (before, after))
        shared = [name for name in old_fields if name in new_fields]
        if type(before) is not type(after):
            if not any(isinstance(old_fields[name], Configurable) for name in shared):
                yield path, before, after
                return
            yield path, type(before).__name__, type(after).__name__
        for name in shared:
            yield from differences(old_fields[name], new_fields[name], f"{path}.{name}".lstrip("."))
    elif isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after)):
            yield from differences(old, new, f"{path}[{i}]")
    elif before != after:
        yield path, before, after


def outline(value: Any, name: str = "") -> Iterator[str]:
    """Yield the lines of an indented outline of a spec: its class and plain values, then, indented, the specs in it.

    `name` is the field that holds `value` and starts its line.
    """
    label = f"{name}: " if name else ""
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from outline(item, f"{name}[{i}]")
    elif isinstance(value, Spec):
        all_fields = {f.name: getattr(value, f.name) for f in _fields(value)}
        inner = {key: item for key, item in all_fields.items() if isinstance(item, (Spec, tuple))}
        plain_values = ", ".join(f"{key}={item}" for key, item in all_fields.items() if key not in inner)
        yield f"{label}{type(value).__name__}({plain_values})"
        for key, item in inner.items():
            yield from (f"  {line}" for line in outline(item, key))
    else:
        yield f"{label}{value}"
