"""The scores against their formulas, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dragoman.parts.attention_scores import Additive, Concat, Dot, General, ScaledDot, Score, TanhProduct
from dragoman.parts.spec import Spec

Formula = Callable[[Score, Tensor, Tensor], Tensor]


def weight(score: Score, name: str) -> Tensor:
    return score.state_dict()[f"{name}.weight"]


FORMULAS: dict[str, tuple[Spec, Formula]] = {
    "q·k": (Dot(), lambda score, q, k: q @ k),
    "q·k/√d": (ScaledDot(), lambda score, q, k: q @ k / math.sqrt(3)),
    "q·Wk": (General(), lambda score, q, k: q @ weight(score, "key") @ k),
    "v·tanh(Wq + Uk)": (
        Additive(inner_dim=5),
        lambda score, q, k: (
            weight(score, "value")[0] @ torch.tanh(weight(score, "query") @ q + weight(score, "key") @ k)
        ),
    ),
    "v·(tanh(Wq) ⊙ tanh(Uk))": (
        TanhProduct(inner_dim=5),
        lambda score, q, k: (
            weight(score, "value")[0] @ (torch.tanh(weight(score, "query") @ q) * torch.tanh(weight(score, "key") @ k))
        ),
    ),
    "v·tanh(W[q; k])": (
        Concat(inner_dim=5),
        lambda score, q, k: weight(score, "value")[0] @ torch.tanh(weight(score, "both") @ torch.cat((q, k))),
    ),
}


@pytest.mark.parametrize("formula", FORMULAS)
@torch.no_grad()
def test_score_equals_its_formula(formula: str) -> None:
    spec, written_out = FORMULAS[formula]
    score = spec.build(3)
    assert isinstance(score, Score)
    query, key = torch.randn(2, 4, 3), torch.randn(2, 6, 3)
    scores = score(query, score.prepare(key))
    assert scores.shape == (2, 4, 6)
    for b in range(2):
        for t in range(4):
            for s in range(6):
                expected = float(written_out(score, query[b, t], key[b, s]))
                assert float(scores[b, t, s]) == pytest.approx(expected, abs=1e-5)


def test_only_the_general_scores_have_weights() -> None:
    counts = [sum(w.numel() for w in spec.build(3).parameters()) for spec, _ in FORMULAS.values()]
    assert counts == [0, 0, 3 * 3, 5 * 3 + 5 * 3 + 5, 5 * 3 + 5 * 3 + 5, 5 * 6 + 5]
