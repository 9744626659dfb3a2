"""Alignment error rate of word alignments, and the Pharaoh format of gold alignments."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dragoman.errors import UserError
from dragoman.evaluation.metric_score import MetricScore, check_equal_counts

Link = tuple[int, int]
"""Positions of a source word and a target word that translate each other, counted from 0."""


def alignment_error_rate(
    predicted: Sequence[Collection[Link]],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
) -> MetricScore:
    """Alignment error rate, from 0 (no error) to 1 (Och and Ney 2003).

        AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|),   precision = |A ∩ P| / |A|,   recall = |A ∩ S| / |S|

    with predicted links A, sure links S and possible links P ⊇ S, summed over sentences. `possible` need not repeat the
    sure links; without it P = S, and AER = 1 − F₁.
    """
    check_equal_counts(len(predicted), "predicted alignments", len(sure), "gold alignments")
    if possible is not None:
        check_equal_counts(len(predicted), "predicted alignments", len(possible), "possible alignments")
    links = sure_links = sure_found = possible_found = 0
    for a, s, p in zip(map(set, predicted), map(set, sure), map(set, possible or sure)):
        links += len(a)
        sure_links += len(s)
        sure_found += len(a & s)
        possible_found += len(a & (p | s))
    if not links + sure_links:
        raise UserError("there is nothing to evaluate: neither the predicted nor the gold alignments have a link")
    detail = {
        "precision": possible_found / max(links, 1),
        "recall": sure_found / max(sure_links, 1),
        "predicted_links": links,
        "sure_links": sure_links,
    }
    value = 1 - (sure_found + possible_found) / (links + sure_links)
    return MetricScore("AER", value, "lower", detail=detail, decimals=4)


def parse_pharaoh(line: str, where: str = "alignment") -> frozenset[Link]:
    """Return all links, sure and possible, of a line such as "0-0 1-2 1?2"; see `parse_sure_and_possible`."""
    return parse_sure_and_possible(line, where)[1]


def parse_sure_and_possible(line: str, where: str = "alignment") -> tuple[frozenset[Link], frozenset[Link]]:
    """Return the sure links ("0-0") and the possible links ("1?2" or "1p2", and all sure ones) of a line.

    `where` names the line in error messages: "gold.align, line 3".
    """
    sure, possible = set(), set()
    for item in line.split():
        match = re.fullmatch(r"([0-9]+)([-?p])([0-9]+)", item)
        if match is None:
            raise UserError(
                f"{where}: {item!r} is not a link: expected positions of a source and a target word, counted from 0,"
                " as in '0-0 1-2', or '1?2' for a possible link"
            )
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return frozenset(sure), frozenset(possible)
