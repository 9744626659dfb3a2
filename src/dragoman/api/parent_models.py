"""Models to start a training from: runs, and checkpoints of Hugging Face transformers, imported on the fly."""

from __future__ import annotations

from pathlib import Path

from dragoman import checkpoint
from dragoman.run_files import is_foreign_checkpoint
from dragoman.training.warm_start import ParentRun


def open_parent(name: str) -> ParentRun:
    """Open a run folder, or a checkpoint folder of transformers, to start a training from it."""
    folder = Path(name)
    if not is_foreign_checkpoint(folder):
        return ParentRun.open(name)
    from dragoman.interop.huggingface import load_checkpoint  # needed only for checkpoints

    run = load_checkpoint(folder, "cpu")
    tokenizers = (run.source_tokenizer, run.target_tokenizer)
    return ParentRun(folder, run.config, run.spec, run.framing, tokenizers, lambda: checkpoint.named_weights(run.model))
