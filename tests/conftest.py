from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# One thread, unless the environment says otherwise. The tests' tensors are too small for two, and on a busy machine
# threads that wait for each other make a test many times slower.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))

# The same examples everywhere, however slow the machine is.
settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers for every test."""
    torch.manual_seed(0)
