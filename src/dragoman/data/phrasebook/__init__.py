"""The phrasebook: an embedded English–German corpus, made by a synchronous grammar, with gold word alignments.

`grammar` knows how sentences are said in both languages, `lexicon` holds the words, `writer` draws what to say.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

from dragoman.data.phrasebook.grammar import AlignedPair
from dragoman.data.phrasebook.sentence_sampler import SentenceSampler
from dragoman.errors import UserError
from dragoman.storage import atomic_folder
from dragoman.text.word_splitting import split_words

__all__ = ["AlignedPair", "sentences", "splits", "write"]

MAX_WORDS = 25  # words of an English sentence
HELD_OUT = {0: "valid", 1: "test"}  # of 16 buckets, by a checksum of the English sentence


def sentences(seed: int = 0) -> Iterator[AlignedPair]:
    """Sentence pairs without end, the same ones for the same seed; short sentences come more than once."""
    writer = SentenceSampler(seed)
    while True:
        pair = writer.sentence().pair()
        if pair.source.count(" ") < MAX_WORDS:
            yield pair


def splits(train: int, valid: int = 500, test: int = 500, seed: int = 0) -> dict[str, list[AlignedPair]]:
    """Distinct pairs for training, validation and test.

    A checksum of the English sentence decides where it may go, so no held-out sentence is ever in training, whatever
    the sizes and seeds. Held-out sentences use only words that occur in training.
    """
    sizes = {"train": train, "valid": valid, "test": test}
    for name, size in sizes.items():
        if size < 0:
            raise UserError(f"the number of {name} pairs must not be negative, but it is {size}")
    pairs: dict[str, dict[str, AlignedPair]] = {name: {} for name in sizes}
    patience = 10_000 + 100 * sum(sizes.values())
    stream = itertools.islice(sentences(seed), patience)

    for pair in stream:
        name = HELD_OUT.get(zlib.crc32(pair.source.encode()) % 16, "train")
        if len(pairs["train"]) < train or name != "train":
            pairs[name].setdefault(pair.source, pair)
        if len(pairs["train"]) == train:
            break
    known = {word for pair in pairs["train"].values() for word in vocabulary(pair)}
    for name in HELD_OUT.values():
        pairs[name] = {source: pair for source, pair in pairs[name].items() if known.issuperset(vocabulary(pair))}
    for pair in stream:
        if all(len(pairs[name]) >= sizes[name] for name in HELD_OUT.values()):
            break
        name = HELD_OUT.get(zlib.crc32(pair.source.encode()) % 16, "train")
        if name != "train" and known.issuperset(vocabulary(pair)):
            pairs[name].setdefault(pair.source, pair)

    for name, size in sizes.items():
        if len(pairs[name]) < size:
            raise UserError(
                f"the words of {train} training pairs are too few for {size} {name} pairs that use no others: "
                f"ask for more training pairs or fewer {name} pairs"
            )
    return {name: list(pairs[name].values())[:size] for name, size in sizes.items()}


def vocabulary(pair: AlignedPair) -> set[str]:
    """The words of both sides, marked with their side."""
    return {f"en {word}" for word in split_words(pair.source)} | {f"de {word}" for word in split_words(pair.target)}


def write(folder: Path, pairs: int = 20000, seed: int = 0, valid: int = 500, test: int = 500) -> None:
    """Write train, valid and test, one sentence a line, as .en, .de, and .align (Pharaoh format: 0-0 1-2)."""
    if folder.exists():
        raise UserError(f"{folder} exists already: name a new folder")
    made = splits(pairs, valid, test, seed)
    with atomic_folder(folder) as partial:
        for name, split in made.items():
            columns = {
                "en": [pair.source for pair in split],
                "de": [pair.target for pair in split],
                "align": [" ".join(f"{source}-{target}" for source, target in pair.alignment) for pair in split],
            }
            for ending, lines in columns.items():
                (partial / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
