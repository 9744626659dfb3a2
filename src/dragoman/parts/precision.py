"""The precision of softmax, losses and scores."""

from __future__ import annotations

import torch
from torch import Tensor

#: kinds of devices that have no float64: Apple GPUs
WITHOUT_FLOAT64 = {"mps"}


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device, for sums and scores: float64, or float32 on Apple GPUs."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64 as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
