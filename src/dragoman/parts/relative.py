"""Relative positions: how far apart two tokens stand, in the scores and in what is attended to."""

from __future__ import annotations
