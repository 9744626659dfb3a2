"""Unknown words: what a model of whole words could only call <unk> is translated by a dictionary, or copied.

An unknown target word stands for the translation of some source word, and attention says of which (Luong et al. 2015,
“Addressing the Rare Word Problem in Neural Machine Translation”; Zhou et al. 2016).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from tokenizers import Regex, pre_tokenizers
from torch import Tensor

from dragoman.data.text_files import read_lines
from dragoman.errors import UserError
from dragoman.search.forced_decoding import TokenWordMap, word_alignment
from dragoman.text import (
    SPECIAL_TOKENS,
    UNK,
    WORD_MARKERS,
    Tokenizer,
    alignment_spans,
    alignment_words,
    split_words,
    word_spans,
)

UNKNOWN_WORD = SPECIAL_TOKENS[UNK]
Links = list[tuple[int, int]]  # (source word, target word)


def read_dictionary(path: Path) -> dict[str, str]:
    """A dictionary of one `source<TAB>target` a line, UTF-8, plain or gzipped; the first entry of a word counts."""
    dictionary: dict[str, str] = {}
    for line, text in read_lines(path):
        columns = [column.strip() for column in text.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {line:,}: a word, a tab and its translation are expected, not {text[:80]!r}")
        dictionary.setdefault(*columns)
    return dictionary


def replace_unknown_words(
    source: Sequence[str], target: Sequence[str], links: Iterable[tuple[int, int]], dictionary: Mapping[str, str]
) -> list[str]:
    """The target's words with each <unk> replaced by the translation of the source word that it is linked with.

    A source word that is not in the dictionary, nor in small letters, is copied; an <unk> without a link stays. Of
    several links of a word the first counts.
    """
    linked: dict[int, int] = {}
    for source_word, target_word in links:
        linked.setdefault(target_word, source_word)
    return [
        _look_up(source[linked[place]], dictionary) if word == UNKNOWN_WORD and place in linked else word
        for place, word in enumerate(target)
    ]


def _look_up(word: str, dictionary: Mapping[str, str]) -> str:
    return dictionary.get(word) or dictionary.get(word.lower()) or word


@dataclass(frozen=True)
class UnknownWordReplacer:
    """Writes translations without unknown words, for one pair of tokenizers and with one dictionary."""

    source: Tokenizer
    target: Tokenizer
    dictionary: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.target.kind != "word":
            raise UserError(
                f"unknown words are replaced where the target is cut into whole words, but this run's tokenizer is of "
                f"kind {self.target.kind!r}, which spells every word: do without"
            )

    def replace(self, source: str, ids: Sequence[int], weights: Tensor) -> tuple[str, Links]:
        """The text of a translation, unknown words replaced, and its alignment in whitespace tokens.

        `ids` are the target's, without START and END; weights T S say where in the source each was looked for, token by
        token, END last. A target token is unknown as a whole, but what it replaces is a word of the source as the
        tokenizer separates them: of “3.57,” first “3”, then “57”. Both are joined as they are in the source.
        """
        read = slice(weights.shape[1] - 1)
        spelled = _spelled(self.source, source)[read]
        words_of_source = _indices(spelled, word_spans(source))
        single = TokenWordMap(words_of_source, words_of_source), TokenWordMap([*range(len(ids))], [*range(len(ids))])
        links = word_alignment(weights, *single)
        linked = {target: word for word, target in reversed(links)}
        before = [UNKNOWN_WORD if token == self.target.unk else "" for token in ids]
        after = replace_unknown_words(split_words(source), before, links, self.dictionary)
        parts = self._joined(ids, after, linked, word_spans(source))
        text = "".join(parts)
        text = text.removeprefix(" ") if self.target.marker == "initial" else text.removesuffix(" ")
        begins = [0, *accumulate(map(len, parts))]
        shift = int(self.target.marker == "initial" and "".join(parts).startswith(" "))
        places = [(part, begin - shift) for part, begin in zip(parts, begins)]
        target_words = _indices(places, alignment_spans(text))
        read_words = TokenWordMap.from_tokens(
            _indices(spelled, alignment_spans(source)), [piece for piece, _ in spelled]
        )
        found = word_alignment(weights, read_words, TokenWordMap.from_tokens(target_words, parts))
        more = {word: len(alignment_words(part)) for word, part in zip(target_words, parts)}  # words of an entry
        return text, sorted((s, t + n) for s, t in found for n in range(max(1, more[t])))

    def _joined(
        self, ids: Sequence[int], after: Sequence[str], linked: Mapping[int, int], spans: Sequence[tuple[int, int]]
    ) -> list[str]:
        """What each token adds to the text; no space where two words are linked with neighbours that have none."""
        spellings, initial, parts = self.target.surface_forms(), self.target.marker == "initial", []
        for place, (token, word) in enumerate(zip(ids, after)):
            if token != self.target.unk:
                parts.append(spellings[token].decode())
                continue
            first = place if initial else place + 1
            pair = linked.get(first - 1), linked.get(first)
            near = pair[0] is not None and pair[1] == pair[0] + 1 and spans[pair[0]][1] == spans[pair[1]][0]
            space = "" if near and 0 < first < len(ids) else " "
            parts.append(space + word if initial else word + space)
        return parts


def source_words(tokenizer: Tokenizer, text: str) -> list[int]:
    """For each piece of a text the index of its word in `alignment_words(text)`, −1 for white space.

    Unlike `tokenizer.word_of_piece` it knows the text of unknown words.
    """
    return _indices(_spelled(tokenizer, text), alignment_spans(text))


def _indices(pieces: Sequence[tuple[str, int]], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For pieces and where they begin the index of the span in which the first character after their space lies."""
    span_at = [-1] * (1 + max((end for _, end in spans), default=0))
    for index, (begin, end) in enumerate(spans):
        span_at[begin:end] = [index] * (end - begin)
    places = (begin + (len(piece) > 1 and piece.startswith(" ")) for piece, begin in pieces)
    return [span_at[place] if 0 <= place < len(span_at) else -1 for place in places]


def _spelled(tokenizer: Tokenizer, text: str) -> list[tuple[str, int]]:
    """The pieces of a text as they are written, unknown words too, and where each begins."""
    if tokenizer.kind == "word":
        shift = tokenizer.marker == "initial"  # one space is put before the text, or else after it
        return [(piece, begin - shift) for piece, (begin, _) in _cut(tokenizer, text)]
    ids = tokenizer.encode(text)
    ends = [len(tokenizer.decode(ids[:n])) for n in range(len(ids) + 1)]
    return [(text[begin:end], begin) for begin, end in itertools.pairwise(ends)]


def _cut(tokenizer: Tokenizer, text: str) -> list[tuple[str, tuple[int, int]]]:
    """The pieces of a word tokenizer as they are written, and where they stand, one space put before or after all."""
    marked = re.sub("[\ud800-\udfff]", "\ufffd", f" {text}" if tokenizer.marker == "initial" else f"{text} ")
    return pre_tokenizers.Split(Regex(WORD_MARKERS[tokenizer.marker]), "isolated").pre_tokenize_str(marked)
