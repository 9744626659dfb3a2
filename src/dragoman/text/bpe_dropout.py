"""BPE dropout: a different segmentation of a sentence each time it is seen."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence, Set
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
    pool of `pool_size` random segmentations, the same in every process, from which one is drawn each time.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float, pool_size: int = 32) -> None:
        """Read the merges and word boundaries of a BPE tokenizer; an argument out of range is a UserError.

        `rate` is the probability to drop a merge, `pool_size` the number of segmentations that are kept for each word.
        """
        if not tokenizer.has_merges:
            raise UserError(
                "BPE dropout needs the merges of a 'bpe' or 'byte-bpe' tokenizer, but the tokenizer is of type "
                f"{tokenizer.kind!r}: set text.bpe_dropout to 0"
            )
        if not 0 <= rate <= 1:
            raise UserError(
                f"text.bpe_dropout, the probability to skip a merge, must be from 0 to 1, not {rate}: change it"
            )
        if pool_size < 1:
            raise UserError(
                "pool_size, the number of random segmentations that are kept for each word, must be at least 1, not "
                f"{pool_size}: raise it"
            )
        self.rate, self.pool_size = rate, pool_size
        document = json.loads(tokenizer.to_json())
        model, ids = document["model"], document["model"]["vocab"]
        self._splitter: _CharacterWords | _ByteLevelWords  # finds the words in rows of token ids
        if tokenizer.type.tokens_show_boundaries:
            # corpus tags, feature symbols, and codes of languages; not all are in the vocabulary of the model
            special = {token["content"]: token["id"] for token in document["added_tokens"]}
            self._splitter = _CharacterWords(tokenizer, ids | special, special.keys())
        else:
            self._splitter = _ByteLevelWords(tokenizer, ids)
        merges = [(ids[left], ids[right], ids[left + right]) for left, right in model["merges"]]
        self._merges = _MergeTable(merges, tokenizer.vocab_size)
        self._clear_cache()

    def __call__(
        self, tokens: NDArray[Any], lengths: NDArray[Any], keys: UInt64Array
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Segment rows again: split them into words, and draw one segmentation from the pool of each word.

        With `rate` 0, the rows are returned unchanged. Segmentations that are drawn for the first time are computed.

        Args:
            tokens: the token ids of all rows, one row after the other
            lengths: the number of tokens of each row
            keys: a random key for each row, which determines its segmentation

        Returns:
            The new token ids of all rows, and the new lengths.
        """
        if not self.rate or not len(tokens):
            return tokens, lengths
        # A token begins a word if its text shows that, as ▁ does, if the token before it ends one, or if it begins a
        # row.
        begins_word, ends_word = self._splitter.begins_word, self._splitter.ends_word
        is_start = np.concatenate(([True], ends_word[tokens[:-1]] | begins_word[tokens[1:]]))
        row_starts = np.cumsum(lengths) - lengths
        is_start[row_starts[lengths > 0]] = True
        word_starts = np.flatnonzero(is_start)
        row_of_word = np.repeat(np.arange(len(lengths)), lengths)[word_starts]
        words = self._word_indices(tokens, word_starts)
        index_in_row = np.arange(len(word_starts)) - np.searchsorted(row_of_word, row_of_word)  # of each word
        # 64 random bits for each word, from the key of its row and its index there (+ 1: a multiple of 0 adds nothing)
        random = splitmix64(keys[row_of_word] + GOLDEN_GAMMA * (index_in_row.astype(np.uint64) + np.uint64(1)))
        # Multiplying the upper 32 bits by the pool size, and dividing by 2³², gives a number from 0 to pool_size − 1.
        draws = ((random >> np.uint64(32)) * np.uint64(self.pool_size) >> np.uint64(32)).astype(int)
        segmentations = words * self.pool_size + draws  # their numbers in the cache
        starts = self._starts[segmentations]  # in the cache `_tokens`; −1: not computed yet
        if (missing := starts < 0).any():
            self._segment(np.unique(segmentations[missing]))
            starts = self._starts[segmentations]
        sizes = self._sizes[segmentations]
        new_ends = np.cumsum(sizes, dtype=np.int64)
        # Gather the drawn segmentations from `_tokens`, one after the other: output position + (start in `_tokens` −
        # start in the output).
        new_tokens = self._tokens[np.repeat(starts - (new_ends - sizes), sizes) + np.arange(new_ends[-1])]
        return new_tokens, np.bincount(row_of_word, weights=sizes, minlength=len(lengths)).astype(np.int64)

    def _word_indices(self, tokens: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of every word in the cache, to which new words are added.

        `tokens` has the token ids of all words, `starts` where each begins. Words are found by a 64-bit hash: its first
        20 bits select a slot with the index of a word; if that is another word, a dictionary is searched.
        """
        sizes = np.diff(starts, append=len(tokens))  # tokens of each word
        offset = np.arange(len(tokens)) - np.repeat(starts, sizes)  # of each token in its word
        token_hashes = splitmix64(tokens.astype(np.uint64) + GOLDEN_GAMMA * (offset.astype(np.uint64) + np.uint64(1)))
        hashes = splitmix64(np.add.reduceat(token_hashes, starts) + sizes.astype(np.uint64))
        if len(self._word_characters) > MAX_CACHED_WORDS:
            self._clear_cache()
        slots = (hashes >> np.uint64(64 - 20)).astype(np.int64)  # the first 20 bits
        indices = self._slots[slots].astype(np.int64)
        for n in np.flatnonzero(self._hashes[indices] != hashes).tolist():  # words that are not in their slot
            word_hash = int(hashes[n])
            index = self._index_of_hash.get(word_hash)
            if index is None:  # a new word: append its characters, its hash, and a pool of empty segmentations
                index = self._index_of_hash[word_hash] = len(self._word_characters)
                word = tokens[starts[n] : starts[n] + sizes[n]].tolist()
                self._word_characters.append(self._splitter.characters(word))
                self._hashes.extend(hashes[n : n + 1])
                self._starts.extend(np.full(self.pool_size, -1))
                self._sizes.extend(np.zeros(self.pool_size))
                self._slots[slots[n]] = index
            indices[n] = index
        return indices

    def _clear_cache(self) -> None:
        """Empty the cache of words and their segmentations; the constructor creates it with this method."""
        self._index_of_hash: dict[int, int] = {}  # hash of a word → its index
        self._slots = np.zeros(2**20, np.int32)  # word index by the first bits of the hash: faster, for most words
        self._word_characters: list[list[int]] = []  # ids of the characters of each word
        self._hashes = _GrowingArray(np.uint64)  # of each word
        # Where each segmentation of a word's pool starts in `_tokens`, −1: not computed yet; and its length.
        self._starts, self._sizes = _GrowingArray(np.int64), _GrowingArray(np.int32)
        self._tokens = _GrowingArray(np.int32)

    def _segment(self, segmentations: NDArray[np.int64]) -> None:
        """Compute segmentations, in batches of words of similar length, and append them to `_tokens`.

        A segmentation is given by the number word index · pool_size + its index in the pool of the word.
        """
        words, pool_indices = np.divmod(segmentations, self.pool_size)
        characters = [self._word_characters[word] for word in words.tolist()]
        keys = splitmix64(self._hashes[words] + GOLDEN_GAMMA * (pool_indices.astype(np.uint64) + np.uint64(1)))
        order = sorted(range(len(characters)), key=lambda index: len(characters[index]))
        while order:
            # `order` begins with the shortest word; words of a batch differ by at most 4 characters: little padding
            max_width = len(characters[order[0]]) + 4
            candidates = order[: max(1, MAX_BATCH_CHARACTERS // max_width)]
            batch = [index for index in candidates if len(characters[index]) <= max_width]
            order = order[len(batch) :]
            table = np.full((len(batch), len(characters[batch[-1]])), WORD_BOUNDARY, np.int32)
            for row, index in zip(table, batch):
                row[: len(characters[index])] = characters[index]
            tokens, sizes = self._merges.apply(table, keys[batch], self.rate)
            self._starts.array[segmentations[batch]] = len(self._tokens) + np.cumsum(sizes, dtype=np.int64) - sizes
            self._sizes.array[segmentations[batch]] = sizes
            self._tokens.extend(tokens)


class _CharacterWords:
    """Words of character-level BPE: no merge crosses a word boundary, so that boundaries can be read off tokens.

    Attributes:
        begins_word, ends_word: whether a word begins before, or ends after, each token of the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Mapping[str, int], special: Set[str]) -> None:
        """Find the tokens that begin or end a word, and the characters of each.

        `ids` are those of the tokens; `special` tokens have no characters.
        """
        atomic = {*SPECIAL_TOKENS, *special, *tokenizer.type.byte_tokens}  # part of no merge
        self._characters = {  # the ids of a token's characters
            token_id: (token_id,) if token in atomic else tuple(ids[character] for character in token)
            for token, token_id in ids.items()
        }
        self.begins_word = np.zeros(tokenizer.vocab_size, bool)
        self.ends_word = np.zeros(tokenizer.vocab_size, bool)
        space_is_before_word = tokenizer.marker == "initial"
        for token, token_id in ids.items():
            # whether the token cannot continue a word before it (by its first character), or be continued by one after
            # it (by its last)
            is_left_boundary, is_right_boundary = (
                token in atomic or not _is_word_character(token[position]) for position in (0, -1)
            )
            # a space that is a token by itself belongs to the word that it marks: the next one, or the one before
            self.begins_word[token_id] = is_left_boundary and (space_is_before_word or token != " ")
            self.ends_word[token_id] = is_right_boundary and not (space_is_before_word and token == " ")

    def characters(self, word: Sequence[int]) -> list[int]:
        """Return the ids of the characters of a word, which is given by the ids of its tokens."""
        return [character for token_id in word for character in self._characters[token_id]]


class _ByteLevelWords:
    """Words of byte-level BPE, where letters next to digits are two words, and a token may be a part of a character.

    Rows are divided at tokens that begin with a space and the character after it. The words of each part are found in
    its text.
    """

    def __init__(self, tokenizer: Tokenizer, ids: Mapping[str, int]) -> None:
        """Find the tokens at which rows are divided; `ids` are those of the tokens."""
        self._ids, self._token_bytes = ids, tokenizer.surface_forms()
        self._pre_tokenizer = tokenizer.type.pre_tokenizer(tokenizer.marker)  # splits a text into words
        is_special = np.array([not content for content in self._token_bytes])  # special tokens have no text
        # what follows the space at the beginning of a token
        texts = (
            content[1:].decode(errors="ignore") if content.startswith(b" ") else "" for content in self._token_bytes
        )
        self.begins_word = np.array([bool(text) and not text[0].isspace() for text in texts]) | is_special
        self.ends_word = is_special

    def characters(self, word: Sequence[int]) -> list[int]:
        """Return the ids of the bytes of some tokens (ids), with `WORD_BOUNDARY` between two words.

        The tokens (`word`) begin at a word, but may contain several words.
        """
        if not self._token_bytes[word[0]]:
            return list(word)  # a special token
        try:
            text = b"".join([self._token_bytes[token_id] for token_id in word]).decode()
        except UnicodeDecodeError:  # not the tokens of a text: they stay as they are
            return list(word)
        # the library writes every byte of a word as one letter
        words = [[self._ids[letter] for letter in letters] for letters, _ in self._pre_tokenizer.pre_tokenize_str(text)]
        with_boundaries = [byte_id for byte_ids in words for byte_id in (*byte_ids, WORD_BOUNDARY)]
        return with_boundaries[:-1]  # none after the last word


class _GrowingArray:
    """An array with spare capacity, so that appending does not copy it each time."""

    def __init__(self, dtype: type[np.generic]) -> None:
        """Create an array without values."""
        self.array, self.count = np.zeros(1024, dtype), 0

    def __len__(self) -> int:
        """Return the number of values that were appended; the capacity of the array is larger."""
        return self.count

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values at these indices."""
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
        """Sort the pairs of the merges for binary search.

        `merges` have the ids (left, right, merged), in order of rank: the first one has priority. `vocab_size` exceeds
        all ids.
        """
        left, right, self.merged = np.array(merges, np.int64).reshape(-1, 3).T  # one id per merge, by rank
        pairs = left * vocab_size + right  # a number for each pair of ids
        self.vocab_size = vocab_size
        self.sorted_ranks = np.argsort(pairs, kind="stable")  # the rank of each of the sorted pairs
        self.sorted_pairs = pairs[self.sorted_ranks]

    def ranks(self, left: TokenIds, right: TokenIds) -> TokenIds:
        """Return the ranks of pairs of ids, `NO_MERGE` for pairs that are no merge or contain −1 (a word boundary)."""
        if not len(self.sorted_pairs):
            return np.full(left.shape, NO_MERGE, np.int32)
        # a pair as a number, left · vocab_size + right, as in `sorted_pairs`; −1 is none of these
        pairs = np.where((left < 0) | (right < 0), -1, left.astype(np.int64) * self.vocab_size + right)
        indices = np.minimum(np.searchsorted(self.sorted_pairs, pairs), len(self.sorted_pairs) - 1)
        return np.where(self.sorted_pairs[indices] == pairs, self.sorted_ranks[indices], NO_MERGE).astype(np.int32)

    def apply(self, tokens: TokenIds, keys: UInt64Array, rate: float) -> tuple[TokenIds, TokenIds]:
        """Merge N words of up to L characters, given as N × L ids padded with `WORD_BOUNDARY`.

        In each step, the pair with the lowest rank that is not dropped becomes one token, in all words at once; a word
        without such a pair is finished. A merge is dropped with probability `rate`, by random numbers that depend on
        the key of the word (`keys`, N).

        Returns:
            The tokens of all words, one word after the other, and the number of tokens of each word.
        """
        result = tokens.copy()
        unfinished = np.arange(len(tokens))  # words; `tokens` and `ranks` have a row for each of them
        position = np.arange(tokens.shape[1])
        ranks = self.ranks(tokens[:, :-1], tokens[:, 1:])  # of each pair of neighbors
        step = np.uint64(0)
        while len(unfinished) and ranks.shape[1]:
            step += np.uint64(1)
            # one random number for each pair in each step: the upper 53 of 64 random bits as a number from 0 to 1
            counters = GOLDEN_GAMMA * (step * np.uint64(2**32) + position[:-1].astype(np.uint64))
            random = (splitmix64(keys[unfinished, None] + counters) >> np.uint64(11)) * 2.0**-53
            not_dropped = np.where(random < rate, NO_MERGE, ranks)
            best = not_dropped.argmin(1)  # position of the pair to merge in each word
            rank = not_dropped[np.arange(len(not_dropped)), best]
            has_merge = rank < NO_MERGE
            result[unfinished[~has_merge]] = tokens[~has_merge]
            unfinished, tokens, ranks = unfinished[has_merge], tokens[has_merge], ranks[has_merge]
            best, rank = best[has_merge], rank[has_merge]
            rows = np.arange(len(unfinished))
            # The two tokens become one, and those after them move one position to the left: where each was before.
            old_position = np.minimum(position + (position > best[:, None]), len(position) - 1)
            tokens = np.take_along_axis(tokens, old_position, 1)
            tokens[:, -1] = WORD_BOUNDARY
            tokens[rows, best] = self.merged[rank]
            ranks = np.take_along_axis(ranks, np.minimum(old_position[:, :-1], len(position) - 2), 1)
            ranks[:, -1] = NO_MERGE
            for pair in (best - 1, best):  # the new token with its left and its right neighbor
                exists = (pair >= 0) & (pair < len(position) - 1)
                row, pair = rows[exists], pair[exists]
                ranks[row, pair] = self.ranks(tokens[row, pair], tokens[row, pair + 1])
        result[unfinished] = tokens
        is_token = result >= 0
        return result[is_token], is_token.sum(1).astype(np.int32)


def _is_word_character(character: str) -> bool:
    """Whether words contain the character: letters, digits, combining marks (M…), `_`, and unassigned ones (Cn).

    A character that this Python's Unicode version does not know may be a letter for the `tokenizers` library.
    """
    return character.isalnum() or character == "_" or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cn")
