"""Checkpoints of Hugging Face's transformers: config.json and safetensors in, a model or a run folder out."""

from dragoman.interop.huggingface.hf_checkpoint import ARCHITECTURES, ConvertedCheckpoint, read_checkpoint
from dragoman.interop.huggingface.importing import ImportResult, import_checkpoint, is_checkpoint, load_checkpoint

__all__ = [
    "ARCHITECTURES",
    "ConvertedCheckpoint",
    "ImportResult",
    "import_checkpoint",
    "is_checkpoint",
    "load_checkpoint",
    "read_checkpoint",
]
