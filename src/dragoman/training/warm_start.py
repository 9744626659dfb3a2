"""The beginning: the weights that a training starts from, where they are not drawn by chance."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman import checkpoint, config
from dragoman.config import Config
from dragoman.data.word_vectors import match_word_vectors
from dragoman.errors import UserError
from dragoman.models import (
    DecoderOnlyModel,
    EncoderDecoderModel,
    EncoderOnly,
    Model,
    ModelSpec,
    ReplacedTokens,
    Usage,
    meta_model,
)
from dragoman.objectives import objective_class
from dragoman.parts.embedding import TokenEmbedding
from dragoman.run import CHECKPOINT_DIR, CONFIG_FILE, INITIAL_CHECKPOINT, read_framing, read_spec, read_tokenizers
from dragoman.text import Framing, Tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class ParentRun:
    """The run that another starts from."""

    folder: Path
    config: Config
    spec: ModelSpec
    framing: Framing
    tokenizers: tuple[Tokenizer, Tokenizer]

    @staticmethod
    def open(name: str) -> ParentRun:
        folder = Path(name)
        spec = read_spec(folder)
        if not checkpoint.is_complete(folder / CHECKPOINT_DIR / "best"):
            raise UserError(f"{folder} has no checkpoint to start from: train it first")
        settings = config.from_yaml(folder / CONFIG_FILE)
        return ParentRun(folder, settings, spec, read_framing(folder), read_tokenizers(folder))

    @property
    def usage(self) -> Usage | None:
        """The command that uses the run, by its objective, or by its model where that is not known."""
        name = self.config.objective.name
        return objective_class(name).usage if name else meta_model(self.spec).usage

    def weights(self) -> dict[str, Tensor]:
        return checkpoint.read_tensors(self.folder / CHECKPOINT_DIR / "best", "model")


@dataclass(frozen=True)
class LoadReport:
    """What of the weights of another run was taken over."""

    loaded: list[str]
    unused: list[str]  # found there, but not wanted here or of another shape
    missing: list[str]  # wanted here, but not found there

    def lines(self) -> list[str]:
        lines = [f"  {len(self.loaded):,} weights are loaded"]
        if self.unused:
            lines.append(f"  {len(self.unused):,} are left out: {summarize_names(self.unused)}")
        if self.missing:
            lines.append(f"  {len(self.missing):,} are new, drawn by chance: {summarize_names(self.missing)}")
        return lines


def summarize_names(names: list[str]) -> str:
    """Names of weights with the numbers of layers put together: encoder.layers.*.0.body.project.weight."""
    return ", ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name, count=1) for name in sorted(names)))


def load_matching_weights(model: Model, weights: dict[str, Tensor]) -> LoadReport:
    """Set the weights of the same name and shape; a discriminator's count as its encoder's own."""
    found = {name.removeprefix("discriminator."): weight for name, weight in weights.items()} | weights
    loaded = []
    with torch.no_grad():
        for name, weight in checkpoint.named_weights(model).items():
            if name in found and found[name].shape == weight.shape:
                weight.copy_(found[name])
                loaded.append(name)
    wanted = checkpoint.named_weights(model)
    used = {*loaded, *(f"discriminator.{name}" for name in loaded)}
    return LoadReport(loaded, [n for n in weights if n not in used], [n for n in wanted if n not in loaded])


def with_label_outputs(spec: ModelSpec, labels: int) -> ModelSpec:
    """The same encoder with an output layer of its own for so many labels."""
    encoder = spec.discriminator if isinstance(spec, ReplacedTokens) else spec
    if not isinstance(encoder, EncoderOnly):
        raise UserError(f"words are tagged by an encoder alone, but the system is of kind {type(spec).__name__}")
    return replace(encoder, num_labels=labels, tied_embeddings=False, transform=None, pooled_labels=0)


def write_initial_weights(
    folder: Path, spec: ModelSpec, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], say: Say
) -> None:
    """Write the weights to start from, where another run or files of word vectors give some."""
    text, start_from = config.text, config.training.start_from
    if not (start_from or text.source_word_vectors or text.target_word_vectors):
        return
    torch.manual_seed(config.training.seed)
    model = spec.build()
    values: dict[str, Any] = {}
    if start_from:
        origin = ParentRun.open(start_from)
        values["same_task"] = origin.usage == objective_class(config.objective.name or "translation").usage and (
            origin.config.objective.name in (None, config.objective.name)
        )
        taken = load_matching_weights(model, origin.weights())
        if not taken.loaded:
            raise UserError(f"nothing of {start_from} fits this system: no weight has the same name and shape")
        say(f"starting from {start_from}")
        for line in taken.lines():
            say(line)
    for path, tokenizer, table in zip((text.source_word_vectors, text.target_word_vectors), tokenizers, _tables(model)):
        if path is None:
            continue
        if table is None:
            raise UserError("word vectors were given for a side that this system does not have")
        found = match_word_vectors(tokenizer, Path(path), table.width)
        with torch.no_grad():
            table.weight[torch.from_numpy(found.rows)] = torch.from_numpy(found.matrix) / table.scale
        share = 100 * found.found / max(1, found.candidates)
        say(f"{path}: vectors for {found.found:,} of {found.candidates:,} words of the vocabulary ({share:.0f} %)")
    checkpoint.save(folder / INITIAL_CHECKPOINT, {"model": checkpoint.named_weights(model)}, values)


def same_task(folder: Path) -> bool:
    """Whether a run starts from one that was trained for the same task, so that the start may be its best checkpoint.

    After pretraining the start is not a solution of the task: it is validated, but never the best.
    """
    return bool(checkpoint.read_values(folder / INITIAL_CHECKPOINT).get("same_task", False))


def _tables(model: Model) -> tuple[TokenEmbedding | None, TokenEmbedding | None]:
    """The source's and the target's table of embeddings, where there are any."""
    if isinstance(model, DecoderOnlyModel):
        return model.target_embedding, model.target_embedding
    read = getattr(model, "source_embedding", None)
    source = read if isinstance(read, TokenEmbedding) else None  # and no reader of patches or frames
    return source, model.target_embedding if isinstance(model, EncoderDecoderModel) else None
