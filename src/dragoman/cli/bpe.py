"""`dragoman bpe`: show how byte-pair encoding is learned and applied."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Json
from dragoman.console import print_json, print_lines
from dragoman.errors import UserError
from dragoman.text.bpe_trace import MergeStep, TieBreak, count_words, learn_trace, parse_word_counts, segment

SHOWN_PAIRS, SHOWN_WORDS = 6, 12
MAX_CHARACTERS = 1_000_000  # of the text: every merge counts all pairs again


def bpe(
    text: Annotated[
        str | None, typer.Argument(help="Text to learn BPE merges from, such as 'low lower newest widest'.")
    ] = None,
    file: Annotated[Path | None, "Learn from a text file instead.", "FILE"] = None,
    counts: Annotated[str | None, "Learn from words with counts, such as 'low=5 lower=2'.", "WORD=N …"] = None,
    merges: Annotated[int, typer.Option(help="Maximum number of BPE merges to learn.", min=0, max=10_000)] = 10,
    vocab_size: Annotated[int | None, "Stop when the vocabulary has this many symbols."] = None,
    compression_ratio: Annotated[
        float | None,
        typer.Option(
            help="Stop at this compression ratio: characters (or bytes) of the text and ends of words per symbol.",
            min=1,
        ),
    ] = None,
    word: Annotated[str | None, "Segment this word with the merges, step by step."] = None,
    ties: Annotated[
        TieBreak,
        typer.Option(
            help="Which of several equally frequent pairs of symbols is merged: the one that comes first in the "
            "text, or in the alphabet."
        ),
    ] = "first",
    utf8_bytes: Annotated[
        bool, typer.Option("--bytes", help="Learn merges of UTF-8 bytes instead of characters.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Learn byte-pair encoding from a text and show every merge: pair counts, ties, vocabulary and segmented words.

    Examples: dragoman bpe 'low lower newest widest' --word lowest, or dragoman bpe --counts 'low=5 lower=2 newest=6
    widest=3'.
    """
    words = _word_counts(text, file, counts)
    trace = learn_trace(words, merges, vocab_size, compression_ratio, ties, utf8_bytes)
    segmentations = [] if word is None else segment(word, [step.pair for step in trace.steps], utf8_bytes)
    if as_json:
        print_json(
            {
                "words": words,
                "merges": [asdict(step) for step in trace.steps],
                "stopped": trace.stopped,
                "segmentations": segmentations,
            }
        )
        return
    print(f"words: {sum(words.values()):,}, different ones: {len(words):,}; {_text_line(trace.initial)}")
    print(f"vocabulary of {len(trace.vocabulary):,} symbols: {' '.join(islice(trace.vocabulary, 60))}")
    size = len(trace.vocabulary)
    for number, step in enumerate(trace.steps, 1):
        print_lines(["", *_step_lines(number, step, is_new=len(step.vocabulary) > size)])
        size = len(step.vocabulary)
    ratio = trace.steps[-1].compression if trace.steps else 1.0
    print_lines(["", f"stopped: {trace.stopped} ({size:,} symbols, compression ratio {ratio:.2f})"])
    if word is not None:
        print_lines(["", f"{word!r} with these merges:", *(f"  {' '.join(symbols)}" for symbols in segmentations)])


def _word_counts(text: str | None, file: Path | None, counts: str | None) -> dict[str, int]:
    """Return the words to learn from with their counts, in the order of the text.

    Exactly one of the arguments must be given: a text, a text file, or words with counts ("low=5 lower=2").
    """
    if sum(value is not None for value in (text, file, counts)) != 1:
        raise UserError("give exactly one text to learn BPE merges from: the argument TEXT, --file or --counts")
    if counts is not None:
        return parse_word_counts(counts)
    if file is not None:
        from dragoman.data.text_files import read_lines

        text = " ".join(line for _, line in read_lines(file))
    assert text is not None
    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"the text has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are supported: use a part of it"
        )
    return count_words(text)


def _step_lines(number: int, step: MergeStep, is_new: bool) -> list[str]:
    """Describe merge `number` in lines of text; `is_new`: its symbol was not in the vocabulary before."""
    symbol = "".join(step.pair)
    most_frequent = ", ".join(f"{' '.join(pair)} {count:,}" for pair, count in step.pair_counts[:SHOWN_PAIRS])
    more = f", and {len(step.pair_counts) - SHOWN_PAIRS:,} more" if len(step.pair_counts) > SHOWN_PAIRS else ""
    tied = f" (tied with {', '.join(' '.join(pair) for pair in step.tied[:SHOWN_PAIRS])})" if step.tied else ""
    return [
        f"merge {number}: {' + '.join(step.pair)} → {symbol}, count {step.count:,}{tied}",
        f"  pairs: {most_frequent}{more}",
        f"  vocabulary of {len(step.vocabulary):,} symbols: {'+ ' if is_new else 'already with '}{symbol}",
        f"  text of {step.num_symbols:,} symbols, compression ratio {step.compression:.2f}",
        f"  {_text_line(step.words)}",
    ]


def _text_line(words: dict[str, tuple[str, ...]]) -> str:
    """Show the first words as symbols: "l o w </w> | l o w e r </w>"."""
    shown = " | ".join(" ".join(symbols) for symbols in islice(words.values(), SHOWN_WORDS))
    return f"{shown} | …" if len(words) > SHOWN_WORDS else shown
