"""Mixtures of experts: a sparsely gated feed-forward network."""

from __future__ import annotations
