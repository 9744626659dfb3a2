"""Images and sound as sequences of vectors."""

from __future__ import annotations
