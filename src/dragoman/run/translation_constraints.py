"""What is asked of translations besides: how they begin, what they must contain, and what they may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.search.engine import LogitsProcessor
from dragoman.search.forbidden_phrases import ForbiddenPhrases
from dragoman.search.logits_processors import ForcedPrefix
from dragoman.search.required_phrases import check_phrases_fit, encode_required_phrases
from dragoman.search.slots import Tree
from dragoman.text import Tokenizer

TargetPrefix = str | Sequence[int]  # a text, or the very tokens


@dataclass(frozen=True)
class Constraints:
    """For some texts: a prefix each, phrases each, and one list of what none of them may contain."""

    prefixes: Sequence[TargetPrefix] | None = None
    include: Sequence[Sequence[str]] | None = None
    exclude: ForbiddenPhrases | None = None

    def select(self, rows: Sequence[int]) -> Constraints:
        """For some of the texts."""
        prefixes = None if self.prefixes is None else [self.prefixes[row] for row in rows]
        required = None if self.include is None else [self.include[row] for row in rows]
        return Constraints(prefixes, required, self.exclude)

    def at(self, row: int) -> tuple[TargetPrefix, Sequence[str]]:
        """The prefix of one of the texts, and the phrases that its translation must contain."""
        return "" if self.prefixes is None else self.prefixes[row], () if self.include is None else self.include[row]

    @property
    def logits_processors(self) -> list[LogitsProcessor]:
        rules: list[LogitsProcessor] = [] if self.exclude is None else [self.exclude]
        return rules if self.prefixes is None else [*rules, ForcedPrefix()]

    def to_tensors(self, tokenizer: Tokenizer, limits: Tensor, forced: int) -> Tree:
        """As tensors, for targets of such limits (B) after so many forced tokens; what cannot be is refused."""
        tree: Tree = {}
        begun = torch.zeros_like(limits)
        if self.prefixes is not None:
            texts = [one if isinstance(one, str) else tokenizer.decode(one) for one in self.prefixes]
            if self.exclude is not None and any(self.exclude.phrases.occurs_in(text) for text in texts):
                raise UserError("a prefix contains a phrase that is forbidden: change one of them")
            encoded = zip(self.prefixes, tokenizer.encode_batch(texts))
            tokens = [read if isinstance(given, str) else list(given) for given, read in encoded]
            for text, prefix in zip(texts, tokens):
                if tokenizer.unk in prefix:
                    raise UserError(
                        f"the prefix {text!r} has a word that the target vocabulary does not: begin with other words"
                    )
            begun = torch.tensor([len(prefix) for prefix in tokens], device=limits.device)
            for size, most in zip(begun.tolist(), (limits - 1 - forced).tolist()):
                if size > most:
                    raise UserError(
                        f"a translation is to begin with {size:,} tokens, but may have no more than {most:,}: "
                        "shorten the prefix, or raise the length limit"
                    )
            longest = max(1, int(begun.max()))
            rows = [[*[0] * forced, *prefix, *[0] * (longest - len(prefix))] for prefix in tokens]
            length = torch.where(begun > 0, begun + forced, 0)
            tree |= {"prefix": torch.tensor(rows, device=limits.device), "prefix_length": length}
        if self.include is not None:
            phrases = None if self.exclude is None else self.exclude.phrases
            wanted = encode_required_phrases(tokenizer, self.include, phrases, limits.device)
            check_phrases_fit(wanted, limits, begun + forced)
            tree |= wanted
        return tree
