"""Checkpoints of served runs that are loaded on demand, to show how a translation changed in training."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from dragoman.lens.training_history import open_checkpoint
from dragoman.run import Run

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentlyUsed(Generic[Key, Value]):
    """A cache that forgets what was used least recently when the total size of its values exceeds `max_size`."""

    def __init__(self, max_size: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        """Keep values up to a total of `max_size`, as `size` measures them (by default 1 each).

        The latest one is kept, however large it is.
        """
        self.max_size, self.size = max_size, size
        self.values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        """Return the cached value of a key, or else call `compute` and cache what it returns.

        Values used least recently are dropped if the total size is above `max_size`. Two threads that ask for the same
        key at once may both compute its value.
        """
        value = self.values.get(key)
        if value is None:
            value = compute()  # without the lock: it may take long
        with self._lock:
            self.values[key] = value
            self.values.move_to_end(key)
            while len(self.values) > 1 and sum(map(self.size, self.values.values())) > self.max_size:
                self.values.popitem(last=False)
        return value


class CheckpointCache:
    """Loaded checkpoints, by run and name, up to a total size of their weights."""

    def __init__(self, max_bytes: int) -> None:
        """Keep at most `max_bytes` of weights in memory, and one checkpoint in any case."""
        self._loaded: RecentlyUsed[tuple[str, str], Run] = RecentlyUsed(max_bytes, _weight_bytes)

    def open(self, version: str, run: Run, checkpoint: str) -> Run:
        """Return the run with the weights of the checkpoint called `checkpoint`, for the same languages.

        `version` identifies the run in the cache, and changes when its files change.
        """
        opened = self._loaded.get((version, checkpoint), lambda: open_checkpoint(run, checkpoint))
        return opened.with_languages(*run.language_pair)


def _weight_bytes(run: Run) -> int:
    """Return the bytes that a run needs: twice its weights, because decoding on a CPU keeps a packed copy."""
    return 2 * sum(weight.numel() * weight.element_size() for weight in run.model.parameters())
