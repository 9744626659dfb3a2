"""Settings of the C library's memory allocator."""

from __future__ import annotations

import ctypes
import platform

# Parameters of glibc's mallopt, as in malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
HEAP_GROWTH_BYTES = 2**26


def keep_freed_memory() -> None:
    """Keep freed memory in the process for the next allocation (glibc only; nothing happens elsewhere).

    Training and search on a CPU allocate and free the same large tensors in every step. By default glibc returns such
    blocks to the system, which then has to zero new pages; this costs up to a seventh of the time of a step.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_MAX, 0)  # allocate large blocks from the heap, not as mappings of their own
    library.mallopt(M_TRIM_THRESHOLD, -1)  # never return the end of the heap to the system
    library.mallopt(M_TOP_PAD, HEAP_GROWTH_BYTES)  # grow the heap by at least this much at a time


def return_freed_memory() -> None:
    """Return freed memory to the system, such as that of a model that is not used any more (glibc only)."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
