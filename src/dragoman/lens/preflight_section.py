"""The data section of a report: the contents of preflight.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.lens.charts import bar_chart
from dragoman.lens.html_page import bullet_list, definition_list, figure, paragraph, table
from dragoman.lens.markup import Markup, join, tag

Record = dict[str, Any]
MAX_SAMPLE_TOKENS = 200


def preflight_section(preflight: Record | None) -> Markup:
    """Describe the training data; imported runs have no preflight."""
    if preflight is None:
        return paragraph("The run folder has no preflight report of its data.")
    facts = [
        f"Kept {preflight['pairs']:,} of {preflight['pairs_read']:,} sentence pairs.",
        f"{preflight['duplicates']:,} pairs are duplicates of an earlier pair.",
        f"{preflight['identical']['pairs']:,} pairs have equal source and target.",
        f"{preflight['length_mismatch']['pairs']:,} pairs have very different lengths.",
    ]
    if preflight["ratio"] is not None:
        facts.append(f"There are {preflight['ratio']:.2f} target tokens per source token.")
    facts += [
        f"{other['pairs_in_train']:,} of the {other['pairs']:,} pairs of {other['name']} are in the training data."
        for other in preflight["overlaps"]
    ]
    return join(
        *(paragraph(f"Warning: {warning}.", kind="card warning") for warning in preflight["warnings"]),
        bullet_list(facts),
        _dropped(preflight["dropped"]),
        _lengths(preflight),
        _samples(preflight["samples"]),
    )


def _dropped(dropped: dict[str, Record]) -> Markup:
    if not dropped:
        return Markup()
    chart = bar_chart({reason: pairs["pairs"] for reason, pairs in dropped.items()}, "Dropped pairs by reason", "pairs")
    locations = [f"{reason}: for instance {', '.join(pairs['locations'])}" for reason, pairs in dropped.items()]
    return join(figure(chart, scroll=True), bullet_list(locations))


def _lengths(preflight: Record) -> Markup:
    rows = []
    for column in ("source", "target"):
        for unit in ("words", "characters", "tokens") if preflight[column] else ():
            stats = preflight[column][unit]
            if stats is not None:  # feature vectors have no words and characters
                integers = (f"{stats[name]:,}" for name in ("median", "p95", "max", "total"))
                rows.append((f"{column} {unit}", f"{stats['mean']:.1f}", *integers))
    return join(
        tag("h3", "Sentence lengths"),
        table(("", "mean", "median", "95th percentile", "maximum", "total"), rows),
    )


def _samples(samples: Sequence[Record]) -> Markup:
    if not samples:
        return Markup()

    def tokens(row: Sequence[str]) -> Markup:
        shown = [tag("span", token, class_="piece", dir="auto") for token in row[:MAX_SAMPLE_TOKENS]]
        return tag("div", *shown, *([" …"] if len(row) > MAX_SAMPLE_TOKENS else []), dir="auto")

    cards = []
    for sample in samples:
        target = {} if sample["target"] is None else {"target": tokens(sample["target_tokens"])}
        cards.append(definition_list({"source": tokens(sample["source_tokens"])} | target))
    return join(tag("h3", "Tokenized samples"), paragraph("▁ stands for a space."), *cards)
