from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman.errors import UserError
from dragoman.text import BOS, EOS, WORD_MARKERS, BPEDropout, Tokenizer, learn_tokenizer

TEXTS = [
    "the miller's daughters, the smaller mills; naïve millers (all) smile, cafe\u0301",
    "миля мельник 2000 mills",
] * 4
TOKENIZERS = [learn_tokenizer(TEXTS, size=400, marker=marker, coverage=0.97) for marker in WORD_MARKERS]
TOKENIZERS.append(learn_tokenizer(TEXTS, "byte-bpe", size=400))
EXTENDED = [  # with the pieces and the code of a language that was added later
    extended.with_language_code("ell", extended.vocab_size)
    for extended, _ in (tokenizer.with_missing_pieces(["μύλος μύλοι"] * 9, limit=20) for tokenizer in TOKENIZERS)
]
TOKENIZERS += EXTENDED
some_text = st.text() | st.lists(st.sampled_from([*" ,('é", "mill", "small", "the ", "cafe\u0301", "2000"])).map(
    "".join
)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def resegment(dropout: BPEDropout, ids: Sequence[int] | NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
    """Segment one row of token ids again."""
    key = np.array([rng.bit_generator.random_raw()], np.uint64)
    return dropout(np.asarray(ids, np.int32), np.array([len(ids)]), key)[0]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
@pytest.mark.parametrize("rate", [0.1, 0.7, 1.0])
def test_the_text_stays_the_same(tokenizer: Tokenizer, rate: float) -> None:
    dropout = BPEDropout(tokenizer, rate, pool_size=3)

    @given(some_text)
    def check(text: str) -> None:
        ids = [BOS, *tokenizer.encode(text), EOS]
        assert tokenizer.decode(resegment(dropout, ids, rng()).tolist()) == text

    check()


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
@pytest.mark.parametrize("rate", [0.0, 1e-12])
def test_without_drops_the_segmentation_is_that_of_the_tokenizer(tokenizer: Tokenizer, rate: float) -> None:
    dropout = BPEDropout(tokenizer, rate, pool_size=2)

    @given(some_text)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert resegment(dropout, ids, rng()).tolist() == ids

    check()


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=repr)
def test_dropping_all_merges_gives_characters(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.tokens(
        resegment(BPEDropout(tokenizer, 1.0), tokenizer.encode("the smaller mills"), rng()).tolist()
    )
    assert sorted(pieces) == sorted("▁the▁smaller▁mills")


def frequencies(tokenizer: Tokenizer, text: str, rate: float, draws: int) -> dict[tuple[str, ...], float]:
    dropout, ids, generator = BPEDropout(tokenizer, rate, pool_size=draws), tokenizer.encode(text), rng()
    seen = Counter(tuple(tokenizer.tokens(resegment(dropout, ids, generator).tolist())) for _ in range(draws))
    return {pieces: count / draws for pieces, count in seen.items()}


@pytest.mark.parametrize("tokenizer", EXTENDED, ids=repr)
def test_the_code_of_a_language_is_not_split(tokenizer: Tokenizer) -> None:
    code = tokenizer.vocab_size - 1
    for rate in (0.1, 1.0):
        row = resegment(BPEDropout(tokenizer, rate), [code, *tokenizer.encode("μύλοι mills"), code], rng())
        assert (row[0], row[-1]) == (code, code)
        assert code not in row[1:-1]
        assert tokenizer.decode(row[1:-1].tolist()) == "μύλοι mills"


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:3], ids=repr)
def test_a_corpus_tag_is_not_split(tokenizer: Tokenizer) -> None:
    tagged = tokenizer.with_tags(["news"])
    row = resegment(BPEDropout(tagged, 1.0), [tagged.tags["news"], *tagged.encode("small mills")], rng()).tolist()
    assert row[0] == tagged.tags["news"]
    assert tagged.decode(row[1:]) == "small mills"


def test_segmentations_are_as_frequent_as_the_algorithm_says() -> None:
    # With p dropped and q = 1 − p kept: one merge happens with probability q, two in a row with q².
    one = learn_tokenizer(["(xy)(xy)"], marker="final", coverage=1.0)
    assert frequencies(one, "xy", 0.3, 2_000) == pytest.approx({("xy", "▁"): 0.7, ("x", "y", "▁"): 0.3}, abs=0.03)
    # Merges (x, y), then (y, z), then (xy, z). If the first is kept, xy is merged, and then xyz with q: q² and q p. If
    # only the second is kept it is x yz, where nothing goes on: p q. If none is, p².
    two = learn_tokenizer(["(xy)(xy)(xy)(yz)(yz)(xyz)(xyz)"], marker="final", coverage=1.0)
    assert [two.tokens(two.encode(text))[0] for text in ("xy", "yz", "xyz")] == ["xy", "yz", "xyz"]
    assert frequencies(two, "xyz", 0.3, 2_000) == pytest.approx(
        {
            ("xyz", "▁"): 0.7 * 0.7,
            ("xy", "z", "▁"): 0.7 * 0.3,
            ("x", "yz", "▁"): 0.3 * 0.7,
            ("x", "y", "z", "▁"): 0.3 * 0.3,
        },
        abs=0.03,
    )


def test_the_same_generator_gives_the_same_segmentations() -> None:
    ids = TOKENIZERS[0].encode("the smaller mills smile")
    first, second = BPEDropout(TOKENIZERS[0], 0.5), BPEDropout(TOKENIZERS[0], 0.5)
    resegment(second, TOKENIZERS[0].encode("mills"), rng())  # what was seen before has no influence
    assert [resegment(first, ids, rng()).tolist() for _ in range(3)] == [
        resegment(second, np.array(ids), rng()).tolist() for _ in range(3)
    ]
    generator = rng()
    assert len({tuple(resegment(first, ids, generator)) for _ in range(50)}) > 1


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="type 'unigram'"):
        BPEDropout(learn_tokenizer(TEXTS, "unigram", size=400, coverage=0.9), 0.1)
    with pytest.raises(UserError, match="from 0 to 1"):
        BPEDropout(TOKENIZERS[0], 1.5)
    with pytest.raises(UserError, match=r"pool_size, .* must be at least 1"):
        BPEDropout(TOKENIZERS[0], 0.1, pool_size=0)
