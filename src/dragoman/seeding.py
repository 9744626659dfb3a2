"""Seeding of torch's random generators."""

from __future__ import annotations

import torch


def seed_generators(seed: int) -> None:
    """Seed the random generators of all devices: the same numbers as `torch.manual_seed`.

    Without an accelerator only the CPU's generator is seeded: `torch.manual_seed` formats a stack trace for every kind
    of device that is not initialized, which costs half a millisecond or more.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
