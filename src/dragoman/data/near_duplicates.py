"""Near duplicates by MinHash (Broder 1997): texts with mostly the same word trigrams get equal hashes.

The similarity of two texts is the Jaccard index J of their sets of word trigrams (case and punctuation do not count). A
minimum of random hashes over a set is equal for two sets with probability J. BANDS bands of BAND_HASHES minima each are
compared as a whole, so that two texts share a band with probability 1 − (1 − J^8)^16: 95 % at J = 0.8, 6 % at J = 0.5.
All hashes are fixed functions of the text, so that the result is the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dragoman.text.splitmix import GOLDEN_GAMMA, splitmix64

BANDS, BAND_HASHES = 16, 8
SHINGLE_WORDS = 3
NO_WORDS = 0  # all bands of a text without words

#: a word, or a single letter of a script without spaces: Han, kana, Thai, Lao, Myanmar and Khmer
_WORD = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|\\w+")


Hashes = NDArray[np.uint64]


def band_hashes(texts: Sequence[str]) -> Hashes:
    """Return BANDS hashes of each text (texts × BANDS), which similar texts share; NO_WORDS for a text without words.

    A minimum of a random hash over the word trigrams (shingles) of a text is equal for similar texts with a probability
    that grows with their similarity. A band is the hash of BAND_HASHES such minima.
    """
    words = [_WORD.findall(text.casefold()) for text in texts]
    has_words = np.array(list(map(bool, words)), bool)
    shingles, starts = _shingle_hashes(words)
    bands = np.zeros((BANDS, len(texts)), np.uint64)
    for number in range(BANDS * BAND_HASHES if len(texts) else 0):
        # a random hash function for each number
        random_hashes = splitmix64(shingles ^ np.uint64((number + 1) * int(GOLDEN_GAMMA) % 2**64))
        minima = np.minimum.reduceat(random_hashes, starts)  # of each text
        bands[number // BAND_HASHES] = splitmix64(bands[number // BAND_HASHES] + minima)  # hash of minima so far
    # NO_WORDS is 0, so the bands of texts with words are at least 1
    return np.where(has_words[:, None], np.maximum(bands.T, NO_WORDS + 1), NO_WORDS)


def _shingle_hashes(texts: Sequence[Sequence[str]]) -> tuple[Hashes, NDArray[np.int64]]:
    """Return the hashes of all shingles (word trigrams) of all texts, and the index of the first one of each text.

    `texts` are lists of words. A text of fewer than SHINGLE_WORDS words has one shingle, of all its words and zeros.
    """
    word_hash = {word: _hash_word(word) for word in set(chain.from_iterable(texts))}
    padding = [0] * (SHINGLE_WORDS - 1)
    # every text is followed by padding, so that no shingle goes beyond it
    padded = ([*map(word_hash.__getitem__, words), *padding] for words in texts)
    hashes = np.fromiter(chain.from_iterable(padded), np.uint64)
    combined = np.zeros(len(hashes), np.uint64)
    for offset in reversed(range(SHINGLE_WORDS)):  # combine the hash of each word with those of the words after it
        following = np.zeros(len(hashes), np.uint64)
        following[: len(hashes) - offset] = hashes[offset:]
        combined = splitmix64(combined + following)
    lengths = np.array([len(words) for words in texts], np.int64)
    counts = np.maximum(1, lengths - SHINGLE_WORDS + 1)  # shingles per text
    begins = np.cumsum([0, *(lengths + len(padding))])[:-1]  # index of the first word of each text in `hashes`
    starts = np.cumsum([0, *counts])[:-1]
    return combined[np.arange(counts.sum()) + np.repeat(begins - starts, counts)], starts


def _hash_word(word: str) -> int:
    """Return a 64-bit hash of a word; characters that are not valid Unicode (lone surrogates) count as "?"."""
    return int.from_bytes(blake2b(word.encode(errors="replace"), digest_size=8).digest(), "little")
