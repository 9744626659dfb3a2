"""Translation of documents by a run: blocks are split into sentences, translated together, and joined again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.run.sources import split_into_sentences
from dragoman.text.documents.block_translation import SplitBlock
from dragoman.text.documents.document import parse_document
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.preserved_text import Preserve
from dragoman.text.documents.tag_projection import Alignment

if TYPE_CHECKING:
    from dragoman.run.results import Translation
    from dragoman.run.run import Run
    from dragoman.search import SearchConfig


@dataclass(frozen=True)
class SplitDocument:
    """The blocks (texts such as paragraphs or headings) of a document, split into sentences.

    The caller translates `sentences`, aligns the words of those that `sentences_to_align` returns, and gives both to
    `join`, which returns the translated blocks.
    """

    blocks: Sequence[SplitBlock]

    @classmethod
    def create(cls, run: Run, blocks: Iterable[MarkedText], preserve: Preserve) -> SplitDocument:
        """Split the blocks of a document into sentences that are short enough for the run.

        `preserve` says which texts, such as placeholders and numbers, translations must contain unchanged.
        """
        if not run.config.search.copy_untranslatable:  # targets, such as phonemes, contain no text of the source
            preserve = Preserve.NONE
        return cls([SplitBlock.create(block, split_into_sentences(run, block.text), preserve) for block in blocks])

    @property
    def sentences(self) -> list[str]:
        """The sentences of all blocks, in order, which are to be translated."""
        return [sentence for block in self.blocks for sentence in block.sentences]

    def sentences_to_align(self, targets: Sequence[str]) -> list[int]:
        """Return the indices of the sentences that need a word alignment, given the translations of all (`targets`).

        In these a tag (markup) begins or ends within the sentence, or the translation lacks a placeholder.
        """
        translations = iter(targets)
        is_needed = (
            needed  # for one sentence
            for block in self.blocks
            for needed in block.needs_alignment([next(translations) for _ in block.sentences])
        )
        return [index for index, needed in enumerate(is_needed) if needed]

    def join(self, targets: Sequence[str], alignments: dict[int, Alignment], language: str) -> list[MarkedText]:
        """Return the translated blocks, with tags (markup) around the aligned words.

        Args:
            targets: the translations of all sentences, in order
            alignments: word alignments, by the index of the sentence, of those in `sentences_to_align`
            language: code of the language of the translations, such as de, which decides whether their sentences are
                separated by spaces; '' if it is unknown
        """
        translated, begin = [], 0
        for block in self.blocks:
            end = begin + len(block.sentences)
            block_alignments = [alignments.get(index) for index in range(begin, end)]
            translated.append(block.join(targets[begin:end], block_alignments, language))
            begin = end
        return translated


def translate_blocks(
    run: Run,
    blocks: Iterable[MarkedText],
    search: SearchConfig,
    *,
    preserve: Preserve = Preserve.PLACEHOLDERS,
    language: str = "",
    **options: object,
) -> Iterator[tuple[int, int] | list[MarkedText]]:
    """Translate the blocks (texts with markup) of a document; yield the progress, and at the end the translated blocks.

    The progress is (number of translated sentences, number of all sentences).

    Args:
        preserve: which texts, such as placeholders or numbers, the translations must contain unchanged
        language: code of the language of the translations, such as de; '' if it is unknown
        options: further keyword arguments of `Run.translate_stream`, such as `tag` (the corpus tag)
    """
    document = SplitDocument.create(run, blocks, preserve)
    sentences = document.sentences
    targets: list[str] = []
    translations: Iterator[Translation] = run.translate_stream(sentences, search, **options)  # type: ignore[arg-type]
    for translation in translations:
        targets.append(translation.text)
        yield len(targets), len(sentences)
    to_align = document.sentences_to_align(targets)  # indices
    # never None with occlusion, which needs no attention
    alignments = run.align([sentences[i] for i in to_align], [targets[i] for i in to_align], occlusion=True) or []
    yield document.join(targets, dict(zip(to_align, alignments)), language)


def translate_document(
    run: Run,
    content: bytes,
    name: str,
    search: SearchConfig,
    *,
    preserve: Preserve = Preserve.PLACEHOLDERS,
    translate_attributes: bool = False,
    language: str = "",
) -> bytes:
    """Translate a document and keep its structure; return the translated file.

    Args:
        content: the bytes of the file
        name: its name, whose ending is the format, such as .html or .docx
        preserve: which texts, such as placeholders or numbers, the translations must contain unchanged
        translate_attributes: also translate attributes of HTML such as `alt` and `title`
        language: code of the language of the translation, such as de; '' if it is unknown
    """
    document = parse_document(content, name, translate_attributes)
    # the values before the last are the progress, which is not needed
    *_, blocks = translate_blocks(run, document.blocks, search, preserve=preserve, language=language)
    assert isinstance(blocks, list)
    return document.render(blocks, language)
