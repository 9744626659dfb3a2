"""Deep recurrent systems: GNMT and Deep-Att."""

from __future__ import annotations

from dragoman.systems.system import System

SYSTEMS: dict[str, System] = {}
