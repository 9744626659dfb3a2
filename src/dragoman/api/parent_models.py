"""Models to start a training from: runs, and checkpoints of Hugging Face transformers, imported on the fly."""

from __future__ import annotations

from pathlib import Path

from dragoman import checkpoint
from dragoman.run_files import is_foreign_checkpoint
from dragoman.training.warm_start import ParentRun


def open_parent(name: str) -> ParentRun:
    """Open the model with whose weights and tokenizers a training starts.

    `name` is a run folder, or the path of a checkpoint of Hugging Face transformers or Marian.
    """
    folder = Path(name)
    if not is_foreign_checkpoint(folder):
        return ParentRun.open(name)
    from dragoman.interop.huggingface import load_checkpoint  # needed only for checkpoints

    run = load_checkpoint(folder, device="cpu")
    return ParentRun(
        folder,
        config=run.config,
        spec=run.spec,
        framing=run.framing,  # special tokens around source and target
        tokenizers=(run.source_tokenizer, run.target_tokenizer),
        weights=lambda: checkpoint.named_weights(run.model),
    )
