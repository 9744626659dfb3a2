"""Greedy search, and what it shares with sampling: rows that are continued independently of one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.search.engine import SpecialTokens, Strategy, write_tokens
from dragoman.search.search_state import PAD, Hypothesis, SearchState, StrategyState
from dragoman.search.topk import argmax_with_score

if TRITON_AVAILABLE:
    from dragoman.search import kernels


@dataclass
class RowsState(StrategyState):
    """The state of rows that are continued independently."""

    ended: Tensor  # B K: rows that have generated EOS, or reached the length limit

    @property
    def ended_rows(self) -> Tensor:
        return self.ended


class IndependentRows(Strategy):
    """Rows that generate tokens independently of one another, until EOS or the length limit."""

    def __init__(self, rows: int, eos: int, length_divisor: Callable[[float], float] = lambda length: 1.0) -> None:
        """`length_divisor` gives the number by which the score of a target of some length is divided."""
        self.rows_per_source, self.eos, self.length_divisor = rows, eos, length_divisor

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        tokens = state.tokens
        return replace(
            state,
            scores=torch.zeros(tokens.shape, device=tokens.device),
            output_tokens=torch.full((*tokens.shape, max_length), PAD, device=tokens.device),
            strategy=RowsState(torch.zeros_like(tokens, dtype=torch.bool)),
        )

    def append(self, state: SearchState, tokens: Tensor, log_p: Tensor) -> tuple[SearchState, None]:
        """Append tokens with their log-probabilities, B K each, to the rows that have not ended."""
        strategy = state.strategy
        assert isinstance(strategy, RowsState)
        ended, step = strategy.ended, state.step
        output_tokens = write_tokens(state.output_tokens, step, tokens)
        now_ended = ended | (tokens == self.eos) | (step + 1 >= state.max_length)[:, None]
        state = replace(
            state,
            tokens=tokens,
            scores=torch.where(ended, state.scores, state.scores + log_p),
            output_tokens=torch.where(ended[..., None], state.output_tokens, output_tokens),
            done=now_ended.all(1) if self.rows_per_source > 1 else now_ended[:, 0],
            strategy=replace(strategy, ended=now_ended),
        )
        return state, None

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        output_tokens = state.output_tokens.flatten(0, 1).cpu().numpy().tolist()  # faster than Tensor.tolist
        rows = map(self._hypothesis, output_tokens, state.scores.flatten().tolist())
        if self.rows_per_source == 1:
            return [[hypothesis] for hypothesis in rows]
        by_source = zip(*[rows] * self.rows_per_source)  # K at a time
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in by_source]

    def _hypothesis(self, row: list[int], score: float) -> Hypothesis:
        """Return the hypothesis of a row that ends with EOS, or at the length limit."""
        tokens = row[: row.index(PAD)] if row[-1] == PAD else row
        finished = tokens[-1] == self.eos
        normalized_score = score / self.length_divisor(len(tokens))
        return Hypothesis(tokens[:-1] if finished else tokens, score, normalized_score, finished)


class Greedy(IndependentRows):
    """Greedy search: y_t = argmax p(y | y_<t, x)."""

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, None]:
        best, tokens = argmax_with_score(logits)
        return self.append(state, tokens, best - log_normalizer)

    def fused_step(self, state: SearchState, logits: Tensor, special_tokens: SpecialTokens, suppressed: Tensor) -> bool:
        if not TRITON_AVAILABLE or not logits.is_cuda:
            return False
        assert state.strategy.ended_rows is not None
        kernels.greedy_step(logits[:, 0], suppressed, special_tokens, state)
        return True
