"""Whether kernels of our own can be had for a GPU here."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec


def _can_be_made() -> bool:
    """They are written in Triton, which needs a C compiler to start what it has made."""
    compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
    return compiler is not None and find_spec("triton") is not None


TRITON_AVAILABLE = _can_be_made()
