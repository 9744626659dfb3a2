"""Translation of blocks of text with markup by a served run, together with the sentences of other requests."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.run.document_translation import SplitDocument
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.preserved_text import Preserve
from dragoman.text.sentences import SplitText


async def translate_blocks(
    service: Service, served: ServedRun, blocks: Sequence[MarkedText], preserve: Preserve, alternatives: int = 0
) -> list[list[MarkedText]]:
    """Translate blocks of text (such as paragraphs) with markup; return `alternatives` + 1 versions of all blocks.

    The first version joins the best translations of all sentences, the second the second-best ones, and so on.
    `preserve` says what a translation must contain unchanged, such as placeholders.
    """
    options = DecodeOptions(served.beam_search(alternatives + 1) if alternatives else served.run.default_search)
    document = SplitDocument.create(served.run, blocks, preserve)
    sentences = document.sentences
    text = SplitText(sentences, gaps=[""] * (len(sentences) + 1))  # no white space before, between and after them
    (translations,) = await served.translate([text], options) if sentences else [[]]
    versions = []
    for rank in range(alternatives + 1):
        n_best_lists = [[translation, *translation.alternatives] for translation in translations]
        # a sentence with fewer translations keeps the last of them
        targets = [n_best[min(rank, len(n_best) - 1)].text for n_best in n_best_lists]
        to_align = document.sentences_to_align(targets)  # numbers of the sentences whose markup needs a word alignment
        alignments = await service.aligner(
            served.run, [sentences[number] for number in to_align], [targets[number] for number in to_align]
        )
        versions.append(document.join(targets, dict(zip(to_align, alignments)), served.target_language))
    return versions
