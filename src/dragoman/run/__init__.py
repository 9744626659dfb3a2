"""Runs: the folder that a training writes, opened for inference."""

from __future__ import annotations

from dragoman.run.results import (
    Alignment,
    FillResult,
    ScoredText,
    SentenceAttention,
    StreamedTokens,
    TaggedSentence,
    Translation,
)
from dragoman.run.run import Run, load
from dragoman.run.run_folder import (
    CHECKPOINT_DIR,
    CONFIG_FILE,
    INITIAL_CHECKPOINT,
    METRICS_FILE,
    MODEL_FILE,
    checkpoint_names,
    is_run_folder,
    read_framing,
    read_metrics,
    read_spec,
    read_tokenizers,
    select_device,
    write_model_file,
    write_tokenizers,
)
from dragoman.run.sources import Source

__all__ = ["CHECKPOINT_DIR", "CONFIG_FILE", "INITIAL_CHECKPOINT", "METRICS_FILE", "MODEL_FILE", "Alignment"]
__all__ += ["FillResult", "Run", "ScoredText", "SentenceAttention", "Source", "StreamedTokens", "TaggedSentence"]
__all__ += ["Translation", "checkpoint_names", "is_run_folder", "load", "read_framing", "read_metrics", "read_spec"]
__all__ += ["read_tokenizers", "select_device", "write_model_file", "write_tokenizers"]
