"""The run: the folder that a training leaves and everything else reads."""

from __future__ import annotations

from dragoman.run.folder import (
    CHECKPOINTS,
    CONFIG,
    FRAMINGS,
    INITIAL,
    METRICS,
    MODEL,
    checkpoint_names,
    is_run,
    pick_device,
    read_framing,
    read_metrics,
    read_spec,
    read_tokenizers,
    write_model,
    write_tokenizers,
)
from dragoman.run.live import Piece
from dragoman.run.results import Attention, Filled, Links, Scored, Tagged, Translation
from dragoman.run.run import Run, load
from dragoman.run.sources import Source

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "FRAMINGS",
    "INITIAL",
    "METRICS",
    "MODEL",
    "Attention",
    "Filled",
    "Links",
    "Piece",
    "Run",
    "Scored",
    "Source",
    "Tagged",
    "Translation",
    "checkpoint_names",
    "is_run",
    "load",
    "pick_device",
    "read_framing",
    "read_metrics",
    "read_spec",
    "read_tokenizers",
    "write_model",
    "write_tokenizers",
]
