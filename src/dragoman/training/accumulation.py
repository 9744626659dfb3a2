"""Batches of a training step, distributed over processes: the same data in the same steps on any number of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dragoman.data import Batch, Batches, DataPosition


@dataclass(frozen=True)
class StepBatches:
    """The batches of a step that one process computes, with their numbers within the step.

    `target_tokens` and `num_sentences` are counted over `batches`, and over all processes once they have been summed.
    """

    batches: list[tuple[int, Batch]]
    next_position: DataPosition  # after the batches of all processes
    target_tokens: int
    num_sentences: int
    dummy_batch: tuple[int, Batch] | None = None  # to be computed without effect, in lockstep with other processes


def iterate_steps(
    batches: Batches,
    position: DataPosition,
    accumulation_steps: int,
    rank: int = 0,
    world_size: int = 1,
    pinned: bool = False,
    lockstep: bool = False,
) -> Iterator[StepBatches]:
    """Yield the batches of each step from a position on, without end; batch n belongs to rank n mod world_size.

    With `lockstep` all ranks compute the same number of batches: those with one batch less get the first one as a
    dummy.
    """
    indices = batches.iterate_indices(position)
    while True:
        planned = list(islice(indices, accumulation_steps))
        numbers = list(range(rank, accumulation_steps, world_size))
        dummies = [0] if lockstep and len(numbers) < -(-accumulation_steps // world_size) else []
        built = []
        for number in numbers + dummies:
            batch = batches.build_batch(*planned[number][:2])
            built.append((number, batch.pin_memory() if pinned else batch))
        dummy = built.pop() if dummies else None
        tokens = sum(batch.target_tokens for _, batch in built)
        sentences = sum(batch.num_sentences for _, batch in built)
        yield StepBatches(built, planned[-1][2], tokens, sentences, dummy)
