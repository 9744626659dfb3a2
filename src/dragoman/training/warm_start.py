"""Initial weights from another run or from word vectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
from dragoman.models import Model, ModelSpec, Usage, cached_meta_model, meta_model
from dragoman.objectives import objective_class
from dragoman.run import read_framing, read_spec, read_tokenizers, read_weights
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, INITIAL_CHECKPOINT
from dragoman.seeding import seed_generators
from dragoman.text import Framing, Tokenizer

#: entry of the values of the initial checkpoint: names of weights that the parent run does not provide
NEW_WEIGHTS = "new_weights"


@dataclass(frozen=True)
class ParentRun:
    """A run, or another trained model, whose weights and tokenizers a new run starts from.

    Attributes:
        framing: special tokens around source and target.
        tokenizers: of source and target.
        weights: function that reads all weights and returns them by name.
        extended: names of weights with rows for new tokens.
    """

    folder: Path
    config: Config
    spec: ModelSpec
    framing: Framing
    tokenizers: tuple[Tokenizer, Tokenizer]
    weights: Callable[[], dict[str, Tensor]]
    extended: tuple[str, ...] = ()

    @staticmethod
    def open(name: str) -> ParentRun:
        """Open the run in the folder `name`, which must have a checkpoint; raise a UserError otherwise."""
        folder = Path(name)
        spec = read_spec(folder)
        if not checkpoint.is_complete(folder / CHECKPOINT_DIR / "best"):
            raise UserError(f"{folder} has no checkpoint to start from: train this run first")
        settings = config.from_yaml(folder / CONFIG_FILE)
        return ParentRun(
            folder,
            config=settings,
            spec=spec,
            framing=read_framing(folder),
            tokenizers=read_tokenizers(folder),
            weights=lambda: read_weights(folder, "best", meta_model(spec), settings),  # with LoRA's adapters merged
        )

    @property
    def is_imported(self) -> bool:
        """Whether the model was imported from another library: its configuration then names no objective."""
        return self.config.objective.name is None

    @property
    def usage(self) -> Usage | None:
        """The command that uses the run, such as translate: by its objective, or by its model if it was imported."""
        name = self.config.objective.name
        return objective_class(name).usage if name else cached_meta_model(self.spec).usage


#: opens the model that `training.start_from` names
OpenParent = Callable[[str], ParentRun]


def load_matching_weights(model: Model, parent: ParentRun, log: Log) -> list[str]:
    """Copy the weights of the parent run that have the same name and shape as in `model`, and log which do not.

    Weights of a discriminator (of ELECTRA) also fit a plain encoder. Returns the names of the model's weights that the
    parent does not provide, or to which it has added rows for new tokens. It is a UserError if no weight fits.
    """
    weights = parent.weights()
    available = {name.removeprefix("discriminator."): weight for name, weight in weights.items()} | weights
    targets = checkpoint.named_weights(model)
    loaded = [name for name, weight in targets.items() if name in available and available[name].shape == weight.shape]
    if not loaded:
        raise UserError(
            f"no weight of {parent.folder} (--start-from) has the same name and shape as a weight of this system: "
            "start from another run"
        )
    with torch.no_grad():
        for name in loaded:
            targets[name].copy_(available[name])
    log(f"starting from {parent.folder}")
    log(f"  {_count_weights(targets, loaded)} loaded")
    used = {*loaded, *(f"discriminator.{name}" for name in loaded)}  # possible names of loaded weights in the parent
    new = [name for name in targets if name not in set(loaded)]
    for description, tensors, names in (
        ("not used", weights, sorted(weights.keys() - used)),
        ("new and randomly initialized", targets, new),
    ):
        if names:
            # a weight's name and shape, once for all layers: by the name with * in place of the layer number
            examples: dict[str, str] = {}
            for name in names:
                pattern = re.sub(r"\.\d+\.", ".*.", name, count=1)
                shape = f"{list(tensors[name].shape)}{_other_shape(available, targets, name)}"
                examples.setdefault(pattern, f"{pattern} {shape}")
            log(f"  {_count_weights(tensors, names)} {description}: {', '.join(examples.values())}")
    return [*new, *(name for name in parent.extended if name not in new)]


def _count_weights(tensors: Mapping[str, Tensor], names: Sequence[str]) -> str:
    """Describe how many weights have these names: "12 weights (34,560 parameters) are"; `tensors` has them by name."""
    parameters = sum(tensors[name].numel() for name in names)
    return f"{len(names):,} {'weight' if len(names) == 1 else 'weights'} ({parameters:,} parameters) are"


def _other_shape(available: Mapping[str, Tensor], targets: Mapping[str, Tensor], name: str) -> str:
    """Return a remark if the parent run and the model have a weight `name` in different shapes; otherwise empty.

    `available` has the weights of the parent by name, `targets` those of the model.
    """
    if name not in available or name not in targets or available[name].shape == targets[name].shape:
        return ""
    return f" (shape {list(available[name].shape)} there, {list(targets[name].shape)} here)"


def write_initial_weights(
    folder: Path,
    spec: ModelSpec,
    config: Config,
    parent: ParentRun | None,
    tokenizers: tuple[Tokenizer, Tokenizer],
    log: Log,
) -> list[str]:
    """Write the checkpoint `initial` of a new run, if its model does not simply start from random weights.

    That is the case if there is a parent run, if word vectors initialize the embeddings, or if weights are frozen.

    Args:
        folder: run folder that is being prepared.
        spec: hyper-parameters of the model.
        config: configuration of the run, with the files of word vectors.
        parent: run to start from.
        tokenizers: of source and target.
        log: prints a line for the user.

    Returns:
        The names of the weights that the parent run does not provide; none without a parent run.
    """
    text = config.text
    if not (parent or text.source_word_vectors or text.target_word_vectors or config.training.freeze):
        return []
    seed_generators(config.training.seed)  # for the random values of weights that are not replaced below
    model = spec.build()
    values: dict[str, Any] = {}  # for the manifest of the checkpoint
    if parent:
        objective = objective_class(config.objective.name or "translation")
        # objectives whose models already solve this task; None: an imported model, whose objective is unknown
        task_objectives = (None, config.objective.name, *objective.improves)
        values["same_task"] = parent.usage == objective.usage and parent.config.objective.name in task_objectives
        values[NEW_WEIGHTS] = load_matching_weights(model, parent, log)
    paths = {"source": text.source_word_vectors, "target": text.target_word_vectors}
    for (side, path), tokenizer, table in zip(paths.items(), tokenizers, model.embedding_tables):
        if path is None:
            continue
        if table is None:
            raise UserError(
                f"text.{side}_word_vectors={path} initializes token embeddings, but this system has no embeddings of "
                f"{side} tokens: leave out this setting"
            )
        vectors = match_word_vectors(tokenizer, Path(path), table.width)
        with torch.no_grad():  # the model multiplies embeddings by `scale`
            table.weight[torch.from_numpy(vectors.rows)] = torch.from_numpy(vectors.matrix) / table.scale
        share = 100 * vectors.found / max(1, vectors.candidates)
        log(f"{path}: vectors for {vectors.found:,} of {vectors.candidates:,} words of the vocabulary ({share:.0f} %)")
    checkpoint.save(folder / INITIAL_CHECKPOINT, {"model": checkpoint.named_weights(model)}, values)
    return values.get(NEW_WEIGHTS, [])


def same_task(folder: Path) -> bool:
    """Whether the run in `folder` starts from a model of the same task, according to its checkpoint `initial`.

    If so, the initial weights may become the best checkpoint of the run. A pretrained model does not solve the task: it
    is validated before training, but never the best checkpoint.
    """
    return bool(checkpoint.read_values(folder / INITIAL_CHECKPOINT).get("same_task", False))
