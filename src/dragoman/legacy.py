"""Names that earlier versions used, with their present names: the one place where old run folders are translated.

Files carry the names of the version that wrote them: settings in `config.yaml`, specs and framing in `model.json`,
search configurations, weights in checkpoints. The readers of those files call the functions below, so that no other
code knows an old name. Each table maps an old name to the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")

#: settings of a configuration, by their dotted names: "training.old" → "training.new"
SETTINGS: dict[str, str] = {}

#: kinds of specs and search configurations: "OldKind" → "NewKind"
KINDS: dict[str, str] = {}

#: fields of specs and search configurations, by the present kind: {"Kind": {"old_field": "new_field"}}
FIELDS: dict[str, dict[str, str]] = {}

#: fields of the framing in `model.json`
FRAMING: dict[str, str] = {}

#: parts of the dotted names of weights: ".old." → ".new."
WEIGHTS: dict[str, str] = {}

#: options of the command line: "--old" → "--new"
OPTIONS: dict[str, str] = {}


def translate_settings(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration tree under present names. A section may be renamed as well as a setting in it."""
    tree = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
    for old, new in SETTINGS.items():
        section, _, name = old.partition(".")
        if isinstance(tree.get(section), dict) and name in tree[section]:
            new_section, _, new_name = new.partition(".")
            tree.setdefault(new_section, {}).setdefault(new_name, tree[section].pop(name))
    if isinstance(tree.get("chosen"), dict):
        tree["chosen"] = {SETTINGS.get(name, name): value for name, value in tree["chosen"].items()}
    return tree


def translate_description(data: dict[str, Any]) -> dict[str, Any]:
    """One spec or search configuration (`{"kind": …}`, not what is nested in it) under present names."""
    kind = data.get("kind")
    if not isinstance(kind, str):
        return data
    kind = KINDS.get(kind, kind)
    fields = FIELDS.get(kind, {})
    return {fields.get(name, name): kind if name == "kind" else value for name, value in data.items()}


def translate_framing(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a framing under present names."""
    return {FRAMING.get(name, name): value for name, value in values.items()}


def translate_weights(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Weights of a checkpoint under present names."""
    renamed = {}
    for name, tensor in tensors.items():
        dotted = f".{name}."
        for old, new in WEIGHTS.items():
            dotted = dotted.replace(old, new)
        renamed[dotted[1:-1]] = tensor
    return renamed
