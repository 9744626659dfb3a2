"""Objectives: what a training step makes smaller."""

from __future__ import annotations

from dragoman.objectives.translation import Loss, Translation

__all__ = ["Loss", "Translation"]
