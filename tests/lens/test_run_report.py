from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lens_pages import HUGE, MALICE, balanced

from dragoman.lens.html_page import CONTENT_SECURITY_POLICY, mark_differences
from dragoman.lens.run_report import run_report, write_report
from dragoman.lens.word_attention import word_attention
from dragoman.run import Run, load


def visible(page: str) -> str:
    """The page's text."""
    import html

    body = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", "", body))


@pytest.fixture
def copy(run: Run, tmp_path: Path) -> Run:
    """A copy of the run to do things to."""
    shutil.copytree(run.folder, tmp_path / "copy", symlinks=True)
    return load(tmp_path / "copy", device="cpu")


def test_report_needs_no_network(run: Run) -> None:
    page = run_report(run)
    tags = balanced(page)
    assert not {"script", "link", "img", "iframe", "b"} & set(tags)
    assert set(re.findall(r"https?://[^\"' ]*", page)) == {"http://www.w3.org/2000/svg"}
    assert CONTENT_SECURITY_POLICY == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert CONTENT_SECURITY_POLICY.replace("'", "&#39;") in page
    assert len(page) < 1_000_000


def test_report_without_experts_has_no_charts_of_them(run: Run) -> None:
    assert "experts" not in run_report(run)


def test_report_sections_in_order(run: Run) -> None:
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", run_report(run))
    assert titles == [
        "Scores",
        "Curves",
        "Samples",
        "Attention",
        "Data",
        "Configuration",
        "Next steps",
    ]


def test_report_describes_the_training(run: Run) -> None:
    page = visible(run_report(run))
    parameters = sum(weight.numel() for weight in run.model.parameters())
    assert f"transformer (“Attention Is All You Need”, 2017) in size tiny, with {parameters:,} parameters" in page
    assert "It was trained on 30 sentence pairs" in page
    assert "20 steps" in page
    best = max(record["bleu"] for record in run.metrics() if record["kind"] in ("valid", "averaged"))
    assert f"has BLEU {best:.1f}, exact match" in page
    assert "signature nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in page
    assert "Warning: only 30 pairs" in page
    assert "label_smoothing: 0.1" in page
    assert "kind: EncoderDecoder" in page
    assert "--resume" in page


def test_text_and_folder_names_are_escaped(run: Run) -> None:
    page = run_report(run)
    assert MALICE not in page
    assert MALICE in visible(page)
    assert "<h1>run &lt;b&gt;&amp;&#39;&#34;</h1>" in page


def test_report_is_written_into_the_run_folder(run: Run) -> None:
    path = write_report(run)
    assert path == run.folder / "report.html"
    assert path.read_text(encoding="utf-8") == run_report(run)


def test_attention_is_shown_between_words(run: Run) -> None:
    page = run_report(run)
    assert "“(end)” is EOS" in page
    assert re.search(r"“[^”]*” ← “sees”: [0-9.]+ % of its attention", page)


@pytest.mark.parametrize("system", ["sutskever", "bahdanau"])
def test_report_of_recurrent_systems(make_run: Callable[..., Run], system: str) -> None:
    page = run_report(make_run(system=system))
    balanced(page)
    assert ("This system has no cross-attention" in page) == (system == "sutskever")


def test_load_of_experts_is_logged_and_drawn(experts_run: Run) -> None:
    """The logged variation is that of the logged shares, in the layer where it is largest: √(mean of squares − 1)."""
    run = experts_run
    (*_, last) = (record for record in run.metrics() if record["kind"] == "valid")
    shares = last["expert_load"]
    assert list(shares) == ["encoder.layers.0.1.body", "decoder.layers.0.1.body"]
    assert [sum(layer) for layer in shares.values()] == pytest.approx([1, 1], abs=1e-4)
    variations = [(sum((4 * share) ** 2 for share in layer) / 4 - 1) ** 0.5 for layer in shares.values()]
    assert last["expert_load_cv"] == pytest.approx(max(variations), abs=1e-3)
    assert last["expert_importance_cv"] >= 0
    page = run_report(run)
    balanced(page)
    assert "Load of experts" in page
    assert "Balance of experts" in visible(page)


def test_report_of_a_run_without_validation(make_run: Callable[..., Run]) -> None:
    page = run_report(make_run(interrupted=True))
    balanced(page)
    assert "has not completed a step yet" in page
    assert "stopped before the first validation" in page
    assert "There are no scores" in page
    assert page.count(">nothing has been measured yet</text>") == 4


def test_word_tokenizer_shows_unknown_words(make_run: Callable[..., Run]) -> None:
    run = make_run(kind="word")
    balanced(run_report(run))
    attention = word_attention(run, "The zebra sees the dog.", "DER man zebra.")
    assert attention.source == ["The", "<unk>", "sees", "the", "dog.", "(end)"]
    assert attention.target == ["DER", "man", "<unk>."]


def test_report_without_metrics_samples_and_preflight(copy: Run) -> None:
    for name in ("metrics.jsonl", "preflight.json"):
        (copy.folder / name).unlink()
    shutil.rmtree(copy.folder / "samples")
    page = run_report(copy)
    balanced(page)
    assert "has no preflight report of its data" in page


def test_versions_of_the_first_translation_are_listed_once(copy: Run) -> None:
    said = ["DER", "DER man", "DER man", "DER man SIEHT"]
    shutil.rmtree(copy.folder / "samples")
    (copy.folder / "samples").mkdir()
    for step, translation in enumerate(said, 1):
        line = json.dumps({"source": "The man sees", "reference": "DER man SIEHT", "translation": translation})
        (copy.folder / "samples" / f"{step:06d}.jsonl").write_text(line + "\n", encoding="utf-8")
    rows = re.findall(r'<tr><th scope="row">(\d)</th><td[^>]*>(.*?)</td>', run_report(copy))
    assert [(step, visible(cell)) for step, cell in rows] == [("1", "DER"), ("2", "DER man"), ("4", "DER man SIEHT")]
    assert "✓ exact match" in run_report(copy)


def test_report_of_huge_empty_and_unusual_samples(copy: Run) -> None:
    samples = [
        {"source": HUGE, "reference": HUGE * 100, "translation": "wort " * 100_000},
        {"source": "a\u2028b\x85c \x00", "reference": "שלום עולם", "translation": ""},
        {"source": MALICE, "reference": MALICE, "translation": MALICE},
    ]
    lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    (copy.folder / "samples" / "000020.jsonl").write_text(lines, encoding="utf-8")
    page = run_report(copy)
    balanced(page)
    assert len(page) < 500_000
    assert "(nothing)" in page
    assert "שלום עולם" in visible(page)
    assert "\x00" not in page


def test_different_words_are_marked() -> None:
    assert mark_differences("Der Mann sieht den Hund.", "Der Mann sah den Hund.") == (
        '<span dir="auto">Der Mann <mark>sieht</mark> den Hund.</span>'
    )
    assert mark_differences("a b", "a b") == '<span dir="auto">a b</span>'
    assert mark_differences("a x y b", "a b") == '<span dir="auto">a <mark>x y</mark> b</span>'
    assert mark_differences("a b", "a c b") == '<span dir="auto">a b</span>'
    assert mark_differences("<b> &", "x") == '<span dir="auto"><mark>&lt;b&gt; &amp;</mark></span>'
