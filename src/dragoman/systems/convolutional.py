"""Convolutional systems: ConvS2S and ByteNet."""

from __future__ import annotations

from dragoman.systems.system import System

SYSTEMS: dict[str, System] = {}
