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
    """Open a run folder, or a checkpoint folder of Hugging Face's transformers, for inference.

    >>> dragoman.load("runs/en-de").translate(["The dog sleeps."])[0].text
    'Der Hund schläft.'

    Args:
        checkpoint: `best`, `last`, `averaged` or a step
        device: `auto`, `cpu` or `cuda`; by default the GPU if there is one
        custom_parts: your own part classes, if the model has any
        weights: precision of the weights in decoding: `float32`; `int8` is faster on a CPU, `bfloat16` on a GPU, and
            both are slightly less accurate
    """
    from dragoman.run import is_run_folder
    from dragoman.run import load as load_run

    if not is_run_folder(Path(folder)):
        from dragoman.interop.huggingface import is_checkpoint, load_checkpoint  # needed only for checkpoints

        if is_checkpoint(Path(folder)):
            return load_checkpoint(Path(folder), device, weights)
    return load_run(folder, checkpoint, device, custom_parts, weights)
