"""Translation of a block: its sentences are translated as plain text, and its tags and literals are put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.preserved_text import (
    Literal,
    Preserve,
    find_literals,
    is_only_literals,
    missing_literals,
    restore_literals,
)
from dragoman.text.documents.tag_projection import (
    AlignedSentence,
    Alignment,
    PlacedSentence,
    project_tags,
    splits_sentence,
)
from dragoman.text.sentences import SplitText
from dragoman.text.word_splitting import alignment_words


@dataclass(frozen=True)
class SplitBlock:
    """A block of a document and its sentences, with what their translations must contain."""

    block: MarkedText
    split: SplitText
    literals: tuple[tuple[Literal, ...], ...]  # of each sentence

    @classmethod
    def create(cls, block: MarkedText, split: SplitText, preserve: Preserve) -> SplitBlock:
        """Find the literals of the sentences of a block: what must occur unchanged in their translations.

        A block is a unit of a document, such as a paragraph; `split` has its sentences. Literals are texts of tags that
        are not translated (`verbatim`), and what `preserve` names, such as numbers.
        """
        tags = [tag for tag in block.all_tags() if tag.verbatim]
        literals = []
        for start, sentence in zip(_starts(split.gaps, split.sentences), split.sentences):
            end = start + len(sentence)
            # the part of each verbatim tag that is in the sentence, as (start, end) counted from the sentence's
            # beginning
            spans = [(max(tag.start, start) - start, min(tag.end, end) - start) for tag in tags]
            verbatim = [(tag_start, tag_end) for tag_start, tag_end in spans if tag_start < tag_end]
            literals.append(tuple(find_literals(sentence, preserve, verbatim)))
        return cls(block, split, tuple(literals))

    @property
    def sentences(self) -> list[str]:
        """The sentences to translate: all but those that consist of literals only, and are copied."""
        return [sentence for n, sentence in enumerate(self.split.sentences) if not self._is_copied(n)]

    def _is_copied(self, number: int) -> bool:
        """Whether the sentence with this index consists of literals (texts that stay the same) only."""
        return is_only_literals(self.split.sentences[number], self.literals[number])

    def needs_alignment(self, targets: Sequence[str]) -> list[bool]:
        """Return for each of `sentences`, given its translation, whether its word alignment is needed.

        `targets` has the translation of each of them (not of copied sentences, which consist of literals only).
        It is if a tag begins or ends inside the sentence, or the translation lacks a literal that has to be put back.
        """
        starts = _starts(self.split.gaps, self.split.sentences)
        translated = [n for n in range(len(self.split.sentences)) if not self._is_copied(n)]
        return [
            splits_sentence(self.block, starts[n], starts[n] + len(self.split.sentences[n]))
            or bool(missing_literals(self.literals[n], target))
            for n, target in zip(translated, targets)
        ]

    def join(self, targets: Sequence[str], alignments: Sequence[Alignment | None], language: str) -> MarkedText:
        """Return the translated block, with its tags and literals (texts that must stay the same).

        Args:
            targets: the translations of `sentences`, which are those that are not copied
            alignments: their word alignments, None where none is needed
            language: of the translations, '' if it is unknown
        """
        translated, aligned = iter(zip(targets, alignments)), []
        for number, source in enumerate(self.split.sentences):
            if self._is_copied(number):
                identity = [(word, word) for word in range(len(alignment_words(source)))]
                aligned.append(AlignedSentence(source, target=source, alignment=identity))
            else:
                target, alignment = next(translated)
                sentence = AlignedSentence(source, target, alignment)
                aligned.append(restore_literals(sentence, self.literals[number]))
        texts = [sentence.target for sentence in aligned]
        # white space before, between and after the translations
        gaps = self.split.gaps_for_language(language) if language else self.split.gaps_between(texts)
        starts = zip(_starts(self.split.gaps, self.split.sentences), _starts(gaps, texts))
        placed = [
            PlacedSentence(sentence, source_start=source_start, target_start=target_start)
            for sentence, (source_start, target_start) in zip(aligned, starts)
        ]
        target = gaps[0] + "".join(text + gap for text, gap in zip(texts, gaps[1:], strict=True))
        return project_tags(self.block, target, placed)


def _starts(gaps: Sequence[str], sentences: Sequence[str]) -> list[int]:
    """Return where each sentence begins in a text, as an index of a character.

    `gaps` are the white space before, between and after the sentences.
    """
    starts, position = [], 0
    for gap, sentence in zip(gaps, sentences):
        position += len(gap)
        starts.append(position)
        position += len(sentence)
    return starts
