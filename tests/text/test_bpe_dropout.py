from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.text import END, MARKERS, START, Dropout, Tokenizer, learn

TEXTS = ["the miller's daughters, the smaller mills; naïve millers (all) smile, cafe\u0301", "миля мельник 2000 mills"] * 4
TOKENIZERS = [learn(TEXTS, size=400, marker=marker, coverage=0.97) for marker in MARKERS]
some_text = st.text() | st.lists(st.sampled_from([*" ,('é", "mill", "small", "the ", "cafe\u0301", "2000"])).map("".join)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
@pytest.mark.parametrize("rate", [0.1, 0.7, 1.0])
def test_the_text_stays_the_same(tokenizer: Tokenizer, rate: float) -> None:
    dropout = Dropout(tokenizer, rate, pool=3)

    @given(some_text)
    def check(text: str) -> None:
        ids = [START, *tokenizer.encode(text), END]
        assert tokenizer.decode(dropout(ids, rng())) == text

    check()


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
@pytest.mark.parametrize("rate", [0.0, 1e-12])
def test_without_drops_the_segmentation_is_that_of_the_tokenizer(tokenizer: Tokenizer, rate: float) -> None:
    dropout = Dropout(tokenizer, rate, pool=2)

    @given(some_text)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert dropout(ids, rng()) == ids

    check()


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
def test_with_all_merges_dropped_characters_remain(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces(Dropout(tokenizer, 1.0)(tokenizer.encode("the smaller mills"), rng()))
    assert sorted(pieces) == sorted("▁the▁smaller▁mills")


def test_a_merge_is_dropped_with_the_rate() -> None:
    # "xy" with one merge stays whole with probability 1 − p; "xyz" = (x y) z needs two, (1 − p)². With y z merged only
    # after x y, "x yz" comes about when (x, y) is dropped while (y, z) is kept: p (1 − p), and then x yz cannot go on.
    texts = ["xyz xyz xyz xy xy"]
    tokenizer = learn(texts, marker="final", coverage=1.0)
    assert tokenizer.pieces(tokenizer.encode("xy xyz"))[0] == "xy▁"
    rate, pool = 0.3, 20_000
    bare = learn(["(xy)(xy)"], coverage=1.0)
    assert bare.pieces(bare.encode("(xy)")) == ["▁", "(", "xy", ")"] or "xy" in bare.pieces(bare.encode("(xy)"))
    dropout = Dropout(bare, rate, pool)
    seen = Counter(tuple(bare.pieces(dropout(bare.encode("(xy)"), np.random.default_rng(i)))) for i in range(4000))
    whole = sum(count for pieces, count in seen.items() if "xy" in pieces) / 4000
    assert whole == pytest.approx(1 - rate, abs=4 * (rate * (1 - rate) / 4000) ** 0.5)


def test_the_same_generator_gives_the_same_segmentations() -> None:
    ids = TOKENIZERS[0].encode("the smaller mills smile")
    first, second = Dropout(TOKENIZERS[0], 0.5), Dropout(TOKENIZERS[0], 0.5)
    second(TOKENIZERS[0].encode("mills"), rng())  # what was seen before has no influence
    assert [first(ids, rng()) for _ in range(3)] == [second(np.array(ids), rng()) for _ in range(3)]
    generator = rng()
    assert len({tuple(first(ids, generator)) for _ in range(50)}) > 1


def test_mistakes_are_answered_plainly() -> None:
    with pytest.raises(UserError, match="kind 'unigram' has none"):
        Dropout(learn(TEXTS, "unigram", size=400, coverage=0.9), 0.1)
    with pytest.raises(UserError, match="from 0 to 1"):
        Dropout(TOKENIZERS[0], 1.5)
    with pytest.raises(UserError, match="at least 1"):
        Dropout(TOKENIZERS[0], 0.1, pool=0)
