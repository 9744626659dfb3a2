"""A diagnosis as text for the terminal and as an HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.evaluation.text_metrics import LengthBucket
from dragoman.lens.charts import bar_chart
from dragoman.lens.diagnosis.diagnosis_types import Diagnosis, Finding
from dragoman.lens.html_page import render
from dragoman.lens.svg import one_line


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Return a diagnosis as lines of text: for each finding its value, explanation, tables and first examples.

    `bands` are groups of source lengths with their scores, `choices` the words that show a gender for each subject;
    most findings have none. Of a finding at most three examples are shown, cut to 160 characters.
    """
    lines = [f"{diagnosis.run}: {diagnosis.system}, {diagnosis.sentences:,} sentences", ""]
    for finding in diagnosis.findings:
        lines += [f"{finding.title:36}{finding.formatted_value}", f"  {finding.explanation}"]
        lines += [_length_line(bucket) for bucket in finding.bands]
        width = max((len(choice.label) for choice in finding.choices), default=0)
        lines += [f"    {choice.label:{width}}  {choice.formatted_words}" for choice in finding.choices]
        for example in finding.examples[:3]:
            lines.append(f"    {one_line(example.source)[:160]}")
            lines.append(f"    → {one_line(example.translation)[:160] or '(nothing)'}")
            lines += [f"      {one_line(example.remark)}"] if example.remark else []
        lines.append("")
    return lines[:-1]


def _length_line(bucket: LengthBucket) -> str:
    """Return a line with the scores of the sentences of a bucket, those with a similar number of source words.

    It ends with a bar of a character for every 5 BLEU.
    """
    return (
        f"    {bucket.words:>10} words  {bucket.sentences:5} sentences  BLEU {bucket.bleu:5.1f}  "
        f"exact match {bucket.exact_match:5.1f} %  {'█' * round(bucket.bleu / 5)}"
    ).rstrip()


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as one HTML page without scripts and external resources.

    The keyword arguments of `render` are variables of the template; three of them are functions that it calls for each
    finding.
    """
    overview = [(finding.title, finding.formatted_value) for finding in diagnosis.findings]
    return render(
        "diagnosis.html",
        diagnosis=diagnosis,
        overview=overview,
        length_chart=_length_chart,
        detail_table=_detail_table,
        choice_rows=lambda finding: [(choice.label, choice.formatted_words) for choice in finding.choices],
    )


def _length_chart(finding: Finding) -> str:
    """Return a bar chart (SVG) of BLEU by source length, with a bar for each group of lengths of the finding."""
    return bar_chart({f"{bucket.words} words": bucket.bleu for bucket in finding.bands}, finding.title, "BLEU")


def _detail_table(finding: Finding) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the table below a finding, as column names and rows of cells.

    A finding with groups of source lengths (`bands`) has a row for each group, other findings one for each metric.
    """
    if finding.bands:
        rows = [
            (bucket.words, f"{bucket.sentences:,}", f"{bucket.bleu:.1f}", f"{bucket.exact_match:.1f} %")
            for bucket in finding.bands
        ]
        return ("source words", "sentences", "BLEU", "exact match"), rows
    return ("", finding.unit or "value"), [(name, f"{value:.2f}") for name, value in finding.metrics.items()]
