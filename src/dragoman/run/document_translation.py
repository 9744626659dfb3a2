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
    """The blocks (texts such as paragraphs or headings) of a document with their sentences, to be translated anyhow.

    `sentences` are translated first; `unaligned` says which pairs then need an alignment; `join` returns the blocks.
    """

    blocks: Sequence[SplitBlock]

    @classmethod
    def create(cls, run: Run, blocks: Iterable[MarkedText], preserve: Preserve) -> SplitDocument:
        """Split blocks into sentences as long as the run can read; `preserve` says what translations must contain."""
        if not run.config.search.copy_untranslatable:  # a task whose targets have other symbols, such as phonemes
            preserve = Preserve.NONE
        return cls([SplitBlock.create(block, split_into_sentences(run, block.text), preserve) for block in blocks])

    @property
    def sentences(self) -> list[str]:
        """All sentences to translate, in order."""
        return [sentence for block in self.blocks for sentence in block.sentences]

    def unaligned(self, targets: Sequence[str]) -> list[int]:
        """Return the numbers of the sentences that need a word alignment, given the translations (`targets`) of all.

        They are those inside which a tag begins or ends, or whose translation lacks a placeholder.
        """
        translations = iter(targets)
        needed = (
            need
            for block in self.blocks
            for need in block.needs_alignment([next(translations) for _ in block.sentences])
        )
        return [number for number, need in enumerate(needed) if need]

    def join(self, targets: Sequence[str], alignments: dict[int, Alignment], language: str) -> list[MarkedText]:
        """Return the translated blocks.

        Args:
            targets: the translations of `sentences`
            alignments: those of `unaligned`, by the number of the sentence
            language: of the translations, '' if it is unknown
        """
        joined, first = [], 0
        for block in self.blocks:
            numbers = range(first, first + len(block.sentences))
            first = numbers.stop
            block_alignments = [alignments.get(number) for number in numbers]
            joined.append(block.join(targets[numbers.start : numbers.stop], block_alignments, language))
        return joined


def translate_blocks(
    run: Run,
    blocks: Iterable[MarkedText],
    search: SearchConfig,
    *,
    preserve: Preserve = Preserve.PLACEHOLDERS,
    language: str = "",
    **options: object,
) -> Iterator[tuple[int, int] | list[MarkedText]]:
    """Translate the blocks of a document; yield the progress (sentences done, of how many), and the blocks at the end.

    `preserve` says what a translation must contain unchanged; `language` is that of the translations, '' if it is
    unknown; `options` are those of `Run.translate_stream`.
    """
    document = SplitDocument.create(run, blocks, preserve)
    sentences = document.sentences
    targets: list[str] = []
    translations: Iterator[Translation] = run.translate_stream(sentences, search, **options)  # type: ignore[arg-type]
    for translation in translations:
        targets.append(translation.text)
        yield len(targets), len(sentences)
    unaligned = document.unaligned(targets)
    pairs = [[texts[number] for number in unaligned] for texts in (sentences, targets)]  # their sources, their targets
    alignments = run.align(*pairs, occlusion=True) or []
    yield document.join(targets, dict(zip(unaligned, alignments)), language)


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
    """Translate a file, whose format is that of its name; see `Run.translate_document`."""
    document = parse_document(content, name, translate_attributes)
    blocks: list[MarkedText] = []
    for result in translate_blocks(run, document.blocks, search, preserve=preserve, language=language):
        blocks = result if isinstance(result, list) else blocks  # other results are the progress
    return document.render(blocks, language)
