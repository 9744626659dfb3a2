"""Greedy search and sampling: rows that are continued independently of one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dragoman.parts.precision import at_least_float32
from dragoman.parts.triton_support import TRITON_AVAILABLE
from dragoman.search import compiled_search
from dragoman.search.engine import SpecialTokens, Strategy, write_tokens
from dragoman.search.search_state import PAD, Hypothesis, SearchState, StrategyState
from dragoman.search.topk import argmax_with_score

if TRITON_AVAILABLE:
    from dragoman.search import kernels
if TYPE_CHECKING:
    from dragoman.search.configs import Sample


class IndependentRows(Strategy):
    """Rows that generate tokens independently of one another, until EOS or the length limit."""

    def __init__(self, rows: int, eos: int, length_divisor: Callable[[float], float] = lambda length: 1.0) -> None:
        """Generate `rows` hypotheses per source, each until the token id `eos`.

        `length_divisor` returns the number by which log p of a target of this length (in tokens, EOS included) is
        divided; by default 1.
        """
        self.rows_per_source, self.eos, self.length_divisor = rows, eos, length_divisor

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return the state of new sources: scores of 0, PAD at all `max_length` positions, and no row that has ended.

        A row is a hypothesis: scores are B K, output tokens B K T, for K rows of each of B sources.
        """
        tokens = state.tokens
        return replace(
            state,
            scores=torch.zeros(tokens.shape, device=tokens.device),
            output_tokens=torch.full((*tokens.shape, max_length), PAD, device=tokens.device),
            strategy=StrategyState(ended_rows=torch.zeros_like(tokens, dtype=torch.bool)),
        )

    def append(self, state: SearchState, tokens: Tensor, log_p: Tensor) -> tuple[SearchState, None]:
        """Append a token with its log p (B K each) to each row (hypothesis) that has not ended.

        A row ends with EOS or at its length limit; a source is done when all its rows have ended. Returns the new
        state, and None in place of parents: no row continues the hypothesis of another one.
        """
        ended, step = state.strategy.ended_rows, state.step  # B K truth values, B
        output_tokens = write_tokens(state.output_tokens, step, tokens)
        now_ended = ended | (tokens == self.eos) | (step + 1 >= state.max_length)[:, None]
        state = replace(
            state,
            tokens=tokens,
            scores=torch.where(ended, state.scores, state.scores + log_p),
            output_tokens=torch.where(ended[..., None], state.output_tokens, output_tokens),
            done=now_ended.all(1) if self.rows_per_source > 1 else now_ended[:, 0],  # of one row: a view is faster
            strategy=replace(state.strategy, ended_rows=now_ended),
        )
        return state, None

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the K = `rows_per_source` hypotheses of each source, highest log p first."""
        output_tokens = state.output_tokens.flatten(0, 1).cpu().numpy().tolist()  # faster than Tensor.tolist
        hypotheses = map(self._hypothesis, output_tokens, state.scores.flatten().tolist())
        if self.rows_per_source == 1:
            return [[hypothesis] for hypothesis in hypotheses]
        by_source = zip(*[hypotheses] * self.rows_per_source)  # K at a time
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in by_source]

    def _hypothesis(self, row: list[int], score: float) -> Hypothesis:
        """Return the hypothesis with these output tokens and this log p.

        `row` contains tokens up to EOS or up to the length limit, then PAD. The hypothesis has no EOS; its normalized
        score is divided by a function of the length, EOS included.
        """
        tokens = row[: row.index(PAD)] if row[-1] == PAD else row
        finished = tokens[-1] == self.eos
        normalized_score = score / self.length_divisor(len(tokens))
        return Hypothesis(tokens[:-1] if finished else tokens, score, normalized_score, finished)


class Greedy(IndependentRows):
    """Greedy search: y_t = argmax p(y | y_<t, x)."""

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, None]:
        """Append the most probable token to each row (hypothesis).

        Logits are B K V, `log_normalizer` (B K) is their log Σ exp; `attention` is unused. Returns the new state, and
        None in place of parents: no row continues the hypothesis of another one.
        """
        best_logits, tokens = argmax_with_score(logits)
        return self.append(state, tokens, best_logits - log_normalizer)

    def fused_step(
        self, state: SearchState, logits: Tensor, special_tokens: SpecialTokens, suppressed: Tensor
    ) -> tuple[bool, None]:
        """Append the most probable token to each hypothesis with one kernel that updates `state` in place.

        Logits are B 1 V: one hypothesis per source. `suppressed` (N) are the ids of tokens that are never generated,
        `special_tokens` has the id of EOS and the number of tokens (`min_length`) before which EOS is not generated.
        Returns whether there is a kernel (if not, nothing has changed), and None: no row continues another one.
        """
        if not logits.is_cuda:
            return compiled_search.greedy_step(logits, suppressed, special_tokens, state), None
        if TRITON_AVAILABLE:
            kernels.greedy_step(logits[:, 0], suppressed, special_tokens, state)
        return TRITON_AVAILABLE, None


@dataclass(kw_only=True)
class SamplingState(StrategyState):
    """The state of sampling."""

    uniform: Tensor  # B K T: random numbers from [0, 1), one per token


class Sampling(IndependentRows):
    """Draws `config.n_best` samples of each source; returns them in order of log p(y|x).

    The samples of a source depend only on the seed and on its key, not on the rest of the batch. Scores are the model's
    log p(y|x), whatever the temperature.
    """

    def __init__(self, config: Sample, eos: int) -> None:
        """Draw `config.n_best` samples per source, each until the token id `eos`."""
        super().__init__(config.n_best, eos)
        self.config = config

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return the state of new sources, with the random numbers for all samples and positions, B K T.

        They depend only on the seed, on the source's key (its number) and on the index of the sample, not on the batch.
        T is `max_length`, the largest number of tokens.
        """
        state = super().init_state(state, max_length)
        uniform = [
            [_uniform_numbers(self.config.seed, key, row, max_length) for row in range(self.rows_per_source)]
            for key in state.key.tolist()
        ]
        numbers = torch.tensor(np.array(uniform), device=state.key.device, dtype=torch.float32)
        return replace(state, strategy=SamplingState(ended_rows=state.strategy.ended_rows, uniform=numbers))

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, None]:
        """Draw the next token of each row (sample) from the rescaled and truncated probabilities, and append it.

        Logits are B K V, `log_normalizer` (B K) is their log Σ exp; `attention` is unused. Returns the new state, and
        None in place of parents: no row continues another one.
        """
        logits, uniform = at_least_float32(logits), state.strategy.uniform  # random numbers from [0, 1), B K T
        # B K 1: position of the next token; sources that are done may be beyond the last one
        index = state.step.clamp(max=uniform.shape[-1] - 1)[:, None, None].expand(*uniform.shape[:2], 1)
        tokens = draw(logits.flatten(0, 1), uniform.gather(2, index).flatten(), self.config).view_as(log_normalizer)
        return self.append(state, tokens, logits.gather(2, tokens[..., None])[..., 0] - log_normalizer)


def _uniform_numbers(seed: int, key: int, row: int, length: int) -> np.ndarray:
    """Return `length` random numbers from [0, 1) for sample `row` (0, 1, …) of the source with the number `key`.

    They depend only on `seed`, `key` and `row`. A larger `length` appends numbers: the first ones are the same.
    """
    # `row` is the highest word of the counter, which numbers only increase from the lowest: samples never overlap
    return np.random.Generator(np.random.Philox(key=[seed, key], counter=[0, 0, 0, row])).random(length)


def draw(logits: Tensor, uniform: Tensor, config: Sample) -> Tensor:
    """Draw a token for each of R rows (hypotheses), and return the token ids, R.

    Logits (R V) are divided by the temperature, and improbable tokens are left out as `config` says. The token is the
    first at which the cumulative probability exceeds the random number `uniform` (R, from [0, 1)).
    """
    # logits minus their maximum: no overflow at low temperatures
    p = ((logits - logits.amax(-1, keepdim=True)) / config.temperature).softmax(-1)
    if config.typical_p is not None:
        p = typical(p, config.typical_p)
    order = None  # R V: token ids in the order of `p`; None: `p` is in the order of token ids
    if config.truncates:
        p, order = truncate(p, config)
    cumulative = p.cumsum(-1)
    total = cumulative[:, -1:].contiguous()  # R 1: below 1 if tokens were left out
    index = torch.searchsorted(cumulative, uniform[:, None] * total, right=True)
    # rounding must not go beyond the last token with p > 0, where the sum reaches the total
    index = torch.minimum(index, torch.searchsorted(cumulative, total))
    return (index if order is None else order.gather(1, index))[:, 0]


def truncate(p: Tensor, config: Sample) -> tuple[Tensor, Tensor]:
    """Sort the probabilities of each row (R V) in descending order, and set those that `config` excludes to 0.

    Excluded are tokens with less than `min_p` times the highest probability, all but the `top_k` most probable ones,
    and those after the first ones whose sum reaches the share `top_p`. A setting that is None excludes nothing. Returns
    the sorted probabilities and their token ids, R V each.
    """
    p, order = p.sort(dim=-1, descending=True, stable=True)
    if config.min_p is not None:
        p = p.masked_fill(p < config.min_p * p[:, :1], 0.0)
    if config.top_k is not None:
        p[:, config.top_k :] = 0.0
    if config.top_p is not None:
        p = p.masked_fill(_beyond_mass(p, config.top_p), 0.0)
    return p, order


def typical(p: Tensor, mass: float) -> Tensor:
    """Typical sampling (Meister et al. 2023): keep the tokens whose −log p is closest to the entropy.

    Returns the probabilities `p` (R V, one row per hypothesis) with those of all other tokens set to 0. Of each row the
    smallest number of tokens is kept whose probabilities sum to at least `mass` of the row's sum.
    """
    log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
    # |−log p − entropy|; the entropy is −Σ p log p
    distance = (-log_p + (p * log_p).sum(-1, keepdim=True)).abs().masked_fill(p == 0, torch.inf)
    order = distance.argsort(dim=-1, stable=True)
    dropped = _beyond_mass(p.gather(1, order), mass)  # R V, in the order of distance
    return p.masked_fill(torch.zeros_like(dropped).scatter(1, order, dropped), 0.0)


def _beyond_mass(p: Tensor, mass: float) -> Tensor:
    """Return which tokens of each row to drop (R V truth values), given probabilities `p` (R V) in order of priority.

    The first tokens are kept until their probabilities sum to the share `mass` of the row's total; the first always is.
    """
    beyond = p.cumsum(-1) - p >= mass * p.sum(-1, keepdim=True)
    beyond[:, 0] = False
    return beyond
