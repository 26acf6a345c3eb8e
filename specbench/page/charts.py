"""The page's charts of times, drafts and outputs. Every function takes plain numbers and returns a drawing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from specbench.page.drawing import (
    GRID,
    INK,
    MUTED,
    PAPER,
    RATIOS,
    SECONDS,
    STEPS,
    WIDTH,
    Floats,
    Spec,
    by_side,
    by_value,
    extent,
    rounded,
    svg,
    time_scale,
    time_ticks,
    x_axis,
    y_axis,
)
from specbench.words import duration


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of a forest plot: a ratio, its interval (None: there is none), the spread of deployments (in logs)."""

    label: str
    ratio: float | None
    low: float | None
    high: float | None
    spread: float | None
    primary: bool


def forest(groups: Mapping[str, Sequence[Effect]], domain: tuple[float, float], alternative: str) -> Markup:
    """Ratios on a log axis around 1, grouped under headings ("": none). Pale bar: one spread to either side."""
    rows: list[Spec] = []
    order: list[str] = []
    for heading, effects in groups.items():
        if heading:
            order.append(f"{len(order):03d}#{heading}")
        for effect in effects:
            order.append(f"{len(order):03d} {effect.label}")
            if effect.ratio is not None:
                rows.append(_effect_row(order[-1], effect, domain))
    row = next((row for row in RATIOS if row[0] < domain[0] * 1.06 and domain[1] < row[-1] * 1.06), RATIOS[-1])
    ticks = [value for value in row if domain[0] <= value <= domain[1]]
    y = {
        "field": "row", "type": "ordinal", "sort": order, "scale": {"domain": order},
        "axis": {
            "title": None, "grid": False, "labelExpr": "slice(datum.label, 4)", "minExtent": extent(order),
            "labelColor": {"condition": {"test": "datum.value[3] == '#'", "value": INK}, "value": MUTED},
            "labelFontWeight": {"condition": {"test": "datum.value[3] == '#'", "value": 600}, "value": "normal"},
        },
    }  # fmt: skip
    scale: Spec = {"type": "log", "domain": list(domain), "nice": False}
    x = x_axis("ratio", scale, values=ticks, format="~g", title="ratio (log scale)")
    interval = {"x": {**x, "field": "low"}, "x2": {"field": "high"}}
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "height": 12, "opacity": 0.35, "color": MUTED, "cornerRadius": 2},
            "encoding": {"x": {**x, "field": "spread_low"}, "x2": {"field": "spread_high"}},
        },
        {
            "mark": {"type": "rule", "color": INK, "strokeDash": [3, 3], "opacity": 0.55},
            "encoding": {"x": {"datum": 1, **{key: value for key, value in x.items() if key != "field"}}},
            "data": {"values": [{}]},  # one row of its own: drawn once, over the whole height
        },
        {"mark": {"type": "rule", "color": INK, "strokeWidth": 2}, "encoding": interval},
        {
            "mark": {"type": "point", "filled": True, "color": INK, "opacity": 1, "strokeWidth": 1.5, "stroke": INK},
            "encoding": {
                "x": x,
                "shape": by_value("primary", {"overall": "diamond", "family": "circle"}),
                "size": by_value("primary", {"overall": 85, "family": 45}),
                "fill": by_value("known", {"yes": INK, "no": PAPER}),
            },
        },
    ]
    for layer in (layers[0], layers[2], layers[3]):
        layer["encoding"]["y"] = y
    return svg({"height": 18 * len(order) + 52, "layer": layers, "data": {"values": rows}}, alternative)


def _effect_row(row: str, effect: Effect, domain: tuple[float, float]) -> Spec:
    def inside(value: float) -> float:
        return min(max(value, domain[0]), domain[1])

    ratio = effect.ratio or 1.0
    values: Spec = {
        "row": row,
        "ratio": inside(ratio),
        "primary": "overall" if effect.primary else "family",
        "known": "no" if effect.low is None else "yes",
    }
    if effect.low is not None and effect.high is not None:
        values |= {"low": inside(effect.low), "high": inside(effect.high)}
    if effect.spread is not None:
        spread = {"spread_low": ratio * math.exp(-effect.spread), "spread_high": ratio * math.exp(effect.spread)}
        values |= {name: inside(value) for name, value in spread.items()}
    return values


def ratio_domain(ratios: Iterable[float | None], ends: Iterable[float | None]) -> tuple[float, float]:
    """An axis that holds every ratio and 1, with air. The ends of intervals count up to a factor of 4, so that one wild
    interval does not flatten the rest, and ratios up to one of 20: what goes on beyond ends at the edge."""
    logs = [math.log(0.9), math.log(1.1)]
    for values, factor in ((ratios, 20), (ends, 4)):
        limit = math.log(factor)
        logs += [min(max(math.log(value), -limit), limit) for value in values if value]
    air = 0.06 * (max(logs) - min(logs))
    return math.exp(min(logs) - air), math.exp(max(logs) + air)


def ecdf(runs: Sequence[tuple[str, Floats]], domain: tuple[float, float], alternative: str) -> Markup:
    """The share of requests answered within a time: one line per deployment, (side, times in s)."""
    rows = [
        {"run": number, "side": side, "x": rounded(x), "share": round(share, 4)}
        for number, (side, times) in enumerate(runs)
        for x, share in steps(times)
    ]
    encoding = {
        "x": x_axis("x", time_scale(domain), labelExpr=SECONDS, title=_start(domain), **time_ticks(domain)),
        "y": y_axis("share", {"domain": [0, 1]}, format=".0%", values=[0, 0.25, 0.5, 0.75, 1]),
        "color": by_side(0),
        "strokeDash": by_side(1),
        "detail": {"field": "run"},
    }
    mark = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6, "clip": True}
    return svg({"height": 194, "mark": mark, "encoding": encoding, "data": {"values": rows}}, alternative)


def _start(domain: tuple[float, float]) -> str:
    """Where an axis of time starts, and whether it is a logarithmic one."""
    kind = " (log scale)" if time_scale(domain)["type"] == "log" else ""
    return f"axis starts at {duration(domain[0])}{kind}"


def steps(times: Floats) -> list[tuple[float, float]]:
    """(time, share of requests within it), from 0; at most STEPS points, so that large runs stay small."""
    n = len(times)
    if n == 0:
        return []
    ordered = np.sort(times)
    at = np.unique(np.linspace(0, n - 1, min(n, STEPS)).round().astype(int))
    return [(float(ordered[0]), 0.0), *((float(ordered[i]), (int(i) + 1) / n) for i in at)]


def time_domain(times: Iterable[Floats]) -> tuple[float, float]:
    """From the fastest to the slowest but one in two hundred, with air: one stray request must not hide the rest."""
    every = [values for values in times if len(values)]
    low = min(float(values.min()) for values in every)
    high = max(float(np.quantile(values, 0.995)) for values in every)
    return low / 1.04, max(high, low * 1.05) * 1.04


def by_load(points: Sequence[tuple[str, int, float]], alternative: str, *, seconds: bool) -> Markup:
    """A number against the users, (side, users, value): a point per deployment, a line through their means."""
    rows = [{"side": side, "users": users, "value": rounded(value)} for side, users, value in points]
    labels = {"labelExpr": SECONDS} if seconds else {"format": ",.3~r"}
    base: Spec = {
        "x": {
            "field": "users", "type": "ordinal", "sort": None, "scale": {"type": "point", "padding": 0.4},
            "axis": {"title": "users", "labelAngle": 0, "grid": False},
        },
        "color": by_side(0),
    }  # fmt: skip
    y = y_axis("value", {"zero": True}, tickCount=5, title="starts at 0", **labels)
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "strokeWidth": 1.6},
            "encoding": {
                **base,
                "y": {**y, "aggregate": "mean"},
                "strokeDash": by_side(1),
            },
        },
        {
            "mark": {"type": "point", "filled": True, "opacity": 0.9, "size": 42},
            "encoding": {**base, "y": y, "shape": by_side(2)},
        },
    ]
    return svg({"height": 170, "layer": layers, "data": {"values": rows}}, alternative)


def acceptance(runs: Sequence[Sequence[float]], alternative: str) -> Markup:
    """Share of drafts accepted up to each position: a bar for the mean, a point per deployment."""
    rows = [
        {"position": position, "rate": round(rate, 4)}
        for rates in runs
        for position, rate in enumerate(rates, start=1)
    ]
    x = {
        "field": "position", "type": "ordinal", "scale": {"type": "band", "paddingInner": 0.45, "paddingOuter": 0.3},
        "axis": {"title": "position in the draft", "labelAngle": 0, "grid": False},
    }  # fmt: skip
    y = y_axis("rate", {"domain": [0, 1]}, format=".0%", values=[0, 0.25, 0.5, 0.75, 1])
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "color": "var(--candidate)", "opacity": 0.35, "cornerRadiusEnd": 2},
            "encoding": {"x": x, "y": {**y, "aggregate": "mean"}},
        },
        {
            "mark": {"type": "point", "filled": True, "color": "var(--candidate)", "opacity": 1, "size": 30},
            "encoding": {"x": x, "y": y},
        },
    ]
    return svg({"height": 150, "layer": layers, "data": {"values": rows}}, alternative)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the timeline: seconds from its beginning; `text` is written on it; side None: starting up."""

    row: str
    side: str | None
    start: float
    end: float
    text: str


def timeline(spans: Sequence[Span], alternative: str, width: int = WIDTH) -> Markup:
    """Deployments from top to bottom in order of their start, runs as bars along the time."""
    whole = max((span.end for span in spans), default=1.0)
    unit, divisor = ("minutes", 60.0) if whole > 180 else ("seconds", 1.0)
    rows = [
        {
            "row": f"{number:03d} {row}",
            "side": span.side or "starting",
            "start": rounded(span.start / divisor),
            "end": rounded(span.end / divisor),
            "middle": rounded((span.start + span.end) / 2 / divisor),
            # A bar that is too short for its text goes without; the table below has every number.
            "text": span.text if (span.end - span.start) * (width - 130) / whole > 9 * len(span.text) else "",
        }
        for number, row in enumerate(dict.fromkeys(span.row for span in spans))
        for span in spans
        if span.row == row
    ]
    colors = {"base": "var(--base)", "candidate": "var(--candidate)", "starting": GRID}
    y = {
        "field": "row", "type": "ordinal", "sort": None, "scale": {"paddingInner": 0.35},
        "axis": {
            "title": None, "grid": False, "labelExpr": "slice(datum.label, 4)", "labelColor": INK,
            "minExtent": extent(f"000 {span.row}" for span in spans),
        },
    }  # fmt: skip
    axis = x_axis("start", {"domainMin": 0, "nice": False}, title=f"{unit} since the first start", tickCount=5)
    layers: list[Spec] = [
        {
            "mark": {"type": "bar", "cornerRadius": 2, "stroke": PAPER, "strokeWidth": 1},
            "encoding": {"x": axis, "x2": {"field": "end"}, "y": y, "color": by_value("side", colors)},
        },
        {
            "mark": {"type": "text", "color": PAPER, "fontSize": 11, "fontWeight": 600},
            "encoding": {"x": {**axis, "field": "middle"}, "y": y, "text": {"field": "text"}},
        },
    ]
    height = 26 * len({row["row"] for row in rows}) + 40
    return svg({"width": width, "height": height, "layer": layers, "data": {"values": rows}}, alternative)


def drift(deployments: Sequence[tuple[str, float]], alternative: str) -> Markup:
    """Mean E2EL of every deployment in the order in which they ran: (side, seconds)."""
    rows = [
        {"at": number, "side": side, "value": rounded(value)}
        for number, (side, value) in enumerate(deployments, start=1)
    ]
    x = {
        "field": "at", "type": "ordinal", "scale": {"type": "point", "padding": 0.5},
        "axis": {"title": "deployment, in order of time", "labelAngle": 0, "grid": False},
    }  # fmt: skip
    low, high = (bound([value for _, value in deployments]) for bound in (min, max))
    domain = low / 1.02, high * 1.02
    scale = {"domain": list(domain), "nice": False}
    y = y_axis("value", scale, labelExpr=SECONDS, tickCount=4, title=f"starts at {duration(domain[0])}")
    layers: list[Spec] = [
        {"mark": {"type": "line", "color": GRID, "strokeWidth": 1.5}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 60},
            "encoding": {
                "x": x,
                "y": y,
                "color": by_side(0),
                "shape": by_side(2),
            },
        },
    ]
    return svg({"height": 140, "layer": layers, "data": {"values": rows}}, alternative)


def disagreement(cases: Sequence[tuple[str, float | None, float]], alternative: str) -> Markup:
    """Per case the share of pairs of outputs that differ: base/base (A/A, None: not measured) and base/candidate."""
    order = [f"{number:03d} {name}" for number, (name, _, _) in enumerate(cases)]
    ends = [
        {"row": row, "within": within, "between": between}
        for row, (_, within, between) in zip(order, cases, strict=True)
    ]
    dots = [
        {"row": end["row"], "side": side, "share": end[of]}
        for end in ends
        for side, of in (("base", "within"), ("candidate", "between"))
        if end[of] is not None
    ]
    y = {
        "field": "row", "type": "ordinal", "sort": order, "scale": {"domain": order},
        "axis": {"title": None, "grid": False, "labelExpr": "slice(datum.label, 4)", "minExtent": extent(order)},
    }  # fmt: skip
    quarters = [0, 0.25, 0.5, 0.75, 1]
    x = x_axis("share", {"domain": [0, 1]}, format=".0%", values=quarters, title="pairs of outputs that differ")
    layers: list[Spec] = [
        {
            "data": {"values": [end for end in ends if end["within"] is not None]},
            "mark": {"type": "rule", "color": MUTED, "strokeWidth": 1.5},
            "encoding": {"y": y, "x": {**x, "field": "within"}, "x2": {"field": "between"}},
        },
        {
            "data": {"values": dots},
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 52},
            "encoding": {
                "y": y,
                "x": x,
                "color": by_side(0),
                "shape": by_side(2),
            },
        },
    ]
    return svg({"height": 18 * len(order) + 40, "layer": layers}, alternative)
