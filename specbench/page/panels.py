"""Which charts a page has, and what each of them is given."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import numpy as np
from markupsafe import Markup

from specbench.page import charts
from specbench.page.charts import Effect, Span
from specbench.page.evidence import METRICS, Evidence, Json, Load, Run, families_of, manifest_of, run_times
from specbench.record.format import moment
from specbench.record.summary import distribution
from specbench.words import duration, percent

FAMILIES_DRAWN = 8


def load_charts(load: Load) -> Json:
    """The panels of one load."""
    return {
        "acceptance": _acceptance_panel(load),
        "drift": _drift_panel(load),
        "equality": _equality_panel(load),
    }


def ecdf_panels(loads: Sequence[Load], metric: str) -> Iterator[tuple[str, Markup]]:
    """A family's panels, one per load, share one time axis."""
    for family in families_of(loads[0])[:FAMILIES_DRAWN]:
        series = [[(run.side, run.times[metric].get(family, np.empty(0))) for run in load.runs] for load in loads]
        if not any(len(values) for runs in series for _, values in runs):
            continue
        domain = charts.time_domain(values for runs in series for _, values in runs)
        for load, runs in zip(loads, series, strict=True):
            line = load.result["metrics"][metric]["families"][family]
            medians = ", ".join(
                f"{load.result[side]['mode']} median {duration(line[f'{side}_median_s'])}"
                for side in ("base", "candidate")
            )
            text = f"Share of requests answered within a time, {METRICS[metric]} of {family} at {load.label}: {medians}"
            yield f"{family}, {load.label}", charts.ecdf(runs, domain, text)


def _acceptance_panel(load: Load) -> Markup | None:
    rates = [run.summary.server.acceptance_per_position for run in load.runs if run.mode == "ngram"]
    if not any(rates):
        return None
    means = [np.mean([rate[at] for rate in rates if len(rate) > at]) for at in range(max(map(len, rates)))]
    shares = ", ".join(f"{mean:.0%}" for mean in means)
    return charts.acceptance(rates, f"Share of drafts accepted up to each position at {load.label}: {shares}")


def _drift_panel(load: Load) -> Markup:
    deployments = load.result["deployments"]
    rows = [(of["side"], of["e2el_s"]) for of in deployments]
    said = ", ".join(f"{of['mode'] or of['side']} {duration(of['e2el_s'])}" for of in deployments)
    return charts.drift(rows, f"Mean E2EL of each deployment at {load.label}, in order of time: {said}")


def _equality_panel(load: Load) -> Markup | None:
    cases = load.result["equality"]["cases"]
    rows = [(case, cases[case]["within_base"], cases[case]["between"]) for case in load.outputs]
    if not rows:
        return None
    said = "; ".join(f"{case} {percent(within)} and {percent(between)}" for case, within, between in rows[:9])
    text = f"Pairs of outputs that differ, within the base and between the sides, at {load.label}: {said}"
    return charts.disagreement(rows, text)


def forest_panels(loads: Sequence[Load]) -> dict[str, Markup]:
    """Per metric: every family and overall, each at every load."""

    def lines(metric: str, load: Load) -> list[Json]:
        of = load.result["metrics"][metric]
        return [*of["families"].values(), of["overall"]]

    every = [line["interval"] for load in loads for metric in METRICS for line in lines(metric, load)]
    domain = charts.ratio_domain(interval[key] for interval in every for key in ("ratio", "low", "high"))
    panels = {}
    for metric, title in METRICS.items():
        groups: dict[str, list[Effect]] = {}
        for load in loads:
            for line in lines(metric, load):
                of, spread = line["interval"], line["spread"]
                heading, label = (line["name"], load.label) if len(loads) > 1 else ("", line["name"])
                effect = Effect(label, of["ratio"], of["low"], of["high"], spread, line["primary"])
                groups.setdefault(heading, []).append(effect)
        if not any(effect.ratio for effects in groups.values() for effect in effects):
            continue
        beside = "with 95% interval and spread between deployments"
        text = f"{title}: ratio of candidate to base {beside}; the numbers stand below"
        panels[metric] = charts.forest(groups, domain, text)
    return panels


def load_panels(loads: Sequence[Load]) -> list[tuple[str, Markup]]:
    """Throughput and latency against concurrency; none where there is one concurrency only."""
    if len(loads) == 1:
        return []

    def percentile(metric: str, name: str) -> Callable[[Run], float | None]:
        def of(run: Run) -> float | None:
            value = getattr(distribution(run.overall(metric).tolist()), name)
            return None if value is None else float(value)

        return of

    numbers: dict[str, tuple[Callable[[Run], float | None], bool]] = {
        "Throughput, tokens/s": (lambda run: run.summary.throughput.tokens_per_s, False),
        "E2EL, median": (percentile("e2el", "p50"), True),
        "E2EL, 95th percentile": (percentile("e2el", "p95"), True),
        "TTFT, median": (percentile("ttft", "p50"), True),
        "TPOT, median": (percentile("tpot", "p50"), True),
    }
    panels = []
    for title, (number, is_time) in numbers.items():
        every = [(run, load.users, number(run)) for load in loads for run in load.runs]
        points = [(run.side, users, value) for run, users, value in every if value is not None]
        show = duration if is_time else "{:,.0f}".format
        said = ", ".join(f"{side} at {users}: {show(value)}" for side, users, value in points[:24])
        if points:
            panels.append((title, charts.by_load(points, f"{title} against users. {said}", seconds=is_time)))
    return panels


def timeline_panels(evidence: Evidence) -> list[Markup]:
    """Deployments and their runs in order of time, drawn for a phone and for a wide window."""
    spans: list[tuple[str, str | None, datetime, datetime, str]] = []
    side_of = {run.name: run.side for load in evidence.loads for run in load.runs}
    if evidence.experiment:
        for deployment in evidence.experiment.deployments:
            began = moment(deployment.started)
            runs = [manifest_of(evidence, entry.directory) for entry in deployment.loads.values()]
            known = [manifest for manifest in runs if manifest]
            if known:
                spans.append((deployment.name, None, began, moment(known[0].started), ""))
            for manifest in known:
                side = "candidate" if manifest.mode == "ngram" else "base"
                spans.append((deployment.name, side, *run_times(manifest), f"c{manifest.concurrency}"))
    else:
        runs_in_order = sorted(
            (run for load in evidence.loads for run in load.runs), key=lambda run: run.manifest.started
        )
        for run in runs_in_order:
            label = f"c{run.manifest.concurrency}"
            spans.append((run.name, side_of[run.name], *run_times(run.manifest), label))
    zero = min((start for _, _, start, _, _ in spans))
    drawn = [
        Span(row, side, (start - zero).total_seconds(), (end - zero).total_seconds(), text)
        for row, side, start, end, text in spans
    ]
    names = ", ".join(dict.fromkeys(span.row for span in drawn))
    text = f"Deployments in order of their start: {names}; the table below has the times"
    return [charts.timeline(drawn, text, width) for width in (charts.WIDTH, 3 * charts.WIDTH)]
