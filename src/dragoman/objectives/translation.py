"""Translation by teacher forcing: −Σ log p(y_t | y_<t, x), fed the right words whatever the model would have said."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from dragoman.data.batching import Batch
from dragoman.models import EncoderDecoderModel
from dragoman.parts.mixer import Ctx, Layout


@dataclass(frozen=True)
class Loss:
    """A sum over `count` target tokens, and the sums that it is made of."""

    total: Tensor
    count: int
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Translation:
    """Cross-entropy with label smoothing ε: the right word is to get 1 − ε, all words ε/V (Szegedy et al. 2016)."""

    label_smoothing: float = 0.0
    pad: int = 0

    def __call__(self, model: EncoderDecoderModel, batch: Batch) -> Loss:
        memory = model.encode(batch.source, Layout.padded(batch.source.shape[1], batch.source_lengths))
        ctx = Ctx(Layout.padded(batch.target.shape[1] - 1, batch.target_lengths - 1), memory)
        logits, _ = model.decode(batch.target[:, :-1], ctx)
        log_p = logits.flatten(0, 1).float().log_softmax(-1)  # B·T V
        answers = batch.target[:, 1:].flatten()
        likelihood = F.nll_loss(log_p, answers, ignore_index=self.pad, reduction="sum")
        total = likelihood
        if self.label_smoothing:
            spread = -log_p.mean(-1).masked_fill(answers == self.pad, 0.0).sum()
            total = (1 - self.label_smoothing) * likelihood + self.label_smoothing * spread
        for auxiliary in ctx.losses:
            total = total + auxiliary * batch.target_tokens
        return Loss(total, batch.target_tokens, {"likelihood": likelihood.detach()})
