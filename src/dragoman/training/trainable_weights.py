"""Which weights a training changes: all, all but frozen ones, or LoRA's adapters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.models import ModelSpec, meta_model
from dragoman.parts.embedding import is_embedding_table
from dragoman.parts.lora import add_adapters
from dragoman.run import lora_of

EMBEDDINGS_PATTERN = "embeddings"  # matches all embedding tables


@dataclass(frozen=True)
class ParameterCounts:
    """Number of parameters of a model with its adapters, and how many of them are trained."""

    total: int
    trained: int

    def __str__(self) -> str:
        """Format both numbers: "12,288 of 1,234,567 parameters are trained (1.0 %)"."""
        share = 100 * self.trained / max(1, self.total)
        return f"{self.trained:,} of {self.total:,} parameters are trained ({share:.2g} %)"


def prepare_weights(model: nn.Module, config: Config, new_weights: Iterable[str] = ()) -> ParameterCounts:
    """Add LoRA's adapters to a model and freeze weights as configured, in place; return the numbers of parameters.

    With LoRA, all weights are frozen but the adapters, those that `lora.train_also` matches, and `new_weights`, names
    of weights that the model to start from does not provide. Then those that `training.freeze` matches are frozen. A
    UserError is raised if no weight is left to be trained.
    """
    lora, freeze = lora_of(config), config.training.freeze
    if lora is not None:
        model.requires_grad_(False)
        trained_names = {*new_weights, *match_parameters(model, config.lora.train_also, setting="lora.train_also")}
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in trained_names)
        add_adapters(model, lora)
    for name in match_parameters(model, freeze, setting="training.freeze"):
        model.get_parameter(name).requires_grad_(False)
    counts = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    if not any(is_trained for _, is_trained in counts):
        raise UserError(
            "training.freeze freezes all weights, so that nothing can be trained: leave out one of its patterns"
        )
    total, trained = sum(size for size, _ in counts), sum(size for size, is_trained in counts if is_trained)
    return ParameterCounts(total=total, trained=trained)


def trains_all_weights(config: Config) -> bool:
    """Whether all weights are trained: neither `lora.rank` nor `training.freeze` is set."""
    return not (config.lora.rank or config.training.freeze)


def count_trained(spec: ModelSpec, config: Config, new_weights: Iterable[str] = ()) -> ParameterCounts:
    """Count the parameters of a model and those that are trained, on the meta device, without memory.

    Args:
        spec: hyper-parameters of the model.
        config: `lora` and `training.freeze` decide what is trained; a UserError is raised if they match no weight.
        new_weights: names of weights that the model to start from does not provide, which LoRA trains in full.
    """
    return prepare_weights(meta_model(spec), config, new_weights)


def match_parameters(model: nn.Module, patterns: Sequence[str], setting: str) -> list[str]:
    """Return the names of the parameters that match any of the patterns, in the order of the model.

    A pattern is a glob such as `*.bias`, the beginning of names up to a dot (`encoder`, `decoder.layers.0`), or the
    word `embeddings`. Patterns apply in their order; one that begins with `!` excludes what it matches. A pattern
    without a match is a UserError that names the setting.
    """
    names = [name for name, _ in model.named_parameters()]
    embedding_tables = [part for part in model.modules() if is_embedding_table(part)]
    # by identity: a weight that is tied to another layer has a single name, which need not be that of the table
    table_ids = {id(weight) for part in embedding_tables for weight in part.parameters(recurse=False)}
    embeddings = {name for name, weight in model.named_parameters() if id(weight) in table_ids}
    selected: set[str] = set()
    for pattern in patterns:
        excludes, glob = pattern.startswith("!"), pattern.removeprefix("!")
        matching = {name for name in names if fnmatchcase(name, glob) or name.startswith(f"{glob}.")}
        if glob == EMBEDDINGS_PATTERN:
            matching |= embeddings
        if not matching:
            base_names = [name for name in names if ".lora_" not in name]
            examples = ", ".join(base_names[:: max(1, len(base_names) // 4)][:4])  # four from all over the model
            raise UserError(
                f"{setting} has {pattern!r}, which matches no weight of the model: use a word such as embeddings or "
                f"encoder, or a pattern such as decoder.*; names of weights are, for example, {examples}"
            )
        selected = selected - matching if excludes else selected | matching
    return [name for name in names if name in selected]
