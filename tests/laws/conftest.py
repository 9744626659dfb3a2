"""The laws compute in float64, unless a test asks for float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.laws)


@pytest.fixture(autouse=True)
def _double_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    dtype = torch.float32 if request.node.get_closest_marker("float32") else torch.float64
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)
