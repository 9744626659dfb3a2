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
    """Read a dictionary {source word: translation} from a UTF-8 file, plain or gzipped.

    Each line is `source<TAB>target`; of several entries for a word the first one counts.
    """
    dictionary: dict[str, str] = {}
    for line_number, text in read_lines(path):
        columns = [column.strip() for column in text.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(
                f"{path}, line {line_number:,}: expected a word, a tab and its translation, but found {text[:80]!r}: "
                "correct the line"
            )
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
                "replacing unknown words needs a target tokenizer of words or symbols (text.tokenizer word or "
                f"symbol), but the target tokenizer of this run is of kind {self.target.kind!r}, which has no unknown "
                "words: leave out --dictionary and --copy-unknown"
            )

    def replace(self, source: str, ids: Sequence[int], weights: Tensor) -> tuple[str, WordPairs]:
        """Replace each <unk> of a translation by the dictionary's translation, or a copy, of a source word.

        This is the source word to which the <unk> has the highest attention. Its words are those of the target
        tokenizer, which may separate punctuation: “3.57,” has the words “3” and “57”. Replacements are joined with or
        without a space, as their words are in the source.

        Args:
            source: The source text.
            ids: Token ids of the target, without BOS and EOS.
            weights: T S, attention of each target token to each source token, EOS last in both.

        Returns:
            the text, and the word alignment: pairs (index of the source word, index of the target word), where words
            are separated by white space.
        """
        weights = self._point_to_equal_words(source, ids, weights)
        source_tokens = _token_texts(self.source, source)[: weights.shape[1] - 1]  # the last column is that of EOS
        # index of the word of each source token, −1 for none; words as the target tokenizer delimits them
        source_words = _span_indices(source_tokens, self.target.type.word_spans(source))
        target_tokens = [*range(len(ids))]  # every target token is a word
        alignment = word_alignment(
            weights,
            source=TokenWordMap(source_words, core_word_ids=source_words),
            target=TokenWordMap(target_tokens, core_word_ids=target_tokens),
        )
        parts = self._token_parts(ids, source, {target_token: source_word for source_word, target_token in alignment})
        text = "".join(parts)
        space_first = self.target.marker == "initial"  # tokens begin with their space, or else end with it
        shift = int(space_first and text.startswith(" "))  # 1 if the space before the first word is removed
        text = text.removeprefix(" ") if space_first else text.removesuffix(" ")
        # align again, between words as split by white space: `part_words` and `token_words` are the words of the parts
        # of the new text (one part for each target token) and of the source tokens
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
        """Return attention weights (T S) in which copied unknown words attend most to the source words they copy.

        Some tokenizers distribute unknown words over several tokens (`unknown_word_tokens`) by a hash of the word. Such
        a token of the target, with token ids `ids`, was copied from a source word with the same token.
        """
        weights, source_tokens = weights.clone(), self.source.tokens(self.source.encode(source))[: weights.shape[1]]
        for index, token_id in enumerate(ids):
            if token_id in self.target.unknown_word_tokens:
                (token,) = self.target.tokens([token_id])
                positions = [position for position, source_token in enumerate(source_tokens) if source_token == token]
                weights[index, positions] += 1  # more than all others, since weights sum to 1
        return weights

    def translation(self, word: str) -> str:
        """Return the dictionary's translation of a word, or else of its lower-case form, or else the word itself."""
        return self.dictionary.get(word) or self.dictionary.get(word.lower()) or word

    def _token_parts(self, ids: Sequence[int], source: str, aligned: Mapping[int, int]) -> list[str]:
        """Return the text that each target token adds to the translation, including spaces, with <unk> replaced.

        Args:
            ids: Token ids of the target.
            source: The source text.
            aligned: The index of the source word with which each target token is aligned, by the index of the token.
                An <unk> without a source word remains.

        Replacements of words that follow each other without a space in the source are joined without one.
        """
        # `forms`: the UTF-8 bytes of each token of the vocabulary with its space, which comes first or last
        forms, space_first, parts = self.target.surface_forms(), self.target.marker == "initial", []
        spans = self.target.type.word_spans(source)
        words = [source[begin:end] for begin, end in spans]
        unknown_ids = {*self.target.unknown_ids}
        for index, token in enumerate(ids):
            if token not in unknown_ids:
                parts.append(forms[token].decode())
                continue
            word = self.translation(words[aligned[index]]) if index in aligned else UNKNOWN_WORD
            right = index if space_first else index + 1  # index of the token after the space
            # indices of the source words with which the tokens before and after the space are aligned
            word_before, word_after = aligned.get(right - 1), aligned.get(right)
            adjacent = False  # whether the two words follow each other without a space in the source
            if word_before is not None and word_after == word_before + 1:
                (_, end), (start, _) = spans[word_before], spans[word_after]
                adjacent = end == start
            space = "" if adjacent and 0 < right < len(ids) else " "
            parts.append(space + word if space_first else word + space)
        return parts


def source_words(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return for each token of a text the index of its word in `alignment_words(text)`, or −1 if it is in none.

    Unlike `tokenizer.word_ids`, which only gets token ids, it handles unknown words, whose text the ids do not contain.
    """
    return _span_indices(_token_texts(tokenizer, text), alignment_spans(text))


def _span_indices(tokens: Sequence[tuple[str, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each token the index of the span in which it begins, or −1 if it begins in none.

    A token is (text, start), a span (start, end), in characters of the same text. A space at the beginning of a token
    is skipped.
    """
    span_at = [-1] * (1 + max((end for _, end in spans), default=0))  # index of the span at each character
    for index, (start, end) in enumerate(spans):
        span_at[start:end] = [index] * (end - start)
    starts = (start + (len(token) > 1 and token.startswith(" ")) for token, start in tokens)
    return [span_at[start] if 0 <= start < len(span_at) else -1 for start in starts]


def _token_texts(tokenizer: Tokenizer, text: str) -> list[tuple[str, int]]:
    """Return (text, start in characters) of each token of a text, also of unknown words."""
    if tokenizer.has_unknown_words:  # ids of unknown words do not contain their text, so the text itself is split
        space_first = tokenizer.marker == "initial"  # a space is added before the text, or else after it
        with_space = re.sub("[\ud800-\udfff]", "\ufffd", f" {text}" if space_first else f"{text} ")  # no surrogates
        splitter = tokenizer.type.pre_tokenizer(tokenizer.marker)
        return [(token, start - space_first) for token, (start, _) in splitter.pre_tokenize_str(with_space)]
    ids = tokenizer.encode(text)  # of subwords
    ends = [len(tokenizer.decode(ids[:n])) for n in range(len(ids) + 1)]
    return [(text[start:end], start) for start, end in pairwise(ends)]
