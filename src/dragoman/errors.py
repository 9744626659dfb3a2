"""Errors that the user can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can correct. The command line prints its message without a traceback and exits with 2.

    The message says what was expected, what was found and what to do.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a misspelt name: it suggests the nearest supported name, or lists all of them.

    Args:
        kind: what the name stands for, such as "system".
        name: the name that is not supported.
        known: all supported names.
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"supported: {', '.join(names)}"
    return UserError(f"unknown {kind} {name!r}: {hint}")
