"""From words and their counts to the library's models: which pieces there are, and how a word is cut into them.

Every vocabulary begins with the special symbols and, but for whole words, the 256 bytes; both count in its size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat

import tokenizers
from tokenizers import models, trainers

from dragoman.errors import UserError
from dragoman.text.bpe import iterate_merges
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS, UNK

# For the unigram learner: how many characters a word is shown before, and in which share of its count.
_ENDS, _SHARE = 30, 5


@dataclass(frozen=True)
class VocabularyLimits:
    """What bounds a vocabulary: its size, how often a piece must have been seen, the share of characters it covers."""

    size: int
    min_count: int
    coverage: float


def byte(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Nothing but the 256 bytes: every text can be written, at the price of length (Xue et al. 2022, ByT5)."""
    return _pair_model([])


def character(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """The most frequent characters; the others are written in bytes."""
    return _pair_model(_alphabet(words, limits.coverage)[: _room(limits)])


def byte_pair(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """The characters, and pairs of pieces merged in the order of their frequency (Sennrich et al. 2016)."""
    alphabet = _alphabet(words, limits.coverage)
    room = _room(limits, alphabet)
    pieces = dict.fromkeys(alphabet)
    merges: list[tuple[str, str]] = []
    for pair, count in iterate_merges(_within(alphabet, words)):
        # A pair seen once teaches nothing. Two merges can make the same piece, so pieces are counted and not merges.
        if count < max(2, limits.min_count) or len(pieces) == room:
            break
        merges.append(pair)
        pieces["".join(pair)] = None
    return _pair_model(pieces, merges)


def unigram(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """The pieces under which the words are most probable, p(word) = max over cuts of ∏ p(piece) (Kudo 2018).

    The library learns them; its sums differ in the last digits from one time to the next, so scores are rounded.
    """
    alphabet = _alphabet(words, limits.coverage)
    room = _room(limits, alphabet)
    counts = _within(alphabet, words)
    # The library only considers what it sees before different characters, and weighs it by how many different words it
    # is in: it overlooks a whole word that begins no other one. Hence words are also shown, the more frequent the more
    # often, before characters that are in no text.
    ends = [chr(code) for code in range(0xF0000, 0xF0000 + _ENDS)]
    shown = [word + end for word, count in counts.items() for end in ends[: count // _SHARE]]
    learner = tokenizers.Tokenizer(models.Unigram())
    trainer = trainers.UnigramTrainer(vocab_size=room + len({word[-1] for word in shown}), show_progress=False)
    learner.train_from_iterator(chain(shown, *(repeat(word, count) for word, count in counts.items())), trainer)
    learned = json.loads(learner.to_str())["model"]["vocab"]
    # Characters without a probability of their own got the lowest score and a little more each, in no certain order.
    lowest = min(score for _, score in learned)
    little = 1e-4 * (len(alphabet) + len(ends))
    scored = [
        (piece, round(lowest if len(piece) == 1 and score < lowest + little else score, 6))
        for piece, score in learned
        if piece[-1] not in ends
    ]
    scored.sort(key=lambda one: (-one[1], one[0]))
    return models.Unigram([*((piece, 0.0) for piece in SPECIAL_TOKENS + BYTE_TOKENS), *scored], UNK, byte_fallback=True)


def word(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """The most frequent words whole; the others are unknown."""
    room = limits.size - len(SPECIAL_TOKENS) - 1
    if room < 1:
        raise UserError(f"a vocabulary of words needs a size of at least {len(SPECIAL_TOKENS) + 2}, not {limits.size}")
    frequent = [word for word, count in Counter(words).most_common() if count >= limits.min_count and word != " "]
    return models.WordLevel(_numbered([*SPECIAL_TOKENS, " ", *frequent[:room]]), unk_token=SPECIAL_TOKENS[UNK])


def _alphabet(words: Mapping[str, int], coverage: float) -> list[str]:
    """The space, and the most frequent characters that together make up the wanted share of the text."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    del counts[" "]
    left = counts.total()
    missing = left * (1 - coverage)
    alphabet = [" "]
    for letter, count in counts.most_common():
        if left <= missing:
            break
        alphabet.append(letter)
        left -= count
    return alphabet


def _within(alphabet: Iterable[str], words: Mapping[str, int]) -> Mapping[str, int]:
    """The words cut at the characters outside the alphabet, which are written in bytes and join no piece."""
    run = re.compile(f"[{re.escape(''.join(alphabet))}]+")
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for part in run.findall(word):
            counts[part] += count
    return counts


def _room(limits: VocabularyLimits, alphabet: Iterable[str] = ()) -> int:
    """How many pieces may be learned, characters included."""
    fixed, letters = len(SPECIAL_TOKENS) + len(BYTE_TOKENS), len(list(alphabet))
    if limits.size < fixed + letters:
        raise UserError(
            f"a vocabulary of size {limits.size} is too small: {len(SPECIAL_TOKENS)} special symbols, {len(BYTE_TOKENS)} bytes and "
            f"{letters} characters need {fixed + letters}; take a larger size or a smaller coverage"
        )
    return limits.size - fixed


def _pair_model(pieces: Iterable[str], merges: Iterable[tuple[str, str]] = ()) -> models.Model:
    vocabulary = _numbered([*SPECIAL_TOKENS, *BYTE_TOKENS, *pieces])
    return models.BPE(vocabulary, list(merges), unk_token=SPECIAL_TOKENS[UNK], byte_fallback=True)


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}
