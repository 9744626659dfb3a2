"""Dragoman's search over the checkpoint, imported."""

from __future__ import annotations

import torch

from dragoman import checkpoint
from dragoman.data.padding import padded
from dragoman.interop.huggingface import read_checkpoint
from dragoman.memory import keep_freed_memory
from dragoman.parts.half import half
from dragoman.parts.quick import PACKS, quick
from dragoman.search import Beam, Length, Symbols, engine
from dragoman.search.engine import Engine
from peers.searching import Asked, Translate


def translator(asked: Asked, weights: str) -> Translate:
    """`weights`: how they are packed, or “compiled” for kernels made for the step; '' for neither."""
    torch.set_num_threads(asked.threads)
    keep_freed_memory()  # as `dragoman translate` does
    found = read_checkpoint(asked.folder)
    model = found.spec.build().eval()
    checkpoint.set_weights(model, found.weights, asked.folder)
    model = model.to(asked.device)
    if asked.gpu:
        model = half(model)
    if weights in PACKS:
        model = quick(model, weights)
    framing = found.framing
    symbols = Symbols(framing.start, framing.end, framing.banned)
    length = Length(0, asked.tokens, asked.tokens, least=asked.tokens)
    engines: dict[int, Engine] = {}

    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        place = asked.device
        source, lengths = padded(sources, framing.pad)
        keys = torch.arange(len(sources))
        settings = Beam(beam, length=length)
        if beam not in engines:
            engines[beam] = engine([model], symbols, settings, compiled=weights == "compiled")
        limits = torch.full_like(lengths, asked.tokens).to(place)
        hypotheses = engines[beam].search(source.to(place), lengths.to(place), limits, keys.to(place))
        return [some[0].tokens for some in hypotheses]

    return translate
