"""The charts of the section *Why*: cases by tokens per step, and what other settings would give."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from specbench.lookup.figures import Forecast
from specbench.lookup.setting import ARTICLE
from specbench.page.drawing import INK, MUTED, WIDTH, Spec, by_value, rounded, svg, x_axis, y_axis
from specbench.page.why import LoadWhy, Point
from specbench.words import ratio

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_RATIO_TICKS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 5)
_STEP_TICKS = (1, 1.2, 1.5, 2, 3, 4, 6, 8, 12, 20, 40)


def reasons(loads: Sequence[LoadWhy]) -> Markup | None:
    """Every case as a point, and a line per load on which a step costs what it does there; None without points.

    Both axes are logarithmic, so cost ÷ tokens per step is a straight line. Families are told by shape, loads by how
    strong a point is and by the name at their line.
    """
    points = [point for load in loads for point in load.points]
    if not points:
        return None
    most = max(1.5, *(point.tokens_per_step for point in points)) * 1.12
    ratios = [point.ratio for point in points]
    ratios += [load.cost for load in loads] + [load.cost / most for load in loads] + [1.0]
    families = list(dict.fromkeys(point.family for point in points))
    told = len(families) <= len(_SHAPES)
    x = _log_axis("x", (0.97, most), _STEP_TICKS, title="tokens per step (log scale)")
    y = _log_axis("y", (min(ratios) / 1.1, max(ratios) * 1.1), _RATIO_TICKS, title="E2EL ratio (log scale)")
    marks: Spec = {"x": x, "y": y, "opacity": by_value("load", _strengths(loads))}
    if told:
        marks["shape"] = {**by_value("family", dict(zip(families, _SHAPES, strict=False))), "legend": _LEGEND}
    layers: list[Spec] = [
        {
            "data": {"values": [{}]},
            "mark": {"type": "rule", "color": INK, "strokeDash": [3, 3], "opacity": 0.55},
            "encoding": {"y": {"datum": 1, **{key: value for key, value in y.items() if key != "field"}}},
        },
        {
            "data": {"values": [row for load in loads for row in _line(load, most)]},
            "mark": {"type": "line", "color": MUTED, "strokeWidth": 1.4, "clip": True},
            "encoding": {"x": x, "y": y, "detail": {"field": "load"}},
        },
        {
            "data": {"values": _names(loads, most)},
            "mark": {"type": "text", "fontSize": 10, "color": MUTED, "align": "left", "dx": 3, "dy": -4},
            "encoding": {"x": x, "y": y, "text": {"field": "load"}},
        },
        {
            "data": {"values": [row for load in loads for row in _points(load)]},
            "mark": {"type": "point", "filled": True, "color": "var(--candidate)", "size": 62},
            "encoding": marks,
        },
    ]
    return svg({"height": 290 if told else 250, "layer": layers}, "; ".join(map(_in_words, loads)))


def _log_axis(field: str, domain: tuple[float, float], ticks: Sequence[float], title: str) -> Spec:
    axis = y_axis if field == "y" else x_axis
    values = [value for value in ticks if domain[0] <= value <= domain[1]]
    scale: Spec = {"type": "log", "domain": list(domain), "nice": False}
    return axis(field, scale, values=values, format="~g", title=title)


def _strengths(loads: Sequence[LoadWhy]) -> dict[str, float]:
    """How strong the points of a load are drawn: the heaviest load most."""
    return {load.label: round(0.3 + 0.6 * (number + 1) / len(loads), 2) for number, load in enumerate(loads)}


def _line(load: LoadWhy, most: float) -> list[Spec]:
    return [{"load": load.label, "x": rounded(at), "y": rounded(load.cost / at)} for at in (0.97, most)]


def _names(loads: Sequence[LoadWhy], most: float) -> list[Spec]:
    """A name over the line of each load, one further right than the other so that they do not touch."""
    step = min(1.45, (most / 2) ** (1 / len(loads)))
    places = [1.45 * step**number for number in range(len(loads))]
    return [
        {"load": load.label, "x": rounded(at), "y": rounded(load.cost / at)}
        for load, at in zip(sorted(loads, key=lambda load: load.cost), places, strict=True)
    ]


def _points(load: LoadWhy) -> list[Spec]:
    return [
        {"load": load.label, "x": rounded(one.tokens_per_step), "y": rounded(one.ratio), "family": one.family}
        for one in load.points
    ]


_LEGEND: Spec = {
    "title": None, "orient": "bottom", "labelColor": INK, "labelFontSize": 11, "symbolFillColor": "var(--candidate)",
    "symbolStrokeColor": "var(--candidate)", "columns": 3,
}  # fmt: skip


def _in_words(load: LoadWhy) -> str:
    def one(point: Point) -> str:
        return f"{point.case} {point.tokens_per_step:.2f} and {ratio(point.ratio)}"

    shown = ", ".join(map(one, load.points[:9]))
    return f"At {load.label} a step costs {load.cost:.2f} times; tokens per step and E2EL ratio of each case: {shown}"


def heat_map(forecast: Forecast, label: str) -> Markup:
    """The predicted E2EL ratio of every setting: k along, the shortest and longest match down."""
    load = forecast.loads[0]
    rows, cells = [], []
    for each in forecast.settings:
        estimates = each.overall.e2el_ratio
        assert isinstance(estimates, dict)
        value = estimates[load].ratio
        bounds = f"{each.prompt_lookup_min}–{each.prompt_lookup_max}"
        article = each.setting == ARTICLE
        rows.append(bounds)
        cells.append(
            {
                "k": str(each.num_speculative_tokens), "bounds": bounds, "text": f"{value:.2f}{'*' if article else ''}",
                "side": "less" if value < 1 else "more", "weight": round(min(1.0, abs(math.log(value)) / 0.7), 3),
                "article": article,
            }
        )  # fmt: skip
    order = sorted(set(rows))
    ks = [str(k) for k in sorted({each.num_speculative_tokens for each in forecast.settings})]
    grid: Spec = {
        "x": {
            "field": "k", "type": "ordinal", "sort": ks,
            "axis": {"title": "k, tokens drafted a step", "labelAngle": 0, "orient": "top", "grid": False},
        },
        "y": {
            "field": "bounds", "type": "ordinal", "sort": order,
            "axis": {"title": "lookup, shortest–longest match", "grid": False},
        },
    }  # fmt: skip
    layers: list[Spec] = [
        {
            "mark": {"type": "rect", "cornerRadius": 2},
            "encoding": {
                **grid,
                "fill": by_value("side", {"less": "var(--good)", "more": "var(--bad)"}),
                "fillOpacity": {
                    "field": "weight", "type": "quantitative", "legend": None,
                    "scale": {"domain": [0, 1], "range": [0.04, 0.42]},
                },
            },
        },
        {
            "transform": [{"filter": "datum.article"}],
            "mark": {"type": "rect", "fill": None, "stroke": INK, "strokeWidth": 2, "cornerRadius": 2},
            "encoding": grid,
        },
        {
            "mark": {"type": "text", "fontSize": 11, "color": INK},
            "encoding": {**grid, "text": {"field": "text"}},
        },
    ]  # fmt: skip
    best = min(cells, key=lambda cell: float(str(cell["text"]).rstrip("*")))
    least = f"least {best['text']} with k = {best['k']}, lookup {best['bounds']}"
    text = f"Predicted E2EL ratio by setting at {label}; {least}"
    return svg({"width": WIDTH, "height": 26 * len(order) + 60, "layer": layers, "data": {"values": cells}}, text)
