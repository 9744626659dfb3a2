"""The result of a search that is still running: what is certain already, and the best hypothesis so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import torch

from dragoman.search.search_state import PAD, SearchState


@dataclass(frozen=True)
class PartialResult:
    """The result for one source so far, without BOS and EOS."""

    stable_prefix: list[int]  # common prefix of all hypotheses: it does not change any more
    best_tokens: list[int]  # the best hypothesis
    score: float  # its log p
    single_hypothesis: bool  # whether the search has one hypothesis only


def partial_result(
    state: SearchState, source: int, eos: int, length_divisor: Callable[[float], float]
) -> PartialResult | None:
    """Return the result for one source so far, or None if all its hypotheses were dropped.

    `length_divisor` gives the number by which the score of a hypothesis of some length is divided in comparisons.
    """
    step = int(state.step[source])
    rows = zip(state.output_tokens[source, :, :step].tolist(), state.scores[source].tolist())
    live = [([token for token in row if token != PAD], score) for row, score in rows]
    hypotheses = [(tokens, score, score / length_divisor(len(tokens))) for tokens, score in live if score > -torch.inf]
    for buffer in state.strategy.finished_buffers + state.strategy.truncated_buffers:
        columns = (buffer.tokens, buffer.lengths, buffer.scores, buffer.normalized_scores)
        for tokens, length, score, normalized in zip(*(column[source].tolist() for column in columns)):
            if score > -torch.inf:
                hypotheses.append((tokens[:length], score, normalized))
    if not hypotheses:
        return None
    targets = [tokens[:-1] if tokens[-1:] == [eos] else tokens for tokens, _, _ in hypotheses]
    best = max(range(len(hypotheses)), key=lambda number: hypotheses[number][2])
    stable_prefix = [column[0] for column in takewhile(lambda column: len({*column}) == 1, zip(*targets))]
    return PartialResult(stable_prefix, targets[best], hypotheses[best][1], state.scores.shape[1] == 1)
