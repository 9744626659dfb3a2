"""Noise functions of pretraining: they corrupt the token ids of a row, and the model learns to restore it.

A noise function is called with a row of ids (without BOS and EOS) and a random generator, and returns new arrays. Only
`Generator.random` is used, because numpy does not guarantee the streams of its other methods between versions. Where a
rate selects tokens, n · rate is rounded up or down at random so that the expected number is exact for short rows, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UserError
from dragoman.text.special_tokens import MASK, PAD

Ids = NDArray[Any]
Indices = NDArray[np.int64]
Random = np.random.Generator
Noise = Callable[[Ids, Random], Ids]


class _RateNoise:
    """Base class of noise functions with a rate: validates their fields."""

    rate: float
    mean_span_length: float = 1.0

    def __post_init__(self) -> None:
        """Check the rate (a share of the tokens) and the mean span length (in tokens)."""
        if not 0 <= self.rate <= 1:
            raise UserError(
                f"the rate of noise, the share of the tokens that it changes, must be from 0 to 1, not {self.rate}: "
                "correct the rates in objective.settings"
            )
        if not 1 <= self.mean_span_length <= 1e6:
            raise UserError(
                f"the mean length of a span of noise must be from 1 to 1,000,000 tokens, not {self.mean_span_length}: "
                "correct objective.settings.mean_span_length"
            )


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModeling(_RateNoise):
    """Select tokens to predict, and replace most of them by a mask.

    Devlin et al. 2019, “BERT: pre-training of deep bidirectional transformers for language understanding”, §3.1: of the
    15 % selected tokens 80 % become the mask, 10 % a random token, and 10 % stay. At least one token is selected.
    """

    vocab_size: int
    first_token: int  # random tokens are drawn from `first_token` to `vocab_size` − 1
    rate: float = 0.15
    random_share: float = 0.1  # of the selected tokens, those that become a random token
    keep_share: float = 0.1  # of the selected tokens, those that stay
    #: probability that a bigram or a trigram is selected at a time, and not a single token (Dong et al. 2019, §2.3)
    ngram_share: float = 0.0
    mask: int = MASK
    pad: int = PAD

    def __post_init__(self) -> None:
        """Check the rate and the first id of random tokens."""
        super().__post_init__()
        if not 0 <= self.first_token < self.vocab_size:
            raise UserError(
                "first_token, the lowest token id that noise may insert at random, must be at least 0 and below the "
                f"vocabulary size {self.vocab_size}, not {self.first_token}: change it"
            )

    def __call__(self, ids: Ids, random: Random) -> tuple[Ids, Ids]:
        """Return the corrupted ids of a row, and the labels: the original id of a selected token, elsewhere `pad`.

        Of the selected tokens, `keep_share` stay, `random_share` become a random token, and the others the mask.
        """
        count = max(1, _sample_count(len(ids), self.rate, random))  # at least one token is selected
        selected = np.zeros(len(ids), bool)
        if self.ngram_share:
            self._select_ngrams(selected, min(count, len(ids)), random)
        else:
            selected[_sample_indices(len(ids), count, random)] = True
        positions = np.flatnonzero(selected)
        draws = random.random(len(positions))  # from 0 to 1
        random_tokens = (random.random(len(positions)) * (self.vocab_size - self.first_token)).astype(np.int64)
        corrupted = ids.copy()
        corrupted[positions] = np.select(
            [draws < self.keep_share, draws < self.keep_share + self.random_share],
            [ids[positions], self.first_token + random_tokens],
            self.mask,
        )
        return corrupted, np.where(selected, ids, self.pad)

    def _select_ngrams(self, selected: NDArray[np.bool_], count: int, random: Random) -> None:
        """Set `count` elements of `selected` to True: one, or with probability `ngram_share` two or three at a time.

        Two and three, consecutive ones, are equally likely; elements that are True already do not count.
        """
        while (missing := count - int(selected.sum())) > 0:
            ngram_draw, trigram_draw, place = random.random(3)  # from 0 to 1
            size = 1 if ngram_draw >= self.ngram_share else 2 + int(trigram_draw < 0.5)
            start = int(place * len(selected))
            free = start + np.flatnonzero(~selected[start : start + size])
            selected[free[:missing]] = True


@dataclass(frozen=True)
class SpanCorruption(_RateNoise):
    """Replace spans of the row by sentinels; the target lists what each sentinel replaces.

        source: kept₁ s₁ kept₂ s₂ … kept      target: s₁ span₁ s₂ span₂ … s_final

    Raffel et al. 2020, “Exploring the limits of transfer learning with a unified text-to-text transformer”, §3.1.4:
    round(n · rate) tokens in round(that / mean_span_length) spans, at least one of each. Kept segments and spans
    alternate, and every segmentation is equally likely. T5's code starts with a kept segment and ends with a span,
    which puts the only span of a sentence at its end; here a row may start and end with either. If a row needs more
    than the available sentinels (one per span and a final one), the remaining spans are kept. A row of one token is
    kept as well.
    """

    sentinels: tuple[int, ...]
    rate: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self) -> None:
        """Check the rate, the mean span length and the number of sentinels: one for a span, and a final one."""
        super().__post_init__()
        if len(self.sentinels) < 2:
            raise UserError(
                "span corruption needs at least 2 sentinel tokens (one in place of each removed span, and one at the "
                f"end), not {len(self.sentinels)}: raise system.settings.sentinels"
            )

    def __call__(self, ids: Ids, random: Random) -> tuple[Ids, Ids]:
        """Return the source, with a sentinel for each removed span, and the target, each sentinel before its span.

        The row is divided into kept₁ span₁ kept₂ span₂ … kept, with random lengths. If there are more spans than
        sentinels (without the final one), the last spans are kept; a row of fewer than two tokens is kept as a whole.
        """
        # Sentinels may be outside the vocabulary, and thus outside the range of the row's dtype.
        ids = ids.astype(np.promote_types(ids.dtype, np.min_scalar_type(max(self.sentinels))))
        sentinels = np.array(self.sentinels, ids.dtype)
        if len(ids) < 2:  # kept: the target is only a final sentinel
            return ids, sentinels[:1]
        noise_tokens = min(max(round(len(ids) * self.rate), 1), len(ids) - 1)  # number of tokens in all spans
        # number of spans, at least 1: none is empty, and a token is kept for each
        spans = min(max(round(noise_tokens / self.mean_span_length), 1), noise_tokens, len(ids) - noise_tokens)
        span_lengths = _random_segmentation(noise_tokens, spans, random)
        # The first and the last kept segment may be empty: both are drawn with one token more, which is subtracted.
        edges = np.array([1, *[0] * (spans - 1), 1])
        kept_lengths = _random_segmentation(len(ids) - noise_tokens + 2, spans + 1, random) - edges
        num_removed = min(spans, len(sentinels) - 1)  # spans that have a sentinel; the others are kept
        segment_is_removed = np.zeros((spans, 2), bool)  # (kept segment, span)
        segment_is_removed[:num_removed, 1] = True
        removed = np.zeros(len(ids), bool)
        lengths = np.stack([kept_lengths[:-1], span_lengths], axis=1).ravel()
        removed[: len(ids) - kept_lengths[-1]] = np.repeat(segment_is_removed.ravel(), lengths)
        span_starts = (np.cumsum(kept_lengths[:-1] + span_lengths) - span_lengths)[:num_removed]
        source, stays = ids.copy(), ~removed
        source[span_starts] = sentinels[:num_removed]  # a sentinel takes the place of the first token of its span
        stays[span_starts] = True
        span_ends = np.cumsum(span_lengths[:num_removed])
        # the target: a sentinel before each span, and a final one
        return source[stays], np.insert(ids[removed], np.append(0, span_ends), sentinels[: num_removed + 1])


@dataclass(frozen=True)
class TextInfilling(_RateNoise):
    """Replace spans with Poisson-distributed lengths by one mask each; a span of length 0 inserts a mask.

    Lewis et al. 2020, “BART: denoising sequence-to-sequence pre-training …”, §2.2. Spans are drawn until they cover the
    share `rate` of the row, the last one truncated; every order of spans and kept tokens is equally likely.
    """

    rate: float = 0.3
    mean_span_length: float = 3.0
    mask: int = MASK

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Return the ids with some spans, also empty ones, each replaced by one mask.

        The result has a token for each kept one and a mask for each span, in random order; a mask stands for as many
        tokens as its span has.
        """
        noise_tokens = _sample_count(len(ids), self.rate, random)  # number of tokens in all spans
        span_lengths = self._span_lengths(noise_tokens, random)
        length = len(ids) - noise_tokens + len(span_lengths)  # kept tokens and masks
        is_token = np.ones(length, bool)
        is_token[_sample_indices(items=length, count=len(span_lengths), random=random)] = False
        original_tokens = np.ones(length, np.int64)  # number of original tokens that each position stands for
        original_tokens[~is_token] = span_lengths
        starts = np.cumsum(original_tokens) - original_tokens  # index of the first of them
        corrupted = np.full(length, self.mask, ids.dtype)
        corrupted[is_token] = ids[starts[is_token]]
        return corrupted

    def _span_lengths(self, noise_tokens: int, random: Random) -> Indices:
        """Draw Poisson-distributed lengths, the last one truncated, that add up to `noise_tokens`."""
        drawn = _poisson(self.mean_span_length, noise_tokens, random)
        while drawn.sum() < noise_tokens:
            drawn = np.concatenate([drawn, _poisson(self.mean_span_length, noise_tokens, random)])
        ends = np.minimum(np.cumsum(drawn), noise_tokens)
        num_spans = int(np.searchsorted(ends, noise_tokens)) + 1  # up to the first that reaches `noise_tokens`
        return np.diff(ends[:num_spans], prepend=0)


@dataclass(frozen=True)
class TokenMasking(_RateNoise):
    """Replace tokens by the mask (Lewis et al. 2020, §2.2)."""

    rate: float
    mask: int = MASK

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Return the ids of a row, of which the share `rate` is replaced by the mask."""
        corrupted = ids.copy()
        count = _sample_count(len(ids), self.rate, random)
        corrupted[_sample_indices(items=len(ids), count=count, random=random)] = self.mask
        return corrupted


@dataclass(frozen=True)
class TokenDeletion(_RateNoise):
    """Delete tokens, but keep at least one (Lewis et al. 2020, §2.2)."""

    rate: float

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Return the ids of a row without the share `rate` of them; at least one is kept."""
        kept = np.ones(len(ids), bool)
        count = min(_sample_count(len(ids), self.rate, random), len(ids) - 1)
        kept[_sample_indices(items=len(ids), count=count, random=random)] = False
        return ids[kept]


@dataclass(frozen=True)
class SentencePermutation:
    """Shuffle the sentences of a row (Lewis et al. 2020, §2.2); each of the ids `sentence_ends` ends a sentence."""

    sentence_ends: tuple[int, ...]

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Return the ids with their sentences in random order; each of the ids `sentence_ends` ends a sentence."""
        # an end at the last position is left out, because no sentence follows it
        sentences = np.split(ids, np.flatnonzero(np.isin(ids[:-1], self.sentence_ends)) + 1)
        order = _sample_indices(items=len(sentences), count=len(sentences), random=random)  # all, shuffled
        return np.concatenate([sentences[index] for index in order])


@dataclass(frozen=True)
class DocumentRotation:
    """Rotate the row so that it starts with a random token (Lewis et al. 2020, §2.2)."""

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Return the ids rotated so that they begin at a random token."""
        start = int(random.random() * len(ids))
        return np.concatenate([ids[start:], ids[:start]])


@dataclass(frozen=True)
class LocalShuffle:
    """Permute tokens so that none moves by more than `max_distance` positions.

        order = argsort(i + u_i),  u_i uniform in [0, max_distance + 1)

    Lample et al. 2018, “Unsupervised machine translation using monolingual corpora only”, §2.3.
    """

    max_distance: int = 3

    def __post_init__(self) -> None:
        """Check the maximum distance, a number of positions."""
        if self.max_distance < 0:
            raise UserError(
                "the largest number of positions by which shuffling moves a token must be at least 0, not "
                f"{self.max_distance}: raise it in objective.settings"
            )

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Return the ids shuffled, with every token at most `max_distance` positions from its place.

        They are sorted by position plus a uniform random number from 0 to `max_distance` + 1.
        """
        keys = np.arange(len(ids)) + (self.max_distance + 1) * random.random(len(ids))
        return ids[np.argsort(keys, kind="stable")]


@dataclass(frozen=True)
class NoiseChain:
    """Apply several noise functions in order."""

    steps: tuple[Noise, ...]

    def __call__(self, ids: Ids, random: Random) -> Ids:
        """Apply all steps, one after the other."""
        for step in self.steps:
            ids = step(ids, random)
        return ids


def _sample_count(items: int, rate: float, random: Random) -> int:
    """Return how many of the items to select: items · rate, rounded up or down at random with that expectation."""
    return min(items, int(items * rate + random.random()))


def _sample_indices(items: int, count: int, random: Random) -> Indices:
    """Draw min(`count`, `items`) distinct indices below `items`, in random order; none for a negative `count`."""
    return np.argsort(random.random(items), kind="stable")[: max(0, count)]


def _random_segmentation(items: int, count: int, random: Random) -> Indices:
    """Return the lengths of `count` non-empty segments of `items` items; all segmentations are equally likely."""
    cuts = np.sort(_sample_indices(items=items - 1, count=count - 1, random=random)) + 1  # where segments begin
    return np.diff(cuts, prepend=0, append=items)


def _poisson(mean: float, count: int, random: Random) -> Indices:
    """Draw `count` Poisson-distributed numbers by inverting the cumulative distribution."""
    return np.searchsorted(_poisson_cumulative(mean), random.random(count), side="right")


@lru_cache
def _poisson_cumulative(mean: float) -> NDArray[np.float64]:
    """Return P(X ≤ k) for k = 0, 1, … of a Poisson variable X with this mean."""
    numbers = np.arange(math.ceil(mean + 12 * math.sqrt(mean) + 24))  # the rest is below double precision
    # log P(X = k) = k log mean − mean − log k!
    log_probabilities = numbers * math.log(mean) - mean - np.cumsum(np.log(np.maximum(numbers, 1)))
    return np.cumsum(np.exp(log_probabilities))
