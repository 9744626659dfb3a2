"""A diagnosis as text for the terminal, and as a page."""

from __future__ import annotations

from dragoman.lens.charts import bar_chart
from dragoman.lens.diagnosis.diagnosis_types import Diagnosis, DiagnosisExample, Finding, LengthQuality
from dragoman.lens.html_page import definition_list, document, figure, paragraph, section, table, text
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.svg import one_line


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """Every finding: its number, what it means, and the first examples."""
    found = [f"{diagnosis.run}: {diagnosis.system}, {diagnosis.sentences:,} sentences", ""]
    for one in diagnosis.findings:
        found += [f"{one.title:36}{one.formatted_value}", f"  {one.explanation}"]
        found += [_band(band) for band in one.bands]
        for example in one.examples[:3]:
            found += [
                f"    {one_line(example.source)[:160]}",
                f"    → {one_line(example.translation)[:160] or '(nothing)'}",
            ]
            found += [f"      {one_line(example.remark)}"] if example.remark else []
        found.append("")
    return found[:-1]


def _band(band: LengthQuality) -> str:
    return (
        f"    {band.words:>10} words  {band.sentences:5} of them  BLEU {band.bleu:5.1f}  "
        f"exactly right {band.exact_match:5.1f} %  {'█' * round(band.bleu / 5)}"
    ).rstrip()


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """The same as HTML, on one page without network and scripts."""
    heading = [
        tag("h1", f"{diagnosis.run}: a diagnosis"),
        paragraph(
            f"The known failures of translation, looked for in the system {diagnosis.system}, checkpoint "
            f"{diagnosis.checkpoint}, over {diagnosis.sentences:,} sentences.",
            kind="lead",
        ),
        tag("nav", *(tag("a", one.title, href=f"#{one.name}") for one in diagnosis.findings)),
    ]
    overview = [(one.title, one.formatted_value) for one in diagnosis.findings]
    return document(
        f"{diagnosis.run}: a diagnosis by Dragoman",
        tag("header", *heading),
        section("overview", "At a glance", table(("", "found"), overview)),
        *(section(one.name, one.title, _finding(one)) for one in diagnosis.findings),
    )


def _finding(one: Finding) -> Markup:
    parts = [paragraph(tag("strong", one.formatted_value), " – ", one.explanation)]
    if one.bands:
        picture = bar_chart({f"{band.words} words": band.bleu for band in one.bands}, one.title, "BLEU")
        rows = [
            (band.words, f"{band.sentences:,}", f"{band.bleu:.1f}", f"{band.exact_match:.1f} %") for band in one.bands
        ]
        parts += [figure(picture, scroll=True), table(("source words", "sentences", "BLEU", "exactly right"), rows)]
    elif len(one.metrics) > 1:
        parts.append(table(("", one.unit or "value"), [(name, f"{value:.2f}") for name, value in one.metrics.items()]))
    return join(*parts, *map(_example, one.examples))


def _example(one: DiagnosisExample) -> Markup:
    items = {"source": text(one.source), "translation": text(one.translation or "(nothing)")}
    return definition_list(items | ({"": text(one.remark, "faint")} if one.remark else {}))
