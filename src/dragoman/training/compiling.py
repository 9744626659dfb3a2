"""The compiler's workers and its memory: started early, and kept from one run to the next."""

from __future__ import annotations

import os
from pathlib import Path


def prepare_compiler() -> None:
    """Start the processes that compile kernels while the model is still being made, and keep what they make.

    They take some ten seconds to come up. What was compiled once is found again by every later run of the same shape,
    also after a restart of the machine, which empties the compiler's own default place.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "dragoman" / "compiled"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    from torch._inductor.async_compile import AsyncCompile

    for name in ("warm_pool", "wakeup"):  # no part of the public interface: without them all is as before
        if (begin := getattr(AsyncCompile, name, None)) is not None:
            begin()
