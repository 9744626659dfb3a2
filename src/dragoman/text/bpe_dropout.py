"""BPE dropout: a different segmentation of a sentence each time it is seen."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError
from dragoman.text.special_tokens import SPECIAL_TOKENS
from dragoman.text.splitmix import GOLDEN_GAMMA, UInt64Array, splitmix64
from dragoman.text.tokenizer import Tokenizer

TokenIds = NDArray[np.int32]

MAX_CACHED_WORDS = 2**17
MAX_BATCH_CHARACTERS = 2**19  # words × characters of the longest word, merged at once
NO_MERGE = np.iinfo(np.int32).max  # rank of a pair that is not a merge
WORD_BOUNDARY = -1  # between the characters of two words: part of no merge, and no token


class BPEDropout:
    """Segments words again, dropping each possible merge with probability `rate` in every step.

    Provilkov et al. 2020, “BPE-dropout: simple and effective subword regularization”, algorithm 1.

    It maps token ids to token ids of the same text. For speed, many rows are processed at once, and each word has a
    pool of `pool` segmentations, the same in every process, from which one is drawn each time.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, pool: int = 32) -> None:
        """Read the merges and word boundaries of a BPE tokenizer; an argument out of range is a UserError.

        `rate` is the probability to drop a merge, `pool` the number of segmentations that are drawn for each word.
        """
        if not tokenizer.has_merges:
            raise UserError(
                "BPE dropout needs the merges of a 'bpe' or 'byte-bpe' tokenizer, but the tokenizer is of type "
                f"{tokenizer.kind!r}: set text.bpe_dropout to 0"
            )
        if not 0 <= rate <= 1:
            raise UserError(f"the rate of BPE dropout (text.bpe_dropout) must be from 0 to 1, not {rate}: change it")
        if pool < 1:
            raise UserError(f"BPE dropout draws from a pool of segmentations per word: pass 1 or more, not pool={pool}")
        self.rate, self.pool = rate, pool
        model = json.loads(tokenizer.to_json())["model"]
        ids: dict[str, int] = model["vocab"]
        splitter = _CharacterWords if tokenizer.type.tokens_show_boundaries else _ByteLevelWords
        self._splitter = splitter(tokenizer, ids)  # finds words in rows of tokens
        merges = [(ids[left], ids[right], ids[left + right]) for left, right in model["merges"]]
        self._merges = _MergeTable(merges, tokenizer.vocab_size)
        self._clear_cache()

    def __call__(
        self, flat: NDArray[Any], lengths: NDArray[Any], keys: UInt64Array
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Segment rows again: split them into words, and draw one segmentation from the pool of each word.

        Args:
            flat: the token ids of all rows, one row after the other
            lengths: the number of tokens of each row
            keys: a random key for each row, which determines its segmentation

        Returns:
            The new token ids of all rows, and the new lengths.
        """
        if not self.rate or not len(flat):
            return flat, lengths
        # a token begins a word if it looks like that, if the token before it ends one, or if it begins a row
        is_start = np.concatenate(([True], self._splitter.ends_word[flat[:-1]] | self._splitter.begins_word[flat[1:]]))
        is_start[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        word_starts = np.flatnonzero(is_start)
        row_of_word = np.repeat(np.arange(len(lengths)), lengths)[word_starts]
        words = self._word_indices(flat, word_starts)
        index_in_row = np.arange(len(word_starts)) - np.searchsorted(row_of_word, row_of_word)
        random = splitmix64(keys[row_of_word] + GOLDEN_GAMMA * (index_in_row.astype(np.uint64) + np.uint64(1)))
        # Multiplying the upper 32 bits by `pool`, and dividing by 2³², gives a number from 0 to pool − 1.
        samples = ((random >> np.uint64(32)) * np.uint64(self.pool) >> np.uint64(32)).astype(int)
        chosen = words * self.pool + samples  # numbers of segmentations
        begin = self._starts[chosen]
        if (missing := begin < 0).any():
            self._segment(np.unique(chosen[missing]))
            begin = self._starts[chosen]
        sizes = self._sizes[chosen]
        ends = np.cumsum(sizes, dtype=np.int64)
        # `_tokens` has all segmentations: gather those of the chosen ones, one after the other.
        tokens = self._tokens[np.repeat(begin - (ends - sizes), sizes) + np.arange(ends[-1])]
        return tokens, np.bincount(row_of_word, weights=sizes, minlength=len(lengths)).astype(np.int64)

    def _word_indices(self, flat: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of every word in the cache, to which new words are added.

        `flat` has the token ids of all words, `starts` where each begins. Words are found by a 64-bit hash: its first
        20 bits select a slot with the index of a word; if that is another word, a dictionary is searched.
        """
        sizes = np.diff(starts, append=len(flat))  # tokens of each word
        offset = np.arange(len(flat)) - np.repeat(starts, sizes)  # of each token in its word
        token_hashes = splitmix64(flat.astype(np.uint64) + GOLDEN_GAMMA * (offset.astype(np.uint64) + np.uint64(1)))
        hashes = splitmix64(np.add.reduceat(token_hashes, starts) + sizes.astype(np.uint64))
        if len(self._word_characters) > MAX_CACHED_WORDS:
            self._clear_cache()
        slots = (hashes >> np.uint64(64 - 20)).astype(np.int64)  # the first 20 bits
        indices = self._slots[slots].astype(np.int64)
        for number in np.flatnonzero(self._hashes[indices] != hashes).tolist():  # words that are not in their slot
            word_hash = int(hashes[number])
            index = self._index.get(word_hash)
            if index is None:
                index = self._index[word_hash] = len(self._word_characters)
                word = flat[starts[number] : starts[number] + sizes[number]].tolist()
                self._word_characters.append(self._splitter.characters(word))
                self._hashes.extend(hashes[number : number + 1])
                self._starts.extend(np.full(self.pool, -1))
                self._sizes.extend(np.zeros(self.pool))
                self._slots[slots[number]] = index
            indices[number] = index
        return indices  # the lists of the cache have the characters, hash and segmentations of each word

    def _clear_cache(self) -> None:
        """Forget all words and their segmentations, or create the empty cache."""
        self._index: dict[int, int] = {}  # word index by hash
        self._slots = np.zeros(2**20, np.int32)  # word index by the first bits of the hash: faster, for most words
        self._word_characters: list[list[int]] = []
        self._hashes = _GrowingArray(np.uint64)
        # Where each segmentation of a word's pool starts in `_tokens`, −1: not computed yet; and its length.
        self._starts, self._sizes = _GrowingArray(np.int64), _GrowingArray(np.int32)
        self._tokens = _GrowingArray(np.int32)

    def _segment(self, numbers: NDArray[np.int64]) -> None:
        """Compute segmentations, in batches of words of similar length, and append them to `_tokens`.

        The number of a segmentation is word index · pool size + its number in the pool of the word.
        """
        words, samples = np.divmod(numbers, self.pool)
        characters = [self._word_characters[word] for word in words.tolist()]
        keys = splitmix64(self._hashes[words] + GOLDEN_GAMMA * (samples.astype(np.uint64) + np.uint64(1)))
        order = sorted(range(len(characters)), key=lambda index: len(characters[index]))
        while order:
            max_width = len(characters[order[0]]) + 4  # words of a batch differ by at most 4 characters: little padding
            candidates = order[: max(1, MAX_BATCH_CHARACTERS // max_width)]
            batch = [index for index in candidates if len(characters[index]) <= max_width]
            order = order[len(batch) :]
            table = np.full((len(batch), len(characters[batch[-1]])), WORD_BOUNDARY, np.int32)
            for row, index in zip(table, batch):
                row[: len(characters[index])] = characters[index]
            tokens, sizes = self._merges.apply(table, keys[batch], self.rate)
            self._starts.array[numbers[batch]] = len(self._tokens) + np.cumsum(sizes, dtype=np.int64) - sizes
            self._sizes.array[numbers[batch]] = sizes
            self._tokens.extend(tokens)


class _CharacterWords:
    """Words of character-level BPE: no merge crosses a word boundary, so that boundaries can be read off tokens.

    Attributes:
        begins_word, ends_word: whether a word begins before, or ends after, each token of the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Mapping[str, int]) -> None:
        """Find the tokens that begin or end a word, and the characters of each; `ids` are those of the tokens."""
        atomic = {*SPECIAL_TOKENS, *tokenizer.type.byte_tokens}  # part of no merge
        self._characters = {  # the ids of a token's characters
            token_id: (token_id,) if token in atomic else tuple(ids[character] for character in token)
            for token, token_id in ids.items()
        }
        self._characters |= {token_id: (token_id,) for token_id in tokenizer.source_prefix_ids}
        self.begins_word = np.zeros(tokenizer.vocab_size, bool)
        self.ends_word = np.zeros(tokenizer.vocab_size, bool)
        initial = tokenizer.marker == "initial"
        for token, token_id in ids.items():
            first, last = (token in atomic or not _is_word_character(token[position]) for position in (0, -1))
            # a space that is a token by itself is still the marker of the word next to it
            self.begins_word[token_id] = first and (initial or token != " ")
            self.ends_word[token_id] = last and not (initial and token == " ")
        for token_id in tokenizer.source_prefix_ids:
            self.begins_word[token_id] = self.ends_word[token_id] = True

    def characters(self, word: Sequence[int]) -> list[int]:
        """Return the ids of the characters of a word, which is given by its tokens."""
        return [character for token_id in word for character in self._characters[token_id]]


class _ByteLevelWords:
    """Words of byte-level BPE, where letters next to digits are two words, and a token may be a part of a character.

    Rows are divided at tokens that begin with a space and the character after it. The words of each part are found in
    its text.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Mapping[str, int]) -> None:
        """Find the tokens at which rows are divided; `ids` are those of the tokens."""
        self._ids, self._forms = ids, tokenizer.surface_forms()  # the bytes of each token
        self._words = tokenizer.type.pre_tokenizer(tokenizer.marker)  # splits a text into words
        special = np.array([not form for form in self._forms])
        texts = (form[1:].decode(errors="ignore") if form.startswith(b" ") else "" for form in self._forms)
        self.begins_word = np.array([bool(text) and not text[0].isspace() for text in texts]) | special
        self.ends_word = special

    def characters(self, word: Sequence[int]) -> list[int]:
        """Return the ids of the bytes of some tokens, with `WORD_BOUNDARY` between two words."""
        if not self._forms[word[0]]:
            return list(word)  # a special token
        try:
            text = b"".join([self._forms[token_id] for token_id in word]).decode()
        except UnicodeDecodeError:  # not the tokens of a text: they stay as they are
            return list(word)
        # the library writes every byte of a word as one letter
        words = [[self._ids[letter] for letter in letters] for letters, _ in self._words.pre_tokenize_str(text)]
        return [token_id for letters in words for token_id in (*letters, WORD_BOUNDARY)][:-1]


class _GrowingArray:
    """An array with spare capacity, so that appending does not copy it each time."""

    def __init__(self, dtype: type[np.generic]) -> None:
        """Create an array without values."""
        self.array, self.count = np.zeros(1024, dtype), 0

    def __len__(self) -> int:
        """Return the number of values that were added."""
        return self.count

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values at some indices."""
        return self.array[indices]

    def extend(self, values: NDArray[Any]) -> None:
        """Append values; the capacity is at least doubled when it is exceeded."""
        end = self.count + len(values)
        if end > len(self.array):
            self.array = np.resize(self.array, max(end, 2 * len(self.array)))
        self.array[self.count : end] = values
        self.count = end


class _MergeTable:
    """The merges of a tokenizer: (left, right, merged) ids in order of rank."""

    def __init__(self, merges: list[tuple[int, int, int]], vocab_size: int) -> None:
        """Sort merges, given as ids (left, right, merged) in order of rank, for binary search."""
        left, right, self.merged = np.array(merges, np.int64).reshape(-1, 3).T
        pairs = left * vocab_size + right  # a number for each pair of ids
        self.vocab_size, self.order = vocab_size, np.argsort(pairs, kind="stable")  # order: ranks
        self.pairs = pairs[self.order]  # sorted

    def ranks(self, left: TokenIds, right: TokenIds) -> TokenIds:
        """Return the ranks of pairs of ids, `NO_MERGE` for pairs that are not merged; −1 is padding."""
        if not len(self.pairs):
            return np.full(left.shape, NO_MERGE, np.int32)
        pairs = np.where((left < 0) | (right < 0), -1, left.astype(np.int64) * self.vocab_size + right)
        # `self.pairs` are the sorted numbers left · vocab_size + right of all merges, `self.order` their ranks
        indices = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[indices] == pairs, self.order[indices], NO_MERGE).astype(np.int32)

    def apply(self, tokens: TokenIds, keys: UInt64Array, rate: float) -> tuple[TokenIds, TokenIds]:
        """Merge N words of up to L characters, given as N × L ids padded with `WORD_BOUNDARY`.

        In each step, the pair with the lowest rank that is not dropped becomes one token, in all words at once. A merge
        is dropped with probability `rate`, by random numbers that depend on the key of the word (`keys`, N).

        Returns:
            The tokens of all words, one word after the other, and the number of tokens of each word.
        """
        active, position = np.arange(len(tokens)), np.arange(tokens.shape[1])  # words that still have merges
        done = tokens.copy()  # the result
        ranks = self.ranks(tokens[:, :-1], tokens[:, 1:])
        step = np.uint64(0)
        while len(active) and ranks.shape[1]:
            step += np.uint64(1)
            counters = GOLDEN_GAMMA * (step * np.uint64(2**32) + position[:-1].astype(np.uint64))
            random = (splitmix64(keys[active, None] + counters) >> np.uint64(11)) * 2.0**-53  # from 0 to 1
            not_dropped = np.where(random < rate, NO_MERGE, ranks)
            best = not_dropped.argmin(1)
            rank = not_dropped[np.arange(len(not_dropped)), best]
            merges = rank < NO_MERGE
            done[active[~merges]] = tokens[~merges]
            active, tokens, ranks = active[merges], tokens[merges], ranks[merges]
            best, rank = best[merges], rank[merges]
            rows = np.arange(len(active))
            # Tokens after the pair move up.
            shift = np.minimum(position + (position > best[:, None]), len(position) - 1)
            tokens = np.take_along_axis(tokens, shift, 1)
            tokens[:, -1] = WORD_BOUNDARY
            tokens[rows, best] = self.merged[rank]
            ranks = np.take_along_axis(ranks, np.minimum(shift[:, :-1], len(position) - 2), 1)
            ranks[:, -1] = NO_MERGE
            for pair in (best - 1, best):
                exists = (pair >= 0) & (pair < len(position) - 1)
                row, pair = rows[exists], pair[exists]
                ranks[row, pair] = self.ranks(tokens[row, pair], tokens[row, pair + 1])
        done[active] = tokens
        is_token = done >= 0
        return done[is_token], is_token.sum(1).astype(np.int32)


def _is_word_character(character: str) -> bool:
    """Whether words contain it: letters, digits, combining marks, `_`, and characters unknown to this Python."""
    return character.isalnum() or character == "_" or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cn")
