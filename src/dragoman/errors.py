"""Errors that the user can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error that the user can correct. The command line prints its message without a traceback and exits with 2.

    The message says what was expected, what was found and what to do.
    """


class FieldError(UserError):
    """A wrong value of a field, which the user may have written under another name, such as that of an option."""

    def __init__(self, owner: str, field: str, problem: str) -> None:
        """Say what is wrong with a field: "OWNER.FIELD PROBLEM", such as "Beam.size must be at least 1, but is 0".

        `owner` is the name of the dataclass with the field.
        """
        super().__init__(f"{owner}.{field} {problem}")
        self.owner, self.field, self.problem = owner, field, problem

    def named(self, name: str) -> UserError:
        """Return the same error with the name that the user has given the field, such as --beam-size."""
        return UserError(f"{name} {self.problem}")


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
