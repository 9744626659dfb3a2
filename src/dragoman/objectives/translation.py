"""Translation by teacher forcing: −Σ log p(y_t | y_<t, x), fed the right words whatever the model would have said."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dragoman.data.batching import Batch
from dragoman.models import Model

CHUNK = 2**25  # logits


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

    def __call__(self, model: Model, batch: Batch) -> Loss:
        features, ctx = model.features(
            batch.source, batch.source_lengths, batch.target[:, :-1], batch.target_lengths - 1
        )
        likelihood, spread = self._sums(model, features.flatten(0, 1), batch.target[:, 1:].flatten())
        total = (1 - self.label_smoothing) * likelihood + self.label_smoothing * spread
        for auxiliary in ctx.losses:
            total = total + auxiliary * batch.target_tokens
        return Loss(total, batch.target_tokens, {"likelihood": likelihood.detach()})

    def _sums(self, model: Model, features: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """−Σ log p of the answers (N), and −Σ of the mean log p of all words.

        A large vocabulary is dealt with in chunks of tokens, whose logits are computed again for the backward pass, so
        that no more than CHUNK of them exist at a time.
        """

        def sums(some: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
            log_p = model.output(some).float().log_softmax(-1)  # N V
            likelihood = F.nll_loss(log_p, answers, ignore_index=self.pad, reduction="sum")
            if not self.label_smoothing:
                return likelihood, torch.zeros_like(likelihood)
            return likelihood, -log_p.mean(-1).masked_fill(answers == self.pad, 0.0).sum()

        size = max(1, CHUNK // model.vocabulary)
        if len(features) <= size:
            return sums(features, answers)
        parts = [
            checkpoint(sums, some, right, use_reentrant=False)
            for some, right in zip(features.split(size), answers.split(size))
        ]
        return torch.stack([one for one, _ in parts]).sum(), torch.stack([other for _, other in parts]).sum()
