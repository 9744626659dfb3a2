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
        """Use `device` for a few sentences at a time, in turns with translations."""
        self.device = device
        self._executor = ThreadPoolExecutor(1, "alignment")

    async def __call__(self, run: Run, sources: Sequence[str], targets: Sequence[str]) -> list[Alignment]:
        """Return the word alignment of each source with its translation in `targets`.

        They are aligned in groups of SENTENCES_PER_TURN; if this call is canceled, later groups are not aligned.
        """
        alignments: list[Alignment] = []
        for first in range(0, len(sources), SENTENCES_PER_TURN):
            turn = slice(first, first + SENTENCES_PER_TURN)
            try:
                is_long = len(sources) > SENTENCES_PER_TURN
                future = self._executor.submit(self._align, run, sources[turn], targets[turn], is_long)
            except RuntimeError:  # the executor was shut down
                raise RequestError(503, "the service is being stopped", retry_after=5) from None
            turn_alignments = await asyncio.wrap_future(future)
            alignments += turn_alignments
        return alignments

    def _align(self, run: Run, sources: Sequence[str], targets: Sequence[str], is_long: bool) -> list[Alignment]:
        """Align sentences while no translation uses the device; `is_long` ones wait for those of short requests."""
        with self.device.turn(is_background=is_long):
            return run.align(sources, targets, occlusion=True) or []

    def close(self) -> None:
        """Align what was submitted, then end the thread."""
        self._executor.shutdown()
