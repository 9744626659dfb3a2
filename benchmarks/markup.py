"""Measure where inline tags land: on the gold-aligned words of phrasebook sentences?

    PYTHONPATH=src python benchmarks/markup.py runs/transformer runs/bahdanau

A random span of one to three source words gets a tag, and the sentence is translated as HTML. The result is correct if
the tag encloses exactly the target words that the phrasebook aligns with the span. Gold alignments belong to the
reference, so only sentences count that the run translates like it; and only spans whose target words stand next to each
other, since one tag can enclose no others. Both shares are printed. `one tag` is one random span in each of the
sentences, `all spans` every such span of the same sentences, each in a document of its own. `attention` places the tags
by attention alone.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

import torch

import dragoman
from dragoman.data import phrasebook
from dragoman.evaluation import format_table
from dragoman.run import Run
from dragoman.run.document_translation import SplitDocument
from dragoman.run.results import Alignment
from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.preserved_text import Preserve

MAX_SPAN_WORDS = 3
Span = tuple[int, int]  # first word, and the word after the last
Case = tuple[phrasebook.AlignedPair, Span]


def known_sentences(run: Run, count: int, seed: int) -> tuple[list[phrasebook.AlignedPair], int]:
    """Return sentence pairs that the run translates like the reference, and how many were translated to find them."""
    pairs = phrasebook.sentences(seed)
    found, tried = list[phrasebook.AlignedPair](), 0
    while len(found) < count:
        batch = [next(pairs) for _ in range(count)]
        translations = run.translate([pair.source for pair in batch], alignment=False)
        for pair, translation in zip(batch, translations):
            tried += len(found) < count
            if translation.text == pair.target and len(found) < count:
                found.append(pair)
    return found, tried


def gold_words(pair: phrasebook.AlignedPair, span: Span) -> list[int]:
    """Return the target words aligned with a span of source words."""
    return sorted({target for source, target in pair.alignment if source in range(*span)})


def spans(pair: phrasebook.AlignedPair) -> Iterator[Span]:
    """Yield all spans of up to MAX_SPAN_WORDS words."""
    num_words = len(pair.source.split())
    for start in range(num_words):
        yield from ((start, end) for end in range(start + 1, min(num_words, start + MAX_SPAN_WORDS) + 1))


def is_contiguous(words: list[int]) -> bool:
    """Whether there are words, and they stand next to each other."""
    return bool(words) and words[-1] - words[0] + 1 == len(words)


def tagged(pair: phrasebook.AlignedPair, span: Span) -> str:
    """Return the source with a tag around a span, without the punctuation at its edges."""
    words = pair.source.split()
    inside = " ".join(words[slice(*span)])
    core = inside.strip(".,?!")
    after = inside[inside.index(core) + len(core) :]
    return " ".join([*words[: span[0]], f"<b>{core}</b>{after}", *words[span[1] :]])


def correct_share(run: Run, cases: list[Case], alignments: dict[str, Alignment]) -> float:
    """Return the share of cases whose tag encloses exactly the gold-aligned words, in per cent.

    `alignments` are those of the sentences by their sources.
    """
    documents = [HtmlDocument.parse(tagged(pair, span)) for pair, span in cases]
    split = SplitDocument.create(run, (block for document in documents for block in document.blocks), Preserve.NONE)
    targets = [pair.target for pair, _ in cases]
    blocks = split.join(targets, {number: alignments[pair.source] for number, (pair, _) in enumerate(cases)}, "de")
    correct = 0
    for (pair, span), document, block in zip(cases, documents, blocks):
        result = document.render([block])
        before, inside, _ = re.split("</?b>", result)
        first = len(before.split())
        enclosed = [*range(first, first + len(inside.split()))]
        whole = re.sub("</?b>", "", result) == pair.target and (not before or before[-1] in " (")
        correct += whole and enclosed == gold_words(pair, span)
    return 100 * correct / len(cases)


def measure(folder: Path, count: int, seed: int) -> dict[str, object]:
    """Return a row of the table for a run."""
    run = dragoman.load(folder)
    pairs, tried = known_sentences(run, count, seed)
    cases = [(pair, span) for pair in pairs for span in spans(pair)]
    possible = [(pair, span) for pair, span in cases if is_contiguous(gold_words(pair, span))]
    generator = random.Random(seed)
    one_each = [generator.choice([case for case in possible if case[0] is pair]) for pair in pairs]
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    by_occlusion, by_attention = (
        dict(zip(sources, run.align(sources, targets, occlusion=occlusion) or [])) for occlusion in (True, False)
    )
    return {
        "run": folder.name,
        "sentences": len(pairs),
        "translated like the reference": f"{100 * len(pairs) / tried:.0f} %",
        "spans": f"{len(possible):,} of {len(cases):,}",
        "one tag": f"{correct_share(run, one_each, by_occlusion):.1f} %",
        "all spans": f"{correct_share(run, possible, by_occlusion):.1f} %",
        "one tag, attention": f"{correct_share(run, one_each, by_attention):.1f} %",
        "all spans, attention": f"{correct_share(run, possible, by_attention):.1f} %",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1234, help="of the sentences and the spans")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(format_table([measure(folder, options.sentences, options.seed) for folder in options.runs]))


if __name__ == "__main__":
    main()
