"""Exhaustive search: every target up to a length, the oracle for small problems."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.search import Hypothesis, SpecialTokens
from dragoman.search.forced_decoding import token_scores

BATCH_SIZE = 4096


@torch.inference_mode()
def exhaustive_search(
    model: Model, source: Tensor, special_tokens: SpecialTokens, max_length: int, alpha: float, n_best: int = 1
) -> list[Hypothesis]:
    """Return the best targets of one source, 1 S, of at most `max_length` tokens, by log p(y|x) / |y|^α.

    Every target is scored as a whole by teacher forcing, so that no mistake is shared with step-by-step searches.
    """
    eos, suppressed = special_tokens.eos, special_tokens.suppressed
    tokens = [token for token in range(model.vocab_size) if token != eos and token not in suppressed]
    prefixes: list[list[int]] = [[]]
    hypotheses: list[Hypothesis] = []
    for length in range(max_length):
        target = torch.tensor([[special_tokens.bos, *prefix, eos] for prefix in prefixes], device=source.device)
        for start in range(0, len(prefixes), BATCH_SIZE):
            batch = target[start : start + BATCH_SIZE]
            sources = source.expand(len(batch), *source.shape[1:])
            source_lengths = torch.full((len(batch),), source.shape[1], device=source.device)
            lengths = torch.full((len(batch),), length + 2, device=source.device)
            scores = token_scores(model, sources, source_lengths, batch, lengths).sum(1).tolist()
            hypotheses += [
                Hypothesis(prefix, score, score / (length + 1) ** alpha, True)
                for prefix, score in zip(prefixes[start : start + BATCH_SIZE], scores)
            ]
        prefixes = [[*prefix, token] for prefix in prefixes for token in tokens]
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.normalized_score)[:n_best]
