"""Mixtures of experts."""

from __future__ import annotations

from dragoman.systems.system import System

SYSTEMS: dict[str, System] = {}
