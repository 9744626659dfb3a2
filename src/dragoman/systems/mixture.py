"""Mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from dragoman.errors import UserError
from dragoman.models import EncoderDecoder
from dragoman.parts.experts import MixtureOfExperts
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.systems.pretrained import ADAFACTOR_TRAINING
from dragoman.systems.system import PaperTraining, System
from dragoman.systems.transformer import transformer
from dragoman.systems.vocabulary_sizes import VocabularySizes


def moe(
    vocabulary: VocabularySizes,
    *,
    model_dim: int = 512,
    layers: int = 6,
    decoder_layers: int | None = None,
    heads: int = 8,
    ffn_dim: int | None = None,
    experts: int = 8,
    experts_per_token: int = 2,
    balance_loss_weight: float = 0.01,
    router_noise: float = 0.0,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation_dropout: float = 0.0,
    pre_norm: bool = False,
    share_embeddings: bool = True,
    tie_output: bool = True,
) -> EncoderDecoder:
    """Transformer whose every second feed-forward layer is a mixture of experts (Lepikhin et al. 2020).

    A token goes to the `experts_per_token` of its `experts` that the router likes best (Shazeer et al. 2017); the paper's limits
    on how many an expert takes, and the chance by which it skips its second one, are left out: no token is dropped.
    """
    dense = transformer(
        vocabulary,
        model_dim=model_dim,
        layers=layers,
        decoder_layers=decoder_layers,
        heads=heads,
        ffn_dim=ffn_dim,
        dropout=dropout,
        attention_dropout=attention_dropout,
        activation_dropout=activation_dropout,
        pre_norm=pre_norm,
        share_embeddings=share_embeddings,
        tie_output=tie_output,
    )

    def mixed(stack: Stack) -> Stack:
        if stack.depth % 2:
            raise UserError(f"every second layer of moe is a mixture, but it has {stack.depth}: choose an even number")
        *attention, last = stack.block
        wrap = cast(PostNorm | PreNorm, last)
        mixture = replace(
            wrap,
            body=MixtureOfExperts(
                cast(FeedForward, wrap.body), experts, experts_per_token, balance_loss_weight, router_noise
            ),
        )
        return replace(stack, block=(*stack.block, *attention, mixture), depth=stack.depth // 2)

    return replace(dense, encoder=mixed(dense.encoder), decoder=mixed(dense.decoder))


SYSTEMS: dict[str, System] = {
    "moe": System(
        moe,
        "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding",
        2020,
        {
            "tiny": {"model_dim": 128, "layers": 2, "heads": 4, "ffn_dim": 256, "experts": 4},
            "small": {"model_dim": 256, "layers": 4, "heads": 4, "ffn_dim": 512, "experts": 4},
            "base": {},
            "big": {"model_dim": 1024, "layers": 12, "heads": 16, "ffn_dim": 8192, "experts": 128},
        },
        0.4,
        paper_training=PaperTraining(
            ADAFACTOR_TRAINING | {"label_smoothing": 0.1},
            {"dropout": 0.1},
            differences="second moments decay as in T5, without the paper's upper bound of 0.99",
        ),
        tuned_settings={"pre_norm": True},
        default_recipe="modern",
    ),
}
