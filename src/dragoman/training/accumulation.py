"""The batches of a step, whoever computes them: the same data in the same steps on one process or on many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dragoman.data import Batch, Batches, DataPosition


@dataclass(frozen=True)
class StepBatches:
    """Of the batches of a step those that this process computes, by their numbers, and the position after them all."""

    batches: list[tuple[int, Batch]]
    next_position: DataPosition
    target_tokens: int  # target tokens in the batches of this process, or of all processes once they have been summed
    sentences: int  # rows in the same batches
    dummy_batch: tuple[int, Batch] | None = None  # one to go through for the sake of the others, and to forget


def iterate_steps(
    batches: Batches,
    position: DataPosition,
    accumulation_steps: int,
    rank: int = 0,
    world_size: int = 1,
    pinned: bool = False,
    lockstep: bool = False,
) -> Iterator[StepBatches]:
    """Steps of `count` batches each, from a position on without end; batch number n is computed by rank n mod size.

    Where all must do the same number (`even`), those who have one less go through the first one once more.
    """
    walk = batches.iterate_indices(position)
    while True:
        planned = list(islice(walk, accumulation_steps))
        own = list(range(rank, accumulation_steps, world_size))
        idle = [0] if lockstep and len(own) < -(-accumulation_steps // world_size) else []
        made = []
        for number in own + idle:
            batch = batches.build_batch(*planned[number][:2])
            made.append((number, batch.pin_memory() if pinned else batch))
        last = made.pop() if idle else None
        tokens = sum(batch.target_tokens for _, batch in made)
        sentences = sum(batch.num_sentences for _, batch in made)
        yield StepBatches(made, planned[-1][2], tokens, sentences, last)
