"""Dragoman's search with the imported checkpoint."""

from __future__ import annotations

import torch

from dragoman import checkpoint
from dragoman.data.batch_arrays import pad_rows
from dragoman.interop.huggingface import read_checkpoint
from dragoman.memory import keep_freed_memory
from dragoman.parts.inference import optimize_for_inference, to_bfloat16
from dragoman.parts.packed_linear import KERNELS
from dragoman.search import Beam, LengthLimit, SpecialTokens, build_engine
from dragoman.search.engine import SearchEngine
from peers.searching import Translate, WorkerSettings


def translator(settings: WorkerSettings, weights: str) -> Translate:
    """Load the model; `weights` is a precision of packed weights, "compiled", or "" for plain weights.

    Weights are packed on a CPU only; on a GPU they are bfloat16, as in `dragoman translate`.
    """
    torch.set_num_threads(settings.threads)
    keep_freed_memory()  # as `dragoman translate` does
    converted = read_checkpoint(settings.folder)
    model = converted.spec.build().eval()
    checkpoint.set_weights(model, converted.weights, settings.folder)
    model = model.to(settings.device)
    if settings.gpu:
        model = to_bfloat16(model)
    elif weights in KERNELS:
        model = optimize_for_inference(model, weights)
    framing = converted.framing
    special_tokens = SpecialTokens(framing.bos, framing.eos, framing.suppressed)
    length = LengthLimit(0, settings.tokens, settings.tokens, min=settings.tokens)
    engines: dict[int, SearchEngine] = {}

    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        device = settings.device
        source, lengths = pad_rows(sources, framing.pad)
        keys = torch.arange(len(sources))
        config = Beam(beam, length_limit=length)
        if beam not in engines:
            engines[beam] = build_engine([model], special_tokens, config, compile=weights == "compiled")
        limits = torch.full_like(lengths, settings.tokens).to(device)
        hypotheses = engines[beam].search(source.to(device), lengths.to(device), limits, keys.to(device))
        return [nbest[0].tokens for nbest in hypotheses]

    return translate
