"""Which charts a page has, and what each of them is given."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from markupsafe import Markup

from specbench.comparison.format import Line
from specbench.page import charts
from specbench.page.charts import Effect, Span
from specbench.page.drawing import WIDTH
from specbench.page.evidence import METRICS, Evidence, Load, Run, manifest_of, run_times
from specbench.record.format import moment
from specbench.record.summary import distribution
from specbench.words import duration, percent

FAMILIES_DRAWN = 8  # in panels of their own
FAMILIES_LISTED = 10  # in the table and the forest plot; beyond it those that differ most
POSITIONS_DRAWN = 32  # of a draft


@dataclass(frozen=True, slots=True)
class LoadCharts:
    """The panels of one load; None where there is nothing to draw."""

    acceptance: Markup | None
    drift: Markup
    equality: Markup | None


def load_charts(load: Load) -> LoadCharts:
    """The panels of one load."""
    return LoadCharts(_acceptance_panel(load), _drift_panel(load), _equality_panel(load))


def listed_families(loads: Sequence[Load]) -> list[str]:
    """Every family in the order of the prompts file; of very many those whose ratio differs most from 1."""
    families = loads[0].families
    if len(families) <= FAMILIES_LISTED:
        return families

    def effect(family: str) -> float:
        ratios = (load.result.metrics["e2el"].families[family].interval.ratio for load in loads)
        return max((abs(math.log(ratio)) for ratio in ratios if ratio), default=0.0)

    kept = set(sorted(families, key=effect, reverse=True)[:FAMILIES_LISTED])
    return [family for family in families if family in kept]


def ecdf_panels(loads: Sequence[Load], metric: str) -> Iterator[tuple[str, Markup]]:
    """A family's panels, one per load, share one time axis."""
    for family in listed_families(loads)[:FAMILIES_DRAWN]:
        series = [[(run.side, run.times[metric].get(family, np.empty(0))) for run in load.runs] for load in loads]
        if not any(len(values) for runs in series for _, values in runs):
            continue
        domain = charts.time_domain(values for runs in series for _, values in runs)
        for load, runs in zip(loads, series, strict=True):
            line = load.result.metrics[metric].families[family]
            base, candidate = load.result.base.mode or "base", load.result.candidate.mode or "candidate"
            medians = (
                f"{base} median {duration(line.base_median_s)}, {candidate} median {duration(line.candidate_median_s)}"
            )
            text = f"Share of requests answered within a time, {METRICS[metric]} of {family} at {load.label}: {medians}"
            yield f"{family}, {load.label}", charts.ecdf(runs, domain, text)


def _acceptance_panel(load: Load) -> Markup | None:
    rates = [
        run.summary.server.acceptance_per_position[:POSITIONS_DRAWN] for run in load.runs if run.mode == "ngram"
    ]
    if not any(rates):
        return None
    positions = range(max(map(len, rates)))
    means = [np.mean([rate[position] for rate in rates if len(rate) > position]) for position in positions]
    shares = ", ".join(f"{mean:.0%}" for mean in means)
    return charts.acceptance(rates, f"Share of drafts accepted up to each position at {load.label}: {shares}")


def _drift_panel(load: Load) -> Markup:
    deployments = load.result.deployments
    times = ", ".join(f"{one.mode or one.side} {duration(one.e2el_s)}" for one in deployments)
    text = f"Mean E2EL of each deployment at {load.label}, in order of time: {times}"
    return charts.drift([(one.side, one.e2el_s) for one in deployments], text)


def _equality_panel(load: Load) -> Markup | None:
    cases = load.result.equality.cases
    rows = [(name, cases[name].within_base, cases[name].between) for name in load.outputs]
    if not rows:
        return None
    shares = "; ".join(f"{name} {percent(within)} and {percent(between)}" for name, within, between in rows[:9])
    text = f"Pairs of outputs that differ, within the base and between the sides, at {load.label}: {shares}"
    return charts.disagreement(rows, text)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the servers counted at one load, mean over the candidate's runs; shares between 0 and 1."""

    label: str
    tokens_per_step: float | None
    accepted: float


def counted(loads: Sequence[Load]) -> list[Counted]:
    """For every load whose servers counted drafts."""
    found = []
    for load in loads:
        servers = [run.summary.server for run in load.runs if run.side == "candidate"]
        accepted = [server.acceptance_rate for server in servers if server.acceptance_rate is not None]
        steps = [server.tokens_per_step for server in servers if server.tokens_per_step is not None]
        if accepted:
            mean_steps = float(np.mean(steps)) if len(steps) == len(accepted) else None
            found.append(Counted(load.label, mean_steps, float(np.mean(accepted))))
    return found


def forest_panels(loads: Sequence[Load]) -> dict[str, Markup]:
    """Per metric: every family and overall, each at every load."""
    families = listed_families(loads)

    def lines(metric: str, load: Load) -> list[Line]:
        known = load.result.metrics[metric]
        return [*(known.families[family] for family in families if len(load.families) > 1), known.overall]

    every = [line.interval for load in loads for metric in METRICS for line in lines(metric, load)]
    domain = charts.ratio_domain(
        (one.ratio for one in every), (end for one in every for end in (one.low, one.high))
    )
    panels = {}
    for metric, title in METRICS.items():
        groups: dict[str, list[Effect]] = {}
        for load in loads:
            for line in lines(metric, load):
                interval = line.interval
                heading, label = (line.name, load.label) if len(loads) > 1 else ("", line.name)
                effect = Effect(label, interval.ratio, interval.low, interval.high, line.spread, line.primary)
                groups.setdefault(heading, []).append(effect)
        if not any(effect.ratio for effects in groups.values() for effect in effects):
            continue
        text = f"{title}: ratio of candidate to base with its 95% interval; the numbers stand below"
        panels[metric] = charts.forest(groups, domain, text)
    return panels


def by_load_panels(loads: Sequence[Load]) -> list[tuple[str, Markup]]:
    """Throughput and latency against concurrency; none where there is one concurrency only."""
    if len(loads) == 1:
        return []

    def geometric_mean(metric: str) -> Callable[[Load, Run], float | None]:
        return lambda load, run: run.geometric_mean(metric, load.result.verdict.mix)

    def slowest(load: Load, run: Run) -> float | None:
        return distribution(run.overall("e2el").tolist()).p95

    numbers: dict[str, tuple[Callable[[Load, Run], float | None], bool]] = {
        "E2EL, geometric mean": (geometric_mean("e2el"), True),
        "TTFT, geometric mean": (geometric_mean("ttft"), True),
        "TPOT, geometric mean": (geometric_mean("tpot"), True),
        "E2EL, 95th percentile": (slowest, True),
        "Throughput, tokens/s": (lambda load, run: run.summary.throughput.tokens_per_s, False),
    }
    panels = []
    for title, (number, is_time) in numbers.items():
        every = [(run, load.users, number(load, run)) for load in loads for run in load.runs]
        points = [(run.side, users, value) for run, users, value in every if value is not None]
        show = duration if is_time else "{:,.0f}".format
        shown = ", ".join(f"{side} at {users}: {show(value)}" for side, users, value in points[:24])
        if points:
            panels.append((title, charts.by_load(points, f"{title} against users. {shown}", seconds=is_time)))
    return panels


def timeline_panels(evidence: Evidence) -> list[Markup]:
    """Deployments and their runs in order of time, drawn for a phone and for a wide window."""
    spans: list[tuple[str, str | None, datetime, datetime, str]] = []
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
        for run in sorted(evidence.runs, key=lambda run: run.manifest.started):
            spans.append((run.name, run.side, *run_times(run.manifest), f"c{run.manifest.concurrency}"))
    zero = min((start for _, _, start, _, _ in spans))
    drawn = [
        Span(row, side, (start - zero).total_seconds(), (end - zero).total_seconds(), text)
        for row, side, start, end, text in spans
    ]
    names = ", ".join(dict.fromkeys(span.row for span in drawn))
    text = f"Deployments in order of their start: {names}; the table below has the times"
    return [charts.timeline(drawn, text, width) for width in (WIDTH, 3 * WIDTH)]
