"""Initial weights from another run or from word vectors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import checkpoint, config
from dragoman.config import Config
from dragoman.data.corpus_passes import Log
from dragoman.data.word_vectors import match_word_vectors
from dragoman.errors import UserError
from dragoman.models import Model, ModelSpec, Usage, meta_model
from dragoman.objectives import objective_class
from dragoman.run import read_framing, read_spec, read_tokenizers
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, INITIAL_CHECKPOINT
from dragoman.text import Framing, Tokenizer


@dataclass(frozen=True)
class ParentRun:
    """A run whose weights and tokenizers another run starts from."""

    folder: Path
    config: Config
    spec: ModelSpec
    framing: Framing  # special tokens around source and target
    tokenizers: tuple[Tokenizer, Tokenizer]  # of source and target

    @staticmethod
    def open(name: str) -> ParentRun:
        """Open the run in the folder `name`, which must have a checkpoint; raise a UserError otherwise."""
        folder = Path(name)
        spec = read_spec(folder)
        if not checkpoint.is_complete(folder / CHECKPOINT_DIR / "best"):
            raise UserError(f"{folder} has no checkpoint to start from: train it first")
        return ParentRun(
            folder,
            config=config.from_yaml(folder / CONFIG_FILE),
            spec=spec,
            framing=read_framing(folder),
            tokenizers=read_tokenizers(folder),
        )

    @property
    def usage(self) -> Usage | None:
        """Return the command that uses the run, by its objective, or by its model if it was imported."""
        name = self.config.objective.name
        return objective_class(name).usage if name else meta_model(self.spec).usage

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of the best checkpoint, by name."""
        return checkpoint.read_tensors(self.folder / CHECKPOINT_DIR / "best", "model")


def load_matching_weights(model: Model, parent: ParentRun, log: Log) -> None:
    """Load the parent run's weights that have the same name and shape, and log which others are left out or new.

    Weights of a discriminator (of ELECTRA) also fit a plain encoder.
    """
    weights = parent.weights()
    available = {name.removeprefix("discriminator."): weight for name, weight in weights.items()} | weights
    targets = checkpoint.named_weights(model)
    loaded = [name for name, weight in targets.items() if name in available and available[name].shape == weight.shape]
    if not loaded:
        raise UserError(
            f"no weight of {parent.folder} has the same name and shape as one of this system: start from another run"
        )
    with torch.no_grad():
        for name in loaded:
            targets[name].copy_(available[name])
    log(f"starting from {parent.folder}")
    log(f"  {len(loaded):,} weights are loaded")
    used = {*loaded, *(f"discriminator.{name}" for name in loaded)}
    others = {"not used": weights.keys() - used, "new and randomly initialized": targets.keys() - set(loaded)}
    for description, names in others.items():
        if names:  # with layer numbers replaced: encoder.layers.*.0.body.project.weight
            summary = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name, count=1) for name in sorted(names))
            log(f"  {len(names):,} are {description}: {', '.join(summary)}")


def write_initial_weights(
    folder: Path, spec: ModelSpec, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], log: Log
) -> None:
    """Write initial weights from the parent run and from word vectors, if any are configured."""
    text, start_from = config.text, config.training.start_from
    if not (start_from or text.source_word_vectors or text.target_word_vectors):
        return
    torch.manual_seed(config.training.seed)
    model = spec.build()
    values: dict[str, Any] = {}  # for the manifest of the checkpoint
    if start_from:
        parent = ParentRun.open(start_from)
        objective = objective_class(config.objective.name or "translation")
        solving = (None, config.objective.name, *objective.improves)
        values["same_task"] = parent.usage == objective.usage and parent.config.objective.name in solving
        load_matching_weights(model, parent, log)
    paths = {"source": text.source_word_vectors, "target": text.target_word_vectors}
    for (side, path), tokenizer, table in zip(paths.items(), tokenizers, model.embedding_tables):
        if path is None:
            continue
        if table is None:
            raise UserError(
                f"the word vectors {path} initialize token embeddings, but this system has no embeddings of the "
                f"{side}: leave out text.{side}_word_vectors"
            )
        vectors = match_word_vectors(tokenizer, Path(path), table.width)
        with torch.no_grad():
            table.weight[torch.from_numpy(vectors.rows)] = torch.from_numpy(vectors.matrix) / table.scale
        share = 100 * vectors.found / max(1, vectors.candidates)
        log(f"{path}: vectors for {vectors.found:,} of {vectors.candidates:,} words of the vocabulary ({share:.0f} %)")
    checkpoint.save(folder / INITIAL_CHECKPOINT, {"model": checkpoint.named_weights(model)}, values)


def same_task(folder: Path) -> bool:
    """Whether a run starts from a run of the same task, whose weights may be the best checkpoint of the new run.

    After pretraining, the initial model does not solve the task: it is validated, but never the best checkpoint.
    """
    return bool(checkpoint.read_values(folder / INITIAL_CHECKPOINT).get("same_task", False))
