"""A run for long work in the background, which lets requests use the device in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dragoman.preemption import preemptible
from dragoman.run import Alignment, Run, ScoredText, Translation
from dragoman.serving.device_scheduler import DeviceScheduler
from dragoman.serving.job_queue import CanceledError

CHUNK_SENTENCES = 16  # that are processed in one turn


class SharedRun(Run):
    """A run that translates, scores and aligns a few sentences at a time, while no request wants to use the device."""

    def __init__(self, run: Run, scheduler: DeviceScheduler, is_canceled: Callable[[], bool]) -> None:
        """Share weights and tokenizers with `run`, and the device that `scheduler` assigns.

        `is_canceled` is called before every chunk of sentences; True stops the work with a CanceledError.
        """
        vars(self).update(vars(run))  # instead of the constructor of Run: nothing is loaded again
        self.engine_cache = None  # an engine that `run` caches serves one search at a time; None: a new one for each
        self.scheduler, self.is_canceled = scheduler, is_canceled

    def _chunks(self, *columns: Sequence[Any] | None) -> Iterator[list[Any]]:
        """Yield CHUNK_SENTENCES rows of the columns at a time, and hold the device until the next ones are requested.

        `columns` are parallel sequences, such as sources and targets; one that is None stays None in every chunk.
        Meanwhile, searches give way to requests between decoding steps. A CanceledError ends the work.
        """
        num_rows = next(len(column) for column in columns if column is not None)
        for start in range(0, num_rows, CHUNK_SENTENCES):
            if self.is_canceled():
                raise CanceledError
            with self.scheduler.turn(is_background=True) as turn, preemptible(partial(self.scheduler.yield_turn, turn)):
                yield [None if column is None else column[start : start + CHUNK_SENTENCES] for column in columns]

    def translate(self, texts: Sequence[Any], *args: Any, **options: Any) -> list[Translation]:
        """Translate as `Run.translate` does, but in chunks of sentences, between which requests use the device."""
        return [
            result for (chunk,) in self._chunks(list(texts)) for result in Run.translate(self, chunk, *args, **options)
        ]

    def score(self, sources: Sequence[Any] | None, targets: Sequence[str], **options: Any) -> list[ScoredText]:
        """Score as `Run.score` does, but in chunks of sentence pairs, between which requests use the device."""
        return [result for chunk in self._chunks(sources, targets) for result in Run.score(self, *chunk, **options)]

    def align(self, sources: Sequence[Any], targets: Sequence[str], **options: Any) -> list[Alignment] | None:
        """Align as `Run.align` does, but in chunks of sentence pairs, between which requests use the device.

        The result is None if the model cannot align words.
        """
        alignments: list[Alignment] = []
        for chunk in self._chunks(sources, targets):
            chunk_alignments = Run.align(self, *chunk, **options)
            if chunk_alignments is None:
                return None
            alignments += chunk_alignments
        return alignments
