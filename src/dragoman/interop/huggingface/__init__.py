"""Checkpoints of Hugging Face's transformers: config.json and safetensors in, a model or a run folder out."""

from dragoman.interop.huggingface.checkpoint import ARCHITECTURES, Checkpoint, read_checkpoint
from dragoman.interop.huggingface.importing import Imported, import_checkpoint, is_checkpoint, load_checkpoint

__all__ = [
    "ARCHITECTURES",
    "Checkpoint",
    "Imported",
    "import_checkpoint",
    "is_checkpoint",
    "load_checkpoint",
    "read_checkpoint",
]
