"""The machine that something runs on: its name, and the memory that was used."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


def peak_memory_bytes(device: torch.device) -> int:
    """Bytes: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # which Windows does not have

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def synchronize(device: torch.device) -> None:
    """Until all that was begun is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
