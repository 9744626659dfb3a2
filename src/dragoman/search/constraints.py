"""Constraints on translations: prefixes, required and forbidden phrases, and n-grams that must not be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.engine import LogitsProcessor
from dragoman.search.forbidden_phrases import ForbiddenPhrases
from dragoman.search.required_phrases import check_phrases_fit, encode_phrase, required_phrase_tensors
from dragoman.search.search_state import ConstraintTensors, SearchState
from dragoman.text import Tokenizer

TargetPrefix = str | Sequence[int]  # a text, or token ids


class ForcedPrefix(LogitsProcessor):
    """Targets begin with `constraints.prefix` (B P), up to `constraints.prefix_length` (B).

    Forced tokens keep the log-probability that the model gives them, so that scores are those of teacher forcing.
    """

    def __call__(self, state: SearchState, own_state: Any, logits: Tensor) -> Tensor:
        """Return the logits with −∞ for all tokens but the next one of the prefix, until the prefix has ended.

        Logits are B K V, for K hypotheses of each of B sources. `state.step` (B) is the number of generated tokens, and
        so the index of the next token in the prefix. `own_state` is unused: the processor has no state.
        """
        prefix, length = state.constraints.prefix, state.constraints.prefix_length
        assert prefix is not None
        assert length is not None
        # B 1: the next token; after the prefix any token, which is not used then
        token = prefix.gather(1, state.step.clamp(max=prefix.shape[1] - 1)[:, None])
        index = token[:, None].expand(-1, logits.shape[1], 1)
        forced = torch.full_like(logits, -torch.inf).scatter(2, index, logits.gather(2, index))
        return torch.where((state.step < length)[:, None, None], forced, logits)


class NoRepeatNGram(LogitsProcessor):
    """Forbids tokens with which an n-gram would occur twice in a target (Paulus et al. 2018, §2.5)."""

    def __init__(self, size: int) -> None:
        """Forbid that n-grams of n = `size` tokens occur twice."""
        self.size = size

    def __call__(self, state: SearchState, own_state: Any, logits: Tensor) -> Tensor:
        """Return the logits with −∞ for tokens with which an n-gram would occur twice in the hypothesis.

        These are the tokens that follow an earlier occurrence of the last n−1 tokens. Logits are B K V, for K
        hypotheses of each of B sources; `state.output_tokens` (B K T) are the generated tokens, `state.step` (B) is
        their number. `own_state` is unused: the processor has no state.
        """
        tokens, step, n = state.output_tokens, state.step, self.size
        max_length = tokens.shape[-1]
        if max_length < n:  # no n-gram fits in a target
            return logits
        ngrams = tokens.unfold(-1, n, 1)  # B K N n: all n-grams of the output tokens
        positions = step[:, None] + torch.arange(1 - n, 0, device=step.device)  # B n−1: of the last tokens
        last = tokens.gather(2, positions.clamp(0, max_length - 1)[:, None].expand(-1, tokens.shape[1], -1))  # B K n−1
        # B N: whether the last token of each n-gram is generated already
        generated = torch.arange(n - 1, max_length, device=step.device) < step[:, None]
        # B K N: n-grams that begin with the last n−1 tokens, if there are as many
        repeats = (ngrams[..., :-1] == last[:, :, None]).all(-1) & generated[:, None] & (step >= n - 1)[:, None, None]
        token = torch.where(repeats, ngrams[..., -1], 0).clamp(min=0)  # PAD, which is negative, in rows that have ended
        bound = torch.where(repeats, -torch.inf, torch.inf)  # a minimum with ∞ leaves a logit as it is
        return logits.scatter_reduce(2, token, bound, "amin")


@dataclass(frozen=True)
class Constraints:
    """Constraints on the translations of a list of texts."""

    prefixes: Sequence[TargetPrefix] | None = None  # with which translations begin: one per text, '' for none
    include: Sequence[Sequence[str]] | None = None  # phrases that a translation must contain: one list per text
    exclude: ForbiddenPhrases | None = None  # phrases that no translation may contain

    def __bool__(self) -> bool:
        """Whether there are any constraints."""
        return self.prefixes is not None or self.include is not None or self.exclude is not None

    def select(self, text_indices: Sequence[int]) -> Constraints:
        """Return the constraints on the translations of the texts with these indices, in this order."""
        prefixes = None if self.prefixes is None else [self.prefixes[index] for index in text_indices]
        include = None if self.include is None else [self.include[index] for index in text_indices]
        return Constraints(prefixes=prefixes, include=include, exclude=self.exclude)

    def at(self, text_index: int) -> tuple[TargetPrefix, Sequence[str]]:
        """Return the prefix ("" for none) and the required phrases of the translation of one text."""
        prefix = "" if self.prefixes is None else self.prefixes[text_index]
        return prefix, () if self.include is None else self.include[text_index]

    @property
    def logits_processors(self) -> list[LogitsProcessor]:
        """The logits processors that forbid phrases (`exclude`, which is one itself) and force the prefixes.

        Required phrases (`include`) need none: the beam search itself (`ConstrainedBeam`) generates them.
        """
        processors: list[LogitsProcessor] = [] if self.exclude is None else [self.exclude]
        return processors if self.prefixes is None else [*processors, ForcedPrefix()]

    def to_tensors(self, tokenizer: Tokenizer, max_lengths: Tensor, num_forced: int) -> ConstraintTensors:
        """Return prefixes and required phrases as tensors of token ids, for a batch of B sources.

        These are `self.prefixes` and `self.include`. Required phrases that contain forbidden ones (`self.exclude`), and
        constraints that do not fit in the translations, are a UserError.

        Args:
            tokenizer: Of the target language.
            max_lengths: B, length limits of the translations in tokens, EOS included.
            num_forced: The number of tokens, such as a language token, that are generated before the prefix.
        """
        tensors = ConstraintTensors()
        prefix_lengths = torch.zeros_like(max_lengths)
        if self.prefixes is not None:
            prefixes = self._encode_prefixes(tokenizer, self.prefixes)
            prefix_lengths = torch.tensor([len(prefix) for prefix in prefixes], device=max_lengths.device)
            # a translation consists of the forced tokens, the prefix and at least EOS
            for length, limit in zip(prefix_lengths.tolist(), (max_lengths - 1 - num_forced).tolist()):
                if length > limit:
                    raise UserError(
                        f"a target prefix has {length:,} tokens, but the translation may have at most {limit:,} within "
                        "its length limit: shorten the prefix, or raise length_limit.max (search.max_target_length)"
                    )
            width = max(1, int(prefix_lengths.max()))  # a tensor without columns could not be read from
            # 0 for each forced token, which the engine generates whatever the prefix, then the prefix and padding
            padded = [[*[0] * num_forced, *prefix, *[0] * (width - len(prefix))] for prefix in prefixes]
            tensors.prefix = torch.tensor(padded, device=max_lengths.device)
            tensors.prefix_length = torch.where(prefix_lengths > 0, prefix_lengths + num_forced, 0)
        if self.include is not None:
            if self.exclude is not None:
                self.exclude.automaton.check_required(phrase for phrases in self.include for phrase in phrases)
            encoded = [[encode_phrase(tokenizer, phrase) for phrase in phrases] for phrases in self.include]
            tensors.required = required_phrase_tensors(encoded, max_lengths.device)
            check_phrases_fit(tensors.required, max_lengths, prefix_lengths + num_forced)
        return tensors

    def _encode_prefixes(self, tokenizer: Tokenizer, prefixes: Sequence[TargetPrefix]) -> list[list[int]]:
        """Return the token ids of target prefixes, each of which is a text or already token ids.

        A prefix with a forbidden phrase (`exclude`) or a word outside the vocabulary is a UserError.
        """
        texts = [prefix if isinstance(prefix, str) else tokenizer.decode(prefix) for prefix in prefixes]
        for text in texts:
            if self.exclude is not None and self.exclude.automaton.occurs_in(text):
                raise UserError(
                    f"the target prefix {text!r} contains a forbidden phrase: change the prefix or allow the phrase"
                )
        encoded = [
            ids if isinstance(prefix, str) else list(prefix)
            for prefix, ids in zip(prefixes, tokenizer.encode_batch(texts))
        ]
        for text, ids in zip(texts, encoded):
            if not {*tokenizer.unknown_ids}.isdisjoint(ids):
                raise UserError(
                    f"the target prefix {text!r} has a word outside the target vocabulary: choose other words"
                )
        return encoded


NO_CONSTRAINTS = Constraints()
