"""Encoder–decoders made to be pretrained: T5 and BART."""

from __future__ import annotations

from dragoman.systems.system import System

SYSTEMS: dict[str, System] = {}
