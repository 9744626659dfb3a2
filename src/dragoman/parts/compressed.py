"""Attention for very long sequences: within blocks, and to a compressed memory."""

from __future__ import annotations
