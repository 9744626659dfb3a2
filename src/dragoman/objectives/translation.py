"""Translation by teacher forcing: −Σ log p(y_t | y_<t, x), fed the right words whatever the model would have said."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dragoman.data import Batch, Row, TokenStore
from dragoman.models import DecoderOnlyModel, EncoderDecoderModel, Model
from dragoman.objectives.objective import NOTHING, Loss, Material, Objective, row, smoothed, words_lost
from dragoman.parts.mixer import Layout
from dragoman.text import Dropout

Decay = Literal["linear", "exponential", "inverse-sigmoid"]


class Translation(Objective):
    """The target's words, given the source's. `sampling`: scheduled sampling (Bengio et al. 2015).

    The share of the target's words that the model is fed in its own words grows from 0 to `sampling` as the decay says
    over `sampling_steps`. Its own words are drawn from a first pass over the right ones, and the loss is that of a
    second pass (Mihaylova & Martins 2019): the same for recurrent and for parallel systems.
    """

    trains = (EncoderDecoderModel, DecoderOnlyModel)
    decodes = True
    best = "bleu"
    smooths = 0.1

    def __init__(
        self, material: Material, *, sampling: float = 0.0, sampling_steps: int = 10_000, decay: Decay = "linear"
    ) -> None:
        super().__init__(material)
        self.sampling, self.sampling_steps, self.decay = sampling, sampling_steps, decay
        if material.dropout:
            self.dropouts = [Dropout(side, material.dropout) for side in (material.source, material.target)]
            self.rows = self._segmented_anew

    def _segmented_anew(self, store: TokenStore, index: int, random: np.random.Generator) -> Row:
        """Byte pairs merged with dropout, other ones in every epoch."""
        framing, (source, target) = self.material.framing, self.dropouts
        read = store.source(index)
        if self.material.model.source_features is None:  # vectors are not segmented
            read = row(framing.before, source(read.tolist(), random), framing.after)
        return Row(read, row((framing.start,), target(store.target(index).tolist(), random), (framing.end,)))

    def __call__(self, model: Model, batch: Batch, step: int = 0) -> Loss:
        fed, smoothing = batch.target[:, :-1], self.material.label_smoothing
        real = Layout.padded(fed.shape[1], batch.target_lengths - 1).real  # by length: padding may look like END
        answers = batch.target[:, 1:].masked_fill(~real, NOTHING) if real is not None else batch.target[:, 1:]
        if self.sampling and torch.is_grad_enabled():
            fed = self._own_words(model, batch, fed, self.own_share(step))
        features, ctx = model.features(batch.source, batch.source_lengths, fed, batch.target_lengths - 1)
        sums = words_lost(model.output, features.flatten(0, 1), answers.flatten(), NOTHING, smoothing)
        total = smoothed(sums, smoothing)
        for auxiliary in ctx.losses:
            total = total + auxiliary * batch.target_tokens
        return Loss(total, batch.target_tokens, {name: part.detach() for name, part in sums.items()})

    def own_share(self, step: int) -> float:
        """How much of the target is fed in the model's own words at a step."""
        return self.sampling * (1 - teacher_share(step / self.sampling_steps, self.decay))

    @torch.no_grad()
    def _own_words(self, model: Model, batch: Batch, fed: Tensor, share: float) -> Tensor:
        features, _ = model.features(batch.source, batch.source_lengths, fed, batch.target_lengths - 1)
        words = torch.stack([self._draw(model, some) for some in features.unbind(0)])  # row by row: logits are large
        own = torch.rand(fed.shape, device=fed.device) < share
        own[:, 0] = False  # START
        return torch.where(own, words.roll(1, 1), fed)

    def _draw(self, model: Model, features: Tensor) -> Tensor:
        """T D → T words drawn from what the model would say."""
        logits = model.output(features).float()
        return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def teacher_share(done: float, decay: Decay) -> float:
    """The share of right words, falling from 1 to 0 as `done` grows from 0 to 1 (Bengio et al. 2015, §2.4)."""
    done = min(1.0, done)
    shares: dict[str, Any] = {
        "linear": lambda: 1 - done,
        "exponential": lambda: 0.01**done,
        "inverse-sigmoid": lambda: 1 / (1 + math.exp(10 * (done - 0.5))),
    }
    return shares[decay]()
