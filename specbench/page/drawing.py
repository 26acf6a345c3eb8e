"""What the charts share: colours, axes, and Vega-Lite drawings as inline SVG.

A drawing takes its colours from the page's style sheet. It is an `<svg role="img">` with a text alternative. A panel is
WIDTH pixels wide, so that a phone shows it unscaled and a wide window shows several side by side. Vega escapes the
texts that it draws; nothing is fetched, and nothing in an SVG can run.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import vl_convert
from markupsafe import Markup

from specbench.words import printable

Spec = dict[str, Any]
Floats = npt.NDArray[np.float64]

WIDTH = 340
STEPS = 160  # points of one ECDF line: more than a panel has pixels to show
INK, MUTED, GRID, PAPER = "var(--ink)", "var(--muted)", "var(--grid)", "var(--panel)"
# A side is told by colour, and by dashes or shape as well.
SIDES = {"base": ("var(--base)", [5, 3], "circle"), "candidate": ("var(--candidate)", [1, 0], "triangle-up")}
# Ticks for an axis of ratios, from fine to coarse; the first row that reaches as far as the axis is taken.
RATIOS = (
    (0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15),
    (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3),
    (0.25, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2),
    (0.25, 0.5, 1, 2, 4),
    (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20),
)
_CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED, "titleColor": MUTED, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
        "grid": True, "gridColor": GRID, "domain": False, "tickColor": GRID, "ticks": False, "labelPadding": 5,
        "labelLimit": 150, "titlePadding": 6,
    },
    "aria": False,
}  # fmt: skip
SECONDS = "datum.value < 1 ? format(datum.value * 1000, '.3~r') + ' ms' : format(datum.value, '.3~r') + ' s'"
# What Vega leaves in an SVG for its own use: empty paths, roles of parts (the whole has one), defaults.
_FOR_VEGA_ONLY = re.compile(
    r'<path class="(?:back|fore)ground"[^>]*d="(?:M0,0h0v0h0Z)?"[^>]*/>'
    r'| (?:pointer-events="none"|aria-hidden="true"|role="[^"]*"|aria-roledescription="[^"]*"|opacity="1")'
)


def x_axis(field: str, scale: Spec, **axis: Any) -> Spec:
    """A number along an axis; `axis` as in Vega-Lite."""
    return {"field": field, "type": "quantitative", "scale": scale, "axis": {"title": None, **axis}}


def y_axis(field: str, scale: Spec, **axis: Any) -> Spec:
    """The same upright: labels of one width, so that charts side by side line up."""
    return x_axis(field, scale, minExtent=44, **axis)


def extent(labels: Iterable[str]) -> float:
    """Room for labels (after a prefix of 4) in the widest of the fonts that a reader may have."""
    return min(150.0, 7.2 * max((len(label) - 4 for label in labels), default=0) + 6)


def by_value(field: str, values: Mapping[str, Any]) -> Spec:
    """A channel whose value is looked up by name; the page has the legend."""
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(values), "range": list(values.values())},
        "legend": None,
    }


def by_side(look: int) -> Spec:
    """The side's colour (0), dashes (1) or shape (2)."""
    return by_value("side", {side: looks[look] for side, looks in SIDES.items()})


def time_scale(domain: tuple[float, float]) -> Spec:
    """Linear, or logarithmic where the times differ by more than a factor of 4."""
    kind = "log" if domain[1] / domain[0] > 4 else "linear"
    return {"type": kind, "domain": list(domain), "nice": False}


def time_ticks(domain: tuple[float, float]) -> Spec:
    """1-2-5 for a log axis that spans several of them; a linear axis finds its own, without those that would touch."""
    if domain[1] / domain[0] <= 4:
        return {"tickCount": 4, "labelOverlap": "greedy", "labelSeparation": 14}
    decades = range(math.floor(math.log10(domain[0])), math.ceil(math.log10(domain[1])) + 1)
    every = [first * 10.0**decade for decade in decades for first in (1, 2, 5)]
    inside = [value for value in every if domain[0] <= value <= domain[1]]
    return {"values": inside if len(inside) <= 6 else inside[::2]}


def rounded(value: float) -> float:
    """Five digits: more than a panel shows."""
    return float(f"{value:.5g}")


def svg(spec: Spec, alternative: str) -> Markup:
    """Draw a panel; its size, its role and its text alternative are put in the place of Vega's own."""
    fit = {"autosize": {"type": "fit", "contains": "padding"}, "padding": 2}
    whole = {"width": WIDTH, **fit, "config": _CONFIG, **spec}
    drawn = vl_convert.vegalite_to_svg(_safe(whole), allowed_base_urls=[])
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
    assert size is not None
    body = drawn[drawn.index(">") + 1 :]
    body = _FOR_VEGA_ONLY.sub("", body)
    opening = Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">')
    return opening.format(printable(alternative), *size.groups(), *size.groups()) + Markup(body)


def _safe(value: Any) -> Any:
    """`value` with control and bidi characters in every text made visible."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _safe(item) for key, item in value.items()}
    return [_safe(item) for item in value] if isinstance(value, list) else value
