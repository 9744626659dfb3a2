"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import platform

# glibc's names for what `mallopt` sets (malloc.h)
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for what it allocates next.

    A step of training or of a search on the CPU allocates and frees the same large tensors again and again. glibc gives
    blocks of that size back to the system at once, which hands out other pages filled with zeros for the next, and
    writing those zeros costs up to a seventh of a step. Where the C library is another one, nothing is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_MAX, 0)  # no block is a mapping of its own, which would end with it
    library.mallopt(TRIM_THRESHOLD, -1)  # what lies free at the end of the heap is never cut off
    library.mallopt(TOP_PAD, 2**26)  # and grows by this much at a time
