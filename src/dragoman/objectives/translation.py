"""Translation by teacher forcing: −Σ log p(y_t | y_<t, x), fed the right words whatever the model would have said."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dragoman.data import Batch, Row, Segments, TokenStore
from dragoman.models import DecoderOnlyModel, EncoderDecoderModel, Model
from dragoman.objectives.objective import (
    Loss,
    Material,
    Objective,
    answered,
    loss_of,
    row,
    source_layout,
    target_layout,
    words_lost,
)
from dragoman.parts.mixer import Layout
from dragoman.parts.precision import at_least_float32
from dragoman.text import Dropout

Decay = Literal["linear", "exponential", "inverse-sigmoid"]


class Translation(Objective):
    """The target's words, given the source's. `sampling`: scheduled sampling (Bengio et al. 2015).

    The share of the target's words that the model is fed in its own words grows from 0 to `sampling` as the decay says
    over `sampling_steps`. Its own words are drawn from a first pass over the right ones, and the loss is that of a
    second pass (Mihaylova & Martins 2019): the same for recurrent and for parallel systems. `consistency`: every pair
    goes through the model twice, and what dropout made different between the two is to be small as well (α of R-Drop,
    Liang et al. 2021).
    """

    trains = (EncoderDecoderModel, DecoderOnlyModel)
    decodes = True
    best = "bleu"
    smooths = 0.1

    def __init__(
        self,
        material: Material,
        *,
        sampling: float = 0.0,
        sampling_steps: int = 10_000,
        decay: Decay = "linear",
        consistency: float = 0.0,
    ) -> None:
        super().__init__(material)
        self.sampling, self.sampling_steps, self.decay = sampling, sampling_steps, decay
        self.consistency = consistency
        self.segments = dropout_of(material)
        framing = material.framing
        if material.model.joins and material.model.packs and framing.pad != framing.end and not sampling + consistency:
            self.aligned, self.rows = True, self._joined

    @property
    def twins(self) -> bool:
        return self.consistency > 0

    @property
    def steady(self) -> bool:
        return not self.sampling

    @property
    def packs(self) -> bool:
        return super().packs and (self.aligned or not self.material.model.joins)

    def _joined(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        """Source and target as the one sequence that the model reads, the answers to the target's part alone."""
        framing = self.material.framing
        source = row(framing.before, store.source(index), framing.after)
        target = row((framing.start,), store.target(index), (framing.end,))
        silent = np.full(len(source), framing.pad)
        return Row(row(source, target[:-1]), row(silent, target[1:]))

    def __call__(self, model: Any, batch: Batch, step: int = 0) -> Loss:
        if batch.asked is not None:
            x, ctx = model.read(batch.source, source_layout(batch))
            return answered(self.material, model.output, x, batch, ctx)
        fed, layouts = batch.target, (source_layout(batch), target_layout(batch))
        if self.sampling and torch.is_grad_enabled():
            fed = self._own_words(model, batch, self.own_share(step))
        features, ctx = model.features(batch.source, layouts[0], fed, layouts[1])
        sums = words_lost(model.output, features, batch.answers, self.material.label_smoothing, self.consistency)
        return loss_of(sums, batch.answers, ctx.losses)

    def own_share(self, step: int) -> float:
        """How much of the target is fed in the model's own words at a step."""
        return self.sampling * (1 - teacher_share(step / self.sampling_steps, self.decay))

    @torch.no_grad()
    def _own_words(self, model: Model, batch: Batch, share: float) -> Tensor:
        """B T: the target with a share of its tokens replaced by tokens sampled from the model.

        R-Drop compares two passes over the same input, so the two copies of a batch share their sampled tokens.
        """
        copies = 2 if self.twins else 1
        source, lengths, fed, fed_lengths = (
            side[: len(side) // copies]
            for side in (batch.source, batch.source_lengths, batch.target, batch.target_lengths)
        )
        layouts = Layout.padded(source.shape[1], lengths), Layout.padded(fed.shape[1], fed_lengths)
        features, _ = model.features(source, layouts[0], fed, layouts[1])
        some = features.flatten(0, 1).split(1024)  # a part at a time: logits are large
        words = torch.cat([self._draw(model, part) for part in some]).view_as(fed)
        own = torch.rand(fed.shape, device=fed.device) < share
        own &= layouts[1].positions > 0  # START stays
        return torch.where(own, words.roll(1, 1), fed).repeat(copies, 1)

    def _draw(self, model: Model, features: Tensor) -> Tensor:
        """T D → T words drawn from what the model would say."""
        logits = at_least_float32(model.output(features))
        return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def dropout_of(material: Material) -> Segments:
    """BPE dropout for source and target; vectors are not segmented."""
    text = material.model.source_features is None
    return (
        Dropout(material.source, material.dropout) if material.dropout and text else None,
        Dropout(material.target, material.dropout) if material.dropout else None,
    )


def teacher_share(done: float, decay: Decay) -> float:
    """The share of right words, falling from 1 to 0 as `done` grows from 0 to 1 (Bengio et al. 2015, §2.4)."""
    done = min(1.0, done)
    shares: dict[str, Any] = {
        "linear": lambda: 1 - done,
        "exponential": lambda: 0.01**done,
        "inverse-sigmoid": lambda: 1 / (1 + math.exp(10 * (done - 0.5))),
    }
    return shares[decay]()
