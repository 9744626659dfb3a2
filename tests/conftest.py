from __future__ import annotations

import os

import pytest
import torch

# Two threads, or one where the tests run side by side; once for all, since sums in another order are other sums.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


@pytest.fixture(autouse=True)
def _steady() -> None:
    """The same random numbers for every test."""
    torch.manual_seed(0)
