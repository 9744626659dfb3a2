"""Files in the user's cache folder that are valid for one kind of processor: choices of kernels, and compiled ones."""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch


def machine_file(name: str, *versions: str) -> Path | None:
    """Return the path of a file that belongs to this processor; None if the user has no cache folder.

    Its name is `name` after a hash of the processor and of `versions`, what the content depends on besides. Computers
    that share a home folder have files of their own. Neither the file nor its folder need exist.
    """
    # os.path, unlike pathlib, does not fail for a user without a home
    folder = os.environ.get("XDG_CACHE_HOME", "") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if not Path(folder).is_absolute():  # such as "~/.cache", because the user has no home
        return None
    digest = hashlib.sha256("\n".join((*versions, *_processor())).encode()).hexdigest()[:16]
    return Path(folder) / "dragoman" / "kernels" / f"{digest}-{name}"


@cache
def _processor() -> tuple[str, ...]:
    """Return what distinguishes kinds of processors: model, instruction sets, and those that torch uses."""
    lines: set[str] = set()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        lines = {line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))}
    return torch.backends.cpu.get_cpu_capability(), platform.machine(), *sorted(lines)
