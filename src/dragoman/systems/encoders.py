"""Encoders alone: BERT, RoBERTa, ELECTRA, and the tagger."""

from __future__ import annotations

from dragoman.systems.system import System

SYSTEMS: dict[str, System] = {}
