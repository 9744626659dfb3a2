"""Mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from dragoman.errors import UserError
from dragoman.models import EncoderDecoder
from dragoman.parts.experts import Experts
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.systems.pretrained import ADAFACTOR
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import transformer
from dragoman.systems.vocabulary import Vocabulary


def moe(
    vocabulary: Vocabulary,
    *,
    width: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    inner: int | None = None,
    experts: int = 8,
    chosen: int = 2,
    balance: float = 0.01,
    noise: float = 0.0,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    inner_dropout: float = 0.0,
    pre_norm: bool = False,
    shared: bool = True,
    tied: bool = True,
) -> EncoderDecoder:
    """Transformer whose every second feed-forward layer is a mixture of experts (Lepikhin et al. 2020).

    A token goes to the `chosen` of its `experts` that the router likes best (Shazeer et al. 2017); the paper's limits
    on how many an expert takes, and the chance by which it skips its second one, are left out: no token is dropped.
    """
    dense = transformer(
        vocabulary,
        width=width,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        inner=inner,
        dropout=dropout,
        attention_dropout=attention_dropout,
        inner_dropout=inner_dropout,
        pre_norm=pre_norm,
        shared=shared,
        tied=tied,
    )

    def mixed(stack: Stack) -> Stack:
        if stack.depth % 2:
            raise UserError(f"every second layer of moe is a mixture, but it has {stack.depth}: choose an even number")
        *attention, last = stack.block
        wrap = cast(PostNorm | PreNorm, last)
        mixture = replace(wrap, body=Experts(cast(FeedForward, wrap.body), experts, chosen, balance, noise))
        return replace(stack, block=(*stack.block, *attention, mixture), depth=stack.depth // 2)

    return replace(dense, encoder=mixed(dense.encoder), decoder=mixed(dense.decoder))


SYSTEMS: dict[str, System] = {
    "moe": System(
        moe,
        "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding",
        2020,
        {
            "tiny": {"width": 128, "layers": 2, "heads": 4, "inner": 256, "experts": 4},
            "small": {"width": 256, "layers": 4, "heads": 4, "inner": 512, "experts": 4},
            "base": {},
            "big": {"width": 1024, "layers": 12, "heads": 16, "inner": 8192, "experts": 128},
        },
        0.4,
        paper_training=PaperTraining(
            ADAFACTOR | {"label_smoothing": 0.1},
            {"dropout": 0.1},
            differences="second moments decay as in T5, without the paper's upper bound of 0.99",
        ),
        tuned={"pre_norm": True},
        recipe="modern",
    ),
}
