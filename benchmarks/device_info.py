"""The device of a measurement: its name, its peak memory, and the speed of its matrix products."""

from __future__ import annotations

import platform
import resource
import time
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of the GPU, or the peak resident memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_flops_per_second(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """Return the best speed of a large matrix product, in floating-point operations per second."""
    gpu = device.type == "cuda"
    size, repeats = (8192, 10) if gpu else (1024, 1)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    with torch.no_grad():
        while time.perf_counter() < end or not best:
            start = time.perf_counter()
            for _ in range(repeats):
                a @ b
            synchronize(device)
            best = max(best, repeats * 2 * size**3 / max(1e-9, time.perf_counter() - start))
    return best
