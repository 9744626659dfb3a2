"""Required phrases: beam search for targets that contain given phrases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.parts.precision import at_least_float32
from dragoman.search.beam import BeamSearch, BeamState, best_continuations
from dragoman.search.engine import gather_rows
from dragoman.search.search_state import Hypothesis, HypothesisBuffer, RequiredPhraseTensors, SearchState
from dragoman.text import Tokenizer

NO_TOKEN = -1  # padding after the tokens of a phrase


def encode_phrase(tokenizer: Tokenizer, phrase: str) -> tuple[int, ...]:
    """Return the token ids of a phrase as it is segmented within a text; a word outside the vocabulary is a UserError.

    If the tokenizer marks spaces, the phrase begins (or ends) at a word boundary: “▁house” (or “house▁”). If spaces are
    tokens (characters, bytes), it may be a part of a word. The phrase is encoded as if it followed other words, because
    some tokenizers (byte-level ones of other libraries) add no space at the beginning of a text. The last word may go
    on after the phrase: “▁house” also occurs in “▁house s”.
    """
    phrase = " ".join(phrase.split())
    if not phrase:
        raise UserError("a required phrase is empty: remove it, or give the words that the target must contain")
    ids = tokenizer.encode_within_text(phrase)
    if not {*tokenizer.unknown_ids}.isdisjoint(ids):
        raise UserError(f"the required phrase {phrase!r} has a word outside the target vocabulary: choose other words")
    return tuple(ids)


def required_phrase_tensors(
    required: Sequence[Sequence[Sequence[int]]], device: torch.device | None = None
) -> RequiredPhraseTensors:
    """Return the required phrases of each source as tensors; `required[b]` are those of source b, as token ids.

    A phrase within another required phrase is left out, since it occurs wherever that one does. The tensors, on
    `device` (None: the CPU), are for C phrases of up to L tokens `tokens` (B C L, padded), `lengths` (B C), `counts`
    (B C: how often the phrase must occur) and `transitions` (B C L L: [j, i] is the number of matched tokens after j
    matched tokens and then the i-th token of the phrase).
    """
    # by source: how often each phrase is required
    counted = [_without_contained(Counter(map(tuple, phrases))) for phrases in required]
    batch = len(counted)
    # at least 1, since some operations do not allow empty tensors
    num_phrases = max((len(phrases) for phrases in counted), default=0) or 1
    max_length = max((len(phrase) for phrases in counted for phrase in phrases), default=0) or 1
    tokens = torch.full((batch, num_phrases, max_length), NO_TOKEN)
    lengths, counts = torch.zeros(2, batch, num_phrases, dtype=torch.long).unbind(0)
    transitions = torch.zeros(batch, num_phrases, max_length, max_length, dtype=torch.long)
    for source, phrases in enumerate(counted):
        for number, (phrase, count) in enumerate(phrases.items()):
            length = len(phrase)
            tokens[source, number, :length] = torch.tensor(phrase)
            lengths[source, number], counts[source, number] = length, count
            transitions[source, number, :length, :length] = torch.tensor(_transitions(phrase))
    return RequiredPhraseTensors(*(tensor.to(device) for tensor in (tokens, lengths, counts, transitions)))


def check_phrases_fit(phrases: RequiredPhraseTensors, max_lengths: Tensor, forced: int | Tensor = 0) -> None:
    """Raise a UserError if the required phrases of a source do not fit in its target, without overlapping.

    Args:
        phrases: `counts` and `lengths` (B C) are how often each of C phrases must occur, and its number of tokens.
        max_lengths: B, the largest number of tokens of each target, EOS included.
        forced: The number of tokens that are forced at the beginning of the targets, for all or for each (B).
    """
    needed = (phrases.counts * phrases.lengths).sum(1)  # B
    available = max_lengths.to(needed.device) - 1 - forced  # without EOS and forced tokens
    for length, limit in zip(needed.tolist(), available.tolist()):
        if length > limit:
            raise UserError(
                f"the required phrases of a source have {length} tokens, but its target may have at most "
                f"{max(0, limit)} within the length limit: require fewer phrases, or raise length_limit.max "
                "(search.max_target_length)"
            )


@dataclass(kw_only=True)
class ConstrainedBeamState(BeamState):
    """The state of beam search with required phrases."""

    occurrences: Tensor  # B K C: how often a hypothesis contains each phrase
    matched: Tensor  # B K C: how many tokens of the next occurrence it ends with
    incomplete: HypothesisBuffer  # truncated by the length limit, without all phrases


class ConstrainedBeam(BeamSearch):
    """Beam search with required phrases: dynamic beam allocation (Post & Vilar 2018), vectorized (Hu et al. 2019, §3).

    The candidates of a step are those of `BeamSearch`, the best token of each hypothesis, and the next token of every
    phrase that it lacks. They fall into banks by the number of phrase tokens that they contain: those of complete
    phrases, and of the longest phrase that is begun. The beam takes the best candidate of each bank, the fullest bank
    first, then the second best of each, and so on. A hypothesis may finish only if it contains all phrases. If no such
    hypothesis is found, truncated ones without all phrases are returned, as unfinished. In every step a hypothesis of
    the fullest bank continues its phrase, so phrases that fit are always generated, unless logits processors forbid
    them. Without phrases this is `BeamSearch`.

    Phrases occur in the target without interruption. An interrupted phrase falls back to the longest prefix of it that
    the hypothesis ends with. All phrases are tracked at once, so they may overlap: “New York” contains “York” as well.
    Unlike in the paper, phrases with a common prefix need no special treatment. A phrase that is required n times must
    occur n times without overlapping itself. A beam with fewer hypotheses than banks generates phrases early.
    """

    def init_state(self, state: SearchState, max_length: int) -> SearchState:
        """Return the initial state of a beam search for targets of at most `max_length` tokens, with no phrase matched.

        `occurrences` and `matched` (B K C) count, for each of C phrases, its occurrences in a hypothesis, and how many
        of its first tokens the hypothesis ends with. `incomplete` will hold hypotheses that reach the length limit
        without all phrases.
        """
        state = super().init_state(state, max_length)
        phrases = state.constraints.required
        assert phrases is not None
        batch, rows = state.scores.shape
        zeros = torch.zeros(batch, rows, phrases.tokens.shape[1], dtype=torch.long, device=state.scores.device)
        incomplete = HypothesisBuffer.empty(batch, rows, max_length, state.scores.device)
        beam = ConstrainedBeamState(
            **vars(state.strategy), occurrences=zeros, matched=zeros.clone(), incomplete=incomplete
        )
        return replace(state, strategy=beam)

    def select(
        self,
        state: SearchState,
        logits: Tensor,
        log_normalizer: Tensor,
        attention: Tensor | None,
        penalty: Tensor | None = None,
    ) -> tuple[SearchState, Tensor]:
        """Select the K continuations (a hypothesis and one more token) of each source that its beam continues with.

        Continuations are grouped into banks by the number of tokens of required phrases that they contain, and the beam
        is filled from all banks in turn. The beam's state counts, for each of C phrases, its `occurrences` in a
        hypothesis and how many of its first tokens the hypothesis ends with (`matched`), B K C each.

        Args:
            logits: B K V, of the next tokens of B sources with K hypotheses each.
            log_normalizer: B K, log Σ exp of the logits.
            attention: B K S, attention weights over the S source positions; None if there is no coverage penalty.
            penalty: B V, subtracted from log p when continuations are compared, but not from their scores; None: 0.

        Returns:
            the new state, and for each new hypothesis the index (0 … K−1) of the one that it continues, B K.
        """
        beam, phrases = self._with_attention(state, attention), state.constraints.required
        assert isinstance(beam, ConstrainedBeamState)
        assert phrases is not None
        # B N, for N candidates
        scores, parents, tokens = self._candidates(state, at_least_float32(logits), log_normalizer, penalty)
        occurrences, matched = match_token(
            phrases, gather_rows(beam.occurrences, parents), gather_rows(beam.matched, parents), tokens
        )  # B N C
        bank = matched_tokens(phrases, occurrences, matched)  # B N: number of phrase tokens
        is_eos = tokens == self.eos

        # continuations by EOS finish if they are among the first K that are selected from the banks
        best = allocate(scores, bank, self.rows_per_source)  # B K
        finished_scores = torch.where(is_eos, scores, -torch.inf).gather(1, best)

        # the first K without EOS are the new hypotheses
        live_scores = torch.where(is_eos, -torch.inf, scores)
        live = allocate(live_scores, bank, self.rows_per_source)
        beam = replace(beam, occurrences=gather_rows(occurrences, live), matched=gather_rows(matched, live))
        after = self._add_finished(state, beam, finished_scores, parents.gather(1, best))
        return self._continue(
            state, after, live_scores.gather(1, live), tokens.gather(1, live), parents.gather(1, live)
        )

    def _truncate(self, state: SearchState, beam: BeamState, scores: Tensor, parents: Tensor) -> BeamState:
        """Return the beam's state with the live hypotheses of sources at their length limit in one of two buffers.

        Hypotheses with all required phrases, of which `beam.occurrences` (B K C) counts the occurrences, are stored in
        `truncated`, others in `incomplete`. `scores` (B K) are log p of the hypotheses, −∞ marks an unused row;
        `parents` (B K) are the indices of those that they continue.
        """
        assert isinstance(beam, ConstrainedBeamState)
        assert state.constraints.required is not None
        complete = contains_all(state.constraints.required, beam.occurrences)
        truncated, incomplete = (
            self._record_truncated(buffer, state, beam, scores.masked_fill(~rows, -torch.inf), parents)
            for buffer, rows in ((beam.truncated, complete), (beam.incomplete, ~complete))
        )
        return replace(beam, truncated=truncated, incomplete=incomplete)

    def _candidates(
        self, state: SearchState, logits: Tensor, log_normalizer: Tensor, penalty: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the candidate continuations (a hypothesis and one more token) of each source: three tensors, B N.

        The tensors are the scores (log p, −∞ for an unused entry), the parents (indices 0 … K−1 of the hypotheses) and
        the new tokens. Candidates are the 2K best continuations of a source, and for each hypothesis its best token and
        the next token of every phrase that it lacks. EOS is allowed only in hypotheses with all phrases.

        Args: `logits` B K V, of the next tokens; `log_normalizer` B K, their log Σ exp; `penalty` B V, subtracted from
        log p when continuations are compared (None: 0). `beam.occurrences` and `beam.matched` (B K C) count complete
        phrases in each hypothesis, and the first tokens of each phrase that it ends with.
        """
        beam: ConstrainedBeamState = state.strategy
        phrases = state.constraints.required
        assert phrases is not None
        complete = contains_all(phrases, beam.occurrences)
        logits[..., self.eos] = logits[..., self.eos].masked_fill(~complete, -torch.inf)
        scores, parents, tokens = best_continuations(
            state.scores, logits, log_normalizer, 2 * self.rows_per_source, penalty
        )  # B 2K
        best_logits, best_tokens = logits.max(-1, keepdim=True)  # B K 1
        # B K C 1: index in each phrase of the token after those that are matched
        index = beam.matched.clamp(max=phrases.tokens.shape[-1] - 1)[..., None]
        next_tokens = phrases.tokens[:, None].expand(-1, self.rows_per_source, -1, -1).gather(3, index)[..., 0]  # B K C
        missing = beam.occurrences < phrases.counts[:, None]
        next_tokens = torch.where(missing, next_tokens, 0)  # 0: any token, whose logit becomes −∞
        phrase_logits = logits.gather(2, next_tokens).masked_fill(~missing, -torch.inf)
        log_p = (torch.cat((phrase_logits, best_logits), 2) - log_normalizer[..., None]).clamp_(max=0)
        added_scores = state.scores[..., None] + log_p  # B K C+1
        own_row = torch.arange(self.rows_per_source, device=logits.device)[:, None].expand_as(added_scores)
        scores = torch.cat((scores, added_scores.flatten(1)), 1)
        parents = torch.cat((parents, own_row.flatten(1)), 1)
        tokens = torch.cat((tokens, torch.cat((next_tokens, best_tokens), 2).flatten(1)), 1)
        # one number for each pair of parent and token, to find those that are listed twice
        continuation = torch.where(scores > -torch.inf, parents * logits.shape[-1] + tokens, -1)
        return scores.masked_fill(is_repeated(continuation), -torch.inf), parents, tokens

    def hypotheses(self, state: SearchState) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each source that contain all required phrases, best first.

        If a source has none, return those that reached the length limit without all phrases.
        """
        all_complete = super().hypotheses(state)
        all_incomplete = state.strategy.incomplete.to_hypotheses(finished=False)
        return [
            complete or incomplete[: self.config.n_best] for complete, incomplete in zip(all_complete, all_incomplete)
        ]


def match_token(
    phrases: RequiredPhraseTensors, occurrences: Tensor, matched: Tensor, tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `occurrences` and `matched` of N hypotheses per source after one more token each (`tokens`, B N).

    `occurrences` (B N C) is how often a hypothesis contains each of C phrases, `matched` (B N C) how many first tokens
    of the phrase it ends with. `phrases.transitions[…, j, i]` is the number of matched tokens after j of them and then
    the phrase's i-th token. A token that does not occur in the phrase leaves none matched.
    """
    lengths = phrases.lengths[:, None]
    same = phrases.tokens[:, None] == tokens[..., None, None]  # B N C L
    index = same.long().argmax(-1)  # B N C: first position of the token in the phrase; 0 if it does not occur
    transitions = phrases.transitions[:, None].expand(-1, tokens.shape[1], -1, -1, -1)  # B N C L L
    size = phrases.tokens.shape[-1]
    # B N C L: the number of matched tokens after each token of the phrase
    row = transitions.gather(3, matched[..., None, None].expand(*matched.shape, 1, size))[..., 0, :]
    matched = torch.where(same.any(-1), row.gather(3, index[..., None])[..., 0], 0)
    complete = (matched == lengths) & (lengths > 0)
    return occurrences + complete, torch.where(complete, 0, matched)


def matched_tokens(phrases: RequiredPhraseTensors, occurrences: Tensor, matched: Tensor) -> Tensor:
    """Return the number of tokens of required phrases that each of N hypotheses per source contains, B N.

    These are the tokens of complete phrases (`occurrences`, B N C, up to the required number) and of the longest phrase
    that the hypothesis ends with the beginning of: `matched` (B N C) is the number of its tokens.
    """
    counts = phrases.counts[:, None]  # B 1 C: how often each of C phrases is required
    partial = torch.where(occurrences < counts, matched, 0)
    return (torch.minimum(occurrences, counts) * phrases.lengths[:, None]).sum(-1) + partial.amax(-1)


def contains_all(phrases: RequiredPhraseTensors, occurrences: Tensor) -> Tensor:
    """Return whether each of N hypotheses per source contains all C phrases as often as required, B N.

    `occurrences` (B N C) is how often it contains each phrase, `phrases.counts` (B C) how often that is required.
    """
    return (occurrences >= phrases.counts[:, None]).all(-1)


def allocate(scores: Tensor, bank: Tensor, count: int) -> Tensor:
    """Return the indices (B K, 0 … N−1) of the `count` (K) candidates of each source that are selected for the beam.

    These are the best candidate of each bank, then the second best of each, and so on; in each round the banks with
    higher numbers come first. A bank is the set of candidates with the same number in `bank` (B N), which is how many
    tokens of required phrases they contain. Candidates are compared by `scores` (B N); those with score −∞ are selected
    last.
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)  # then by bank: sorted by bank and score
    order = order.gather(1, bank.gather(1, order).argsort(dim=-1, descending=True, stable=True))
    banks = bank.gather(1, order)
    index = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
    # whether each candidate, in this order, is the first of its bank
    starts = torch.cat((torch.ones_like(banks[:, :1], dtype=torch.bool), banks[:, 1:] != banks[:, :-1]), 1)
    rank = index - torch.where(starts, index, 0).cummax(1).values  # within the bank
    priority = (rank << 32) - banks  # lowest first: by rank, then by bank, the highest number first
    priority = priority.masked_fill(scores.gather(1, order) == -torch.inf, 1 << 62)  # after all others
    return order.gather(1, priority.topk(count, dim=-1, largest=False).indices)


def is_repeated(numbers: Tensor) -> Tensor:
    """Return whether each number (B N) occurs earlier in its row, B N truth values."""
    ordered, order = numbers.sort(dim=-1, stable=True)  # equal numbers become neighbours, the first one first
    repeated = torch.cat((torch.zeros_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] == ordered[:, :-1]), 1)
    return torch.zeros_like(repeated).scatter(1, order, repeated)


def _transitions(phrase: tuple[int, ...]) -> list[list[int]]:
    """Return table[j][i]: how many first tokens of the phrase are matched after its first j tokens and its i-th token.

    This is the length of the longest prefix of the phrase that these j + 1 tokens end with (the automaton of Knuth,
    Morris & Pratt 1977).
    """
    return [[_overlap(phrase, (*phrase[:j], token)) for token in phrase] for j in range(len(phrase))]


def _overlap(phrase: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """Return the length of the longest prefix of `phrase` that `tokens` end with; both are token ids."""
    return next(size for size in range(len(tokens), -1, -1) if tokens[len(tokens) - size :] == phrase[:size])


def _without_contained(phrases: Counter[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Remove phrases that are contained in another phrase that is required at least as often.

    They occur wherever that one does. Phrases are tuples of token ids, mapped to how often they are required.
    """
    return {
        phrase: count
        for phrase, count in phrases.items()
        if not any(phrase != other and count <= phrases[other] and _contains(other, phrase) for other in phrases)
    }


def _contains(phrase: tuple[int, ...], tokens: tuple[int, ...]) -> bool:
    """Whether `tokens` occur in the phrase, one after the other without interruption; both are token ids."""
    return any(phrase[start : start + len(tokens)] == tokens for start in range(len(phrase) - len(tokens) + 1))
