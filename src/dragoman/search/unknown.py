"""Unknown words: what a model of whole words could only call <unk> is translated by a dictionary, or copied.

An unknown target word stands for the translation of some source word, and attention says of which (Luong et al. 2015,
“Addressing the Rare Word Problem in Neural Machine Translation”; Zhou et al. 2016).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from tokenizers import Regex, pre_tokenizers
from torch import Tensor

from dragoman.data.corpus import sentences
from dragoman.errors import UserError
from dragoman.search.alignment import word_alignment
from dragoman.text import MARKERS, SYMBOLS, UNKNOWN, Tokenizer, word_spans, words

UNKNOWN_WORD = SYMBOLS[UNKNOWN]
Links = list[tuple[int, int]]  # (source word, target word)


def read_dictionary(path: Path) -> dict[str, str]:
    """A dictionary of one `source<TAB>target` a line, UTF-8, plain or gzipped; the first entry of a word counts."""
    dictionary: dict[str, str] = {}
    for line, text in sentences(path):
        columns = [column.strip() for column in text.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {line:,}: a word, a tab and its translation are expected, not {text[:80]!r}")
        dictionary.setdefault(*columns)
    return dictionary


def replace_unknown(
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
class UnknownWords:
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

    def write(self, source: str, ids: Sequence[int], weights: Tensor) -> tuple[str, Links]:
        """The text of a translation, unknown words replaced, and its alignment, words of `source` with words of it.

        `ids` are the target's, without START and END; weights T S say where in the source each was looked for, token by
        token, END last.
        """
        numbers = target_words(self.target, ids)
        links = word_alignment(weights, source_words(self.source, source)[: weights.shape[1] - 1], numbers)
        places = {numbers[place]: place for place, token in enumerate(ids) if token == self.target.unknown}
        before = [UNKNOWN_WORD if number in places else "" for number in range(max(numbers, default=-1) + 1)]
        after = replace_unknown(words(source), before, links, self.dictionary)
        text = self.target.decode(ids)
        for number, place in sorted(places.items(), reverse=True):  # from the end: what comes before stays in its place
            end = len(self.target.decode(ids[: place + 1]))
            text = text[: end - len(UNKNOWN_WORD)] + after[number] + text[end:]
        counts = [len(words(after[number])) if number in places else 1 for number in range(len(after))]
        firsts = [0, *accumulate(counts)]
        return text, [(s, number) for s, t in links for number in range(firsts[t], firsts[t + 1])]


def target_words(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """`tokenizer.word_of_piece`, but an unknown word, whose “<”, “unk” and “>” are three there, is counted as one."""
    more = len(words(UNKNOWN_WORD)) - 1
    unknown = accumulate((token == tokenizer.unknown for token in ids), initial=0)  # how many come before each piece
    return [word - more * n if word >= 0 else word for word, n in zip(tokenizer.word_of_piece(ids), unknown)]


def source_words(tokenizer: Tokenizer, text: str) -> list[int]:
    """For each piece of a text the index in `words(text)` of its word, −1 for white space.

    Other than `tokenizer.word_of_piece` it knows what stood in the place of an unknown word.
    """
    if tokenizer.kind != "word":
        return tokenizer.word_of_piece(tokenizer.encode(text))
    shift = tokenizer.marker == "initial"  # one space is put before the text, or else after it
    marked = re.sub("[\ud800-\udfff]", "\ufffd", f" {text}" if shift else f"{text} ")
    word_at = [-1] * (len(text) + 1)
    for index, (begin, end) in enumerate(word_spans(text)):
        word_at[begin:end] = [index] * (end - begin)
    cut = pre_tokenizers.Split(Regex(MARKERS[tokenizer.marker]), "isolated").pre_tokenize_str(marked)
    return [word_at[begin + (len(piece) > 1 and piece.startswith(" ")) - shift] for piece, (begin, _) in cut]
