"""Translation by teacher forcing: −Σ log p(y_t | y_<t, x), fed the right words whatever the model would have said."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dragoman.data import Batch, BatchRow, SubwordSamplers, TokenStore
from dragoman.models import DecoderOnlyModel, EncoderDecoderModel, Model
from dragoman.objectives.objective import (
    Loss,
    Objective,
    TaskContext,
    concat_ids,
    reduce_loss,
    source_layout,
    source_token_loss,
    target_layout,
    token_loss,
)
from dragoman.parts.mixer import Layout
from dragoman.parts.precision import at_least_float32
from dragoman.text import BPEDropout

SamplingDecay = Literal["linear", "exponential", "inverse-sigmoid"]


class TranslationObjective(Objective):
    """The target's words, given the source's. `sampling`: scheduled sampling (Bengio et al. 2015).

    The share of the target's words that the model is fed in its own words grows from 0 to `sampling` as the decay says
    over `sampling_steps`. Its own words are drawn from a first pass over the right ones, and the loss is that of a
    second pass (Mihaylova & Martins 2019): the same for recurrent and for parallel systems. `consistency`: every pair
    goes through the model twice, and what dropout made different between the two is to be small as well (α of R-Drop,
    Liang et al. 2021).
    """

    model_kind = (EncoderDecoderModel, DecoderOnlyModel)
    generates = True
    selection_metric = "bleu"
    default_label_smoothing = 0.1

    def __init__(
        self,
        task: TaskContext,
        *,
        sampling: float = 0.0,
        sampling_steps: int = 10_000,
        decay: SamplingDecay = "linear",
        consistency: float = 0.0,
    ) -> None:
        super().__init__(task)
        self.sampling, self.sampling_steps, self.decay = sampling, sampling_steps, decay
        self.consistency = consistency
        self.segmenters = bpe_dropout_segmenters(task)
        framing = task.framing
        if (
            task.model.is_decoder_only
            and task.model.supports_packing
            and framing.pad != framing.eos
            and not sampling + consistency
        ):
            self.aligned, self.make_row = True, self._joined

    @property
    def doubled(self) -> bool:
        return self.consistency > 0

    @property
    def static_shapes(self) -> bool:
        return not self.sampling

    @property
    def supports_packing(self) -> bool:
        return super().supports_packing and (self.aligned or not self.task.model.is_decoder_only)

    def _joined(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Source and target as the one sequence that the model reads, the answers to the target's part alone."""
        framing = self.task.framing
        source = concat_ids(framing.source_prefix, store.source(index), framing.source_suffix)
        target = concat_ids((framing.bos,), store.target(index), (framing.eos,))
        silent = np.full(len(source), framing.pad)
        return BatchRow(concat_ids(source, target[:-1]), concat_ids(silent, target[1:]))

    def __call__(self, model: Any, batch: Batch, step: int = 0) -> Loss:
        if batch.label_positions is not None:
            x, ctx = model.read(batch.source, source_layout(batch))
            return source_token_loss(self.task, model.output, x, batch, ctx)
        fed, layouts = batch.target, (source_layout(batch), target_layout(batch))
        if self.sampling and torch.is_grad_enabled():
            fed = self._own_words(model, batch, self.sampling_ratio(step))
        features, ctx = model.forward_features(batch.source, layouts[0], fed, layouts[1])
        sums = token_loss(model.output, features, batch.labels, self.task.label_smoothing, self.consistency)
        return reduce_loss(sums, batch.labels, ctx.auxiliary_losses)

    def sampling_ratio(self, step: int) -> float:
        """How much of the target is fed in the model's own words at a step."""
        return self.sampling * (1 - teacher_forcing_ratio(step / self.sampling_steps, self.decay))

    @torch.no_grad()
    def _own_words(self, model: Model, batch: Batch, share: float) -> Tensor:
        """B T: the target with a share of its tokens replaced by tokens sampled from the model.

        R-Drop compares two passes over the same input, so the two copies of a batch share their sampled tokens.
        """
        copies = 2 if self.doubled else 1
        source, lengths, fed, fed_lengths = (
            side[: len(side) // copies]
            for side in (batch.source, batch.source_lengths, batch.target, batch.target_lengths)
        )
        layouts = Layout.padded(source.shape[1], lengths), Layout.padded(fed.shape[1], fed_lengths)
        features, _ = model.forward_features(source, layouts[0], fed, layouts[1])
        some = features.flatten(0, 1).split(1024)  # a part at a time: logits are large
        words = torch.cat([self._draw(model, part) for part in some]).view_as(fed)
        own = torch.rand(fed.shape, device=fed.device) < share
        own &= layouts[1].positions > 0  # START stays
        return torch.where(own, words.roll(1, 1), fed).repeat(copies, 1)

    def _draw(self, model: Model, features: Tensor) -> Tensor:
        """T D → T words drawn from what the model would say."""
        logits = at_least_float32(model.output(features))
        return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def bpe_dropout_segmenters(task: TaskContext) -> SubwordSamplers:
    """BPE dropout for source and target; vectors are not segmented."""
    text = task.model.source_features is None
    return (
        BPEDropout(task.source_tokenizer, task.bpe_dropout) if task.bpe_dropout and text else None,
        BPEDropout(task.target_tokenizer, task.bpe_dropout) if task.bpe_dropout else None,
    )


def teacher_forcing_ratio(done: float, decay: SamplingDecay) -> float:
    """The share of right words, falling from 1 to 0 as `done` grows from 0 to 1 (Bengio et al. 2015, §2.4)."""
    done = min(1.0, done)
    shares: dict[str, Any] = {
        "linear": lambda: 1 - done,
        "exponential": lambda: 0.01**done,
        "inverse-sigmoid": lambda: 1 / (1 + math.exp(10 * (done - 0.5))),
    }
    return shares[decay]()
