"""Replacement of unknown words: <unk> is translated with a dictionary, or copied from the source.

An <unk> of a word-level model translates the source word that it is aligned with by attention (Luong et al. 2015,
“Addressing the Rare Word Problem in Neural Machine Translation”; Zhou et al. 2016).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from torch import Tensor

from dragoman.data.text_files import read_lines
from dragoman.errors import UserError
from dragoman.search.forced_decoding import TokenWordMap, word_alignment
from dragoman.text import (
    SPECIAL_TOKENS,
    UNK,
    Tokenizer,
    alignment_spans,
    alignment_words,
)

UNKNOWN_WORD = SPECIAL_TOKENS[UNK]
WordPairs = list[tuple[int, int]]  # (index of the source word, index of the target word)


def read_dictionary(path: Path) -> dict[str, str]:
    """Read a dictionary with one `source<TAB>target` per line, UTF-8, plain or gzipped; the first entry counts."""
    dictionary: dict[str, str] = {}
    for line, text in read_lines(path):
        columns = [column.strip() for column in text.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {line:,}: expected a word, a tab and its translation, got {text[:80]!r}")
        dictionary.setdefault(*columns)
    return dictionary


@dataclass(frozen=True)
class UnknownWordReplacer:
    """Replaces the unknown words of translations."""

    source: Tokenizer
    target: Tokenizer
    dictionary: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise a UserError if the target tokenizer cannot produce unknown words."""
        if not self.target.has_unknown_words:
            raise UserError(
                "replacing unknown words needs a tokenizer of words or symbols, but the target tokenizer of this run "
                f"is of kind {self.target.kind!r}, which has no unknown words: use no dictionary"
            )

    def replace(self, source: str, ids: Sequence[int], weights: Tensor) -> tuple[str, WordPairs]:
        """Return the text of a translation with unknown words replaced, and pairs (source word, target word).

        Each <unk> becomes the translation, or a copy, of the source word with the highest attention. Words of the
        pairs are numbered as split by white space.

        An <unk> is a whole word of the tokenizer. That of words separates punctuation: “3.57,” has the words “3” and
        “57”.
        Replacements are joined with or without a space, as the words are in the source.

        Args:
            ids: Token ids of the target, without BOS and EOS.
            weights: T S, attention of each target token, EOS last, to the source tokens.
        """
        weights = self._point_to_equal_words(source, ids, weights)
        source_tokens = _token_texts(self.source, source)[: weights.shape[1] - 1]  # the last column is that of EOS
        source_words = _span_indices(source_tokens, self.target.type.word_spans(source))
        target_tokens = [*range(len(ids))]  # every target token is a word
        alignment = word_alignment(
            weights, TokenWordMap(source_words, source_words), TokenWordMap(target_tokens, target_tokens)
        )
        parts = self._token_parts(ids, source, {target_token: source_word for source_word, target_token in alignment})
        text = "".join(parts)
        marked_first = self.target.marker == "initial"  # tokens begin with their space, or else end with it
        shift = int(marked_first and text.startswith(" "))
        text = text.removeprefix(" ") if marked_first else text.removesuffix(" ")
        # align again, between words as split by white space
        starts = [start - shift for start in (0, *accumulate(map(len, parts)))]
        part_words = _span_indices(list(zip(parts, starts)), alignment_spans(text))
        token_words = TokenWordMap.from_tokens(
            _span_indices(source_tokens, alignment_spans(source)), [token for token, _ in source_tokens]
        )
        pairs = word_alignment(weights, token_words, TokenWordMap.from_tokens(part_words, parts))
        # a dictionary may translate one word by several
        num_words = {word: len(alignment_words(part)) for word, part in zip(part_words, parts)}
        return text, sorted(
            (source_word, target_word + n)
            for source_word, target_word in pairs
            for n in range(max(1, num_words[target_word]))
        )

    def _point_to_equal_words(self, source: str, ids: Sequence[int], weights: Tensor) -> Tensor:
        """Return the attention (T S) with that of copied unknown words directed to the source words with their tokens.

        These are the `unknown_word_tokens` of the tokenizers, which a model has copied.
        """
        weights, source_tokens = weights.clone(), self.source.tokens(self.source.encode(source))[: weights.shape[1]]
        for index, token in enumerate(ids):
            if token in self.target.unknown_word_tokens:
                name = self.target.tokens([token])[0]
                equal = [position for position, other in enumerate(source_tokens) if other == name]
                weights[index, equal] += 1  # more than all others
        return weights

    def translation(self, word: str) -> str:
        """Return the dictionary's translation of a word, or else of its lower-case form, or else the word itself."""
        return self.dictionary.get(word) or self.dictionary.get(word.lower()) or word

    def _token_parts(self, ids: Sequence[int], source: str, aligned: Mapping[int, int]) -> list[str]:
        """Return the text that each token adds to the translation, with <unk> replaced.

        Words that follow each other without a space in the source are joined without one. `aligned` is the source word
        of each target token. An <unk> without one remains.
        """
        forms, marked_first, parts = self.target.surface_forms(), self.target.marker == "initial", []
        spans = self.target.type.word_spans(source)
        words = [source[begin:end] for begin, end in spans]
        unknown_ids = {*self.target.unknown_ids}
        for index, token in enumerate(ids):
            if token not in unknown_ids:
                parts.append(forms[token].decode())
                continue
            word = self.translation(words[aligned[index]]) if index in aligned else UNKNOWN_WORD
            right = index if marked_first else index + 1  # the space is before this token
            word_before, word_after = aligned.get(right - 1), aligned.get(right)
            adjacent = False  # whether the two words follow each other without a space in the source
            if word_before is not None and word_after == word_before + 1:
                (_, end), (start, _) = spans[word_before], spans[word_after]
                adjacent = end == start
            space = "" if adjacent and 0 < right < len(ids) else " "
            parts.append(space + word if marked_first else word + space)
        return parts


def source_words(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return for each token of a text the index of its word in `alignment_words(text)`, −1 if it belongs to none.

    Unlike `tokenizer.word_ids`, it knows the text of unknown words.
    """
    return _span_indices(_token_texts(tokenizer, text), alignment_spans(text))


def _span_indices(tokens: Sequence[tuple[str, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each token (text, start) the index of the span (start, end) in which it begins, or −1.

    A space at the beginning of a token does not count. Positions are characters.
    """
    span_at = [-1] * (1 + max((end for _, end in spans), default=0))
    for index, (start, end) in enumerate(spans):
        span_at[start:end] = [index] * (end - start)
    starts = (start + (len(token) > 1 and token.startswith(" ")) for token, start in tokens)
    return [span_at[start] if 0 <= start < len(span_at) else -1 for start in starts]


def _token_texts(tokenizer: Tokenizer, text: str) -> list[tuple[str, int]]:
    """Return the text and the start of each token, also of unknown words, which token ids could not give back."""
    if tokenizer.has_unknown_words:
        marked_first = tokenizer.marker == "initial"  # a space is added before the text, or else after it
        marked = re.sub("[\ud800-\udfff]", "\ufffd", f" {text}" if marked_first else f"{text} ")
        splitter = tokenizer.type.pre_tokenizer(tokenizer.marker)
        return [(token, start - marked_first) for token, (start, _) in splitter.pre_tokenize_str(marked)]
    ids = tokenizer.encode(text)
    ends = [len(tokenizer.decode(ids[:n])) for n in range(len(ids) + 1)]
    return [(text[start:end], start) for start, end in pairwise(ends)]
