"""What a system must know of the text: how many tokens there are on each side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VocabularySizes:
    source: int
    target: int
    joint: bool = False  # one tokenizer for both sides, so that embeddings can be shared
