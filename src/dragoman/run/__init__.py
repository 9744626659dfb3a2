"""Runs: the folder that a training writes, opened for inference."""

from __future__ import annotations

from dragoman.run.results import (
    Alignment,
    Classification,
    FillResult,
    ScoredText,
    SentenceAttention,
    StreamedTokens,
    TaggedSentence,
    Translation,
)
from dragoman.run.run import Run, load
from dragoman.run.run_folder import (
    read_framing,
    read_spec,
    read_tokenizers,
    select_device,
    write_model_file,
    write_tokenizers,
)
from dragoman.run.run_weights import lora_of, read_weights
from dragoman.run.sources import Source

__all__ = [
    "Alignment",
    "Classification",
    "FillResult",
    "Run",
    "ScoredText",
    "SentenceAttention",
    "Source",
    "StreamedTokens",
]
__all__ += ["TaggedSentence", "Translation", "load", "read_framing", "read_spec", "read_tokenizers", "select_device"]
__all__ += ["lora_of", "read_weights", "write_model_file", "write_tokenizers"]
