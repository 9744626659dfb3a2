"""Dragoman's search over the checkpoint, imported."""

from __future__ import annotations

import torch

from dragoman import checkpoint
from dragoman.data.batch_arrays import pad_rows
from dragoman.interop.huggingface import read_checkpoint
from dragoman.memory import keep_freed_memory
from dragoman.parts.inference import PACKS, optimize_for_inference, to_bfloat16
from dragoman.search import Beam, LengthLimit, SpecialTokens, build_engine
from dragoman.search.engine import SearchEngine
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
        model = to_bfloat16(model)
    if weights in PACKS:
        model = optimize_for_inference(model, weights)
    framing = found.framing
    symbols = SpecialTokens(framing.bos, framing.eos, framing.suppressed)
    length = LengthLimit(0, asked.tokens, asked.tokens, min=asked.tokens)
    engines: dict[int, SearchEngine] = {}

    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        place = asked.device
        source, lengths = pad_rows(sources, framing.pad)
        keys = torch.arange(len(sources))
        settings = Beam(beam, length_limit=length)
        if beam not in engines:
            engines[beam] = build_engine([model], symbols, settings, compile=weights == "compiled")
        limits = torch.full_like(lengths, asked.tokens).to(place)
        hypotheses = engines[beam].search(source.to(place), lengths.to(place), limits, keys.to(place))
        return [some[0].tokens for some in hypotheses]

    return translate
