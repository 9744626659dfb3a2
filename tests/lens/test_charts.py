from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import UserError
from dragoman.lens.charts import attention_heatmap, bar_chart, heatmap, line_chart, scatter_plot
from dragoman.run import SentenceAttention

SVG = "{http://www.w3.org/2000/svg}"
MALICE = "</title><script>alert('x')</script> & \"quotes\" \x00\x1b[31m \ud800"


def texts(picture: str, kind: str) -> list[str]:
    """The text of every element of a kind, without that of its children."""
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}{kind}")]


def labels(picture: str) -> list[str]:
    return ["".join([element.text or "", *(child.tail or "" for child in element)]) for element in _texts(picture)]


def _texts(picture: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter(f"{SVG}text"))


def test_heatmap_cells_have_tooltips_with_words_and_weight() -> None:
    picture = heatmap([[0.25, 0.75], [1.0, 0.0]], ["der", "Mann"], ["the", "man"], "Attention")
    tips = texts(picture, "title")
    assert "“der” ← “man”: 75.0 % of its attention" in tips
    assert "“Mann” ← “man”: 0.0 % of its attention" in tips
    assert {"der", "Mann", "the", "man", "25", "75", "100"} <= set(labels(picture))


def test_larger_weights_are_more_opaque() -> None:
    tree = ElementTree.fromstring(heatmap([[0.1, 0.9]], ["a"], ["b", "c"], "t"))
    weak, strong, *_ = (
        float(r.get("fill-opacity", "nan")) for r in tree.iter(f"{SVG}rect") if r.get("class") == "heat"
    )
    assert weak < 0.2 < 0.85 < strong


def test_heatmap_accepts_tensors_and_lists() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25]])
    assert heatmap(weights, ["x"], list("abc"), "t") == heatmap(weights.tolist(), ["x"], list("abc"), "t")


def test_heatmap_rejects_wrong_number_of_labels() -> None:
    with pytest.raises(ValueError, match="zip"):
        heatmap([[0.5, 0.5]], ["a"], ["b"], "t")


def test_charts_have_descriptions() -> None:
    root = ElementTree.fromstring(heatmap([[0.2, 0.8]], ["Mann"], ["the", "man"], "Attention"))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Attention"
    assert "Mann: mostly man (80%)" in (root.findtext(f"{SVG}desc") or "")
    root = ElementTree.fromstring(line_chart({"loss": [(1, 5.0), (2, 2.5)]}, "Loss", "step", "nats"))
    assert root.findtext(f"{SVG}desc") == "nats by step: loss from 5 to 2.5"


@pytest.mark.parametrize(
    "picture",
    [
        heatmap([[0.5, 0.5], [0.1, 0.9]], [MALICE, "b"], [MALICE, "שלום"], MALICE),
        line_chart({MALICE: [(1, 2), (3, 4)], "人間": [(1, 1)]}, MALICE, MALICE, MALICE),
        bar_chart({MALICE: 3.0, "b": 0.0}, MALICE, MALICE),
    ],
    ids=["heatmap", "curves", "bars"],
)
def test_no_text_becomes_markup(picture: str) -> None:
    kinds = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(picture).iter()}
    assert kinds <= {"svg", "title", "desc", "style", "text", "rect", "line", "polyline", "circle"}
    assert "<script" not in picture
    assert picture.count("http") == 1  # the name space


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_gives_well_formed_svg(one: str, other: str) -> None:
    for picture in (
        heatmap([[0.5]], [one], [other], one),
        line_chart({one: [(1, 1)]}, other, one),
        bar_chart({one: 1}, other),
    ):
        ElementTree.fromstring(picture)


@pytest.mark.parametrize("log", [False, True])
def test_line_chart_of_one_point_no_point_and_non_finite_points(log: bool) -> None:
    assert len(list(ElementTree.fromstring(line_chart({"a": [(10, 3.0)]}, "t", log=log)).iter(f"{SVG}circle"))) == 1
    empty: list[dict[str, list[tuple[float, float]]]] = [{}, {"a": []}, {"a": [(1, math.nan), (2, math.inf)]}]
    for nothing in empty:
        assert "nothing has been measured yet" in labels(line_chart(nothing, "t", log=log))
    ElementTree.fromstring(line_chart({"a": [(0, 0.0), (0, 0.0)]}, "t", log=log))


def test_points_match_the_axes() -> None:
    root = ElementTree.fromstring(line_chart({"a": [(0, 0), (5, 5), (10, 10)]}, "t"))
    line = next(root.iter(f"{SVG}polyline"))
    first, middle, last = ([float(v) for v in point.split(",")] for point in line.get("points", "").split())
    assert middle == [pytest.approx((a + b) / 2, abs=0.1) for a, b in zip(first, last)]
    places = {
        t.text: float(t.get("x", "nan"))
        for t in _texts(line_chart({"a": [(0, 0), (10, 7)]}, "t"))
        if t.get("y") == "270"
    }
    assert places["0"] == first[0]
    assert places["10"] == last[0]


def test_logarithmic_axis_spaces_factors_equally() -> None:
    line = next(
        ElementTree.fromstring(line_chart({"a": [(0, 1), (1, 10), (2, 100)]}, "t", log=True)).iter(f"{SVG}polyline")
    )
    ys = [float(point.split(",")[1]) for point in line.get("points", "").split()]
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)


def test_curves_have_a_legend_and_different_dashes() -> None:
    picture = line_chart({"training": [(1, 1), (2, 2)], "validation": [(1, 2), (2, 3)]}, "t")
    assert {"training", "validation"} <= set(labels(picture))
    lines = list(ElementTree.fromstring(picture).iter(f"{SVG}polyline"))
    assert len({line.get("stroke-dasharray") for line in lines}) == 2


def test_many_points_give_a_small_file() -> None:
    assert len(line_chart({"a": [(i, i % 7) for i in range(100_000)]}, "t")) < 30_000


def test_bar_length_is_proportional_to_value() -> None:
    root = ElementTree.fromstring(bar_chart({"a": 50.0, "b": 200.0, "c": 0.0}, "t", "pairs"))
    a, b, c = (float(bar.get("width", "nan")) for bar in root.iter(f"{SVG}rect"))
    assert a == pytest.approx(b / 4, abs=0.1)
    assert c <= 1
    assert "200 pairs" in labels(bar_chart({"b": 200.0}, "t", "pairs"))
    ElementTree.fromstring(bar_chart({}, "t"))


def test_attention_heatmap_has_target_rows_and_needs_attention() -> None:
    attention = SentenceAttention(["▁the", "</s>"], ["▁der"], {}, torch.tensor([[0.9, 0.1]]), [])
    assert "“▁der” ← “▁the”: 90.0 % of its attention" in texts(attention_heatmap(attention), "title")
    with pytest.raises(UserError, match="no attention"):
        attention_heatmap(SentenceAttention(["a"], ["b"], {}, None, []))


def test_long_legend_has_a_line_of_its_own() -> None:
    """“relative to the nearest token, logarithmic” and four names do not fit side by side into 450 pixels."""
    curves = {name: [(0, 1.0), (40, 0.1)] for name in ("RNN 0.7", "RNN 1.1", "LSTM", "attention")}
    crowded = line_chart(curves, "Gradients", y_label="relative to the nearest token", log=True)
    roomy = line_chart(curves, "Gradients", y_label="%")
    assert 'viewBox="0 0 480 318"' in crowded
    assert 'viewBox="0 0 480 300"' in roomy


def test_label_at_the_right_edge_is_left_of_its_point() -> None:
    figure = scatter_plot({"bow": (1.0, 1.0), "transformer": (10.0, 2.0)}, "Cost", "FLOPs", "BLEU")
    labels = re.findall(r'x="([\d.]+)"[^>]*?( text-anchor="end")?>(bow|transformer)<', figure)
    assert [(name, bool(anchor)) for _, anchor, name in labels] == [("bow", False), ("transformer", True)]
