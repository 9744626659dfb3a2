"""Stand-ins for packages that a peer imports at its start and does not use when it trains."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Nothing:
    """What a stand-in gives whatever it is asked for; as a decorator it leaves a function as it is."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


@contextmanager
def stand_ins(*names: str) -> Iterator[None]:
    """Those of the named modules that cannot be imported can be within this block, and hold nothing."""
    missing = [name for name in names if not _can_be_imported(name)]
    sys.modules |= {name: StandIn(name) for name in missing}
    yield
    for name in missing:  # or torch would believe that it has a Triton
        sys.modules.pop(name)


def _can_be_imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
