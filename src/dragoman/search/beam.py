"""Beam search: continue the K best hypotheses at each step, and collect finished ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.precision import at_least_float32
from dragoman.search.engine import Strategy, gather_rows, write_tokens
from dragoman.search.search_state import Hypothesis, HypothesisBuffer, SearchState, StrategyState
from dragoman.search.topk import first_true, topk, topk_continuations

if TYPE_CHECKING:
    from dragoman.search.configs import Beam


@dataclass
class BeamState(StrategyState):
    """The state of beam search."""

    finished: HypothesisBuffer  # ended with EOS, best first
    truncated: HypothesisBuffer  # by the length limit
    attention: Tensor | None  # B K S: sum of the attention weights of each hypothesis, for the coverage penalty

    @property
    def finished_buffers(self) -> list[HypothesisBuffer]:
        return [self.finished]

    @property
    def truncated_buffers(self) -> list[HypothesisBuffer]:
        return [self.truncated]


class BeamSearch(Strategy):
    """Finds the `config.n_best` hypotheses of each source, ranked by log p(y|x) / lp(y) + cp(x, y).

    Of the K·V continuations the 2K best are considered: an EOS among the first K finishes a hypothesis, and the first K
    others are continued. Length normalization and coverage penalty rank finished hypotheses only; log p(y|x) alone
    decides which hypotheses are continued.
    """

    reorders_rows = True

    def __init__(self, config: Beam, eos: int) -> None:
        self.config, self.eos, self.rows_per_source = config, eos, config.size
        self.needs_attention = config.coverage_penalty > 0

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        batch, device = len(state.tokens), state.tokens.device
        rows = self.rows_per_source
        scores = torch.full((batch, rows), -torch.inf, device=device)
        scores[:, 0] = 0.0  # all hypotheses are equal at first: continue one of them
        attention = None
        if state.source_mask is not None:
            attention = torch.zeros(batch, rows, state.source_mask.shape[1], device=device)
        return replace(
            state,
            scores=scores,
            output_tokens=torch.zeros((batch, rows, max_length), dtype=torch.long, device=device),
            strategy=BeamState(
                HypothesisBuffer.empty(batch, self.config.max_finished, max_length, device),
                HypothesisBuffer.empty(batch, rows, max_length, device),
                attention,
            ),
        )

    def select(
        self,
        state: SearchState,
        logits: Tensor,
        log_normalizer: Tensor,
        attention: Tensor | None,
        penalty: Tensor | None = None,
    ) -> tuple[SearchState, Tensor]:
        """Select the best continuations; `penalty` B V is subtracted from log p in comparisons, not from scores."""
        width, step = self.rows_per_source, state.step
        beam = self._with_attention(state, attention)
        scores, parents, tokens = best_continuations(state.scores, logits, log_normalizer, 2 * width, penalty)  # B 2K
        is_eos = tokens == self.eos
        finished_scores = torch.where(is_eos[:, :width], scores[:, :width], -torch.inf)
        finished = self._add_finished(state, beam, finished_scores, parents[:, :width])
        live = first_true(~is_eos, width)  # B K
        scores, tokens, parents = scores.gather(1, live), tokens.gather(1, live), parents.gather(1, live)
        output_tokens = write_tokens(gather_rows(state.output_tokens, parents), step, tokens)
        normalized = self._normalize(state, beam, scores, parents)
        truncated = truncate(beam.truncated, state, scores, normalized, output_tokens)
        return self._continue(
            state, replace(beam, truncated=truncated), finished, scores, tokens, parents, output_tokens
        )

    def _with_attention(self, state: SearchState, attention: Tensor | None) -> BeamState:
        """Return the beam's state with this step's attention weights added."""
        beam = state.strategy
        assert isinstance(beam, BeamState)
        if beam.attention is None:
            return beam
        if attention is None:
            raise UserError("a coverage penalty needs attention to the source, but this model has none: set it to 0")
        return replace(beam, attention=beam.attention + at_least_float32(attention))

    def _normalize(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> Tensor:
        """Return log p / lp + cp of hypotheses with one more token: scores and parents B N → B N."""
        normalized = scores / self.config.length_divisor(state.step + 1)[:, None]
        if beam.attention is None or state.source_mask is None:
            return normalized
        coverage = coverage_penalty(beam.attention, state.source_mask[:, None], self.config.coverage_penalty)
        return normalized + coverage.gather(1, parents)

    def _add_finished(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> HypothesisBuffer:
        """Add hypotheses that end with EOS; scores B N, −∞ for none, and parents B N."""
        normalized = self._normalize(state, beam, scores, parents)
        return add_finished(beam.finished, scores, normalized, gather_rows(state.output_tokens, parents), state.step)

    def _continue(
        self,
        state: SearchState,
        beam: BeamState,
        finished: HypothesisBuffer,
        scores: Tensor,
        tokens: Tensor,
        parents: Tensor,
        output_tokens: Tensor,
    ) -> tuple[SearchState, Tensor]:
        """Return the state in which the selected hypotheses are continued."""
        length, max_length = state.step + 1, state.max_length
        ends = search_ends(self.config, finished.normalized_scores, scores, length, max_length)
        done = state.done | (max_length <= length) | ends
        attention = None if beam.attention is None else gather_rows(beam.attention, parents)
        state = replace(
            state,
            tokens=tokens,
            scores=scores.masked_fill(done[:, None], -torch.inf),  # hypotheses of a source that is done are dropped
            output_tokens=output_tokens,
            done=done,
            strategy=replace(beam, finished=finished, attention=attention),
        )
        return state, parents

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return finished hypotheses, followed by truncated ones or ranked together with them."""
        beam = state.strategy
        assert isinstance(beam, BeamState)
        results = []
        for finished, truncated in zip(beam.finished.to_hypotheses(True), beam.truncated.to_hypotheses(False)):
            ranked = finished + truncated
            if self.config.rank_unfinished == "by_score":
                ranked.sort(key=lambda hypothesis: -hypothesis.normalized_score)
            results.append(ranked[: self.config.n_best])
        return results


def best_continuations(
    scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int, penalty: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, parents and tokens of the best continuations, B N each, best first.

    Args:
        scores: B K, log p of the hypotheses.
        logits: B K V, of the next tokens.
        log_normalizer: B K, log Σ exp of the logits.
        count: N.
        penalty: B V, subtracted from log p where continuations are compared, but not from the scores.
    """
    if penalty is None:
        return topk_continuations(scores, logits, log_normalizer, count)
    _, parents, tokens = topk_continuations(scores, logits - penalty[:, None], log_normalizer, count)
    log_p = logits.flatten(1).gather(1, parents * logits.shape[2] + tokens) - log_normalizer.gather(1, parents)
    return scores.gather(1, parents) + log_p.clamp_(max=0), parents, tokens


def add_finished(
    buffer: HypothesisBuffer, scores: Tensor, normalized_scores: Tensor, tokens: Tensor, lengths: Tensor
) -> HypothesisBuffer:
    """Add hypotheses to a sorted buffer, where they replace worse ones.

    Args:
        scores: B N, log p, −∞ for no hypothesis; `normalized_scores` likewise.
        tokens: B N T.
        lengths: B.
    """
    size = buffer.scores.shape[1]
    best, order = topk(torch.cat((buffer.normalized_scores, normalized_scores), 1), size)
    return HypothesisBuffer(
        best,
        torch.cat((buffer.scores, scores), 1).gather(1, order),
        torch.cat((buffer.lengths, lengths[:, None].expand_as(scores)), 1).gather(1, order),
        gather_rows(torch.cat((buffer.tokens, tokens), 1), order),
    )


def truncate(
    buffer: HypothesisBuffer, state: SearchState, scores: Tensor, normalized_scores: Tensor, tokens: Tensor
) -> HypothesisBuffer:
    """Store the live hypotheses, B K, of the sources that reach their length limit with this step."""
    at_limit = (state.max_length == state.step + 1)[:, None]
    return HypothesisBuffer(
        torch.where(at_limit, normalized_scores, buffer.normalized_scores),
        torch.where(at_limit, scores, buffer.scores),
        torch.where(at_limit, state.max_length[:, None], buffer.lengths),
        torch.where(at_limit[..., None], tokens, buffer.tokens),
    )


def search_ends(config: Beam, finished: Tensor, live: Tensor, length: Tensor, max_length: Tensor) -> Tensor:
    """Return the sources (B) whose search ends before the length limit, by `config.stopping_rule`.

    Args:
        finished: B N, normalized scores of the finished hypotheses, best first, −∞ for none.
        live: B K, log p of the hypotheses that can be continued, −∞ for none.
        length: B, the number of their tokens.
        max_length: B, the length limit, EOS included.

    True stops at `config.max_finished` finished hypotheses. False stops when moreover the best live hypothesis,
    normalized by its present length, is not better than the worst of them: a heuristic, since with α > 0 its normalized
    score may still rise.

    "never" is exact: it stops when no continuation can become one of the n best. log p only falls as a hypothesis
    grows, and a coverage penalty is at most 0, so every continuation scores at most log p / max lp(l), with l from the
    next length to the limit. lp is monotonic, so its maximum is at one end.
    """
    rule = config.stopping_rule
    if rule == "steps":
        return torch.zeros_like(max_length, dtype=torch.bool)
    if rule is True:
        return finished[:, config.max_finished - 1] > -torch.inf
    best = live.amax(1)
    if rule is False:
        worst = finished[:, config.max_finished - 1]
        return (worst > -torch.inf) & (best / config.length_divisor(length) <= worst)
    return best / config.max_length_divisor(length + 1, max_length) <= finished[:, config.n_best - 1]


def coverage_penalty(attention: Tensor, source_mask: Tensor, beta: float) -> Tensor:
    """Coverage penalty cp(x, y) = β Σ_j log min(Σ_i p_ij, 1) (Wu et al. 2016, eq. 14).

    Args:
        attention: … S, attention that each source token has received, Σ_i p_ij. No attention at all counts as the
            smallest positive number, so that all hypotheses can be compared.
        source_mask: … S, False for padding.
    """
    logs = attention.clamp(torch.finfo(attention.dtype).tiny, 1.0).log()
    return beta * torch.where(source_mask, logs, 0.0).sum(-1)
