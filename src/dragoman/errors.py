"""The mistakes a user can make, each answered in one plain sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: the command line prints the sentence alone and exits with 2."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a misspelt name: it names the nearest known one, and all of them if none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {what} {name!r}: {hint}")
