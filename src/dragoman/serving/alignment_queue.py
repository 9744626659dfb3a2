"""A thread that aligns the sentences of documents whose markup or placeholders must be placed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dragoman.run import Run
from dragoman.run.results import Alignment
from dragoman.serving.device_scheduler import DeviceScheduler
from dragoman.serving.request_parsing import RequestError

SENTENCES_PER_TURN = 4  # aligned while the device is held; translations of other requests get their turn in between


class AlignmentQueue:
    """Aligns sentences in one thread, and uses the device for a few of them at a time."""

    def __init__(self, device: DeviceScheduler) -> None:
        """Use the device (GPU or CPU) for a few sentences at a time, in turns with translations."""
        self.device = device
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="alignment")

    async def __call__(self, run: Run, sources: Sequence[str], targets: Sequence[str]) -> list[Alignment]:
        """Return the word alignment of each source with its translation in `targets`.

        They are aligned in groups of SENTENCES_PER_TURN; if this call is canceled, later groups are not aligned. More
        than one group is background work, which waits for short requests.
        """
        alignments: list[Alignment] = []
        is_background = len(sources) > SENTENCES_PER_TURN
        for first in range(0, len(sources), SENTENCES_PER_TURN):
            group = slice(first, first + SENTENCES_PER_TURN)
            try:
                future = self._executor.submit(self._align, run, sources[group], targets[group], is_background)
            except RuntimeError:  # the executor was shut down
                raise RequestError(503, "the service is being stopped", retry_after=5) from None
            group_alignments = await asyncio.wrap_future(future)
            alignments += group_alignments
        return alignments

    def _align(self, run: Run, sources: Sequence[str], targets: Sequence[str], is_background: bool) -> list[Alignment]:
        """Align sentences while nothing else uses the device; background work waits for that of short requests."""
        with self.device.turn(is_background=is_background):
            return run.align(sources, targets, occlusion=True) or []  # never None: occlusion needs no attention

    def close(self) -> None:
        """Align what was submitted, then end the thread."""
        self._executor.shutdown()
