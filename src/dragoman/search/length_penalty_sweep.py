"""Beam search for several length penalties at once: one search, and the best hypothesis for each penalty."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.beam import BeamSearch, BeamState, search_ends
from dragoman.search.configs import Beam
from dragoman.search.engine import SpecialTokens, Strategy, gather_rows
from dragoman.search.search_state import Hypothesis, HypothesisBuffer, SearchState
from dragoman.search.topk import topk


@dataclass(frozen=True)
class LengthPenaltySweep(Beam):
    """Returns for each of A length penalties α the hypothesis that a beam search with this α returns.

    The penalty ranks finished hypotheses, but log p alone decides which hypotheses are continued. All these searches
    therefore see the same hypotheses, and one of them suffices, if it ends when each of them would have ended.

    Args:
        length_penalties: the values of α. The hypotheses of a source are in their order.
    """

    length_penalties: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Raise a UserError if the beam search with these settings cannot be shared by several length penalties."""
        super().__post_init__()
        if not self.supports(self):
            raise UserError(
                "a beam search for several length penalties at once must not be guided by any one of them: set "
                "search.beam_size to 2 or more, search.early_stopping to never (stop when no better hypothesis is "
                "possible) or steps (stop at the length limit), search.rank_unfinished to last and "
                "search.num_groups to 1, or search for each length penalty separately"
            )

    @staticmethod
    def supports(beam: Beam) -> bool:
        """Whether one beam search with these settings can find the results of several length penalties.

        It can if the penalty neither decides which hypotheses are continued nor ranks those that were truncated by the
        length limit. The stopping rules True and False, and a beam of size 1 with any rule, count finished hypotheses,
        but a sweep only stores the best one for each penalty.
        """
        counts_finished = beam.early_stopping not in ("never", "steps")
        return beam.size > 1 and not counts_finished and beam.rank_unfinished == "last" and beam.num_groups == 1

    @staticmethod
    def of(beam: Beam, length_penalties: tuple[float, ...]) -> LengthPenaltySweep:
        """Return the sweep with the settings of `beam` that finds one hypothesis for each of the length penalties."""
        # n_best: of each penalty the best hypothesis
        values = {field.name: getattr(beam, field.name) for field in fields(beam)} | {"n_best": 1}
        return LengthPenaltySweep(**values, length_penalties=length_penalties)

    @property
    def beams(self) -> list[Beam]:
        """The beam search with each of the length penalties alone, in their order."""
        names = [field.name for field in fields(Beam)]
        beam = Beam(**{name: getattr(self, name) for name in names})
        return [replace(beam, length_penalty=penalty) for penalty in self.length_penalties]

    @property
    def max_finished(self) -> int:
        """The number of finished hypotheses per source that the search stores: one for each length penalty."""
        return len(self.length_penalties)

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        """Return the object that selects the tokens of each step; phrases that targets must contain are a UserError."""
        if has_required_phrases:
            raise UserError(
                "required phrases do not work with several length penalties at once: search with one length penalty "
                "at a time, or remove the phrases"
            )
        # raises a UserError if the beam is larger than the vocabulary
        super().strategy(special_tokens, vocab_size, has_required_phrases)
        return LengthPenaltySweepSearch(self, special_tokens.eos)


class LengthPenaltySweepSearch(BeamSearch):
    """Beam search whose buffer of finished hypotheses has one entry for each of A length penalties."""

    def __init__(self, config: LengthPenaltySweep, eos: int) -> None:
        """Search with the settings `config`; `eos` is the token id that ends a hypothesis.

        `self.beams` are the settings of the beam search with each length penalty.
        """
        super().__init__(config, eos)
        self.beams = config.beams

    def _add_finished(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> BeamState:
        """Merge N hypotheses that end with EOS into the buffer of finished ones, which has one for each length penalty.

        For each of A penalties the better one of its old hypothesis and the best new one is kept. `scores` (B N) are
        log p of the new ones, −∞ marks an unused entry; `parents` (B N) are the indices of the live hypotheses to which
        EOS was appended. Returns the new state of the beam.
        """
        old, length = beam.finished, state.step + 1
        divisors = torch.stack([config.length_divisor(length) for config in self.beams], 1)  # B A
        normalized = scores[:, None] / divisors[..., None]  # B A N
        if self.needs_attention:
            # the normalized score of log p = 0 is the coverage penalty
            normalized = normalized + self._normalize(state, beam, torch.zeros_like(scores), parents)[:, None]
        candidates = torch.cat((old.normalized_scores[..., None], normalized), 2)  # B A 1+N: the old one, then new ones
        best, index = topk(candidates, 1)  # B A 1
        old_index = torch.arange(len(self.beams), device=scores.device)
        # B A: indices in A old hypotheses followed by N new ones; candidate 0 is the penalty's own old hypothesis
        order = torch.where(index[..., 0] == 0, old_index, len(old_index) - 1 + index[..., 0])
        tokens, lengths = gather_rows(state.output_tokens, parents), state.step[:, None].expand_as(scores)
        finished = HypothesisBuffer(
            normalized_scores=best[..., 0],
            scores=torch.cat((old.scores, scores), 1).gather(1, order),
            lengths=torch.cat((old.lengths, lengths), 1).gather(1, order),
            tokens=gather_rows(torch.cat((old.tokens, tokens), 1), order),
        )
        return replace(beam, finished=finished)

    def _search_ends(self, finished: Tensor, live: Tensor, length: Tensor, max_length: Tensor) -> Tensor:
        """Return whether the search of each source (B) ends before the length limit, for every length penalty.

        `finished` (B A) has the best normalized score for each of A penalties, `live` (B K) log p of the hypotheses
        that can be continued; these have `length` (B) tokens of at most `max_length` (B).
        """
        ends = [
            search_ends(beam, finished[:, index : index + 1], live, length, max_length)
            for index, beam in enumerate(self.beams)
        ]
        return torch.stack(ends).all(0)

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return for each source the best hypothesis by each length penalty, in the order of the penalties.

        If none has finished, it is the best one that was truncated by the length limit. All truncated hypotheses of a
        source have the same length, so that no penalty changes their order.
        """
        beam: BeamState = state.strategy
        all_truncated = beam.truncated.to_hypotheses(finished=False)
        buffer = beam.finished
        columns = (buffer.tokens, buffer.lengths, buffer.scores, buffer.normalized_scores)
        results = []
        # the sequences in `columns` have one entry per source, and in it one per penalty
        for truncated, *finished in zip(all_truncated, *(column.tolist() for column in columns)):
            results.append(
                [
                    Hypothesis(tokens[:length], score, normalized, finished=True)
                    if score > -torch.inf  # or else no hypothesis has finished
                    else truncated[0]
                    for tokens, length, score, normalized in zip(*finished)
                ]
            )
        return results
