"""COMET: quality estimated by a neural model from source, hypothesis and reference (Rei et al. 2020).

The package unbabel-comet computes it, with a model that is on disk already: evaluation downloads nothing. The package
reads the model with PyTorch Lightning, so use only models from a source you trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, References, check_equal_counts, reference_lists

DEFAULT_COMET_MODEL = "Unbabel/wmt22-comet-da"
CHECKPOINT = Path("checkpoints", "model.ckpt")  # in the folder of a model


def comet(hypotheses: Sequence[str], references: References, sources: Sequence[str], *, model: str = "") -> MetricScore:
    """COMET: 100 times the mean of the model's scores, which are from 0 to 1 for models since 2022.

    `model` is the folder or checkpoint of a model; empty means wmt22-comet-da in Hugging Face's cache.
    """
    scores = comet_by_sentence(hypotheses, references, sources, model=model)
    signature = f"model:{model or DEFAULT_COMET_MODEL}"
    return MetricScore("COMET", sum(scores) / len(scores), better="higher", signature=signature)


def comet_by_sentence(
    hypotheses: Sequence[str], references: References, sources: Sequence[str], *, model: str = ""
) -> list[float]:
    """Return 100 times the COMET score of each hypothesis; of several references the one with the best score counts.

    `model` is the folder or checkpoint of a COMET model; empty: the default model in Hugging Face's cache.
    """
    lists = reference_lists(hypotheses, references)
    check_equal_counts(len(sources), "sources", len(hypotheses), "hypotheses")
    examples = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, its_references in zip(sources, hypotheses, lists)
        for reference in its_references
    ]
    scorer = _load_model(model)
    on_gpu = _has_gpu()
    predicted = scorer.predict(examples, batch_size=64 if on_gpu else 8, gpus=int(on_gpu), progress_bar=False)
    scores = iter(predicted.scores)  # of all references of the first hypothesis, then of the second one, …
    return [100 * max(float(next(scores)) for _ in its_references) for its_references in lists]


def _has_gpu() -> bool:
    """Whether PyTorch, which takes long to import, can use a GPU."""
    import torch

    return torch.cuda.is_available()


@cache
def _load_model(model: str) -> Any:
    """Open a COMET model from a folder or a checkpoint file, or, if `model` is empty, from Hugging Face's cache.

    A UserError is raised if the package unbabel-comet or the model is missing, or if the model is damaged.
    """
    try:
        from comet import load_from_checkpoint
    except ImportError:
        raise UserError("COMET needs the package unbabel-comet: install it with pip install unbabel-comet") from None
    checkpoint = _cached_checkpoint() if not model else Path(model)
    if checkpoint.is_dir():
        checkpoint /= CHECKPOINT
    if not checkpoint.is_file():
        raise UserError(
            f"there is no COMET model at {checkpoint}: name a checkpoint file, or a folder with {CHECKPOINT} and "
            "hparams.yaml, as in --metrics comet=FOLDER"
        )
    try:
        return load_from_checkpoint(str(checkpoint), local_files_only=True)
    except Exception as error:  # the package raises plain exceptions
        raise UserError(f"{checkpoint} cannot be opened as a COMET model ({error}): download it again") from error


def _cached_checkpoint() -> Path:
    """Return the checkpoint of the default model in Hugging Face's cache."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(DEFAULT_COMET_MODEL, local_files_only=True)) / CHECKPOINT
    except OSError:  # LocalEntryNotFoundError is one
        raise UserError(
            f"the COMET model {DEFAULT_COMET_MODEL} is not on this machine: download it with "
            f"'hf download {DEFAULT_COMET_MODEL}', or name a folder, as in --metrics comet=FOLDER"
        ) from None
