"""Projection of tags: the tags of a source text are placed around the aligned words of its translation.

A tag encloses one range of the translation, each tag of the source occurs once, and tags stay properly nested. The
range holds as many words as possible that are aligned with the tagged source words, and few others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dragoman.text.documents.marked_text import (
    MarkedText,
    Tag,
    core_span,
    resolve_overlaps,
)
from dragoman.text.word_splitting import alignment_spans

Span = tuple[int, int]  # of characters
Alignment = Sequence[tuple[int, int]]  # (source word, target word)
FOREIGN_COST = 1.5  # of a word in the range of a tag that is aligned with untagged words; one with tagged ones gains 1
#: name of a point that keeps what is before it apart from what is after it, such as two subtitles; no element has it
CUT = "#cut"
LETTER_GAIN = 1e-3  # of each letter of an aligned word: of two equal ranges, the longer text is preferred


@dataclass(frozen=True)
class AlignedSentence:
    """A sentence of a block, its translation, and their alignment; None if no tag begins or ends inside."""

    source: str
    target: str
    alignment: Alignment | None = None

    @cached_property
    def source_words(self) -> list[Span]:
        """Where the words of the source begin and end, as (start, end) of characters."""
        return alignment_spans(self.source)

    @cached_property
    def target_words(self) -> list[Span]:
        """Where the words of the translation begin and end, as (start, end) of characters."""
        return alignment_spans(self.target)

    @cached_property
    def links(self) -> list[tuple[int, int]]:
        """The word alignment, as (source word, target word); words that do not exist are left out.

        Without an alignment, words at the same relative position are aligned.
        """
        num_source, num_target = len(self.source_words), len(self.target_words)
        if not num_source or not num_target:
            return []
        if self.alignment is not None:
            return [
                (source, target) for source, target in self.alignment if source < num_source and target < num_target
            ]
        if num_source >= num_target:
            return [(source, source * num_target // num_source) for source in range(num_source)]
        return [(target * num_source // num_target, target) for target in range(num_target)]


@dataclass(frozen=True)
class PlacedSentence:
    """An aligned sentence, and where it begins in the source and target text of its block."""

    sentence: AlignedSentence
    source_start: int
    target_start: int

    @property
    def source_end(self) -> int:
        """Where the sentence ends in the source text of its block: the index of the character after it."""
        return self.source_start + len(self.sentence.source)

    @property
    def target_end(self) -> int:
        """Where the translation ends in the target text of its block: the index of the character after it."""
        return self.target_start + len(self.sentence.target)


def splits_sentence(block: MarkedText, start: int, end: int) -> bool:
    """Whether a tag of a block begins, ends or stands inside the sentence from character `start` to `end`.

    `end` is exclusive. Then the word alignment decides where it is in the translation. A tag that begins or ends at
    the punctuation around the sentence does not count.
    """
    core_start, core_end = core_span(block.text, start, end)  # without the punctuation at both ends
    return any(  # a point (a tag without text) may stand before the punctuation at the end
        core_start < position < (end if tag.is_point else core_end)
        for tag in block.all_tags()
        for position in (tag.start, tag.end)
    )


def project_tags(source: MarkedText, target: str, sentences: Sequence[PlacedSentence]) -> MarkedText:
    """Return the translation of a block with the tags of its source; tags that then overlap are cut or nested.

    Args:
        source: the block, whose tags count characters of its text
        target: the joined translations of its sentences
        sentences: the sentences and where they are in both texts
    """
    projection = _Projection(source.text, target, sentences)
    return MarkedText(target, resolve_overlaps([projection.project(tag) for tag in source.tags]))


def _shifted(spans: Sequence[Span], by: int) -> list[Span]:
    """Return spans (start, end) of characters, moved by a number of characters."""
    return [(start + by, end + by) for start, end in spans]


class _Projection:
    """Places the tags of one block."""

    def __init__(self, source: str, target: str, sentences: Sequence[PlacedSentence]) -> None:
        """Number the words of all sentences of the block, and collect the links of their alignments, as these numbers.

        `source` and `target` are the texts of the block; words are spans (start, end) of their characters.
        """
        self.source, self.target, self.sentences = source, target, sentences
        self.source_words: list[Span] = []
        self.target_words: list[Span] = []
        self.links: list[tuple[int, int]] = []
        self.word_ranges: list[tuple[range, range]] = []  # numbers of the source and target words of each sentence
        for placed in sentences:
            sentence, first_source, first_target = placed.sentence, len(self.source_words), len(self.target_words)
            self.links += [
                (first_source + source_word, first_target + target_word) for source_word, target_word in sentence.links
            ]
            self.source_words += _shifted(sentence.source_words, by=placed.source_start)
            self.target_words += _shifted(sentence.target_words, by=placed.target_start)
            ranges = range(first_source, len(self.source_words)), range(first_target, len(self.target_words))
            self.word_ranges.append(ranges)

    def project(self, tag: Tag) -> Tag:
        """Return the tag and those inside it with their positions in the translation.

        A tag without text is a point between words, or a cut between what is before and after it, such as two
        subtitles. A tag whose text is not translated (`verbatim`) encloses that text where the translation has it. Any
        other tag encloses the translations of its words, and the tags inside it.
        """
        if not self.source[tag.start : tag.end].strip():
            position = self._cut(tag.start) if tag.name == CUT else self._point(tag.start)
            return tag.clamped(position, position)
        if tag.verbatim and (start := self._verbatim_start(tag)) is not None:
            return tag.moved(start - tag.start)
        children = [self.project(child) for child in tag.children]
        start, end = self._range(tag)
        with_text = [child for child in children if not child.is_point]  # a point encloses no text
        start = min([start, *(child.start for child in with_text)])
        end = max([end, *(child.end for child in with_text)])
        children = [child.clamped(start, end) for child in children]  # moves points outside the range to its ends
        return replace(tag, start=start, end=end, children=resolve_overlaps(children))

    def _verbatim_start(self, tag: Tag) -> int | None:
        """Return where the translation has the text of a tag that is not translated; None if it does not have it.

        Of several places, it is the first one at or after the words that are aligned with the tag; if there is none,
        the first one of all.
        """
        words = self._best_words(self._tagged_words(tag))
        text = self.source[tag.start : tag.end]
        start = -1 if words is None else self.target.find(text, self.target_words[words[0]][0])
        start = self.target.find(text) if start < 0 else start
        return None if start < 0 else start

    def _tagged_words(self, tag: Tag) -> list[int]:
        """Return the indices of the source words that a tag encloses at least in part."""
        return [index for index, (start, end) in enumerate(self.source_words) if start < tag.end and end > tag.start]

    def _range(self, tag: Tag) -> Span:
        """Return the characters (start, end) of the translation that a tag with text encloses.

        They are those of the target words that best match its words, with as much punctuation as in the source.
        """
        text = self.source[tag.start : tag.end].strip()
        if text == self.source.strip():  # the tag encloses the whole block
            stripped = self.target.strip()
            start = self.target.find(stripped)
            return start, start + len(stripped)
        tagged = self._tagged_words(tag)
        words = self._best_words(tagged)
        if words is None:  # no word is aligned: the tag becomes empty
            position = self._point(tag.start)
            return position, position
        text_start = self.source.index(text, tag.start)  # without the white space at the beginning of the tag
        start = self._in_word(text_start, tagged[0], words[0], is_start=True)
        return start, max(start, self._in_word(text_start + len(text), tagged[-1], words[-1], is_start=False))

    def _in_word(self, position: int, source_word: int, target_word: int, is_start: bool) -> int:
        """Return which character of the translation corresponds to `position`, a character in or beside a source word.

        `source_word` and `target_word` are the indices of two aligned words.
        Before and after the word, it is as far inside the punctuation as in the source, or outside all of it. Inside
        the word, it is the same place if both words are the same, as in H<sub>2</sub>O; otherwise `is_start` says
        whether it is the beginning or the end of the word.
        """
        (start, end), (target_start, target_end) = self.source_words[source_word], self.target_words[target_word]
        # the words without the punctuation at both ends
        core_start, core_end = core_span(self.source, start, end)
        target_core_start, target_core_end = core_span(self.target, target_start, target_end)
        if position <= start < core_start:
            return target_start
        if position >= end > core_end:
            return target_end
        if position <= core_start:
            return max(target_start, target_core_start - core_start + max(position, start))
        if position >= core_end:
            return min(target_end, target_core_end - core_end + min(position, end))
        if self.source[core_start:core_end] == self.target[target_core_start:target_core_end]:
            return target_core_start + position - core_start
        return target_core_start if is_start else target_core_end

    def _best_words(self, tagged: Sequence[int]) -> range | None:
        """Return the consecutive target words that best match the `tagged` source words; None if none is aligned.

        A word that is aligned with tagged words gains 1, one that is aligned only with others costs FOREIGN_COST.
        """
        # aligned, foreign: target words that are aligned with tagged words, and with others; a word can be in both
        tagged_set, aligned, foreign = set(tagged), set[int](), set[int]()
        for source, target in self.links:
            (aligned if source in tagged_set else foreign).add(target)
        for source_range, target_range in self.word_ranges:
            if source_range and tagged_set.issuperset(source_range):  # the tag encloses a whole sentence
                aligned.update(target_range)
        best, best_gain, first, gain = None, 0.0, 0, 0.0  # the best range so far, and the one that ends at `word`
        for word, (start, end) in enumerate(self.target_words):  # the range with the highest sum (Kadane)
            if gain <= 0:
                first, gain = word, 0.0
            gain += 1 + LETTER_GAIN * (end - start) if word in aligned else -FOREIGN_COST * (word in foreign)
            if gain > best_gain:
                best, best_gain = range(first, word + 1), gain
        return best

    def _point(self, position: int) -> int:
        """Return where a tag without text at a position of the source stands in the translation.

        It stands after the translation of the word that it is attached to (no space is between), inside it if the
        translation has the same word, as in super<wbr>market, or else before that of the next word. If that word is not
        aligned, it stands at the end of the translation.
        """
        # words that begin before the position, and others
        before = [index for index, (start, _) in enumerate(self.source_words) if start < position]
        after = [index for index, (start, _) in enumerate(self.source_words) if start >= position]
        if not before:  # before or after the white space at the beginning, as in the source
            return min(position, len(self.target) - len(self.target.lstrip()))
        is_attached = position <= self.source_words[before[-1]][1]  # to the word before, as a footnote mark is
        if not after and not is_attached:  # in the white space at the end
            return max(len(self.target.rstrip()), len(self.target) - len(self.source) + position)
        word = before[-1] if is_attached else after[0]
        # at the end or beginning of a sentence, it stays there
        for placed, (source_range, _) in zip(self.sentences, self.word_ranges):
            if is_attached and source_range and word == source_range[-1] and position >= placed.source_end:
                return placed.target_end
            if not is_attached and source_range and word == source_range[0]:
                return placed.target_start
        words = self._best_words([word])
        if words is None:  # the word is not aligned
            return len(self.target.rstrip())
        if not is_attached:
            return self.target_words[words[0]][0]
        core_start, _ = core_span(self.source, *self.source_words[word])  # where the punctuation before it ends
        target_word = words[0] if position <= core_start else words[-1]
        return self._in_word(position, word, target_word, is_start=False)

    def _cut(self, position: int) -> int:
        """Return where to cut the translation of a source that is cut at `position`, as between two subtitles.

        The fewest links of the word alignment cross the cut. Of equal cuts, the one nearest to the same relative
        position is chosen.
        """
        before = {index for index, (start, _) in enumerate(self.source_words) if start < position}
        share = position / max(1, len(self.source))
        crossing = sum(source in before for source, _ in self.links)  # links that cross a cut at the beginning
        best = (crossing, share, 0)  # crossing links, distance from the relative position, place of the cut
        for word, (_, end) in enumerate(self.target_words):
            crossing += sum(-1 if source in before else 1 for source, target in self.links if target == word)
            best = min(best, (crossing, abs(end / len(self.target) - share), end))
        _, _, position = best
        return position
