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
        """Raise a UserError for a search whose end or ranking depends on more than the best finished hypothesis."""
        super().__post_init__()
        if not self.supports(self):
            raise UserError(
                "several length penalties at once need a beam of 2 or more with early_stopping 'never' or 'steps', "
                "rank_unfinished 'last' and one group: search for each length penalty separately"
            )

    @staticmethod
    def supports(beam: Beam) -> bool:
        """Whether the searches of a beam with different length penalties can be one search.

        They can if the penalty neither decides which hypotheses are continued nor ranks truncated ones.
        """
        exact = beam.early_stopping in ("never", "steps") and not isinstance(beam.early_stopping, bool)
        return beam.size > 1 and exact and beam.rank_unfinished == "last" and beam.num_groups == 1

    @staticmethod
    def of(beam: Beam, length_penalties: tuple[float, ...]) -> LengthPenaltySweep:
        """Return the sweep over length penalties of a beam search; it finds one hypothesis for each penalty."""
        values = {field.name: getattr(beam, field.name) for field in fields(beam)} | {"n_best": 1}
        return LengthPenaltySweep(**values, length_penalties=length_penalties)

    @property
    def beams(self) -> list[Beam]:
        """The beam search of each length penalty."""
        names = [field.name for field in fields(Beam)]
        beam = Beam(**{name: getattr(self, name) for name in names})
        return [replace(beam, length_penalty=penalty) for penalty in self.length_penalties]

    @property
    def max_finished(self) -> int:
        """The number of finished hypotheses of a source that are kept: one for each length penalty."""
        return len(self.length_penalties)

    def strategy(self, special_tokens: SpecialTokens, vocab_size: int, has_required_phrases: bool) -> Strategy:
        """Return the object that selects the tokens of each step; required phrases are an error."""
        if has_required_phrases:
            raise UserError("required phrases do not work with several length penalties: search for each separately")
        super().strategy(special_tokens, vocab_size, has_required_phrases)  # checks the size of the beam
        return LengthPenaltySweepSearch(self, special_tokens.eos)


class LengthPenaltySweepSearch(BeamSearch):
    """Beam search whose buffer of finished hypotheses has one place for each of A length penalties."""

    def __init__(self, config: LengthPenaltySweep, eos: int) -> None:
        """`eos` is the token id that ends a hypothesis."""
        super().__init__(config, eos)
        self.beams = config.beams

    def _add_finished(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> BeamState:
        """Keep for each length penalty the better of its old hypothesis and the best of the new ones.

        `scores` (B N) are log p of the new ones, −∞ for none; `parents` (B N) the rows that they continue.
        """
        old, length = beam.finished, state.step + 1
        divisors = torch.stack([search.length_divisor(length) for search in self.beams], 1)  # B A
        normalized = scores[:, None] / divisors[..., None]  # B A N
        if self.needs_attention:
            coverage = self._normalize(state, beam, torch.zeros_like(scores), parents)  # of log p = 0
            normalized = normalized + coverage[:, None]
        best, order = topk(torch.cat((old.normalized_scores[..., None], normalized), 2), 1)  # B A 1: 0 is the old one
        places = torch.arange(len(self.beams), device=scores.device)
        order = torch.where(order[..., 0] == 0, places, len(places) - 1 + order[..., 0])  # B A: in A old, N new ones
        tokens, lengths = gather_rows(state.output_tokens, parents), state.step[:, None].expand_as(scores)
        finished = HypothesisBuffer(
            normalized_scores=best[..., 0],
            scores=torch.cat((old.scores, scores), 1).gather(1, order),
            lengths=torch.cat((old.lengths, lengths), 1).gather(1, order),
            tokens=gather_rows(torch.cat((old.tokens, tokens), 1), order),
        )
        return replace(beam, finished=finished)

    def _search_ends(self, finished: Tensor, live: Tensor, length: Tensor, max_length: Tensor) -> Tensor:
        """Return the sources (B) for which the search of every length penalty ends before the length limit.

        `finished` (B A) has the best normalized score for each of A penalties, `live` (B K) log p of the hypotheses
        that can be continued.
        """
        ends = [
            search_ends(beam, finished[:, place : place + 1], live, length, max_length)
            for place, beam in enumerate(self.beams)
        ]
        return torch.stack(ends).all(0)

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the best hypothesis for each length penalty: finished, or else the best truncated one.

        All truncated hypotheses of a source have the same length, so that no penalty changes their order.
        """
        beam: BeamState = state.strategy
        all_truncated = beam.truncated.to_hypotheses(finished=False)
        buffer = beam.finished
        columns = (buffer.tokens, buffer.lengths, buffer.scores, buffer.normalized_scores)
        results = []
        for truncated, *finished in zip(all_truncated, *(column.tolist() for column in columns)):
            results.append(
                [
                    Hypothesis(tokens[:length], score, normalized, finished=True)
                    if score > -torch.inf
                    else truncated[0]
                    for tokens, length, score, normalized in zip(*finished)  # one for each penalty
                ]
            )
        return results
