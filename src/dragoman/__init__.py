"""Dragoman: sequence-to-sequence learning, from two text files to a translator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.parts.inference import InferencePrecision
    from dragoman.parts.spec import Spec
    from dragoman.run import Run

__version__ = "0.1.0"
__all__ = ["load"]


def load(
    folder: str | Path,
    checkpoint: str = "best",
    device: str | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    weights: InferencePrecision = "float32",
) -> Run:
    """Open a run folder: `dragoman.load("runs/en-de").translate(["A sentence."])`; `parts` are those of your own.

    A folder with a checkpoint of Hugging Face's transformers is opened as it is. `weights` “int8”: searches on a CPU
    multiply by bytes, faster and a little less accurately.
    """
    from dragoman.interop.huggingface import is_checkpoint, load_checkpoint
    from dragoman.run import load as load_run

    if is_checkpoint(Path(folder)):
        return load_checkpoint(Path(folder), device, weights)
    return load_run(folder, checkpoint, device, custom_parts, weights)
