"""`dragoman bpe`: show how byte-pair encoding is learned and applied."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Json
from dragoman.console import print_json, print_lines
from dragoman.errors import UserError
from dragoman.text.bpe_trace import MergeStep, TieBreak, initial_symbols, segment, trace_merges

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
    compression: Annotated[float | None, "Stop when the text is this many times shorter than at first."] = None,
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
    steps: list[MergeStep] = []
    for step in islice(trace_merges(words, ties, utf8_bytes), merges):
        if vocab_size is not None and len(step.vocabulary) > vocab_size:
            break
        steps.append(step)
        if compression is not None and step.compression >= compression:
            break
    segmentations = [] if word is None else segment(word, [step.pair for step in steps], utf8_bytes)
    if as_json:
        print_json({"words": words, "merges": [asdict(step) for step in steps], "segmentations": segmentations})
        return
    initial = {each: initial_symbols(each, utf8_bytes) for each in words}
    vocabulary = dict.fromkeys(symbol for symbols in initial.values() for symbol in symbols)
    print(f"words: {sum(words.values()):,}, different ones: {len(words):,}; {_text_line(initial)}")
    print(f"vocabulary of {len(vocabulary):,} symbols: {' '.join(islice(vocabulary, 60))}")
    for number, step in enumerate(steps, 1):
        print_lines(["", *_step_lines(number, step)])
    if word is not None:
        print_lines(["", f"{word!r} with these merges:", *(f"  {' '.join(symbols)}" for symbols in segmentations)])


def _word_counts(text: str | None, file: Path | None, counts: str | None) -> dict[str, int]:
    """Return the words to learn from with their counts, in the order of the text.

    Exactly one of the arguments is not None: a text, a text file, or words with counts such as "low=5 lower=2".
    """
    if sum(value is not None for value in (text, file, counts)) != 1:
        raise UserError("give exactly one text to learn BPE merges from: the argument TEXT, --file or --counts")
    if counts is not None:
        entries = [entry.rpartition("=") for entry in counts.split()]
        if invalid := [f"{word}{sign}{count}" for word, sign, count in entries if not word or not count.isdecimal()]:
            raise UserError(f"--counts expects words with counts, such as low=5 lower=2, got {invalid[0]}")
        if positive := {word: int(count) for word, _, count in entries if int(count)}:
            return positive
        raise UserError("--counts is empty: give at least one word with a count above 0, such as low=5")
    if file is not None:
        from dragoman.data.text_files import read_lines

        text = " ".join(line for _, line in read_lines(file))
    assert text is not None
    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"the text has {len(text):,} characters, but at most {MAX_CHARACTERS:,} are supported: use a part of it"
        )
    words = dict(Counter(text.split()))
    if not words:
        raise UserError("the text is empty: give at least one word")
    return words


def _step_lines(number: int, step: MergeStep) -> list[str]:
    """Describe one merge in lines of text."""
    frequent = ", ".join(f"{' '.join(pair)} {count:,}" for pair, count in step.pair_counts[:SHOWN_PAIRS])
    more = f", and {len(step.pair_counts) - SHOWN_PAIRS:,} more" if len(step.pair_counts) > SHOWN_PAIRS else ""
    tied = f" (tied with {', '.join(' '.join(pair) for pair in step.tied[:SHOWN_PAIRS])})" if step.tied else ""
    size = f"{len(step.vocabulary):,} symbols, text of {step.num_symbols:,} symbols ({step.compression:.2f} × shorter)"
    return [
        f"merge {number}: {' + '.join(step.pair)} → {''.join(step.pair)}, count {step.count:,}{tied}",
        f"  pairs: {frequent}{more}",
        f"  vocabulary of {size}",
        f"  {_text_line(step.words)}",
    ]


def _text_line(words: dict[str, tuple[str, ...]]) -> str:
    """Show the first words as symbols: "l o w </w> | l o w e r </w>"."""
    shown = " | ".join(" ".join(symbols) for symbols in islice(words.values(), SHOWN_WORDS))
    return f"{shown} | …" if len(words) > SHOWN_WORDS else shown
