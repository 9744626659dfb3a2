"""A diagnosis as text for the terminal and as an HTML page."""

from __future__ import annotations

from dragoman.evaluation.text_metrics import LengthBucket
from dragoman.lens.charts import bar_chart
from dragoman.lens.diagnosis.diagnosis_types import Diagnosis, DiagnosisExample, Finding
from dragoman.lens.html_page import definition_list, document, figure, paragraph, section, table, text
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import one_line


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Return every finding with its value, explanation and first examples."""
    lines = [f"{diagnosis.run}: {diagnosis.system}, {diagnosis.sentences:,} sentences", ""]
    for finding in diagnosis.findings:
        lines += [f"{finding.title:36}{finding.formatted_value}", f"  {finding.explanation}"]
        lines += [_band_line(band) for band in finding.bands]
        for example in finding.examples[:3]:
            lines.append(f"    {one_line(example.source)[:160]}")
            lines.append(f"    → {one_line(example.translation)[:160] or '(nothing)'}")
            lines += [f"      {one_line(example.remark)}"] if example.remark else []
        lines.append("")
    return lines[:-1]


def _band_line(band: LengthBucket) -> str:
    return (
        f"    {band.words:>10} words  {band.sentences:5} sentences  BLEU {band.bleu:5.1f}  "
        f"exact match {band.exact_match:5.1f} %  {'█' * round(band.bleu / 5)}"
    ).rstrip()


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as one HTML page without scripts and external resources."""
    header = [
        tag("h1", f"{diagnosis.run}: diagnosis"),
        paragraph(
            f"Known failures of translation systems, measured for the system {diagnosis.system}, checkpoint "
            f"{diagnosis.checkpoint}, on {diagnosis.sentences:,} sentences.",
            kind="lead",
        ),
        tag("nav", *(tag("a", finding.title, href=f"#{finding.name}") for finding in diagnosis.findings)),
    ]
    overview = [(finding.title, finding.formatted_value) for finding in diagnosis.findings]
    return document(
        f"{diagnosis.run}: diagnosis by Dragoman",
        tag("header", *header),
        section("overview", "Overview", table(("", "value"), overview)),
        *(section(finding.name, finding.title, _finding(finding)) for finding in diagnosis.findings),
    )


def _finding(finding: Finding) -> Markup:
    parts = [paragraph(tag("strong", finding.formatted_value), " – ", finding.explanation)]
    if finding.bands:
        chart = bar_chart({f"{band.words} words": band.bleu for band in finding.bands}, finding.title, "BLEU")
        rows = [
            (band.words, f"{band.sentences:,}", f"{band.bleu:.1f}", f"{band.exact_match:.1f} %")
            for band in finding.bands
        ]
        parts += [figure(chart, scroll=True), table(("source words", "sentences", "BLEU", "exact match"), rows)]
    elif len(finding.metrics) > 1:
        rows_of_metrics = [(name, f"{value:.2f}") for name, value in finding.metrics.items()]
        parts.append(table(("", finding.unit or "value"), rows_of_metrics))
    return join(*parts, *map(_example, finding.examples))


def _example(example: DiagnosisExample) -> Markup:
    items = {"source": text(example.source), "translation": text(example.translation or "(nothing)")}
    return definition_list(items | ({"": text(example.remark, "faint")} if example.remark else {}))
