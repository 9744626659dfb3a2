"""Noise takes the shares it promises, loses nothing it should keep, and follows from its generator alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.data.noise import (
    DocumentRotation,
    LocalShuffle,
    MaskedLanguageModeling,
    NoiseChain,
    SentencePermutation,
    SpanCorruption,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
)
from dragoman.errors import UserError
from dragoman.text.special_tokens import MASK, PAD

FIRST, SIZE = 10, 1000
SENTINELS = tuple(range(SIZE, SIZE + 100))
NOISES: dict[str, Callable] = {
    "mask words": MaskedLanguageModeling(vocab_size=SIZE, first_token=FIRST),
    "corrupt spans": SpanCorruption(SENTINELS),
    "infill": TextInfilling(),
    "mask tokens": TokenMasking(0.3),
    "delete": TokenDeletion(0.3),
    "permute sentences": SentencePermutation(tuple(range(10, 200))),
    "rotate": DocumentRotation(),
    "shuffle": LocalShuffle(),
    "chain": NoiseChain((SentencePermutation((20, 21)), TextInfilling())),
}

rows = st.lists(st.integers(FIRST, SIZE - 1), max_size=60).map(lambda ids: np.array(ids, np.uint16))
seeds = st.integers(0, 2**32)
rates = st.floats(0, 1)
spans = st.floats(1, 10)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def row(length: int, seed: int = 1) -> NDArray[np.uint16]:
    return generator(seed).integers(FIRST, SIZE, length).astype(np.uint16)


def outputs(answer: NDArray | tuple[NDArray, ...]) -> tuple[NDArray, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def is_subsequence(part: Iterable[int], whole: Sequence[int]) -> bool:
    rest = iter(whole)
    return all(token in rest for token in part)


def near(observed: float, probability: float, draws: int) -> bool:
    """Whether a share lies within five standard deviations of a binomial distribution."""
    return abs(observed - probability) < 5 * math.sqrt(probability * (1 - probability) / draws)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("length", [0, 1, 2, 50])
def test_noise_is_reproducible_and_does_not_modify_the_row(name: str, length: int) -> None:
    ids = row(length)
    ids.flags.writeable = False  # as the rows of a store are
    before = ids.tolist()
    first, again = (outputs(NOISES[name](ids, generator(5))) for _ in range(2))
    assert [array.tolist() for array in first] == [array.tolist() for array in again]
    assert all(array.dtype == ids.dtype for array in first)
    assert ids.tolist() == before
    different = {tuple(map(bytes, outputs(NOISES[name](ids, generator(seed))))) for seed in range(20)}
    assert length < 50 or len(different) > 1


@pytest.mark.parametrize("name", NOISES)
def test_an_empty_row_stays_empty(name: str) -> None:
    answer = outputs(NOISES[name](np.empty(0, np.uint16), generator()))
    assert [array.tolist() for array in answer] == (
        [[], [SENTINELS[0]]] if name == "corrupt spans" else [[]] * len(answer)
    )


# -- masked words


@given(rows, seeds, rates)
def test_labels_are_at_selected_tokens_and_the_rest_is_unchanged(ids: NDArray, seed: int, rate: float) -> None:
    noised, answers = MaskedLanguageModeling(vocab_size=SIZE, first_token=FIRST, rate=rate)(ids, generator(seed))
    asked = answers != PAD
    assert asked.any() == bool(len(ids))
    assert max(1, math.floor(len(ids) * rate)) * bool(len(ids)) <= asked.sum() <= max(1, math.ceil(len(ids) * rate))
    assert (answers[asked] == ids[asked]).all()
    assert (noised[~asked] == ids[~asked]).all()
    assert set(noised[noised != ids].tolist()) <= {MASK, *range(FIRST, SIZE)}


def test_selected_tokens_are_80_percent_masked_10_random_10_kept() -> None:
    mask_words = MaskedLanguageModeling(vocab_size=SIZE, first_token=FIRST)
    random, tokens, asked, masked, kept, replaced = generator(), 0, 0, 0, 0, []
    for seed in range(4000):
        ids = row(10 + seed % 30, seed)
        noised, answers = mask_words(ids, random)
        chosen = answers != PAD
        tokens += len(ids)
        asked += int(chosen.sum())
        masked += int((noised[chosen] == MASK).sum())
        kept += int((noised[chosen] == ids[chosen]).sum())
        replaced += noised[(noised != ids) & (noised != MASK)].tolist()
    assert near(asked / tokens, 0.15, tokens)
    assert near(masked / asked, 0.8, asked)
    same = 0.1 / (SIZE - FIRST)  # a random token may be the one that stood there
    assert near(kept / asked, 0.1 + same, asked)
    assert near(len(replaced) / asked, 0.1 - same, asked)
    assert min(replaced) < FIRST + 20
    assert max(replaced) >= SIZE - 20
    assert abs(np.mean(replaced) - (FIRST + SIZE - 1) / 2) < 5 * SIZE / math.sqrt(12 * len(replaced))


def test_every_position_is_selected_equally_often() -> None:
    mask_words, random = MaskedLanguageModeling(vocab_size=SIZE, first_token=FIRST, rate=0.25), generator()
    counts = sum((mask_words(row(10), random)[1] != PAD).astype(int) for _ in range(4000))
    assert all(near(count / 4000, 0.25, 4000) for count in counts)


def test_extreme_shares_mask_all_or_keep_all() -> None:
    ids = row(50)
    common = {"vocab_size": SIZE, "first_token": FIRST, "rate": 1.0}
    masked, answers = MaskedLanguageModeling(**common, random_share=0, keep_share=0)(ids, generator())
    assert set(masked.tolist()) == {MASK}
    assert answers.tolist() == ids.tolist()
    kept, answers = MaskedLanguageModeling(**common, random_share=0, keep_share=1)(ids, generator())
    assert kept.tolist() == answers.tolist() == ids.tolist()


def test_the_pad_id_is_configurable() -> None:
    noised, answers = MaskedLanguageModeling(
        vocab_size=SIZE, first_token=FIRST, mask=7, pad=1, keep_share=0, random_share=0
    )(row(40), generator())
    assert ((answers == 1) == (noised != 7)).all()
    assert 4 <= (noised == 7).sum() <= 8


# -- corrupted spans


def repaired(source: NDArray, target: NDArray, sentinels: Sequence[int]) -> list[int]:
    """The row again: behind each sentinel of the source what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for token in target.tolist():
        if token in sentinels:
            spans[token] = current = []
        else:
            current.append(token)
    return [t for token in source.tolist() for t in (spans[token] if token in sentinels else [token])]


@given(rows, seeds, rates, spans, st.integers(2, 12))
def test_source_and_target_interleave_back_to_the_row(
    ids: NDArray, seed: int, rate: float, mean_span: float, count: int
) -> None:
    sentinels = SENTINELS[:count]
    source, target = SpanCorruption(sentinels, rate, mean_span)(ids, generator(seed))
    assert repaired(source, target, sentinels) == ids.tolist()
    left, right = ([token for token in side.tolist() if token in sentinels] for side in (source, target))
    assert right == [*left, sentinels[len(left)]] == list(sentinels[: len(left) + 1])
    assert target[-1] == sentinels[len(left)]


@given(st.integers(2, 200), seeds, rates, spans)
def test_numbers_of_noise_tokens_and_spans_match_the_paper(
    length: int, seed: int, rate: float, mean_span: float
) -> None:
    source, target = SpanCorruption(SENTINELS, rate, mean_span)(row(length), generator(seed))
    noise = min(max(round(length * rate), 1), length - 1)
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    assert len(source) == length - noise + spans <= length
    assert len(target) == noise + spans + 1
    corrupted = np.isin(source, SENTINELS)
    assert not (corrupted[1:] & corrupted[:-1]).any()


def test_a_span_may_be_at_any_position() -> None:
    """One span of 1 of 7 tokens has 7 places, each equally likely."""
    corrupt, random = SpanCorruption(SENTINELS), generator()
    places = Counter(int(np.argmax(corrupt(row(7), random)[0] == SENTINELS[0])) for _ in range(7000))
    assert sorted(places) == list(range(7))
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in places.values())


def test_the_figure_of_the_paper() -> None:
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    ids = np.arange(FIRST, FIRST + len(words))
    seen = set()
    for seed in range(2000):
        source, target = SpanCorruption((1, 2, 3), 0.3, 1.5)(ids, generator(seed))
        name = {1: "<X>", 2: "<Y>", 3: "<Z>"} | dict(enumerate(words, FIRST))
        seen.add(tuple(" ".join(name[token] for token in side.tolist()) for side in (source, target)))
    assert ("Thank you <X> me to your party <Y> week", "<X> for inviting <Y> last <Z>") in seen
    # 7 kept words in three segments of which the outer two may be empty: C(8, 2); 3 lost words in two: C(2, 1)
    assert len(seen) == math.comb(8, 2) * 2


def test_every_segmentation_is_equally_likely() -> None:
    counts: Counter[bytes] = Counter()
    corrupt, random, ids = SpanCorruption(SENTINELS, 0.5, 2), generator(), np.arange(FIRST, FIRST + 8)
    for _ in range(9000):
        counts[bytes(corrupt(ids, random)[0])] += 1
    assert len(counts) == math.comb(5, 2) * 3
    assert all(near(count / 9000, 1 / 30, 9000) for count in counts.values())


def test_without_more_sentinels_the_remaining_spans_are_kept() -> None:
    ids = row(100)
    whole, _ = SpanCorruption(SENTINELS, 0.3, 3)(ids, generator(3))
    source, target = SpanCorruption(SENTINELS[:4], 0.3, 3)(ids, generator(3))
    third = int(np.flatnonzero(whole == SENTINELS[2])[0])
    assert source[: third + 1].tolist() == whole[: third + 1].tolist()
    assert not np.isin(source[third + 1 :], SENTINELS).any()
    assert repaired(source, target, SENTINELS) == ids.tolist()


@pytest.mark.parametrize("length", [0, 1])
def test_a_row_of_one_token_is_kept(length: int) -> None:
    source, target = SpanCorruption(SENTINELS)(row(length), generator())
    assert source.tolist() == row(length).tolist()
    assert target.tolist() == [SENTINELS[0]]


def test_sentinels_may_be_larger_than_the_ids_of_a_row() -> None:
    sentinels = tuple(range(65_530, 65_545))
    source, target = SpanCorruption(sentinels, 0.5, 1)(row(26), generator())
    assert source.max() == 65_542  # the 13th
    assert target[-1] == 65_543
    assert repaired(source, target, sentinels) == row(26).tolist()


# -- denoising


@given(rows, seeds, rates, spans)
def test_infilling_without_masks_is_a_subsequence_of_the_row(
    ids: NDArray, seed: int, rate: float, mean_span: float
) -> None:
    kept = [token for token in TextInfilling(rate, mean_span)(ids, generator(seed)).tolist() if token != MASK]
    assert is_subsequence(kept, ids.tolist())
    assert math.floor(len(ids) * rate) <= len(ids) - len(kept) <= math.ceil(len(ids) * rate)


def test_infilled_spans_have_poisson_lengths() -> None:
    mean, length, lost = 3.0, 10_000, Counter()
    for seed in range(20):
        noised = TextInfilling(0.02, mean)(np.arange(FIRST, FIRST + length), generator(seed))
        edges = [FIRST - 1, *noised.tolist(), FIRST + length]
        for before, here, after in zip(edges, edges[1:], edges[2:]):
            if here == MASK and MASK not in (before, after):  # masks side by side hide their own lengths
                lost[after - before - 1] += 1
    total = lost.total()
    assert total > 1000
    for size in range(8):
        assert near(lost[size] / total, math.exp(-mean) * mean**size / math.factorial(size), total)


@pytest.mark.parametrize("mean", [1.0, 3.0, 10.0])
def test_the_number_of_masks_matches_the_mean_span_length(mean: float) -> None:
    noised = TextInfilling(0.3, mean)(np.full(100_000, FIRST), generator())
    expected = 30_000 / mean
    assert abs((noised == MASK).sum() - expected) < 5 * math.sqrt(expected / mean) + 2


@pytest.mark.parametrize("make", [TokenDeletion, TokenMasking, TextInfilling])
@pytest.mark.parametrize("rate", [0.1, 0.35])
def test_short_rows_lose_the_expected_share(make: Callable, rate: float) -> None:
    noise, random, kept = make(rate), generator(), 0
    for _ in range(6000):
        noised = noise(row(7), random)
        kept += int((noised != MASK).sum())
    assert near(kept / (7 * 6000), 1 - rate, 7 * 6000)


@given(rows, seeds, rates)
def test_deletion_keeps_a_non_empty_subsequence(ids: NDArray, seed: int, rate: float) -> None:
    kept = TokenDeletion(rate)(ids, generator(seed))
    assert is_subsequence(kept.tolist(), ids.tolist())
    lost = len(ids) - len(kept)
    assert min(math.floor(len(ids) * rate), max(0, len(ids) - 1)) <= lost <= math.ceil(len(ids) * rate)
    assert (len(kept) > 0) == (len(ids) > 0)


@given(rows, seeds, rates)
def test_masking_keeps_the_positions_of_other_tokens(ids: NDArray, seed: int, rate: float) -> None:
    noised = TokenMasking(rate)(ids, generator(seed))
    hidden = noised == MASK
    assert (noised[~hidden] == ids[~hidden]).all()
    assert math.floor(len(ids) * rate) <= hidden.sum() <= math.ceil(len(ids) * rate)


def sentences(ids: Iterable[int], ends: Sequence[int]) -> list[tuple[int, ...]]:
    result: list[tuple[int, ...]] = []
    current: tuple[int, ...] = ()
    for token in ids:
        current = (*current, token)
        if token in ends:
            result.append(current)
            current = ()
    return result + [current] * bool(current)


@given(st.lists(st.lists(st.integers(FIRST, 19), max_size=5), max_size=6), st.lists(st.sampled_from([20, 21])), seeds)
def test_permutation_keeps_the_sentences(parts: list[list[int]], ends: list[int], seed: int) -> None:
    ids = [token for part, end in zip(parts, ends) for token in [*part, end]]
    noised = SentencePermutation((20, 21))(np.array(ids, np.uint16), generator(seed)).tolist()
    assert Counter(sentences(noised, (20, 21))) == Counter(sentences(ids, (20, 21)))


def test_all_sentence_orders_are_equally_likely() -> None:
    ids, random = np.array([1, 20, 2, 21, 3]), generator()
    permute = SentencePermutation((20, 21))
    counts = Counter(tuple(permute(ids, random).tolist()) for _ in range(6000))
    assert set(counts) == {
        (1, 20, 2, 21, 3),
        (1, 20, 3, 2, 21),
        (2, 21, 1, 20, 3),
        (2, 21, 3, 1, 20),
        (3, 1, 20, 2, 21),
        (3, 2, 21, 1, 20),
    }
    assert all(near(count / 6000, 1 / 6, 6000) for count in counts.values())


@given(rows, seeds)
def test_rotation_is_a_rotation(ids: NDArray, seed: int) -> None:
    noised = DocumentRotation()(ids, generator(seed)).tolist()
    assert noised in [ids[begin:].tolist() + ids[:begin].tolist() for begin in range(max(1, len(ids)))]


def test_every_token_may_come_first() -> None:
    random = generator()
    counts = Counter(int(DocumentRotation()(np.arange(5), random)[0]) for _ in range(5000))
    assert all(near(counts[token] / 5000, 0.2, 5000) for token in range(5))


@given(st.integers(0, 60), seeds, st.integers(0, 6))
def test_shuffled_tokens_stay_within_the_distance(length: int, seed: int, distance: int) -> None:
    order = LocalShuffle(distance)(np.arange(length), generator(seed))
    assert sorted(order.tolist()) == list(range(length))
    assert (abs(order - np.arange(length)) <= distance).all()


def test_shuffling_reaches_the_distance_in_both_directions() -> None:
    random = generator()
    moves = {int(move) for _ in range(200) for move in LocalShuffle(3)(np.arange(30), random) - np.arange(30)}
    assert moves == set(range(-3, 4))


@given(rows, seeds)
def test_a_chain_applies_its_steps_in_order(ids: NDArray, seed: int) -> None:
    steps = (LocalShuffle(2), TokenDeletion(0.2), TextInfilling(0.3))
    random = generator(seed)
    expected = ids
    for step in steps:
        expected = step(expected, random)
    assert NoiseChain(steps)(ids, generator(seed)).tolist() == expected.tolist()
    assert NoiseChain(())(ids, generator(seed)).tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TokenDeletion(1.1), r"the tokens that it changes, must be from 0 to 1, not 1\.1"),
        (lambda: TokenMasking(-0.1), "the tokens that it changes, must be from 0 to 1"),
        (lambda: TextInfilling(math.nan), "the tokens that it changes, must be from 0 to 1, not nan"),
        (lambda: TextInfilling(mean_span_length=0), "must be from 1 to 1,000,000 tokens, not 0"),
        (lambda: SpanCorruption(SENTINELS, mean_span_length=0.5), "from 1 to 1,000,000 tokens"),
        (lambda: SpanCorruption((7,)), r"at least 2 sentinel tokens \(.*\), not 1"),
        (lambda: LocalShuffle(-1), "at least 0, not -1"),
        (lambda: MaskedLanguageModeling(vocab_size=9, first_token=9), "below the vocabulary size 9, not 9"),
    ],
)
def test_invalid_settings_are_rejected(make: Callable, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make()
