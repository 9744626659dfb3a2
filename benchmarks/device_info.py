"""The device of a measurement: its name and its peak memory."""

from __future__ import annotations

import platform
import resource
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
