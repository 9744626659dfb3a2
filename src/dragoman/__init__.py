"""Dragoman: sequence-to-sequence learning, from text files to a translator.

    >>> import dragoman
    >>> run = dragoman.load(folder)
    >>> translations = run.translate(["The dog sleeps.", ""], search=dragoman.Beam(size=4, n_best=2))
    >>> translations[1].text
    ''
    >>> len(translations[0].alternatives)
    1
    >>> sampled = run.translate(["The dog sleeps."], search=dragoman.Sample(top_p=0.9, seed=1))

`train` trains a model and `load` opens a trained one; both return a `Run`, which translates, scores and evaluates.
Searches are small values such as `Beam(size=8)` or `Sample(top_p=0.9)`. Importing this module is fast: torch is
imported when a name is first used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.api.evaluate_run import EvaluationResult, evaluate
    from dragoman.api.events import MessageEvent, NotebookProgress, StepEvent, TrainingEvent, ValidationEvent
    from dragoman.api.export_run import export
    from dragoman.api.sweep_runs import sweep
    from dragoman.api.train_run import train
    from dragoman.api.tune_search import tune_search
    from dragoman.config import (
        Config,
        DataConfig,
        ObjectiveConfig,
        SearchDefaults,
        SystemConfig,
        TextConfig,
        TrainingConfig,
    )
    from dragoman.errors import UserError
    from dragoman.evaluation import MetricScore
    from dragoman.parts.inference import InferencePrecision
    from dragoman.parts.spec import Spec
    from dragoman.run import Run, Translation
    from dragoman.search import (
        Beam,
        ExactSearch,
        LengthLimit,
        MinimumBayesRisk,
        Rerank,
        RerankWeights,
        Sample,
        SearchConfig,
        Speculative,
    )
    from dragoman.systems import VocabularySizes

__version__ = "0.1.0"

# Operations that Apple GPUs lack are computed on the CPU; torch reads this when it is imported.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

_PUBLIC_NAMES = {  # by the module that defines them
    "dragoman.api.evaluate_run": "EvaluationResult evaluate",
    "dragoman.api.events": "MessageEvent NotebookProgress StepEvent TrainingEvent ValidationEvent",
    "dragoman.api.export_run": "export",
    "dragoman.api.sweep_runs": "sweep",
    "dragoman.api.train_run": "train",
    "dragoman.api.tune_search": "tune_search",
    "dragoman.config": "Config DataConfig ObjectiveConfig SearchDefaults SystemConfig TextConfig TrainingConfig",
    "dragoman.errors": "UserError",
    "dragoman.evaluation": "MetricScore",
    "dragoman.parts.spec": "Spec",
    "dragoman.run": "Run Translation",
    "dragoman.search": "Beam ExactSearch LengthLimit MinimumBayesRisk Rerank RerankWeights Sample SearchConfig "
    "Speculative",
    "dragoman.systems": "VocabularySizes",
}

__all__ = ["EvaluationResult", "MetricScore", "Run", "Translation", "__version__", "evaluate", "load", "train"]
__all__ += ["export", "sweep", "tune_search"]
__all__ += ["Config", "DataConfig", "ObjectiveConfig", "SearchDefaults", "SystemConfig", "TextConfig", "TrainingConfig"]
__all__ += ["Beam", "ExactSearch", "LengthLimit", "MinimumBayesRisk", "Rerank", "RerankWeights", "Sample"]
__all__ += ["SearchConfig", "Spec", "Speculative", "UserError", "VocabularySizes"]
__all__ += ["MessageEvent", "NotebookProgress", "StepEvent", "TrainingEvent", "ValidationEvent"]


def load(
    folder: str | Path,
    checkpoint: str = "best",
    device: str | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    weights: InferencePrecision = "float32",
) -> Run:
    """Open a run folder, or a checkpoint of Hugging Face transformers or Marian.

    Args:
        folder: the run folder, which training has written, or a checkpoint of another library.
        checkpoint: the checkpoint of the run to load: best, last, averaged, or a step such as "000500".
        device: cpu, cuda, cuda:N, mps, or auto (None): the GPU if there is one, else the CPU.
        custom_parts: classes of parts, such as layers, that the user has defined and the run's model contains.
        weights: "float32"; "int8" is faster on a CPU, "bfloat16" on a GPU, both slightly less accurate.

    Returns:
        the model with its tokenizers, which translates, scores and evaluates.

    Examples:
        >>> run = dragoman.load(folder, device="cpu")
        >>> len(run.translate(["The dog sleeps."]))
        1
    """
    from dragoman.run import load as load_run
    from dragoman.run_files import is_foreign_checkpoint

    if is_foreign_checkpoint(Path(folder)):
        from dragoman.interop.huggingface import load_checkpoint  # needed only for checkpoints

        return load_checkpoint(Path(folder), device, weights)  # the other arguments concern runs only
    return load_run(folder, checkpoint, device, custom_parts, weights)


def __getattr__(name: str) -> Any:
    """Import a public name, such as `train`, from the module that defines it, when `dragoman.NAME` is first used."""
    for module, names in _PUBLIC_NAMES.items():
        if name in names.split():
            value = getattr(importlib.import_module(module), name)
            globals()[name] = value  # so that Python finds it the next time without calling this function
            return value
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names that dir(dragoman) lists: also those that are imported only when they are first used."""
    return sorted({*globals(), *__all__})
