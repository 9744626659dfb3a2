"""Constraints on translations: prefixes, required phrases and forbidden phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.engine import LogitsProcessor
from dragoman.search.forbidden_phrases import ForbiddenPhrases
from dragoman.search.logits_processors import ForcedPrefix
from dragoman.search.required_phrases import check_phrases_fit, encode_phrase, required_phrase_tensors
from dragoman.search.search_state import ConstraintTensors
from dragoman.text import Tokenizer

TargetPrefix = str | Sequence[int]  # a text, or token ids


@dataclass(frozen=True)
class Constraints:
    """Constraints on the translations of some texts."""

    prefixes: Sequence[TargetPrefix] | None = None  # one per text, '' for none
    include: Sequence[Sequence[str]] | None = None  # phrases that each translation must contain
    exclude: ForbiddenPhrases | None = None  # phrases that no translation may contain

    def __bool__(self) -> bool:
        """Whether there are any constraints."""
        return self.prefixes is not None or self.include is not None or self.exclude is not None

    def select(self, rows: Sequence[int]) -> Constraints:
        """Return the constraints on some of the translations."""
        prefixes = None if self.prefixes is None else [self.prefixes[row] for row in rows]
        include = None if self.include is None else [self.include[row] for row in rows]
        return Constraints(prefixes, include, self.exclude)

    def at(self, row: int) -> tuple[TargetPrefix, Sequence[str]]:
        """Return the prefix and the required phrases of one translation."""
        return "" if self.prefixes is None else self.prefixes[row], () if self.include is None else self.include[row]

    @property
    def logits_processors(self) -> list[LogitsProcessor]:
        processors: list[LogitsProcessor] = [] if self.exclude is None else [self.exclude]
        return processors if self.prefixes is None else [*processors, ForcedPrefix()]

    def to_tensors(self, tokenizer: Tokenizer, max_lengths: Tensor, forced: int) -> ConstraintTensors:
        """Encode the constraints; raise an error if they contradict one another or do not fit.

        Args:
            max_lengths: B, of the translations, EOS included.
            forced: The number of tokens that are forced before the prefix.
        """
        tensors = ConstraintTensors()
        prefix_lengths = torch.zeros_like(max_lengths)
        if self.prefixes is not None:
            prefixes = self._encode_prefixes(tokenizer, self.prefixes)
            prefix_lengths = torch.tensor([len(prefix) for prefix in prefixes], device=max_lengths.device)
            for length, limit in zip(prefix_lengths.tolist(), (max_lengths - 1 - forced).tolist()):
                if length > limit:
                    raise UserError(
                        f"a prefix has {length:,} tokens, but the translation may have at most {limit:,}: "
                        "shorten the prefix, or raise the length limit"
                    )
            width = max(1, int(prefix_lengths.max()))
            rows = [[*[0] * forced, *prefix, *[0] * (width - len(prefix))] for prefix in prefixes]
            tensors.prefix = torch.tensor(rows, device=max_lengths.device)
            tensors.prefix_length = torch.where(prefix_lengths > 0, prefix_lengths + forced, 0)
        if self.include is not None:
            if self.exclude is not None:
                self.exclude.automaton.check_required(phrase for phrases in self.include for phrase in phrases)
            encoded = [[encode_phrase(tokenizer, phrase) for phrase in phrases] for phrases in self.include]
            tensors.required = required_phrase_tensors(encoded, max_lengths.device)
            check_phrases_fit(tensors.required, max_lengths, prefix_lengths + forced)
        return tensors

    def _encode_prefixes(self, tokenizer: Tokenizer, prefixes: Sequence[TargetPrefix]) -> list[list[int]]:
        texts = [prefix if isinstance(prefix, str) else tokenizer.decode(prefix) for prefix in prefixes]
        if self.exclude is not None and any(self.exclude.automaton.occurs_in(text) for text in texts):
            raise UserError("a prefix contains a forbidden phrase: change one of them")
        encoded = [
            ids if isinstance(prefix, str) else list(prefix)
            for prefix, ids in zip(prefixes, tokenizer.encode_batch(texts))
        ]
        for text, ids in zip(texts, encoded):
            if tokenizer.unk in ids:
                raise UserError(f"the prefix {text!r} has a word outside the target vocabulary: choose other words")
        return encoded


NO_CONSTRAINTS = Constraints()
