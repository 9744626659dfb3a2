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

MAX_SHOWN_PAIRS, MAX_SHOWN_WORDS, MAX_SHOWN_SYMBOLS = 6, 12, 60
MAX_CHARACTERS = 1_000_000  # of the text: every merge counts all pairs again


def bpe(
    text: Annotated[
        str | None, typer.Argument(help="Text to learn BPE merges from, such as 'low lower newest widest'.")
    ] = None,
    file: Annotated[Path | None, "Learn from a text file instead.", "FILE"] = None,
    counts: Annotated[
        str | None, "Learn from words with their frequencies instead, such as 'low=5 lower=2'.", "WORD=N …"
    ] = None,
    merges: Annotated[int, typer.Option(help="Maximum number of BPE merges to learn.", min=0, max=10_000)] = 10,
    vocab_size: Annotated[int | None, "Stop learning when the vocabulary has this many symbols."] = None,
    compression_ratio: Annotated[
        float | None,
        typer.Option(
            help="Stop when the merges have shortened the text by at least this factor: its length in characters "
            "(with --bytes: bytes) and end-of-word marks, divided by its length in symbols after the merges.",
            min=1,
        ),
    ] = None,
    word: Annotated[str | None, "Segment this word with the merges, step by step."] = None,
    ties: Annotated[
        TieBreak,
        typer.Option(
            help="Pair that is merged if several pairs of symbols are equally frequent. first: the one that comes "
            "first in the text; alphabetical: the first in alphabetical order."
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
    trace = learn_trace(
        words, merges, vocab_size=vocab_size, compression_ratio=compression_ratio, tie_break=ties, utf8_bytes=utf8_bytes
    )
    learned_pairs = [step.pair for step in trace.steps]
    segmentations = [] if word is None else segment(word, learned_pairs, utf8_bytes=utf8_bytes)
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
    first_symbols = " ".join(islice(trace.vocabulary, MAX_SHOWN_SYMBOLS))
    print(f"vocabulary of {len(trace.vocabulary):,} symbols: {first_symbols}")
    size = len(trace.vocabulary)
    for number, step in enumerate(trace.steps, 1):
        print_lines(["", *_step_lines(number, step, is_new=len(step.vocabulary) > size)])
        size = len(step.vocabulary)
    ratio = trace.steps[-1].compression if trace.steps else 1.0  # 1: without merges the text is as long as before
    print_lines(["", f"stopped: {trace.stopped} ({size:,} symbols, compression ratio {ratio:.2f})"])
    if word is not None:
        print_lines(["", f"{word!r} with these merges:", *(f"  {' '.join(symbols)}" for symbols in segmentations)])


def _word_counts(text: str | None, file: Path | None, counts: str | None) -> dict[str, int]:
    """Return the words to learn from with their counts, in the order of the text.

    Exactly one of the arguments must be given: a text, a text file, or words with counts ("low=5 lower=2"). Otherwise,
    and for a text of more than MAX_CHARACTERS characters, a UserError is raised.
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
    """Describe a merge in lines of text: the pair, the most frequent pairs before it, and the text after it.

    `number` is that of the merge, from 1. `is_new` says whether its symbol was not in the vocabulary before: two merges
    can give the same symbol.
    """
    symbol = "".join(step.pair)
    most_frequent = ", ".join(f"{' '.join(pair)} {count:,}" for pair, count in step.pair_counts[:MAX_SHOWN_PAIRS])
    num_more = len(step.pair_counts) - MAX_SHOWN_PAIRS
    more = f", and {num_more:,} more" if num_more > 0 else ""
    tied_pairs = ", ".join(" ".join(pair) for pair in step.tied[:MAX_SHOWN_PAIRS])  # as frequent as the merged one
    tied = f" (tied with {tied_pairs})" if tied_pairs else ""
    return [
        f"merge {number}: {' + '.join(step.pair)} → {symbol}, count {step.count:,}{tied}",
        f"  pairs: {most_frequent}{more}",
        f"  vocabulary of {len(step.vocabulary):,} symbols: {'+ ' if is_new else 'already with '}{symbol}",
        f"  text of {step.num_symbols:,} symbols, compression ratio {step.compression:.2f}",
        f"  {_text_line(step.words)}",
    ]


def _text_line(words: dict[str, tuple[str, ...]]) -> str:
    """Return the first words, split into symbols, as a line: "l o w </w> | l o w e r </w>".

    `words` has the symbols of each word; </w> is the end of a word.
    """
    shown = " | ".join(" ".join(symbols) for symbols in islice(words.values(), MAX_SHOWN_WORDS))
    return f"{shown} | …" if len(words) > MAX_SHOWN_WORDS else shown
