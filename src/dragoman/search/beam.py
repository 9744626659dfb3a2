"""Beam search: continue the K best hypotheses at each step, and collect finished ones; also in diverse groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.precision import at_least_float32
from dragoman.search import compiled_search
from dragoman.search.engine import SpecialTokens, Strategy, gather_rows, write_tokens
from dragoman.search.search_state import Hypothesis, HypothesisBuffer, SearchState, StrategyState
from dragoman.search.topk import first_true, topk, topk_continuations

if TYPE_CHECKING:
    from dragoman.search.configs import Beam

KERNEL_RULES = ("never", True, False, "steps")  # stopping rules, in the order of the compiled kernel


@dataclass(kw_only=True)
class BeamState(StrategyState):
    """The state of beam search besides tokens and scores."""

    finished: HypothesisBuffer  # hypotheses that ended with EOS
    truncated: HypothesisBuffer  # hypotheses that reached the length limit
    attention: Tensor | None  # B K S: sum of the attention weights of each hypothesis, for the coverage penalty


class BeamSearch(Strategy):
    """Finds the `config.n_best` hypotheses of each source, ranked by log p(y|x) / lp(y) + cp(x, y).

    Of the K·V continuations the 2K best are considered: an EOS among the first K finishes a hypothesis, and the first K
    others are continued. Length normalization and coverage penalty rank finished hypotheses only; log p(y|x) alone
    decides which hypotheses are continued.
    """

    reorders_rows = True

    def __init__(self, config: Beam, eos: int) -> None:
        """Search with the settings `config`; `eos` is the token id that ends a hypothesis.

        Each source has `rows_per_source` (K) rows in the batch, one per hypothesis. Attention weights are needed for
        the coverage penalty only.
        """
        self.config, self.eos, self.rows_per_source = config, eos, config.size
        self.needs_attention = config.coverage_penalty > 0
        self.divisors = torch.empty(0)  # of hypotheses with 0, 1, … tokens; computed when needed

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return the state of new sources: initial scores, and buffers for hypotheses of at most `max_length` tokens.

        All K hypotheses of a source are empty at first, and so equal: all but the first get log p = −∞, so that only
        the first is continued. The buffers will hold hypotheses that have finished (with EOS) or were truncated (at the
        length limit).
        """
        batch, device = len(state.tokens), state.tokens.device
        rows = self.rows_per_source
        scores = torch.full((batch, rows), -torch.inf, device=device)
        scores[:, 0] = 0.0
        attention = None
        if state.source_mask is not None:  # B S: only set if there is a coverage penalty, which sums attention weights
            attention = torch.zeros(batch, rows, state.source_mask.shape[1], device=device)
        return replace(
            state,
            scores=scores,
            output_tokens=torch.zeros((batch, rows, max_length), dtype=torch.long, device=device),
            strategy=BeamState(
                finished=HypothesisBuffer.empty(batch, self.config.max_finished, max_length, device),
                truncated=HypothesisBuffer.empty(batch, rows, max_length, device),
                attention=attention,
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
        """Select the best continuations (a hypothesis and one more token) of the K hypotheses of each source.

        Of the 2K best continuations, those with EOS among the first K are stored as finished, and the first K others
        become the new hypotheses.

        Args:
            logits: B K V, of the next tokens of B sources with K hypotheses each.
            log_normalizer: B K, log Σ exp of the logits.
            attention: B K S, attention weights over the S source positions; None if there is no coverage penalty.
            penalty: B V, of each token if this is a group of diverse beam search: subtracted from log p when
                continuations are compared, but not from their scores.

        Returns:
            the new state, and for each new hypothesis the index (0 … K−1) of the one that it continues, B K.
        """
        width = self.rows_per_source  # K
        beam = self._with_attention(state, attention)
        scores, parents, tokens = best_continuations(state.scores, logits, log_normalizer, 2 * width, penalty)  # B 2K
        is_eos = tokens == self.eos  # for at most one continuation of each hypothesis: K of the 2K can be continued
        finished_scores = torch.where(is_eos[:, :width], scores[:, :width], -torch.inf)
        beam = self._add_finished(state, beam, finished_scores, parents[:, :width])
        live = first_true(~is_eos, width)  # B K: indices of the best K continuations that do not end
        return self._continue(state, beam, scores.gather(1, live), tokens.gather(1, live), parents.gather(1, live))

    def fused_step(
        self, state: SearchState, logits: Tensor, special_tokens: SpecialTokens, suppressed: Tensor
    ) -> tuple[bool, Tensor | None]:
        """Continue the best hypotheses with one kernel that updates `state` in place, on a CPU.

        Logits are B K V, for K hypotheses of each source. `suppressed` (N) are the ids of tokens that are never
        generated, `special_tokens` has the id of EOS and the number of tokens (`min_length`) before which EOS is not
        generated. The kernel knows no coverage penalty, and no strategies that are derived from this one. Returns
        whether it was used (if not, nothing has changed), and the hypotheses that are continued, B K.
        """
        if type(self) is not BeamSearch or self.needs_attention or logits.is_cuda:
            return False, None
        max_length = state.output_tokens.shape[2]
        if len(self.divisors) < max_length + 2:
            self.divisors = self.config.length_divisor(torch.arange(max_length + 2)).float()
        rule = KERNEL_RULES.index(self.config.stopping_rule)
        numbers = (self.divisors, rule, self.config.n_best, self.config.length_penalty > 0)
        parents = compiled_search.beam_step(logits, suppressed, special_tokens, state, *numbers)
        return parents is not None, parents

    def _with_attention(self, state: SearchState, attention: Tensor | None) -> BeamState:
        """Add this step's attention weights (B K S) to their sum in the beam's state, and return the new state.

        Without a coverage penalty, no weights are summed (`beam.attention` is None), and the state is unchanged. With
        one, a model without attention weights (None) is a UserError.
        """
        beam: BeamState = state.strategy
        if beam.attention is None:
            return beam
        if attention is None:
            raise UserError(
                "the coverage penalty of beam search (search.coverage_penalty) needs attention to the source, but this "
                "model has none: set search.coverage_penalty to 0"
            )
        return replace(beam, attention=beam.attention + at_least_float32(attention))

    def _normalize(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> Tensor:
        """Return log p / lp + cp (with length normalization and coverage penalty) of N continuations per source, B N.

        A continuation is a hypothesis and one more token: `scores` (B N) are log p with that token, `parents` (B N) the
        indices of the hypotheses. `state.step` (B) is the number of tokens before it. `beam.attention` (B K S) is how
        much attention each hypothesis has given to each source token; None: there is no coverage penalty.
        """
        normalized = scores / self.config.length_divisor(state.step + 1)[:, None]
        if beam.attention is None or state.source_mask is None:
            return normalized
        coverage = coverage_penalty(beam.attention, state.source_mask[:, None], self.config.coverage_penalty)
        return normalized + coverage.gather(1, parents)

    def _add_finished(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> BeamState:
        """Merge N hypotheses that end with EOS into the buffer `beam.finished`; return the new state of the beam.

        The buffer keeps the hypotheses with the highest normalized scores. `scores` (B N) are log p of the new ones, −∞
        marks an unused entry; `parents` (B N) are the indices of the live hypotheses to which EOS was appended. EOS is
        neither stored nor counted in `lengths`.
        """
        old, capacity = beam.finished, beam.finished.scores.shape[1]
        tokens, lengths = gather_rows(state.output_tokens, parents), state.step[:, None].expand_as(scores)
        normalized = self._normalize(state, beam, scores, parents)
        best, order = topk(torch.cat((old.normalized_scores, normalized), 1), capacity)  # values, indices in old + new
        finished = HypothesisBuffer(
            normalized_scores=best,
            scores=torch.cat((old.scores, scores), 1).gather(1, order),
            lengths=torch.cat((old.lengths, lengths), 1).gather(1, order),
            tokens=gather_rows(torch.cat((old.tokens, tokens), 1), order),
        )
        return replace(beam, finished=finished)

    def _record_truncated(
        self, truncated: HypothesisBuffer, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor
    ) -> HypothesisBuffer:
        """Return `truncated` with the live hypotheses of those sources that reach their length limit in this step.

        `truncated` is a buffer of hypotheses that this limit cuts off; finished ones are in another buffer. The K
        entries of a source are unused until it reaches its limit, which it does only once; those of other sources do
        not change. `scores` (B K) are log p of the hypotheses, `parents` (B K) the indices of those that they continue.
        `state.step` is still that before this step, but `state.output_tokens` already contain its tokens.
        """
        at_limit = (state.max_length == state.step + 1)[:, None]
        normalized = self._normalize(state, beam, scores, parents)
        return HypothesisBuffer(
            normalized_scores=torch.where(at_limit, normalized, truncated.normalized_scores),
            scores=torch.where(at_limit, scores, truncated.scores),
            lengths=torch.where(at_limit, state.max_length[:, None], truncated.lengths),
            tokens=torch.where(at_limit[..., None], state.output_tokens, truncated.tokens),
        )

    def _truncate(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> BeamState:
        """Return the beam's state with the live hypotheses of sources at their length limit in `beam.truncated`.

        `scores` (B K) are log p of the hypotheses, `parents` (B K) the indices of those that they continue.
        """
        return replace(beam, truncated=self._record_truncated(beam.truncated, state, beam, scores, parents))

    def _continue(
        self, state: SearchState, beam: BeamState, scores: Tensor, tokens: Tensor, parents: Tensor
    ) -> tuple[SearchState, Tensor]:
        """Return the state in which the K selected continuations of each source are its hypotheses, and `parents`.

        Args (B K each): `scores`, log p of the continuations; `tokens`, their last tokens; `parents`, the indices of
        the hypotheses that they continue. Sources are marked as done if they are at their length limit, or if the
        stopping rule ends their search.
        """
        output_tokens = write_tokens(gather_rows(state.output_tokens, parents), state.step, tokens)
        state = replace(state, tokens=tokens, output_tokens=output_tokens)
        beam = self._truncate(state, beam, scores, parents)
        if beam.attention is not None:
            beam = replace(beam, attention=gather_rows(beam.attention, parents))
        length, max_length = state.step + 1, state.max_length
        ends = self._search_ends(beam.finished.normalized_scores, scores, length, max_length)
        state.done = state.done | (max_length <= length) | ends
        state.scores = scores.masked_fill(state.done[:, None], -torch.inf)  # sources that are done have no live ones
        state.strategy = beam
        return state, parents

    def _search_ends(self, finished: Tensor, live: Tensor, length: Tensor, max_length: Tensor) -> Tensor:
        """Return whether the search of each source (B) ends before the length limit, by `config.stopping_rule`.

        `finished` (B N) are the normalized scores of finished hypotheses, best first, `live` (B K) log p of the live
        ones, which have `length` (B) tokens of at most `max_length` (B). Subclasses may combine several stopping rules.
        """
        return search_ends(self.config, finished, live, length, max_length)

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each source: finished ones, then those truncated by the length limit.

        With `config.rank_unfinished` "by_score", both are ranked together by their normalized scores.
        """
        beam: BeamState = state.strategy
        results = []
        all_finished = beam.finished.to_hypotheses(finished=True)
        all_truncated = beam.truncated.to_hypotheses(finished=False)
        for finished, truncated in zip(all_finished, all_truncated):
            ranked = finished + truncated
            if self.config.rank_unfinished == "by_score":
                ranked.sort(key=lambda hypothesis: -hypothesis.normalized_score)
            results.append(ranked[: self.config.n_best])
        return results


def best_continuations(
    scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int, penalty: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the N best continuations (a hypothesis and one more token) of each source, best first.

    Args:
        scores: B K, log p of the K hypotheses of each of B sources.
        logits: B K V, of their next tokens.
        log_normalizer: B K, log Σ exp of the logits.
        count: N.
        penalty: B V, of each token in diverse beam search: subtracted from log p when continuations are compared, but
            not from the scores.

    Returns:
        the scores (log p with the new token), the indices of the hypotheses (0 … K−1), and the new tokens, B N each.
    """
    if penalty is None:
        return topk_continuations(scores, logits, log_normalizer, count)
    _, parents, tokens = topk_continuations(scores, logits - penalty[:, None], log_normalizer, count)
    index = parents * logits.shape[2] + tokens  # B N: in the K·V logits of a source
    log_p = logits.flatten(1).gather(1, index) - log_normalizer.gather(1, parents)  # without the penalty
    return scores.gather(1, parents) + log_p.clamp_(max=0), parents, tokens  # rounding must not make log p positive


def search_ends(config: Beam, finished: Tensor, live: Tensor, length: Tensor, max_length: Tensor) -> Tensor:
    """Return whether the search of each source (B) ends before the length limit, by `config.stopping_rule`.

    Args:
        finished: B N, normalized scores of the finished hypotheses, best first, −∞ for an unused entry.
        live: B K, log p of the hypotheses that can be continued, −∞ for an unused row.
        length: B, the number of tokens of the live hypotheses.
        max_length: B, the length limit, EOS included.

    The rule "steps" never ends the search early. True ends it at `config.max_finished` finished hypotheses. False ends
    it when, in addition, the best live hypothesis, normalized by its present length, is not better than the worst
    finished one: a heuristic, since with a length penalty α > 0 its normalized score may still rise.

    "never" is exact: the search ends when no continuation can become one of the n best. log p only falls as a
    hypothesis grows, and a coverage penalty is at most 0, so every continuation scores at most log p / max lp(l), with
    l from the next length to the limit; lp(l) is `config.length_divisor(l)`.
    """
    rule = config.stopping_rule
    if rule == "steps":
        return torch.zeros_like(max_length, dtype=torch.bool)
    if rule is True:
        return finished[:, config.max_finished - 1] > -torch.inf  # the last entry is used: the buffer is full
    best = live.amax(1)
    if rule is False:
        worst = finished[:, config.max_finished - 1]
        return (worst > -torch.inf) & (best / config.length_divisor(length) <= worst)
    # lp grows with the length if α > 0, and falls otherwise
    max_divisor = config.length_divisor(max_length if config.length_penalty > 0 else length + 1)
    return best / max_divisor <= finished[:, config.n_best - 1]


def coverage_penalty(attention: Tensor, source_mask: Tensor, beta: float) -> Tensor:
    """Coverage penalty cp(x, y) = β Σ_j log min(Σ_i p_ij, 1) (Wu et al. 2016, eq. 14).

    Args:
        attention: … S, attention that each source token has received, Σ_i p_ij. No attention at all counts as the
            smallest positive number, so that all hypotheses can be compared.
        source_mask: … S, False for padding.
        beta: β.

    Returns one number per hypothesis, of the shape “…”.
    """
    logs = attention.clamp(torch.finfo(attention.dtype).tiny, 1.0).log()
    return beta * torch.where(source_mask, logs, 0.0).sum(-1)


@dataclass(kw_only=True)
class DiverseBeamState(StrategyState):
    """The state of diverse beam search."""

    groups: list[BeamState]
    group_done: list[Tensor]  # B, by group: whether its search has ended

    @property
    def beams(self) -> list[BeamState]:
        """The beam states of the groups, each with buffers of finished and truncated hypotheses."""
        return self.groups


class DiverseBeamSearch(Strategy):
    """A beam of K hypotheses in G groups (Vijayakumar et al. 2018, with Hamming diversity).

    At every step the groups select their continuations one after the other. A group compares them by log p − λ n, where
    n is how often earlier groups have chosen the same token in this step; scores are log p. Each group ends by the
    beam's stopping rule. A group that has ended does not penalize others.
    """

    reorders_rows = True

    def __init__(self, config: Beam, eos: int) -> None:
        """Divide the hypotheses of the beam among its groups; `eos` is the token id that ends a hypothesis.

        `self.group` is the beam search that each group performs, with 1/num_groups of the beam size.
        """
        group_size = config.size // config.num_groups
        n_best = min(group_size, config.n_best)
        num_finished = config.num_finished
        if num_finished is not None:  # None: a group stops at as many finished hypotheses as it has rows
            num_finished = max(n_best, num_finished // config.num_groups)
        group = replace(config, size=group_size, num_groups=1, n_best=n_best, num_finished=num_finished)
        self.config, self.rows_per_source, self.group = config, config.size, BeamSearch(group, eos)

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return the joint initial state of all groups: their hypotheses side by side, and buffers for each group.

        The buffers will hold finished and truncated hypotheses of at most `max_length` tokens. `self.group` is the beam
        search of a group.
        """
        groups = [self.group.init_state(state, max_length) for _ in range(self.config.num_groups)]
        tokens = state.tokens[:, : self.group.rows_per_source]  # the first tokens, which are equal in all groups
        return self._join(state, [replace(group, tokens=tokens) for group in groups])

    def select(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, attention: Tensor | None
    ) -> tuple[SearchState, Tensor]:
        """Let the groups select continuations one after the other, each penalizing the tokens of earlier groups.

        Args:
            logits: B K V, of the next tokens of B sources with K hypotheses each.
            log_normalizer: B K, log Σ exp of the logits.
            attention: unused, since diverse beam search has no coverage penalty.

        Returns:
            the new state, and for each new hypothesis the index (0 … K−1) of the one that it continues, B K.
        """
        logits = at_least_float32(logits)  # precise enough for small penalties
        group_size, penalty = self.group.rows_per_source, torch.zeros_like(logits[:, 0])  # B V
        at_limit = (state.max_length == state.step + 1)[:, None]  # sources whose last token this is
        groups, parents = [], []
        for number in range(self.config.num_groups):
            rows = slice(number * group_size, (number + 1) * group_size)
            group, group_parents = self.group.select(
                self.group_state(state, number),
                logits[:, rows],
                log_normalizer[:, rows],
                attention=None,
                penalty=penalty,
            )
            # rows of a group that has ended hold no hypothesis (score −∞), and penalize nothing; at the length limit
            # all have ended, but the truncated hypotheses have got a token in this step; K/G: rows of one of G groups
            live = (group.scores > -torch.inf) | (at_limit & (group.strategy.truncated.scores > -torch.inf))  # B K/G
            penalty = penalty.scatter_add(1, group.tokens, (live * self.config.diversity_penalty).to(penalty.dtype))
            groups.append(group)
            parents.append(group_parents + number * group_size)  # indices in all K rows
        return self._join(state, groups), torch.cat(parents, 1)

    def group_state(self, state: SearchState, number: int) -> SearchState:
        """Return the state of group `number` (0, 1, …): its hypotheses, and its buffers of finished ones.

        A group has `group_size` rows (hypotheses) of each source; those of all groups are side by side.
        """
        diverse: DiverseBeamState = state.strategy
        group_size = self.group.rows_per_source
        rows = slice(number * group_size, (number + 1) * group_size)
        return replace(
            state,
            scores=state.scores[:, rows],
            output_tokens=state.output_tokens[:, rows],
            done=diverse.group_done[number],
            strategy=diverse.groups[number],
        )

    def _join(self, state: SearchState, groups: list[SearchState]) -> SearchState:
        """Join the states of the groups: their hypotheses side by side in dimension 1 (B K).

        A source is done when all its groups are. The other fields are those of `state`.
        """
        group_done = [group.done for group in groups]
        return replace(
            state,
            tokens=torch.cat([group.tokens for group in groups], 1),
            scores=torch.cat([group.scores for group in groups], 1),
            output_tokens=torch.cat([group.output_tokens for group in groups], 1),
            done=torch.stack(group_done).all(0),
            strategy=DiverseBeamState(groups=[group.strategy for group in groups], group_done=group_done),
        )

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each source from all groups, without duplicates.

        Finished ones come first, then those that the length limit truncated, each by their normalized scores.
        """
        groups = [self.group.hypotheses(self.group_state(state, number)) for number in range(self.config.num_groups)]
        results = []
        for source_groups in zip(*groups):
            unique = {tuple(hypothesis.tokens): hypothesis for group in source_groups for hypothesis in group}
            ranked = sorted(
                unique.values(), key=lambda hypothesis: (not hypothesis.finished, -hypothesis.normalized_score)
            )
            results.append(ranked[: self.config.n_best])
        return results
