"""Checkpoints of Hugging Face's transformers: read as models of ours, opened as runs, or imported into run folders."""

from dragoman.interop.huggingface.converted_checkpoint import ConvertedCheckpoint
from dragoman.interop.huggingface.importing import ImportResult, import_checkpoint, load_checkpoint, read_checkpoint

__all__ = ["ConvertedCheckpoint", "ImportResult", "import_checkpoint", "load_checkpoint", "read_checkpoint"]
