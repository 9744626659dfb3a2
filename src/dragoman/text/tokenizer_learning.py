"""Learning vocabularies: from word counts to a model of the `tokenizers` library.

Every vocabulary begins with the special tokens and, except for word-level ones, the 256 byte tokens. Both count toward
its size.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat

import tokenizers
from tokenizers import models, trainers

from dragoman.errors import UserError
from dragoman.text.bpe_merges import Pair, iterate_merges
from dragoman.text.byte_level import BYTE_LETTERS
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS, UNK

# The unigram trainer sees a word with count c before min(c // _COUNT_PER_END_CHARACTER, _MAX_END_CHARACTERS) different
# artificial characters.
_MAX_END_CHARACTERS, _COUNT_PER_END_CHARACTER = 30, 5


@dataclass(frozen=True)
class VocabularyLimits:
    """Limits of a vocabulary."""

    size: int  # number of tokens, special tokens and bytes included
    min_count: int  # minimum count of a token
    coverage: float  # share of the characters that get a token
    #: characters (`bpe`) or bytes (`byte-bpe`) of the text per token at which BPE stops, if given
    compression_ratio: float | None = None
    log: Callable[[str], None] = lambda message: None  # reports which limit ended BPE, if there is a compression ratio


def learn_bytes(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Build a model of the 256 bytes only: few tokens, long sequences (Xue et al. 2022).

    `words` and `limits`, which all types of tokenizers take, are ignored.
    """
    return _bpe_model(tokens=[])


def learn_characters(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Build a model of the most frequent characters; rarer ones are encoded as bytes. `words` have their counts.

    The characters make up the share `limits.coverage` of the text, and are as many as `limits.size` allows.
    """
    return _bpe_model(_alphabet(words, limits.coverage)[: _max_learned_tokens(limits)])


def learn_bpe(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Learn BPE from word counts: characters, and merged pairs in order of frequency (Sennrich et al. 2016).

    The characters make up the share `limits.coverage` of the text; rarer ones are encoded as bytes.
    """
    alphabet = _alphabet(words, limits.coverage)
    max_tokens = _max_learned_tokens(limits, alphabet)
    mergeable = _split_at_rare_characters(alphabet, words)
    merges = _learn_merges(words, mergeable, alphabet=alphabet, max_tokens=max_tokens, limits=limits)
    return _bpe_model(dict.fromkeys([*alphabet, *map("".join, merges)]), merges)


def learn_byte_bpe(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Learn byte-level BPE from counts of words in `BYTE_LETTERS`: bytes and merged pairs (Radford et al. 2019).

    A size (`limits.size`) without room for the special tokens and the bytes is a UserError.
    """
    max_tokens = limits.size - len(SPECIAL_TOKENS)  # bytes included
    if max_tokens < len(BYTE_LETTERS):
        raise UserError(
            f"a vocabulary of size {limits.size} is too small: {len(SPECIAL_TOKENS)} special tokens and "
            f"{len(BYTE_LETTERS)} bytes need {len(SPECIAL_TOKENS) + len(BYTE_LETTERS)}; raise text.vocab_size"
        )
    merges = _learn_merges(words, mergeable=words, alphabet=BYTE_LETTERS, max_tokens=max_tokens, limits=limits)
    return models.BPE(_enumerate(dict.fromkeys([*SPECIAL_TOKENS, *BYTE_LETTERS, *map("".join, merges)])), merges)


def _learn_merges(
    words: Mapping[str, int],
    mergeable: Mapping[str, int],
    alphabet: Iterable[str],
    max_tokens: int,
    limits: VocabularyLimits,
) -> list[Pair]:
    """Learn BPE merges until the vocabulary size, the compression ratio or the minimum count is reached.

    Args:
        words: all words with their counts.
        mergeable: parts of the words that consist of the `alphabet`; other characters are encoded as bytes.
        max_tokens: maximum number of tokens, those of the alphabet included.
        limits: minimum count of a pair (at least 2), the compression ratio (characters of `words` per token; None: no
            limit), and a function that gets a message on which limit was reached, if there is a ratio.
    """
    length = _text_length(words)  # in characters, or in bytes for byte-level BPE, which writes each as a letter
    # tokens of the characters outside the alphabet: one for each of their bytes
    other_tokens = _text_length(words, utf8=True) - _text_length(mergeable, utf8=True)
    ratio = length / max(1, _text_length(mergeable) + other_tokens)  # before the first merge: a token per character
    max_ratio = limits.compression_ratio or math.inf
    tokens, merges = {*alphabet}, list[Pair]()
    end = "no pair of tokens occurs more than once" if limits.min_count <= 2 else "the remaining pairs are too rare"
    for pair, count, num_symbols in iterate_merges(mergeable):
        # A pair seen once generalizes to nothing. Two merges can give the same token, so tokens are counted.
        if count < max(2, limits.min_count):
            break
        if len(tokens) == max_tokens or ratio >= max_ratio:
            end = f"the {'vocabulary size' if len(tokens) == max_tokens else 'compression ratio'} is reached"
            break
        merges.append(pair)
        tokens.add("".join(pair))
        ratio = length / (num_symbols + other_tokens)
    if limits.compression_ratio is not None:
        num_tokens = len(tokens) + limits.size - max_tokens  # with special tokens and bytes
        limits.log(
            f"BPE stopped after {len(merges):,} merges, because {end}: {num_tokens:,} tokens (at most "
            f"{limits.size:,}), compression ratio {ratio:.3f} (wanted: {limits.compression_ratio:g})"
        )
    return merges


def _text_length(words: Mapping[str, int], utf8: bool = False) -> int:
    """Return the number of characters, or with `utf8` of bytes, of a text given by the counts of its words."""
    return sum(len(word.encode() if utf8 else word) * count for word, count in words.items())


def learn_unigram(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Learn tokens that make the words most probable, p(word) = max over segmentations of ∏ p(token) (Kudo 2018).

    The `tokenizers` library learns them from `words` with their counts. Its sums differ in the last digits each time,
    so scores (log probabilities) are rounded.
    """
    alphabet = _alphabet(words, limits.coverage)
    max_tokens = _max_learned_tokens(limits, alphabet)
    counts = _split_at_rare_characters(alphabet, words)
    # The library considers only substrings that occur before different characters, and overlooks a whole word that
    # begins no other word. Therefore a word is repeated before characters that no text contains (private ones,
    # U+F0000…): the more often it occurs, the more of them.
    ends = [chr(code) for code in range(0xF0000, 0xF0000 + _MAX_END_CHARACTERS)]
    extended = [word + end for word, count in counts.items() for end in ends[: count // _COUNT_PER_END_CHARACTER]]
    library = tokenizers.Tokenizer(models.Unigram())
    vocab_size = max_tokens + len({word[-1] for word in extended})  # with the artificial characters, removed below
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, show_progress=False)
    library.train_from_iterator(chain(extended, *(repeat(word, count) for word, count in counts.items())), trainer)
    learned = json.loads(library.to_str())["model"]["vocab"]
    # Characters without a probability get the lowest score plus small increments, in an order that varies.
    lowest = min(score for _, score in learned)
    tolerance = 1e-4 * (len(alphabet) + len(ends))
    scored = [
        (token, round(lowest if len(token) == 1 and score < lowest + tolerance else score, 6))
        for token, score in learned
        if token[-1] not in ends
    ]
    scored.sort(key=lambda entry: (-entry[1], entry[0]))
    first_tokens = [(token, 0.0) for token in SPECIAL_TOKENS + BYTE_TOKENS]
    return models.Unigram([*first_tokens, *scored], unk_id=UNK, byte_fallback=True)


def learn_word_level(words: Mapping[str, int], limits: VocabularyLimits) -> models.Model:
    """Build a model of the most frequent words; all others are unknown. `words` have their counts.

    A size without room for the special tokens, the space and one word is a UserError.
    """
    max_words = limits.size - len(SPECIAL_TOKENS) - 1  # 1: the space, a token by itself
    if max_words < 1:
        raise UserError(
            f"a vocabulary of words needs a size of at least {len(SPECIAL_TOKENS) + 2} (special tokens, the space and "
            f"one word), not {limits.size}: raise text.vocab_size"
        )
    frequent = [word for word, count in Counter(words).most_common() if count >= limits.min_count and word != " "]
    return models.WordLevel(_enumerate([*SPECIAL_TOKENS, " ", *frequent[:max_words]]), unk_token=SPECIAL_TOKENS[UNK])


def _alphabet(words: Mapping[str, int], coverage: float) -> list[str]:
    """Return the space and the most frequent characters, which together make up the share `coverage` of the text.

    `words` have their counts. Spaces do not count in the share.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
    del counts[" "]  # always in the alphabet, and not counted
    remaining = counts.total()
    uncovered = remaining * (1 - coverage)
    alphabet = [" "]
    for letter, count in counts.most_common():
        if remaining <= uncovered:
            break
        alphabet.append(letter)
        remaining -= count
    return alphabet


def _split_at_rare_characters(alphabet: Iterable[str], words: Mapping[str, int]) -> Mapping[str, int]:
    """Return the parts of words between characters outside the alphabet, with their counts.

    Characters outside the alphabet are encoded as bytes and are part of no token. `words` have their counts.
    """
    frequent_characters = re.compile(f"[{re.escape(''.join(alphabet))}]+")
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for fragment in frequent_characters.findall(word):
            counts[fragment] += count
    return counts


def _max_learned_tokens(limits: VocabularyLimits, alphabet: Iterable[str] = ()) -> int:
    """Return how many tokens can be learned, characters included: the size without special tokens and bytes.

    A size that has no room for the `alphabet` is a UserError.
    """
    given_tokens, letters = len(SPECIAL_TOKENS) + len(BYTE_TOKENS), len(list(alphabet))
    if limits.size < given_tokens + letters:
        raise UserError(
            f"a vocabulary of size {limits.size} is too small: {len(SPECIAL_TOKENS)} special tokens, "
            f"{len(BYTE_TOKENS)} bytes and the {letters} most frequent characters of the text need "
            f"{given_tokens + letters}; raise text.vocab_size"
        )
    return limits.size - given_tokens


def _bpe_model(tokens: Iterable[str], merges: Iterable[tuple[str, str]] = ()) -> models.Model:
    """Build a BPE model of special tokens, bytes and `tokens`; unknown characters are split into bytes."""
    vocabulary = _enumerate([*SPECIAL_TOKENS, *BYTE_TOKENS, *tokens])
    return models.BPE(vocabulary, list(merges), unk_token=SPECIAL_TOKENS[UNK], byte_fallback=True)


def _enumerate(tokens: Iterable[str]) -> dict[str, int]:
    """Return the id of each token: 0, 1, …."""
    return {token: token_id for token_id, token in enumerate(tokens)}
