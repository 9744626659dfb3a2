"""The comparison of mixtures of experts with dense models: which models are compared, and what they cost."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("moe-2017", ["experts=1@experts_per_token=1@ffn_dim=256", "experts=2", "experts=8", "experts=16"]),
        ("moe", ["experts=2", "experts=8", "experts=16"]),  # its other layers would become wider too
    ],
)
def test_models_of_equal_cost(system: str, expected: list[str]) -> None:
    """Two experts of width 128 for each token, so one of 256; per token only the router grows with their number."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    script = import_module("experts")
    labels = script.labels(system, "tiny", [8, 16])
    assert labels == [f"{system}@{settings}" for settings in expected]
    costs = []
    for label in labels:
        settings = {name: int(value) for name, value in (word.split("=") for word in label.split("@")[1:])}
        costs.append(script.flops_per_token(system, "tiny", **settings))
    assert max(costs) < 1.02 * min(costs)
