"""Convolutions: gated, causal or dilated, over whole sequences or step by step."""

from __future__ import annotations
