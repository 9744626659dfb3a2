"""What every objective has: how its rows are made from a store, and what a training step makes smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch, BatchRow, RowBuilder, RowFormat, SubwordSamplers
from dragoman.errors import UserError
from dragoman.models import Model, Usage
from dragoman.models.usage import TRANSLATE
from dragoman.objectives.cross_entropy import FusedCrossEntropy, RDropCrossEntropy, chunk_rows, token_metrics
from dragoman.parts.embedding import OutputLayer
from dragoman.parts.mixer import Context, Layout
from dragoman.text import Framing, Tokenizer

#: what is written for a gap in a text: one piece, the span that was there, or the whole text again
Infilling = Literal["piece", "span", "text"]
DataFormatName = Literal["pairs", "text", "documents", "tags", "turns"]


@dataclass(frozen=True)
class Loss:
    """A sum over `count` answers, and the sums that it is made of; `likelihood` is always one of them."""

    total: Tensor
    count: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class TaskContext:
    """What an objective has to work with."""

    model: Model
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    framing: Framing
    label_smoothing: float = 0.0
    bpe_dropout: float = 0.0  # of byte pairs


class Objective:
    """`(model, batch, step) → Loss`, and how rows are made.

    An objective's settings are the keyword-only arguments of its `__init__`, plain values all.
    """

    data_format: ClassVar[DataFormatName] = "pairs"
    model_kind: ClassVar[tuple[type[Model], ...]] = ()  # the models that it can train
    aligned: bool = False  # is there an answer to every token, or a target to be written?
    generates: ClassVar[bool] = False  # is the model to be asked for whole targets when it is validated?
    selection_metric: ClassVar[str] = "loss"  # the measure by which validations are compared
    default_label_smoothing: ClassVar[float] = 0.0  # label smoothing unless told
    predicts_source: ClassVar[bool] = False  # are the source's words foretold too, as part of the target?
    usage: ClassVar[Usage] = TRANSLATE  # the command that uses a run trained with it
    other_commands: ClassVar[tuple[str, ...]] = ()  # other commands that can use such a run
    infilling: ClassVar[Infilling | None] = None  # how such a run fills gaps in a text
    corrupts_input: ClassVar[bool] = False  # does it corrupt a text that the model must repair?

    def __init__(self, task: TaskContext) -> None:
        if not isinstance(task.model, self.model_kind):
            kinds = " or ".join(kind.__name__.removesuffix("Model") for kind in self.model_kind)
            raise UserError(
                f"this objective trains a model of kind {kinds}, but the system is of kind "
                f"{type(task.model).__name__.removesuffix('Model')}: choose another objective or another system"
            )
        if self.aligned and task.framing.pad == task.framing.eos:
            raise UserError(
                "this objective marks what is not asked with the symbol for padding, but here that is also the one "
                "that ends a sentence: use a checkpoint with one of its own"
            )
        self.task = task
        self.make_row: RowBuilder | None = None  # None: plain pairs with their framing
        self.segmenters: SubwordSamplers = (None, None)  # segment source and target anew in every epoch
        self.repeat_after_epochs: int | None = None  # epochs after which the same rows come again; None: never

    @classmethod
    def data_format_for(cls, settings: Mapping[str, Any]) -> DataFormatName:
        """How a corpus is read for this objective with such settings."""
        return cls.data_format

    def __call__(self, model: Any, batch: Batch, step: int = 0) -> Loss:
        raise NotImplementedError

    def validation_loss(self, model: Any, batch: Batch) -> Loss:
        """The loss that compares checkpoints: that of training, unless it is not comparable from step to step."""
        return self(model, batch)

    def row_length(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """How wide rows of such lengths in the store will be, about."""
        framing = self.task.framing
        around = len(framing.source_prefix) + len(framing.source_suffix)
        return self.task.model.row_length(source + around, target + 1)

    def packed_lengths(self, source: NDArray[Any], target: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """What rows of such lengths in the store will take up of the two rows of a packed batch, about."""
        if self.aligned:
            return self.row_length(source, target), 0 * target
        framing = self.task.framing
        return source + len(framing.source_prefix) + len(framing.source_suffix), target + 1

    @property
    def row_format(self) -> RowFormat:
        """How rows of a batch are built from the pairs of a store."""
        return RowFormat(
            self.task.framing,
            self.make_row,
            self.aligned,
            self.row_length,
            self.packed_lengths,
            self.repeat_after_epochs,
            self.doubled,
            self.segmenters,
        )

    @classmethod
    def supports_command(cls, command: str) -> bool:
        """Whether a command of the command line can use a run trained with it."""
        return command == cls.usage.command or command in cls.other_commands

    def describe_row(self, row: BatchRow) -> str:
        """What the model is told or asked besides the tokens of a row, for people to read."""
        return ""

    @property
    def doubled(self) -> bool:
        """Does every row come twice, so that what dropout makes of it can be compared?"""
        return False

    @property
    def static_shapes(self) -> bool:
        """Is a step the same computation whatever its number?"""
        return True

    @property
    def supports_packing(self) -> bool:
        """Can its batches be packed?"""
        return self.task.model.supports_packing


def token_loss(
    output: OutputLayer, features: Tensor, labels: Tensor, smoothing: float = 0.0, rdrop_alpha: float = 0.0
) -> dict[str, Tensor]:
    """… D and as many answers → what is lost where there is an answer, summed up.

    `total`: cross-entropy with label smoothing ε, by which the right word is to get 1 − ε and all words ε/V (Szegedy et
    al. 2016); `likelihood`: −log p of the answers; `spread`: minus the mean log p of all words. `correct` counts the
    answers that were likeliest, when nothing is learned from it. With a `consistency` of more than 0 the second half of
    all is the first once more, and `divergence` is how far the two differ.
    """
    x, right = features.flatten(0, -2), labels.flatten()
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # a GPU would have to wait until it knows how many
        real = (right != IGNORE_INDEX).nonzero()[:, 0]
        x, right = x[real], right[real]
    x = output.output_features(x)
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    if torch.is_grad_enabled() and rdrop_alpha:
        size = chunk_rows(x, output.weight) // 2
        total, likelihood, spread, divergence = RDropCrossEntropy.apply(
            x, output.weight, output.bias, right, smoothing, rdrop_alpha, size
        )
        return {"total": total, "likelihood": likelihood, "spread": spread, "divergence": divergence}
    if torch.is_grad_enabled():
        total, likelihood, spread = FusedCrossEntropy.apply(
            x, output.weight, output.bias, right, smoothing, chunk_rows(x, output.weight)
        )
        return {"total": total, "likelihood": likelihood, "spread": spread}
    likelihood, spread, correct = token_metrics(x, output.weight.to(x.dtype), output.bias, right)
    total = (1 - smoothing) * likelihood + smoothing * spread
    return {"total": total, "likelihood": likelihood, "spread": spread, "correct": correct}


def reduce_loss(sums: dict[str, Tensor], labels: Tensor, auxiliary: Sequence[Tensor] = ()) -> Loss:
    """The loss of what was lost, and of what parts of the model want to be small for every answer."""
    count = (labels != IGNORE_INDEX).sum()
    total = sums["total"]
    for wanted in auxiliary:
        total = total + wanted * count
    return Loss(total, count, {name: part.detach() for name, part in sums.items() if name != "total"})


def source_token_loss(task: TaskContext, output: OutputLayer, features: Tensor, batch: Batch, ctx: Context) -> Loss:
    """The loss of a batch whose answers are to tokens of its source."""
    sums = token_loss(output, labeled_features(features, batch), batch.labels, task.label_smoothing)
    return reduce_loss(sums, batch.labels, ctx.auxiliary_losses)


def labeled_features(features: Tensor, batch: Batch) -> Tensor:
    """B S D → N D: only where there is an answer, so that the output layer does no work for the others."""
    assert batch.label_positions is not None
    return features.flatten(0, 1)[batch.label_positions]


def source_layout(batch: Batch) -> Layout:
    if batch.max_lengths is not None:
        return Layout.packed_row(batch.source.shape[1], batch.source_lengths, batch.max_lengths[0])
    return Layout.padded(batch.source.shape[1], batch.source_lengths)


def target_layout(batch: Batch) -> Layout:
    if batch.max_lengths is not None:
        return Layout.packed_row(batch.target.shape[1], batch.target_lengths, batch.max_lengths[1])
    return Layout.padded(batch.target.shape[1], batch.target_lengths)


def concat_ids(*parts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Tokens and symbols one after the other."""
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
