"""The laws compute in float64, unless a test asks for float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _double_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    dtype = torch.float32 if request.node.get_closest_marker("float32") else torch.float64
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)
