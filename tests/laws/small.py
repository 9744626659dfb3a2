"""Every system, small enough to check by brute force."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman import checkpoint
from dragoman.models import EncoderDecoder, Model, ModelSpec
from dragoman.search import Symbols
from dragoman.systems import SYSTEMS, Vocabulary

SYMBOLS = Symbols(start=2, end=3, banned=(0, 1, 2))
VOCABULARY = 13

#: each system in its own words, and every choice that a system offers
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in SYSTEMS} | {
    "transformer pre-norm": ("transformer", {"pre_norm": True, "decoder_layers": 1}),
    "transformer rotary": ("transformer", {"positions": "rotary", "pre_norm": True}),
    "transformer learned": ("transformer", {"positions": "learned", "longest": 40}),
    "transformer rms": ("transformer", {"norm": "rms", "pre_norm": True}),
    "transformer untied": ("transformer", {"tied": False}),
    "luong without input feeding": ("luong", {"input_feeding": False}),
    "luong both ways": ("luong", {"direction": "both"}),
    "luong dot": ("luong", {"score": "dot"}),
    "luong scaled dot": ("luong", {"score": "scaled-dot"}),
    "luong concat": ("luong", {"score": "concat"}),
    "bahdanau general": ("bahdanau", {"score": "general"}),
    "bahdanau deep": ("bahdanau", {"layers": 2}),
    "transformer-dmca short blocks": ("transformer-dmca", {"block": 4}),
    "transformer-dmca overlapping": ("transformer-dmca", {"block": 3, "stride": 2, "kernel": 3}),
    "transformer-dmca with gaps": ("transformer-dmca", {"block": 5, "stride": 3, "kernel": 1}),
    "gnmt residual": ("gnmt", {"layers": 4}),
    "gnmt shallow": ("gnmt", {"layers": 1}),
    "deep-att deep": ("deep-att", {"layers": 3, "decoder_layers": 4}),
    "deep-att shallow": ("deep-att", {"layers": 1, "decoder_layers": 1}),
    "transformer batch norm": ("transformer", {"norm": "batch", "pre_norm": True}),
    "transformer alibi": ("transformer", {"positions": "alibi"}),
    "shaw clipped": ("shaw", {"clip": 2}),
    "shaw keys alone": ("shaw", {"clip": 3, "values": False, "pre_norm": True}),
    "roformer pre-norm": ("roformer", {"pre_norm": True, "base": 100.0}),
    "moe": ("moe", {"inner": 40}),  # of these weights every expert gets a token, and they round no worse than others
    "moe one of three": ("moe", {"inner": 32, "experts": 3, "chosen": 1, "pre_norm": True}),
    "gpt3 narrow": ("gpt3", {"window": 3, "layers": 4}),
    "palm narrow heads": ("palm", {"head_width": 6, "tied": False}),
    "llama one key head": ("llama", {"kv_heads": 1, "tied": True}),
    "unilm untied": ("unilm", {"tied": False}),
    "convs2s wide kernel": ("convs2s", {"kernel": 4, "decoder_layers": 1, "longest": 40, "tied": False}),
    "bytenet short sets": ("bytenet", {"blocks": 2, "kernel": 2, "tied": False}),
    "t5": ("t5", {"sentinels": None}),  # so that what it may write can be counted
    "t5 gated": (
        "t5",
        {"sentinels": None, "gated": True, "tied": False, "buckets": 6, "farthest": 5, "decoder_layers": 1},
    ),
    "bart untied": ("bart", {"tied": False, "shared": False, "longest": 40}),
    "bert narrow embeddings": ("bert", {"embedding": 6, "types": 3}),
    "bert untied": ("bert", {"tied": False}),
    "electra apart": ("electra", {"embedding": None, "generator": 2, "shared": False}),
    "vision": ("vision", {"features": 6}),
    "vision untied": ("vision", {"features": 6, "longest": 40, "decoder_layers": 1, "tied": False}),
    "speech": ("speech", {"features": 5, "stride": 2}),
    "speech by fours": ("speech", {"features": 5}),
    "speech frame by frame": ("speech", {"features": 5, "stride": 1, "decoder_layers": 1}),
}


def small_spec(variant: str, vocabulary: int = VOCABULARY) -> ModelSpec:
    name, settings = VARIANTS[variant]
    known = SYSTEMS[name].settings()
    small = {key: value for key, value in {"width": 16, "layers": 2, "heads": 4}.items() if key in known}
    return SYSTEMS[name].spec(Vocabulary(vocabulary, vocabulary, joint=True), "tiny", **(small | settings))


def small_model(variant: str, vocabulary: int = VOCABULARY) -> Model:
    """Weights larger than usual, so that the model has opinions and mistakes show."""
    torch.manual_seed(0)
    model = small_spec(variant, vocabulary).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0).add_(torch.randn_like(weight) * 0.1)
        if checkpoint.weights_of(model).keys() - dict(model.named_parameters()).keys():
            see_much(model, variant, vocabulary)
    return model


def see_much(model: Model, variant: str, vocabulary: int) -> None:
    """Running statistics as after training: without them nothing would be normalised."""
    some = pairs(variant, vocabulary)
    model.train()
    for _ in range(50):
        model(some.source, some.source_lengths, some.target, some.target_lengths)
    model.eval()


@dataclass
class Pairs:
    """Padded sources and framed-in targets of different lengths."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


def pairs(variant: str, vocabulary: int = VOCABULARY) -> Pairs:
    """Pairs as the variant's model reads them."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, vocabulary, (3, 7), generator=generator)
    target = torch.randint(4, vocabulary, (3, 6), generator=generator)
    target[:, 0] = SYMBOLS.start
    return Pairs(as_read(variant, source), torch.tensor([7, 5, 2]), target, torch.tensor([6, 4, 3]))


def as_read(variant: str, tokens: Tensor) -> Tensor:
    """Tokens as they are, or, for a model that reads vectors, a vector in the place of each: B S F."""
    spec = small_spec(variant)
    if not isinstance(spec, EncoderDecoder) or spec.input is None:
        return tokens
    vectors = torch.randn(VOCABULARY, spec.input.features, generator=torch.Generator().manual_seed(3))
    return vectors[tokens]
