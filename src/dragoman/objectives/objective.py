"""What every objective has: how its rows are made from a store, and what a training step makes smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dragoman.data import Batch, Rows
from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.parts.embedding import OutputLayer
from dragoman.parts.mixer import Ctx
from dragoman.text import Framing, Tokenizer

CHUNK = 2**25  # logits that exist at a time
NOTHING = -100  # the answer where there is no question
Reads = Literal["pairs", "text", "tags", "turns"]


@dataclass(frozen=True)
class Loss:
    """A sum over `count` answers, and the sums that it is made of; `likelihood` is always one of them."""

    total: Tensor
    count: int
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Material:
    """What an objective has to work with."""

    model: Model
    source: Tokenizer
    target: Tokenizer
    framing: Framing
    label_smoothing: float = 0.0
    dropout: float = 0.0  # of byte pairs


class Objective:
    """`(model, batch, step) → Loss`, and how rows are made.

    An objective's settings are the keyword-only arguments of its `__init__`, plain values all.
    """

    reads: ClassVar[Reads] = "pairs"
    trains: ClassVar[tuple[type[Model], ...]] = ()  # the models that it can train
    aligned: ClassVar[bool] = False  # is there an answer to every token, or a target to be written?
    decodes: ClassVar[bool] = False  # is the model to be asked for whole targets when it is validated?
    best: ClassVar[str] = "loss"  # the measure by which validations are compared
    smooths: ClassVar[float] = 0.0  # label smoothing unless told
    counts_source: ClassVar[bool] = False  # are the source's words foretold too, as part of the target?

    def __init__(self, material: Material) -> None:
        if not isinstance(material.model, self.trains):
            kinds = " or ".join(kind.__name__.removesuffix("Model") for kind in self.trains)
            raise UserError(
                f"this objective trains a model of kind {kinds}, but the system is of kind "
                f"{type(material.model).__name__.removesuffix('Model')}: choose another objective or another system"
            )
        if self.aligned and material.framing.pad == material.framing.end:
            raise UserError(
                "this objective marks what is not asked with the symbol for padding, but here that is also the one "
                "that ends a sentence: use a checkpoint with one of its own"
            )
        self.material = material
        self.rows: Rows | None = None  # None: plain pairs with their framing
        self.copies: int | None = None  # epochs after which the same rows come again; None: never

    def __call__(self, model: Any, batch: Batch, step: int = 0) -> Loss:
        raise NotImplementedError

    def width(self, source: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
        """How wide rows of such lengths in the store will be, about."""
        framing = self.material.framing
        around = len(framing.before) + len(framing.after)
        return self.material.model.width(source + around, target + 2)


def words_lost(
    output: OutputLayer, features: Tensor, answers: Tensor, pad: int, smoothing: float = 0.0
) -> dict[str, Tensor]:
    """N D, N → `likelihood`: −Σ log p of the answers that are not `pad`; `spread`: −Σ of the mean log p of all words.

    `correct` counts the answers that were likeliest, when nothing is learned from it. A large vocabulary is dealt with
    in chunks of tokens, whose logits are computed again for the backward pass, so that no more than CHUNK exist.
    """

    def lost(some: Tensor, right: Tensor) -> tuple[Tensor, ...]:
        log_p = output(some).float().log_softmax(-1)  # N V
        likelihood = F.nll_loss(log_p, right, ignore_index=pad, reduction="sum")
        spread, correct = torch.zeros_like(likelihood), torch.zeros_like(likelihood)
        if smoothing:
            spread = -log_p.mean(-1).masked_fill(right == pad, 0.0).sum()
        if not torch.is_grad_enabled():
            correct = ((log_p.argmax(-1) == right) & (right != pad)).sum().float()
        return likelihood, spread, correct

    size = max(1, CHUNK // output.weight.shape[0])
    if len(features) <= size:
        sums: Sequence[Tensor] = lost(features, answers)
    else:
        chunks = zip(features.split(size), answers.split(size))
        parts = [checkpoint(lost, some, right, use_reentrant=False) for some, right in chunks]
        sums = [torch.stack(some).sum() for some in zip(*parts)]
    return dict(zip(("likelihood", "spread", "correct"), sums))


def smoothed(sums: dict[str, Tensor], smoothing: float) -> Tensor:
    """Cross-entropy with label smoothing ε: the right word is to get 1 − ε, all words ε/V (Szegedy et al. 2016)."""
    return (1 - smoothing) * sums["likelihood"] + smoothing * sums["spread"]


def answered(material: Material, output: OutputLayer, features: Tensor, batch: Batch, ctx: Ctx) -> Loss:
    """The loss of a batch whose target answers every token of its source."""
    pad, smoothing = material.framing.pad, material.label_smoothing
    sums = words_lost(output, *asked(features, batch.target, pad), pad, smoothing)
    total = smoothed(sums, smoothing)
    for auxiliary in ctx.losses:
        total = total + auxiliary * batch.target_tokens
    return Loss(total, batch.target_tokens, {name: part.detach() for name, part in sums.items()})


def asked(features: Tensor, answers: Tensor, pad: int) -> tuple[Tensor, Tensor]:
    """B T D, B T → N D, N: only where there is an answer, so that the output layer does no work for the others."""
    chosen = answers != pad
    return features[chosen], answers[chosen]


def row(*parts: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Tokens and symbols one after the other."""
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
