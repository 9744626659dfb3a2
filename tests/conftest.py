from __future__ import annotations

import os

# One thread, here and in the processes that tests start, unless the environment says otherwise. The tests' tensors are
# too small for two, and on a busy machine threads that wait for each other make a test many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# The same examples everywhere, however slow the machine is.
settings.register_profile(
    "tests", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers for every test."""
    torch.manual_seed(0)
