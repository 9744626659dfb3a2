"""Conversion of the figures from SVG to PNG: matplotlib draws the few SVG elements that they consist of."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from dragoman.errors import UserError
from dragoman.lens.svg import CLASS_COLORS, PALETTE

NAMESPACE = "{http://www.w3.org/2000/svg}"
SCALE = 2  # PNG pixels per SVG pixel
#: fonts in order of preference; later ones supply missing characters
FONTS = [
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "FreeSans",
    "Arial Unicode MS",
]
FONT_SIZES = {"title": 15.0, "note": 12.0, "number": 11.0}  # by CSS class, in pixels
STROKE_OPACITY = {"grid": 0.16, "axis": 0.55, "frame": 0.2, "box": 0.6, "pruned": 0.35, "edge": 0.25}
STROKE_WIDTHS = {"best": 3.0, "curve": 2.0}


def svg_to_png(figure_svg: str, dark: bool = False) -> bytes:
    """Convert a figure of the lens to PNG, with light or dark colors."""
    try:
        from matplotlib import font_manager
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "PNG figures need matplotlib: run pip install '.[plots]' in the source tree, or write an SVG"
        ) from None
    root = ElementTree.fromstring(figure_svg)
    width, height = float(root.get("width", "1")), float(root.get("height", "1"))
    scheme = int(dark)
    figure = Figure((width / 100, height / 100), dpi=100 * SCALE, facecolor=PALETTE["paper"][scheme])
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    installed = set(font_manager.get_font_names())
    painter = SvgPainter(axes, scheme, [name for name in FONTS if name in installed] or ["sans-serif"])
    for element in root:
        painter.paint(element)
    buffer = BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


class SvgPainter:
    """Draws SVG elements onto matplotlib axes, in document order."""

    def __init__(self, axes: Any, scheme: int, fonts: list[str]) -> None:
        self.axes, self.scheme, self.fonts = axes, scheme, fonts
        self.order = 0

    def paint(self, element: ElementTree.Element) -> None:
        kind = element.tag.removeprefix(NAMESPACE)
        paint = {"rect": self._rect, "text": self._text, "line": self._line, "polyline": self._polyline}
        paint |= {"circle": self._circle}
        if kind in paint:
            self.order += 1
            paint[kind](element, (element.get("class") or "").split())

    def _color(self, classes: list[str], wanted: str, default: str | None) -> str | None:
        for name, css_property, color in CLASS_COLORS:
            if css_property == wanted and name in classes:
                return PALETTE[color][self.scheme]
        return default

    def _stroke(self, element: ElementTree.Element, classes: list[str]) -> dict[str, Any]:
        ink = PALETTE["ink"][self.scheme]
        alpha = next((alpha for name, alpha in STROKE_OPACITY.items() if name in classes), 1.0)
        dashes = "3 3" if "pruned" in classes else element.get("stroke-dasharray")
        style: Any = "-" if dashes is None else (0, [float(size) for size in dashes.split()])
        width = next((width for name, width in STROKE_WIDTHS.items() if name in classes), 1.0)
        color = self._color(classes, "stroke", ink)
        return {"color": color, "alpha": alpha, "linewidth": width * 0.72, "linestyle": style, "zorder": self.order}

    def _rect(self, element: ElementTree.Element, classes: list[str]) -> None:
        from matplotlib.patches import FancyBboxPatch, Rectangle

        x, y, width, height = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
        outlined = any(name in classes for name in (*STROKE_OPACITY, "best"))
        stroke = self._stroke(element, classes)
        fill = None if outlined else self._color(classes, "fill", PALETTE["ink"][self.scheme])
        settings: dict[str, Any] = {"zorder": self.order, "linestyle": stroke["linestyle"]}
        settings |= {"facecolor": fill or "none", "linewidth": stroke["linewidth"] if outlined else 0}
        settings |= {"edgecolor": stroke["color"] if outlined else "none"}
        settings["alpha"] = stroke["alpha"] if outlined else float(element.get("fill-opacity") or 1)
        corner = min(float(element.get("rx") or 0), width / 2, height / 2)
        if corner:
            inner = (x + corner, y + corner), width - 2 * corner, height - 2 * corner
            box: Any = FancyBboxPatch(*inner, boxstyle=f"round,pad={corner}", **settings)
        else:
            box = Rectangle((x, y), width, height, **settings)
        self.axes.add_patch(box)

    def _text(self, element: ElementTree.Element, classes: list[str]) -> None:
        text = "".join([element.text or "", *(child.tail or "" for child in element)])
        x, y = float(element.get("x", "0")), float(element.get("y", "0"))
        rotation = 0.0
        if match := re.fullmatch(
            r"translate\(([-.\d]+) ([-.\d]+)\)(?: rotate\(([-.\d]+)\))?", element.get("transform", "")
        ):
            x, y, rotation = float(match[1]), float(match[2]), -float(match[3] or 0)
        size = float(
            element.get("font-size") or next((FONT_SIZES[name] for name in classes if name in FONT_SIZES), 13.0)
        )
        anchor = {"end": "right", "middle": "center"}.get(element.get("text-anchor", ""), "left")
        self.axes.text(
            x,
            y,
            text.replace("$", r"\$"),  # no mathematical formula
            fontsize=size * 0.72,
            fontfamily=self.fonts,
            fontweight="bold" if {"title", "bold"} & set(classes) else "normal",
            color=self._color(classes, "fill", PALETTE["ink"][self.scheme]),
            alpha=0.85 if "note" in classes else 1.0,
            ha=anchor,
            va="baseline",
            rotation=rotation,
            rotation_mode="anchor",
            zorder=self.order,
        )

    def _line(self, element: ElementTree.Element, classes: list[str]) -> None:
        x1, y1, x2, y2 = (float(element.get(name, "0")) for name in ("x1", "y1", "x2", "y2"))
        self.axes.plot([x1, x2], [y1, y2], **self._stroke(element, classes))

    def _polyline(self, element: ElementTree.Element, classes: list[str]) -> None:
        points = [tuple(map(float, point.split(","))) for point in element.get("points", "").split()]
        xs, ys = zip(*points)
        self.axes.plot(xs, ys, **self._stroke(element, classes))

    def _circle(self, element: ElementTree.Element, classes: list[str]) -> None:
        from matplotlib.patches import Circle

        x, y, r = (float(element.get(name, "0")) for name in ("cx", "cy", "r"))
        color = self._color(classes, "fill", PALETTE["ink"][self.scheme])
        self.axes.add_patch(Circle((x, y), r, facecolor=color, linewidth=0, zorder=self.order))
