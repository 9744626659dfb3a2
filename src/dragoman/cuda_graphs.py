"""CUDA graphs: work of a fixed shape is captured once and then replayed with a single launch."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

Static = TypeVar("Static")

SYNC_CHECKS = 2  # calls in which a function is checked for device synchronization before it stays eager
MIN_FREE_MEMORY_SHARE = 0.25  # of the device's memory, to capture: graphs of many shapes take a lot


@dataclass
class CapturedGraph(Generic[Static]):
    """The function of one key: its tensors, whether it can be captured, and the graph once it has been."""

    static: Static  # the tensors that the function reads and writes, always in the same memory
    calls: int = 0
    synchronizes: bool = True  # until a call has shown otherwise; such a function cannot be captured
    graph: torch.cuda.CUDAGraph | None = None


class CudaGraphCache(Generic[Static]):
    """Captures functions as CUDA graphs, one for each key; the `max_graphs` most recently used ones are kept.

    The first call of a key runs eagerly, on the stream used for capture: it creates what is created only once (compiled
    kernels, gradients, workspaces). The second call checks for device synchronization. If there is none, the third call
    captures the function, and later calls replay it. Nothing more is captured when memory becomes scarce. On a CPU
    everything runs eagerly.

        entry = cache.lookup(key, create_static_tensors)
        entry.static["x"].copy_(x)
        cache.run(entry, lambda: forward(entry.static))
    """

    def __init__(self, device: torch.device, max_graphs: int) -> None:
        """Capture graphs for a device; keep at most `max_graphs`, and drop the least recently used one first."""
        self.device, self.max_graphs = device, max_graphs
        self.entries: dict[Hashable, CapturedGraph[Static]] = {}
        self.stream: torch.cuda.Stream | None = None  # for capture, created by the first call
        self.pool: Any = None  # memory that all graphs share

    def lookup(self, key: Hashable, create: Callable[[], Static]) -> CapturedGraph[Static]:
        """Return the entry of a key, such as a batch shape; a new one gets the tensors that `create()` returns.

        The captured function reads and writes these tensors, which stay at the same place in memory. Of more than
        `max_graphs` entries, the least recently used one is dropped.
        """
        entry = self.entries.pop(key, None) or CapturedGraph(create())
        self.entries[key] = entry  # now the most recently used one
        if len(self.entries) > self.max_graphs:
            self.entries.pop(next(iter(self.entries)))
        return entry

    def run(self, entry: CapturedGraph[Static], function: Callable[[], None]) -> None:
        """Run a function on the tensors of an entry (from `lookup`), as a CUDA graph if possible.

        The first call runs eagerly. The next SYNC_CHECKS calls check whether the function makes the CPU wait for the
        device: after one that does not, the next call captures the function, and later ones replay the graph. A
        function that waits in all checks, or for which too little memory is free, goes on running eagerly, as on a CPU.
        """
        if self.device.type != "cuda":
            function()
            return
        if entry.graph is not None:
            entry.graph.replay()
            return
        if self.stream is None:
            self.stream, self.pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()
        entry.calls += 1
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)  # capture needs a stream of its own
        with torch.cuda.stream(self.stream):
            if not entry.synchronizes and _free_memory_share(self.device) > MIN_FREE_MEMORY_SHARE:
                graph = torch.cuda.CUDAGraph()
                # thread_local: other threads may prepare batches meanwhile
                capture = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
                with no_garbage_collection(), capture:
                    function()
                entry.graph = graph
                graph.replay()
            elif 1 < entry.calls <= 1 + SYNC_CHECKS:  # the first call may synchronize while it creates things
                entry.synchronizes = _run_and_detect_synchronization(function)
            else:
                function()
        current.wait_stream(self.stream)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Suspend Python's garbage collection.

    It could destroy a CUDA graph of an earlier run, which is not permitted during a capture and makes it fail.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _free_memory_share(device: torch.device) -> float:
    """Return the share of the device's memory that is free, or kept by PyTorch without being used."""
    free, total = torch.cuda.mem_get_info(device)
    return (free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)) / total


def _run_and_detect_synchronization(function: Callable[[], None]) -> bool:
    """Run a function and return whether the CPU waited for the device, of which torch's debug mode warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            caught.clear()  # the warning that the debug mode is a prototype
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return any("synchroniz" in str(warning.message) for warning in caught)
