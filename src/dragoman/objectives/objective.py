"""Base classes of objectives, and the loss of the output layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.data import IGNORE_INDEX, Batch, BatchRow, RowBuilder, RowFormat, SubwordSamplers
from dragoman.errors import UserError
from dragoman.models import Model, Usage
from dragoman.models.usage import TRANSLATE
from dragoman.objectives.cross_entropy import (
    FusedCrossEntropy,
    RDropCrossEntropy,
    TokenLogProbs,
    token_metrics,
    tokens_per_chunk,
)
from dragoman.objectives.mixture_loss import mixture_log_probs, mixture_loss
from dragoman.parts.embedding import OutputLayer
from dragoman.parts.mixer import CopyDistribution, MixerOutput, SequenceLayout
from dragoman.text import Framing, Tokenizer

#: what a pretrained model generates for a masked span: one token, the tokens of the span, or the whole text
Infilling = Literal["piece", "span", "text"]
DataFormatName = Literal["pairs", "text", "documents", "tags", "labels", "turns"]


class Loss(NamedTuple):
    """Loss of a batch, summed over its labels; a tuple, which torch's parallelism can look into.

    Attributes:
        total: the sum to be minimized, a scalar.
        num_labels: number of labels.
        metrics: further sums over the labels, detached; always with `nll_loss`, the negative log-likelihood.
    """

    total: Tensor
    num_labels: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class TaskContext:
    """Model, tokenizers and regularization that an objective is built with."""

    model: Model
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    framing: Framing  # special tokens around source and target
    label_smoothing: float = 0.0  # ε
    bpe_dropout: float = 0.0  # probability with which a BPE merge is skipped


class Objective(nn.Module):
    """Builds the rows of a batch from a token store, and computes their loss with a model.

    The settings of an objective are the keyword-only parameters of its `__init__`, all plain values. The class
    attributes say which data and models it takes, and how its runs are validated and used.
    """

    data_format: ClassVar[DataFormatName] = "pairs"
    model_kind: ClassVar[tuple[type[Model], ...]] = ()  # models that it can train
    labels_source: bool = False  # labels belong to source tokens; otherwise a target is generated
    generates: ClassVar[bool] = False  # targets are generated at each validation
    selection_metric: ClassVar[str] = "loss"  # selects the best checkpoint; if targets are generated, they decide
    default_label_smoothing: ClassVar[float] = 0.0
    default_bpe_dropout: ClassVar[bool] = False  # recipes may apply BPE dropout to small corpora
    predicts_source: ClassVar[bool] = False  # source tokens are predicted too, as part of the target
    usage: ClassVar[Usage] = TRANSLATE  # command that uses a trained run
    other_commands: ClassVar[tuple[str, ...]] = ()  # further commands that can use it
    infilling: ClassVar[Infilling | None] = None  # how a trained run fills gaps
    corrupts_input: ClassVar[bool] = False  # pretraining that reconstructs a corrupted text
    predicts_masks: ClassVar[bool] = False  # labels belong to masks in their places, not to the tokens before them
    decodes_in_training: ClassVar[bool] = False  # every step generates text, which needs all weights on one device
    improves: ClassVar[tuple[str, ...]] = ()  # objectives whose runs already solve the task, and are improved by this
    learning_rate_factor: ClassVar[float] = 1.0  # of the recipe's peak learning rate
    learning_rate_reason: ClassVar[str] = ""  # for that factor
    warm_start_reason: ClassVar[str] = ""  # why a run should start from a trained one; empty: it need not
    build_row: RowBuilder | None = None  # builds a row from a pair of the store; None: the pair with its framing

    @classmethod
    def copies_per_pair(cls, settings: Mapping[str, Any]) -> int:
        """Return how often each pair is in its batch, with the objective's settings; here once."""
        return 1

    @classmethod
    def training_cost(cls, settings: Mapping[str, Any]) -> float:
        """Return the training FLOPs of a pair relative to teacher forcing, with the objective's settings."""
        return float(cls.copies_per_pair(settings))

    def __init__(self, task: TaskContext) -> None:
        """Check that the objective can train the model of the task (model, tokenizers, special tokens).

        If it cannot, raise a UserError. The attributes that are set here are defaults, which subclasses change.
        """
        super().__init__()
        if not isinstance(task.model, self.model_kind):
            expected = " or ".join(kind.__name__.removesuffix("Model") for kind in self.model_kind)
            raise UserError(
                f"this training objective needs a model of kind {expected}, but the system is of kind "
                f"{type(task.model).__name__.removesuffix('Model')}: choose another objective (objective.name) or "
                "another system (system.name)"
            )
        if self.labels_source and task.model.predicts_masks and not self.predicts_masks:
            raise UserError(
                "this system predicts a masked token at the position of its mask, but this objective predicts "
                "each token from the one before it: set objective.name to unified-masked-lm for text without "
                "targets or masked-target for sentence pairs, or system.name to unilm"
            )
        if self.labels_source and task.framing.pad == task.framing.eos:
            raise UserError(
                "this objective uses the padding token as the label of tokens that it does not predict, but this "
                "tokenizer has one token for both padding and EOS: use a checkpoint with a separate padding token"
            )
        self.task = task
        self.model: Any = task.model
        self.subword_samplers: SubwordSamplers = (None, None)  # resegment source and target in every epoch
        self.distinct_epochs: int | None = None  # epochs after which the same rows repeat; None: never
        self.doubled = False  # a batch contains every row twice, to compare two passes with different dropout
        self.static_shapes = True  # every step is the same computation and can be captured as a CUDA graph
        self.supports_packing = task.model.supports_packing  # several examples can be concatenated to one row

    @classmethod
    def data_format_for(cls, settings: Mapping[str, Any]) -> DataFormatName:
        """Return how the corpus is read for this objective with these settings: "pairs", "text", "documents", …."""
        return cls.data_format

    @classmethod
    def supports_command(cls, command: str) -> bool:
        """Whether a run trained with this objective can be used by a command such as `translate`."""
        return command == cls.usage.command or command in cls.other_commands

    @classmethod
    def rows_per_pair(cls, settings: Mapping[str, Any]) -> int:
        """Return how many sequences the model is trained on for each pair, with the objective's settings; here 1."""
        return 1

    @classmethod
    def uses_dropout(cls, settings: Mapping[str, Any]) -> bool:
        """Whether the system's dropout is applied in training, with the objective's settings; here always."""
        return True

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the loss of a batch on the model's device; `step` is the training step, from 1; 0 in validation."""
        raise NotImplementedError

    def validation_loss(self, batch: Batch) -> Loss:
        """Compute the loss of a validation batch, which must be comparable between checkpoints: here as in training."""
        return self(batch)

    def text_metrics(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return metrics of decoded validation sentences, by name, besides those of every objective; here none."""
        return {}

    def row_length(self, source_lengths: NDArray[Any], target_lengths: NDArray[Any]) -> NDArray[Any]:
        """Return for each pair how many tokens its row of a batch has, which decides how many rows fit into the batch.

        The arguments are the numbers of source and target tokens of the pairs, without special tokens.
        """
        return self.task.model.row_length(*self._framed_lengths(source_lengths, target_lengths))

    def packed_lengths(
        self, source_lengths: NDArray[Any], target_lengths: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return how many tokens each pair adds to the packed source and the packed target of a batch.

        In a packed batch all sources form one row, and all targets another one. The arguments are the numbers of source
        and target tokens of the pairs, without special tokens. If source tokens are labeled, a pair is in the source
        row only.
        """
        if self.labels_source:
            return self.row_length(source_lengths, target_lengths), np.zeros_like(target_lengths)
        return self._framed_lengths(source_lengths, target_lengths)

    def _framed_lengths(
        self, source_lengths: NDArray[Any], target_lengths: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the numbers of tokens of sources and targets with the special tokens that the model reads.

        The EOS of a target does not count: it is a label, which the model does not read.
        """
        return source_lengths + self.framing_length, target_lengths + len(self.task.framing.target_prefix)

    @property
    def framing_length(self) -> int:
        """The number of special tokens that are added before and after a source (its framing)."""
        return len(self.task.framing.source_prefix) + len(self.task.framing.source_suffix)

    @property
    def row_format(self) -> RowFormat:
        """What the data loader needs to know to build the rows of a batch from the pairs of a token store."""
        return RowFormat(
            framing=self.task.framing,  # special tokens
            build_row=self.build_row,
            labels_source=self.labels_source,  # whether labels belong to source tokens
            row_length=self.row_length,
            packed_lengths=self.packed_lengths,
            distinct_epochs=self.distinct_epochs,  # epochs after which the same rows repeat
            doubled=self.doubled,  # whether every row is in the batch twice
            subword_samplers=self.subword_samplers,  # segment texts anew in every epoch
        )

    def describe_row(self, row: BatchRow) -> str:
        """Describe in words what the model gets or predicts besides the tokens of a training example; here nothing."""
        return ""

    def source_token_loss(self, features: MixerOutput, batch: Batch) -> Loss:
        """Compute the loss of a batch whose labels belong to source tokens, summed over its N labels.

        `features.output` (B S D) is what the output layer reads at each source token. `batch.labels` (N) are the labels
        of the tokens at `batch.label_positions` (N); the output layer is applied to these tokens only.
        """
        labeled = labeled_features(features.output, batch)  # N D
        loss_sums = token_loss(self.model.output, labeled, batch.labels, smoothing=self.task.label_smoothing)
        return build_loss(loss_sums, batch.labels, features.auxiliary_losses)


class SequenceObjective(Objective):
    """Predicts every target token from the source and the target tokens before it (teacher forcing)."""

    rdrop_alpha = 0.0  # weight of the mean KL divergence between two passes

    def decoder_inputs(self, batch: Batch, step: int) -> Tensor:
        """Return the tokens that the decoder reads at training step `step`, B T: here the target (teacher forcing)."""
        return batch.target

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the loss of the target tokens of a batch at a training step.

        If the batch has `label_positions`, source and target form one sequence (`batch.source`), and the labels belong
        to its tokens at these positions.
        """
        if batch.label_positions is not None:
            features = self.model.forward_tokens(batch.source, source_layout(batch))
            return self.source_token_loss(features, batch)
        inputs = self.decoder_inputs(batch, step)
        features = self.model.forward_features(batch.source, source_layout(batch), inputs, target_layout(batch))
        loss_sums = token_loss(
            self.model.output,
            features.output,
            batch.labels,
            smoothing=self.task.label_smoothing,
            rdrop_alpha=self.rdrop_alpha,
            copying=features.copying,  # probabilities of copying source tokens; None: the model copies none
        )
        # auxiliary losses of layers, such as load balancing
        return build_loss(loss_sums, batch.labels, features.auxiliary_losses)


def token_loss(
    output: OutputLayer,
    features: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    rdrop_alpha: float = 0.0,
    copying: CopyDistribution | None = None,
) -> dict[str, Tensor]:
    """Sum the losses of all labels, from the features that the output layer reads.

    Args:
        features: (…, D), one vector per label.
        labels: token ids, `IGNORE_INDEX` where there is none.
        smoothing: ε of label smoothing; the label gets 1 − ε and every token ε/V (Szegedy et al. 2016).
        rdrop_alpha: weight of the mean of KL(p₁‖p₂) and KL(p₂‖p₁), where the two halves of the batch are two passes
            over the same rows with different dropout (R-Drop).
        copying: probabilities of copying source tokens, one distribution per label, if the output layer copies.

    Returns:
        sums over the labels by name: `total`, the loss to be minimized; `nll_loss`, −log p of the label; `smooth_loss`,
        minus the mean log p of all tokens of the vocabulary; without gradients (evaluation) `correct`, the number of
        labels with the highest probability; with R-Drop `divergence`.
    """
    x, labels = features.flatten(0, -2), labels.flatten()  # N D, N
    copying = None if copying is None else copying.map(lambda tensor: tensor.flatten(0, -2))
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        # skip positions without a label; on a GPU, finding them would wait for the device
        labeled = (labels != IGNORE_INDEX).nonzero()[:, 0]
        x, labels = x[labeled], labels[labeled]
        copying = None if copying is None else copying.map(lambda tensor: tensor[labeled])
    if copying is not None or output.reads_log_probs:  # then log p is no softmax of linear logits
        alpha = rdrop_alpha if torch.is_grad_enabled() else 0.0  # the batches of an evaluation have no second pass
        return mixture_loss(output, x, copying, labels, smoothing=smoothing, rdrop_alpha=alpha)
    x = output_inputs(output, x)
    chunk_size = tokens_per_chunk(x, output.weight)
    if torch.is_grad_enabled() and rdrop_alpha:
        # half as many tokens at a time, because p and log p of both passes exist together
        total, nll, smooth, divergence = RDropCrossEntropy.apply(
            x, output.weight, output.bias, labels, smoothing, rdrop_alpha, chunk_size // 2
        )
        return {"total": total, "nll_loss": nll, "smooth_loss": smooth, "divergence": divergence}
    if torch.is_grad_enabled():
        total, nll, smooth = FusedCrossEntropy.apply(x, output.weight, output.bias, labels, smoothing, chunk_size)
        return {"total": total, "nll_loss": nll, "smooth_loss": smooth}
    nll, smooth, correct = token_metrics(x, output.weight.to(x.dtype), output.bias, labels)
    total = (1 - smoothing) * nll + smoothing * smooth
    return {"total": total, "nll_loss": nll, "smooth_loss": smooth, "correct": correct}


def output_inputs(output: OutputLayer, features: Tensor) -> Tensor:
    """Return the vectors that the weight matrix (V W) of the output layer is multiplied with, in the dtype of autocast.

    Shape: features (N, D) → (N, W). W is D, unless a layer before the matrix changes the width.
    """
    x = output.output_features(features)  # transformed and scaled
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def token_log_probs(
    output: OutputLayer, features: Tensor, labels: Tensor, copying: CopyDistribution | None = None
) -> Tensor:
    """Return log p of each label, differentiable: features B T D, labels B T → B T, 0 where there is no label.

    `copying` are the probabilities of copying source tokens at each position, if the output layer copies.
    """
    x, flat_labels = features.flatten(0, -2), labels.flatten()  # N D, N
    if copying is not None or output.reads_log_probs:  # then log p is no softmax of linear logits
        copying = None if copying is None else copying.map(lambda tensor: tensor.flatten(0, -2))
        return mixture_log_probs(output, x, copying, flat_labels).view_as(labels)
    labeled = None
    if x.device.type == "cpu":  # skip positions without a label; on a GPU, finding them would wait for the device
        labeled = (flat_labels != IGNORE_INDEX).nonzero()[:, 0]
        x, flat_labels = x[labeled], flat_labels[labeled]
    x = output_inputs(output, x)
    log_p = TokenLogProbs.apply(x, output.weight, output.bias, flat_labels, tokens_per_chunk(x, output.weight))
    if labeled is not None:
        log_p = log_p.new_zeros(labels.numel()).index_copy(0, labeled, log_p)
    return log_p.view_as(labels)


def build_loss(loss_sums: dict[str, Tensor], labels: Tensor, auxiliary_losses: Sequence[Tensor] = ()) -> Loss:
    """Build the `Loss` of a batch from sums over its labels, by name: "total" is minimized, the others are metrics.

    Nothing is divided here. Auxiliary losses of layers, such as load balancing, are means, and so they are added once
    per label. `labels` equal to `IGNORE_INDEX` do not count.
    """
    num_labels = (labels != IGNORE_INDEX).sum()
    total = loss_sums["total"]
    for auxiliary in auxiliary_losses:
        total = total + auxiliary * num_labels
    metrics = {name: value.detach() for name, value in loss_sums.items() if name != "total"}
    return Loss(total, num_labels, metrics)


def labeled_features(features: Tensor, batch: Batch) -> Tensor:
    """Select the features (B S D) at the N positions that have a label (`batch.label_positions`): N D.

    The positions are indices into the B · S source tokens of the batch. The output layer skips all others.
    """
    assert batch.label_positions is not None
    return features.flatten(0, 1)[batch.label_positions]


def source_layout(batch: Batch) -> SequenceLayout:
    """Return positions and lengths of the source sequences of a batch, padded or packed."""
    max_lengths = batch.max_lengths  # of source and target; None: the batch is not packed
    return _layout(batch.source, batch.source_lengths, None if max_lengths is None else max_lengths[0])


def target_layout(batch: Batch) -> SequenceLayout:
    """Return positions and lengths of the target sequences of a batch, padded or packed."""
    max_lengths = batch.max_lengths  # of source and target; None: the batch is not packed
    return _layout(batch.target, batch.target_lengths, None if max_lengths is None else max_lengths[1])


def _layout(ids: Tensor, lengths: Tensor, max_length: int | None) -> SequenceLayout:
    """Return positions and lengths of the sequences in `ids` (B T), which have these lengths.

    If `max_length` is None, each sequence has a padded row of its own. Otherwise all are packed into one row, and none
    is longer than `max_length`.
    """
    if max_length is None:
        return SequenceLayout.padded(ids.shape[1], lengths)
    return SequenceLayout.packed_row(ids.shape[1], lengths, max_length)


def concat_ids(*sequences: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Concatenate sequences of token ids to one array."""
    return np.concatenate([np.asarray(ids, np.int64) for ids in sequences])
