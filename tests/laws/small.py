"""Every system, small enough to check by brute force."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.models import Model, ModelSpec
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
    return model


@dataclass
class Pairs:
    """Padded sources and framed-in targets of different lengths."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


def pairs(vocabulary: int = VOCABULARY) -> Pairs:
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, vocabulary, (3, 7), generator=generator)
    target = torch.randint(4, vocabulary, (3, 6), generator=generator)
    target[:, 0] = SYMBOLS.start
    return Pairs(source, torch.tensor([7, 5, 2]), target, torch.tensor([6, 4, 3]))
