"""Whether Triton kernels can be compiled."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

#: Triton needs a C compiler to launch its kernels.
_COMPILER = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")

TRITON_AVAILABLE = _COMPILER is not None and find_spec("triton") is not None
