from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _steady() -> None:
    """Two threads, and the same random numbers for every test."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
