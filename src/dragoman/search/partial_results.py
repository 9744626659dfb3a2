"""A search as it goes on: what is certain already, and what is likeliest as things stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import torch

from dragoman.search.greedy import PAD
from dragoman.search.slots import Tree


@dataclass(frozen=True)
class PartialResult:
    """Of one source, without START and END."""

    stable_prefix: list[int]  # what all hypotheses begin with that may still be the best: it will not change any more
    best_tokens: list[int]  # the best hypothesis
    score: float  # its log p
    single_hypothesis: bool  # was there never another one?


def partial_result(slots: Tree, source: int, end: int, penalty: Callable[[float], float]) -> PartialResult | None:
    """How things stand for one of the sources in the slots; `penalty` gives what scores are divided by to compare them.

    None where nothing can be told: all hypotheses of the source are given up.
    """
    step, width, found = int(slots["step"][source]), slots["written"].shape[1], []
    for group in slots.get("groups", {"": slots}).values():
        rows = zip(group["written"][source, :, :step].tolist(), group["scores"][source].tolist())
        words = [([token for token in row if token != PAD], score) for row, score in rows]
        found += [(row, score, score / penalty(len(row))) for row, score in words if score > -torch.inf]
        for kept in ("aside", "cut"):
            if kept in group:
                columns = (group[kept][name][source].tolist() for name in ("written", "size", "score", "normalized"))
                found += [(row[:size], score, by) for row, size, score, by in zip(*columns) if score > -torch.inf]
    if not found:
        return None
    targets = [row[:-1] if row[-1:] == [end] else row for row, _, _ in found]
    best = max(range(len(found)), key=lambda number: found[number][2])
    settled = [column[0] for column in takewhile(lambda column: len({*column}) == 1, zip(*targets))]
    return PartialResult(settled, targets[best], found[best][1], width == 1)
