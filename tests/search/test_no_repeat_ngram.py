"""No n-gram twice, whatever becomes of the other rows of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dragoman.search import Beam, LengthLimit, Sample, SpecialTokens
from dragoman.systems import SYSTEMS, VocabularySizes
from search.plain_search import search


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("settings", [Beam(1), Sample(n_best=2), Beam(3)], ids=["greedy", "sample", "beam"])
def test_rows_that_are_over_disturb_nobody(settings: Beam | Sample, size: int) -> None:
    """The first source may write two tokens, the others ten: it is over long before it leaves."""
    model = (
        SYSTEMS["transformer"].spec(VocabularySizes(30, 30, joint=True), "tiny", model_dim=16, layers=1).build().eval()
    )
    symbols = SpecialTokens(bos=0, eos=1, suppressed=(0, 1))
    source, lengths = torch.randint(4, 30, (6, 4)), torch.full((6,), 4)
    limits = torch.tensor([2, 10, 10, 10, 10, 10])
    wish = replace(settings, no_repeat_ngram_size=size, length_limit=LengthLimit(0, 10, 10))
    together = search(model, source, lengths, symbols, wish, torch.arange(6), limits)
    for row, some in enumerate(together):
        alone = search(model, source[[row]], lengths[:1], symbols, wish, torch.tensor([row]), limits[[row]])
        assert [one.tokens for one in alone[0]] == [one.tokens for one in some]
        for one in some:
            grams = [tuple(one.tokens[i : i + size]) for i in range(len(one.tokens) - size + 1)]
            assert len(one.tokens) == limits[row]
            assert len(grams) == len(set(grams))
