from __future__ import annotations

import gc
import os
import re

# One thread, here and in the processes that tests start, unless the environment says otherwise. The tests' tensors are
# too small for two, and on a busy machine threads that wait for each other make a test many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

from dragoman.seeding import seed_generators

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

# Nothing that a test writes must survive a power failure, and waiting for the disk takes long.
os.fsync = lambda descriptor: None  # type: ignore[assignment]

# The same examples everywhere, however slow the machine is; `--hypothesis-profile thorough` tries more of them.
quick = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", quick)
settings.register_profile("thorough", quick, max_examples=200)
settings.load_profile("tests")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their length: compressed ones contain the time, and all processes must collect equal test ids."""
    return f"{argname} of {len(val)} bytes" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reject test ids with the address of an object, which differs between the processes of a run."""
    for item in items:
        if re.search(r" at 0x[0-9a-f]{6}", item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} contains an address: name the value with pytest.param(…, id=…)")


def pytest_collection_finish() -> None:
    """Run the garbage collector less often."""
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Exempt what exists before a module from garbage collection: the libraries alone have a million objects."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers for every test."""
    seed_generators(0)
