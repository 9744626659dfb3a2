"""The batches of a step, whoever computes them: the same data in the same steps on one process or on many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from dragoman.data import Batch, Batches, Position


@dataclass(frozen=True)
class Group:
    """Of the batches of a step those that this process computes, by their numbers, and the position after them all."""

    batches: list[tuple[int, Batch]]
    after: Position
    answers: int  # target tokens in the batches of this process, or of all processes once they have been summed
    sentences: int  # rows in the same batches
    idle: tuple[int, Batch] | None = None  # one to go through for the sake of the others, and to forget


def groups(
    batches: Batches,
    position: Position,
    count: int,
    rank: int = 0,
    size: int = 1,
    pinned: bool = False,
    even: bool = False,
) -> Iterator[Group]:
    """Steps of `count` batches each, from a position on without end; batch number n is computed by rank n mod size.

    Where all must do the same number (`even`), those who have one less go through the first one once more.
    """
    walk = batches.walk(position)
    while True:
        planned = list(islice(walk, count))
        own = list(range(rank, count, size))
        idle = [0] if even and len(own) < -(-count // size) else []
        made = []
        for number in own + idle:
            batch = batches.build(*planned[number][:2])
            made.append((number, batch.pinned() if pinned else batch))
        last = made.pop() if idle else None
        tokens = sum(batch.target_tokens for _, batch in made)
        sentences = sum(batch.sentences for _, batch in made)
        yield Group(made, planned[-1][2], tokens, sentences, last)
