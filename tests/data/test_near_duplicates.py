"""MinHash: equal minima estimate the Jaccard index, and near duplicates share a band."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from dragoman.config import CleaningConfig
from dragoman.data import DATA_FORMATS, Corpus, near_duplicates
from dragoman.data.cleaning import clean_corpora
from dragoman.data.near_duplicates import NO_WORDS, band_hashes
from dragoman.processes import process_map

WORDS = [f"word{n}" for n in range(1000)]


def sentence(seed: int, length: int = 40) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def with_other_word(words: list[str], position: int) -> list[str]:
    return [*words[:position], "another", *words[position + 1 :]]


def jaccard(first: list[str], second: list[str]) -> float:
    sets = [{tuple(words[n : n + 3]) for n in range(len(words) - 2)} for words in (first, second)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("changed", [(20,), (5, 20, 35), (5, 12, 20, 28, 35)])
def test_equal_minima_estimate_the_jaccard_index(changed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With one hash per band, a share J of bands is equal: 0.8536, 0.6170 and 0.4340 by counting trigrams."""
    monkeypatch.setattr(near_duplicates, "BANDS", 128)
    monkeypatch.setattr(near_duplicates, "BAND_HASHES", 1)
    shares, expected = [], 0.0
    for seed in range(40):
        words = other = sentence(seed)
        for position in changed:
            other = with_other_word(other, position)
        expected = (38 - 3 * len(changed)) / (38 + 3 * len(changed))
        assert jaccard(words, other) == pytest.approx(expected)
        first, second = band_hashes([" ".join(words), " ".join(other)])
        shares.append(float((first == second).mean()))
    deviation = (expected * (1 - expected) / (40 * 128)) ** 0.5
    assert abs(np.mean(shares) - expected) < 4 * deviation


def test_case_and_punctuation_do_not_count_and_order_does() -> None:
    first, same, other, short, empty = band_hashes(["The dog, sleeps!", "the DOG sleeps", "dog sleeps the", "dog", "—"])
    assert (first == same).all()
    assert not (first == other).any()
    assert not (first == short).any()
    assert (empty == NO_WORDS).all()
    assert (band_hashes(["the dog sleeps"])[0] == same).all()  # whatever else is in the chunk
    assert (band_hashes(["我喜欢狗"])[0] == band_hashes(["我喜欢狗。"])[0]).all()
    assert band_hashes([]).shape == (0, 16)


def test_cleaning_removes_near_duplicates(tmp_path: Path) -> None:
    lines = [" ".join(sentence(seed)) for seed in range(50)]
    similar = [" ".join(with_other_word(sentence(seed), 7)) for seed in range(20)]  # Jaccard index 0.85
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in [*lines, *similar, "…", "…", lines[3].upper()]))
    settings = CleaningConfig(deduplicate_similar=True)
    kept = {}
    for workers in (1, 2):
        cleaned = clean_corpora(
            *(DATA_FORMATS["text"], [Corpus(tmp_path / "text")], settings, tmp_path),
            *(process_map(workers), lambda text: None),
        )
        kept[workers] = list(cleaned.corpora[0].kept.flags())  # type: ignore[union-attr]
    assert kept[1] == kept[2] == [True] * 50 + [False] * 20 + [True, True, False]
    assert cleaned.report.removed["nearly the same words as an earlier pair"].pairs == 21
