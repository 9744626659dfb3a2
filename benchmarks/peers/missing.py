"""Placeholders for packages that another toolkit imports but does not use in training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Placeholder:
    """Value of every attribute of a placeholder module; as a decorator it returns the function unchanged."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class PlaceholderModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()


@contextmanager
def placeholder_modules(*names: str) -> Iterator[None]:
    """Make missing modules importable as placeholders within the block."""
    missing = [name for name in names if not _is_importable(name)]
    sys.modules |= {name: PlaceholderModule(name) for name in missing}
    yield
    for name in missing:  # torch must not find a placeholder of Triton
        sys.modules.pop(name)


def _is_importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
