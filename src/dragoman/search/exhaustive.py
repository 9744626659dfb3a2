"""Exhaustive search: every target up to a length, the oracle for small problems."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.search.engine import Hypothesis, SpecialTokens
from dragoman.search.scoring import token_scores

LIMIT = 200_000


@torch.inference_mode()
def exhaustive_search(
    model: Model, source: Tensor, symbols: SpecialTokens, longest: int, alpha: float, best: int = 1
) -> list[Hypothesis]:
    """One source, 1 S → argmax over all y that END within `longest` tokens of log p(y|x) / |y|^α.

    Every target is scored as a whole by teacher forcing, so that nothing here can share a mistake with the stepping
    searches.
    """
    vocabulary = model.vocab_size
    words = [t for t in range(vocabulary) if t != symbols.eos and t not in symbols.suppressed]
    count = sum(len(words) ** length for length in range(longest))
    if count > LIMIT:
        raise UserError(f"exhaustive search over {count:,} targets was asked for, but does at most {LIMIT:,}")
    prefixes: list[list[int]] = [[]]
    found: list[Hypothesis] = []
    for length in range(longest):
        target = torch.tensor([[symbols.bos, *prefix, symbols.eos] for prefix in prefixes], device=source.device)
        for part in range(0, len(prefixes), 4096):
            some = target[part : part + 4096]
            rows = source.expand(len(some), *source.shape[1:])
            source_lengths = torch.full((len(some),), source.shape[1], device=source.device)
            lengths = torch.full((len(some),), length + 2, device=source.device)
            scores = token_scores(model, rows, source_lengths, some, lengths).sum(1).tolist()
            found += [
                Hypothesis(prefix, score, score / (length + 1) ** alpha, True)
                for prefix, score in zip(prefixes[part : part + 4096], scores)
            ]
        prefixes = [[*prefix, word] for prefix in prefixes for word in words]
    return sorted(found, key=lambda h: -h.normalized_score)[:best]
