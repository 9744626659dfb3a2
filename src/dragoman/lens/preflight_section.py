"""The look at the data, as a part of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.lens.charts import bar_chart
from dragoman.lens.html_page import bullet_list, definition_list, figure, paragraph, table
from dragoman.lens.markup import Markup, join, tag

Record = dict[str, Any]


def preflight_section(preflight: Record | None) -> Markup:
    """What preflight.json holds, for people to read; a run that came from elsewhere has none."""
    if preflight is None:
        return paragraph("The run does not hold what was found in its data.")
    remarks = [
        f"{preflight['pairs']:,} sentence pairs are kept of {preflight['read']:,} read.",
        f"{preflight['duplicates']:,} repeat an earlier pair.",
        f"{preflight['identical']['pairs']:,} have the same text on both sides.",
        f"{preflight['lopsided']['pairs']:,} differ very much in length between the sides.",
    ]
    if preflight["ratio"] is not None:
        remarks.append(f"There are {preflight['ratio']:.2f} target pieces to a source piece.")
    for other in preflight["overlaps"]:
        remarks.append(
            f"{other['pairs_in_train']:,} of the {other['pairs']:,} pairs of {other['name']} also stand in train."
        )
    return join(
        *(paragraph(f"Careful: {warning}.", kind="card warning") for warning in preflight["warnings"]),
        bullet_list(remarks),
        _dropped(preflight),
        _lengths(preflight),
        _pieces(preflight),
    )


def _dropped(preflight: Record) -> Markup:
    dropped = {reason: found["pairs"] for reason, found in preflight["dropped"].items()}
    if not dropped:
        return Markup()
    places = [f"{reason}: for instance {', '.join(found['first'])}" for reason, found in preflight["dropped"].items()]
    return join(figure(bar_chart(dropped, "Dropped pairs, by reason", "pairs"), scroll=True), bullet_list(places))


def _lengths(preflight: Record) -> Markup:
    names = {"words": "words", "characters": "characters", "tokens": "pieces"}
    rows = []
    for side in ("source", "target"):
        for unit, name in names.items() if preflight[side] else ():
            of = preflight[side][unit]
            if of is None:  # vectors have neither words nor characters
                continue
            figures = (f"{of['mean']:.1f}", f"{of['median']:,}", f"{of['p95']:,}", f"{of['max']:,}", f"{of['total']:,}")
            rows.append((f"{side} {name}", *figures))
    return join(
        tag("h3", "How long the sentences are"),
        table(("", "mean", "median", "95 % have at most", "longest", "in all"), rows),
    )


def _pieces(preflight: Record) -> Markup:
    if not preflight["samples"]:
        return Markup()

    def pieces(some: Sequence[str]) -> Markup:
        shown = [tag("span", piece, class_="piece", dir="auto") for piece in some[:200]]
        return tag("div", *shown, *([" …"] if len(some) > 200 else []), dir="auto")

    cards = []
    for sample in preflight["samples"]:
        target = {} if sample["target"] is None else {"target": pieces(sample["target_pieces"])}
        cards.append(definition_list({"source": pieces(sample["source_pieces"])} | target))
    return join(
        tag("h3", "What the model sees of it"),
        paragraph("Text is cut into pieces that are frequent enough to be learned; ▁ stands for a space."),
        *cards,
    )
