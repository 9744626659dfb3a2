"""Settings of low-rank adaptation."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.config.setting_declarations import Section, setting
from dragoman.errors import UserError


@dataclass(frozen=True)
class LoRAConfig(Section, section="lora"):
    """Low-rank adaptation of the model in training.start_from (Hu et al. 2021): W + (alpha / rank) · B A."""

    rank: int = setting(
        0,
        "Rank of the low-rank update (LoRA) of each matrix in lora.targets, such as 16: only these updates are "
        "trained, and all other weights are frozen. 0: no LoRA, all weights are trained.",
        min=0,
        max=10_000,
    )
    alpha: float | None = setting(
        None, "Scale α of the low-rank updates: they are multiplied by α / lora.rank.", min=0, auto="2 · lora.rank"
    )
    dropout: float = setting(
        0.0, "Dropout probability of the inputs of the low-rank updates, in training only.", min=0, max=0.99
    )
    targets: tuple[str, ...] = setting(
        ("attention",),
        "Matrices that get a low-rank update: the words attention, feed-forward or all; or single matrices of all "
        "layers: query, key, value or output in attention, widen (into the hidden layer), gate or narrow (out of it) "
        "in feed-forward layers; or patterns over the names of matrices, such as decoder.layers.*.query.",
    )
    train_also: tuple[str, ...] = setting(
        (),
        "Weights that are trained in full beside the low-rank updates: beginnings of their names up to a dot "
        "(decoder.layers.0), or patterns such as *.bias. Weights that the model in training.start_from lacks are "
        "always trained.",
    )

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one.

        A rank of 0 disables LoRA.
        """
        super().__post_init__()
        if self.rank and not self.targets:
            raise UserError(
                "lora.targets is empty: name the weight matrices that get a low-rank update, such as "
                "lora.targets=[attention] for all matrices of attention layers"
            )
        if not self.rank and (self.alpha is not None or self.train_also):
            raise UserError(
                "lora.alpha and lora.train_also have no effect without LoRA: set the rank of its updates, such "
                "as lora.rank=16, or leave out both"
            )
