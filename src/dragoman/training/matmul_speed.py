"""The speed of large matrix products: what a device can sustain at best."""

from __future__ import annotations

import time

import torch


def matmul_flops_per_second(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """Measure the speed of a large matrix product for `seconds`, and return the best in FLOPs per second.

    `precision` is "bfloat16" or "float32". An n × n product has 2n³ floating-point operations.
    """
    gpu = device.type == "cuda"
    size, repeats = (8192, 10) if gpu else (1024, 1)  # products between two readings of the clock
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < end or not best:  # at least once
            start = time.perf_counter()
            for _ in range(repeats):
                a @ b
            if gpu:  # kernels run asynchronously
                torch.cuda.synchronize(device)
            best = max(best, repeats * 2 * size**3 / max(1e-9, time.perf_counter() - start))
    return best
