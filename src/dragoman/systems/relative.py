"""Transformers with other positions: Shaw's relative ones and rotary ones."""

from __future__ import annotations

from dragoman.systems.system import System

SYSTEMS: dict[str, System] = {}
