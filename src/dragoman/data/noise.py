"""Noise: what pretraining does to the token ids of a row (without START and END) before a model must repair it.

Each noise is a value that is called with a row and a random generator, and leaves the row itself alone. Only
`Generator.random` is drawn from, because another version of numpy may change the streams of its other methods. How many
tokens a rate takes from a row is rounded up or down by chance, so that the mean is right for short rows too.
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


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskedLanguageModeling:
    """Some tokens are asked for: most of them hidden under a mask, some replaced by a random token, some kept.

    Devlin et al. 2019, “BERT: pre-training of deep bidirectional transformers for language understanding”, §3.1: of the
    15 % that are chosen 80 % become the mask, 10 % a random token, and 10 % stay. At least one token is chosen. Random
    tokens are those from `first_word` to below `vocabulary`. With `begins`, which tells for each id whether it begins a
    word, whole words are chosen instead of tokens; what happens to their tokens is decided one by one all the same.
    """

    vocab_size: int
    first_token: int
    rate: float = 0.15
    random_share: float = 0.1
    keep_share: float = 0.1
    mask: int = MASK
    pad: int = PAD
    starts_word: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if min(self.random_share, self.keep_share) < 0 or self.random_share + self.keep_share > 1:
            raise UserError(
                f"the shares of chosen words that are replaced at random and kept must be from 0 to 1 and at most 1 "
                f"together, not {self.random_share} and {self.keep_share}"
            )
        if not 0 <= self.first_token < self.vocab_size:
            raise UserError(
                f"the first word must be a number from 0 to below the vocabulary's size {self.vocab_size}, "
                f"not {self.first_token}"
            )

    def __call__(self, ids: Ids, random: Random) -> tuple[Ids, Ids]:
        """The noised ids, and the answers: the id that stood there where it is asked for, elsewhere `pad`."""
        begins = np.ones(len(ids), bool) if self.starts_word is None else self.starts_word[ids]
        begins[:1] = True  # a row may start inside a word
        words = np.cumsum(begins) - 1
        asked = np.zeros(int(begins.sum()), bool)
        asked[_pick(len(asked), max(1, _count(len(asked), self.rate, random)), random)] = True
        chosen = asked[words]
        places = np.flatnonzero(chosen)
        fates = random.random(len(places))
        drawn = self.first_token + _below(self.vocab_size - self.first_token, len(places), random)
        noised = ids.copy()
        noised[places] = np.select(
            [fates < self.keep_share, fates < self.keep_share + self.random_share], [ids[places], drawn], self.mask
        )
        return noised, np.where(chosen, ids, self.pad)


@dataclass(frozen=True)
class SpanCorruption:
    """Spans of the row are cut out, and a sentinel is left for each; the target says what was behind the sentinels.

        source: kept₁ s₁ kept₂ s₂ … kept      target: s₁ lost₁ s₂ lost₂ … s_final

    Raffel et al. 2020, “Exploring the limits of transfer learning with a unified text-to-text transformer”, §3.1.4:
    round(n · rate) tokens in round(that / mean_span) spans, but at least one of each. Kept and lost segments take
    turns, each way of cutting equally likely. The authors' program begins with a kept segment and ends with a lost one,
    which puts the only span of a sentence always at its end; here a row may begin and end with either. Of a row that
    needs more than the sentinels (one a span and a final one) the rest is left as it is, and so is a row of one token.
    """

    sentinels: tuple[int, ...]
    rate: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_span(self.mean_span_length)
        if len(self.sentinels) < 2:
            raise UserError(f"corrupting spans takes at least 2 sentinels, not {len(self.sentinels)}")

    def __call__(self, ids: Ids, random: Random) -> tuple[Ids, Ids]:
        """The source and the target."""
        # Sentinels may lie past the vocabulary, and so past the ids that fit into the row's type.
        ids = ids.astype(np.promote_types(ids.dtype, np.min_scalar_type(max(self.sentinels))))
        sentinels = np.array(self.sentinels, ids.dtype)
        if len(ids) < 2:
            return ids, sentinels[:1]
        noise = min(max(round(len(ids) * self.rate), 1), len(ids) - 1)
        spans = min(max(round(noise / self.mean_span_length), 1), noise, len(ids) - noise)
        lost = _segments(noise, spans, random)
        kept = _segments(len(ids) - noise + 2, spans + 1, random) - np.array([1, *[0] * (spans - 1), 1])
        used = min(spans, len(sentinels) - 1)
        hidden = np.zeros((spans, 2), bool)
        hidden[:used, 1] = True
        cut = np.zeros(len(ids), bool)
        cut[: len(ids) - kept[-1]] = np.repeat(hidden.ravel(), np.stack([kept[:-1], lost], axis=1).ravel())
        begins = (np.cumsum(kept[:-1] + lost) - lost)[:used]
        source, stays = ids.copy(), ~cut
        source[begins], stays[begins] = sentinels[:used], True
        ends = np.cumsum(lost[:used])
        return source[stays], np.insert(ids[cut], np.append(0, ends), sentinels[: used + 1])


@dataclass(frozen=True)
class TextInfilling:
    """Text infilling: spans, whose lengths are Poisson distributed, become one mask each, and empty ones insert a mask.

    Lewis et al. 2020, “BART: denoising sequence-to-sequence pre-training …”, §2.2. Spans are drawn until they hold the
    share `rate` of the row's tokens, the last one cut short; every order of spans and kept tokens is equally likely.
    """

    rate: float = 0.3
    mean_span_length: float = 3.0
    mask: int = MASK

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_span(self.mean_span_length)

    def __call__(self, ids: Ids, random: Random) -> Ids:
        noise = _count(len(ids), self.rate, random)
        spans = self._spans(noise, random)
        units = len(ids) - noise + len(spans)  # what the noised row is made of: kept tokens and masks
        kept = np.ones(units, bool)
        kept[_pick(units, len(spans), random)] = False
        widths = np.ones(units, np.int64)
        widths[~kept] = spans
        begins = np.cumsum(widths) - widths
        noised = np.full(units, self.mask, ids.dtype)
        noised[kept] = ids[begins[kept]]
        return noised

    def _spans(self, noise: int, random: Random) -> Indices:
        """The lengths of spans that hold `noise` tokens together."""
        drawn = _poisson(self.mean_span_length, noise, random)
        while drawn.sum() < noise:
            drawn = np.concatenate([drawn, _poisson(self.mean_span_length, noise, random)])
        ends = np.minimum(np.cumsum(drawn), noise)
        return np.diff(ends[: int(np.searchsorted(ends, noise)) + 1], prepend=0)


@dataclass(frozen=True)
class TokenMasking:
    """Some tokens become the mask (Lewis et al. 2020, §2.2)."""

    rate: float
    mask: int = MASK

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def __call__(self, ids: Ids, random: Random) -> Ids:
        noised = ids.copy()
        noised[_pick(len(ids), _count(len(ids), self.rate, random), random)] = self.mask
        return noised


@dataclass(frozen=True)
class TokenDeletion:
    """Some tokens are left out, and nothing says where (Lewis et al. 2020, §2.2); at least one token is kept."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def __call__(self, ids: Ids, random: Random) -> Ids:
        kept = np.ones(len(ids), bool)
        kept[_pick(len(ids), min(_count(len(ids), self.rate, random), len(ids) - 1), random)] = False
        return ids[kept]


@dataclass(frozen=True)
class SentencePermutation:
    """The sentences of a row in a random order (Lewis et al. 2020, §2.2); each of the ids `ends` ends a sentence."""

    sentence_ends: tuple[int, ...]

    def __call__(self, ids: Ids, random: Random) -> Ids:
        sentences = np.split(ids, np.flatnonzero(np.isin(ids[:-1], self.sentence_ends)) + 1)
        return np.concatenate([sentences[number] for number in _pick(len(sentences), len(sentences), random)])


@dataclass(frozen=True)
class DocumentRotation:
    """The row begins at a random token, and what was before it follows at the end (Lewis et al. 2020, §2.2)."""

    def __call__(self, ids: Ids, random: Random) -> Ids:
        begin = int(random.random() * len(ids))
        return np.concatenate([ids[begin:], ids[:begin]])


@dataclass(frozen=True)
class LocalShuffle:
    """Tokens change places, but none moves by more than `distance`.

        order = argsort(i + u_i),  u_i uniform in [0, distance + 1)

    Lample et al. 2018, “Unsupervised machine translation using monolingual corpora only”, §2.3.
    """

    max_distance: int = 3

    def __post_init__(self) -> None:
        if self.max_distance < 0:
            raise UserError(f"the distance that a token may move must be at least 0, not {self.max_distance}")

    def __call__(self, ids: Ids, random: Random) -> Ids:
        places = np.arange(len(ids)) + (self.max_distance + 1) * random.random(len(ids))
        return ids[np.argsort(places, kind="stable")]


@dataclass(frozen=True)
class NoiseChain:
    """Several noises, one after the other."""

    steps: tuple[Noise, ...]

    def __call__(self, ids: Ids, random: Random) -> Ids:
        for step in self.steps:
            ids = step(ids, random)
        return ids


def _count(items: int, rate: float, random: Random) -> int:
    """items · rate, rounded up or down by chance so that this is its mean."""
    return min(items, int(items * rate + random.random()))


def _below(limit: int, count: int, random: Random) -> Indices:
    """Whole numbers from 0 to below the limit."""
    return (random.random(count) * limit).astype(np.int64)


def _pick(items: int, count: int, random: Random) -> Indices:
    """Different numbers below `items`, as many as `count` or as there are, in random order."""
    return np.argsort(random.random(items), kind="stable")[: max(0, count)]


def _segments(items: int, count: int, random: Random) -> Indices:
    """The lengths of a random segmentation into so many segments, none of them empty."""
    cuts = np.sort(_pick(items - 1, count - 1, random)) + 1
    return np.diff(cuts, prepend=0, append=items)


def _poisson(mean: float, count: int, random: Random) -> Indices:
    """Poisson numbers, found by inverting the distribution function."""
    return np.searchsorted(_poisson_distribution(mean), random.random(count), side="right")


@lru_cache
def _poisson_distribution(mean: float) -> NDArray[np.float64]:
    numbers = np.arange(math.ceil(mean + 12 * math.sqrt(mean) + 24))  # beyond, nothing is left of double precision
    logarithms = numbers * math.log(mean) - mean - np.cumsum(np.log(np.maximum(numbers, 1)))
    return np.cumsum(np.exp(logarithms))


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise UserError(f"the rate of noise must be from 0 to 1, not {rate}")


def _check_span(mean: float) -> None:
    if not 1 <= mean <= 1e6:
        raise UserError(f"the mean length of a span of noise must be at least 1 token, not {mean}")
