"""The whole page, rendered from its template."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from specbench.comparison.format import Likeness
from specbench.comparison.verdict import change
from specbench.deploy.next_steps import NextStep, next_steps, resume_command
from specbench.page.answer import answer, fired_gates, gate_rows, look
from specbench.page.evidence import METRICS, Evidence, Load
from specbench.page.figures import harmless, prose, shown
from specbench.page.panels import (
    FAMILIES_DRAWN,
    by_load_panels,
    counted,
    ecdf_panels,
    forest_panels,
    listed_families,
    load_charts,
    timeline_panels,
)
from specbench.page.provenance import commands, flags, limits, settings
from specbench.page.why import Why, explain
from specbench.page.why_charts import heat_map, reasons
from specbench.record.provenance import now, tool
from specbench.redaction import redacted
from specbench.words import chance, count, duration, listed, number, percent

OUTPUTS_SHOWN = 6  # distinct outputs that are shown, per case
_LIKENESS = {
    Likeness.IDENTICAL: ("✓", "good"),
    Likeness.WITHIN: ("≈", "same"),
    Likeness.CHANGED: ("≠", "stop"),
    Likeness.CANNOT_TELL: ("?", "unknown"),
}


def page(evidence: Evidence, *, text: bool) -> str:
    """The whole page. `text`: show outputs."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=harmless,
    )
    for function in (redacted, duration, number, percent, chance, change, shown, prose, zip):
        environment.filters[function.__name__] = function
    loads, runs = evidence.loads, evidence.runs
    first = loads[0].result
    base, candidate = first.base.mode or "base", first.candidate.mode or "candidate"
    families = listed_families(loads) if len(loads[0].families) > 1 else []
    gates = gate_rows(loads)
    why = explain(evidence)
    withheld = any(run.manifest.no_text for run in runs)
    return environment.get_template("report.html.j2").render(
        evidence=evidence,
        loads=loads,
        runs=runs,
        base=base,
        candidate=candidate,
        asks_for_ngram=(base, candidate) == ("baseline", "ngram"),
        gpus=_gpus(evidence),
        shape=_shape(loads),
        rows=[*families, first.metrics["e2el"].overall.name],
        family_count=len(loads[0].families),
        answers=[answer(load.result) for load in loads],
        steps=_steps(evidence, why),
        resume=resume_command(evidence.folder),
        fired=fired_gates(loads),
        hollow=any(line.interval.low is None for load in loads for line in load.result.metrics["e2el"].lines),
        gates=gates,
        gate_hint=_gate_hint([state for gate in gates for state in gate.states]),
        look=look,
        likeness=_LIKENESS.__getitem__,
        metrics=METRICS,
        drafted=[run for run in runs if run.side == "candidate" and run.summary.server.drafts is not None],
        right_answers=[
            (load.label, family, passes)
            for load in loads
            if load.result.expect
            for family, passes in load.result.expect.families.items()
        ],
        differing=any(load.outputs for load in loads),
        **_charts(evidence),
        **_why(why),
        settings=settings(runs),
        flags=flags(runs),
        commands=commands(evidence),
        limits=limits(evidence),
        text=text and not withheld,
        withheld=withheld,
        outputs_shown=OUTPUTS_SHOWN,
        families_drawn=FAMILIES_DRAWN,
        made=now(),
        tool=tool(),
    )


def _charts(evidence: Evidence) -> dict[str, Any]:
    loads = evidence.loads
    return {
        "forest": forest_panels(loads),
        "by_load": by_load_panels(loads),
        "charts": [load_charts(load) for load in loads],
        "timeline": timeline_panels(evidence),
        "counted": counted(loads),
        "ecdf": {metric: list(ecdf_panels(loads, metric)) for metric in METRICS},
    }


def _why(why: Why | str) -> dict[str, Any]:
    if isinstance(why, str):
        return {"why": None, "why_reason": why, "why_panel": None, "heat_maps": [], "sweep_note": ""}
    maps: list[tuple[str, Markup]] = [(label, heat_map(one, label)) for label, one in why.sweeps.items()]
    swept = max((one.settings[0].overall.answers for one in why.sweeps.values()), default=0)
    note = f"From {count(swept, 'answer')}, one of each case; docs/forecast.md has the error of such forecasts."
    return {"why": why, "why_reason": None, "why_panel": reasons(why.loads), "heat_maps": maps, "sweep_note": note}


def _steps(evidence: Evidence, why: Why | str) -> list[tuple[str, NextStep]]:
    """What to do next, each step with its loads."""
    given = evidence.experiment.settings if evidence.experiment else None
    results = [load.result for load in evidence.loads]
    found = next_steps(results, evidence.folder, given, has_token_ids=isinstance(why, Why) and bool(why.sweeps))
    if len(found) == 1 and len(results) > 1:
        return [("All loads", found[0])]
    return [(listed([count(load, "user") for load in step.loads]), step) for step in found]


def _gpus(evidence: Evidence) -> str:
    known = (evidence.runs[0].manifest.launched.gpus or []) if evidence.runs else []
    return ", ".join(dict.fromkeys(str(gpu["name"]) for gpu in known if isinstance(gpu, dict) and "name" in gpu))


def _shape(loads: Sequence[Load]) -> str:
    """2 deployments of each mode · 9 prompts × 10 repeats."""
    deployments = _range([len(load.result.base.directories) for load in loads])
    repeats = _range([load.result.repeats for load in loads])
    plural = "deployment of each mode" if deployments == "1" else "deployments of each mode"
    times = "repeat" if repeats == "1" else "repeats"
    return f"{deployments} {plural} · {count(loads[0].result.cases, 'prompt')} × {repeats} {times}"


def _range(numbers: Sequence[int]) -> str:
    """One number, or from which to which."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _gate_hint(states: Sequence[str | None]) -> str:
    fired, unchecked = states.count("fired"), states.count("not checked")
    if not fired and unchecked == len(states):
        return "no gate was checked"
    parts = [f"{fired} fired" if fired else "no gate fired", f"{unchecked} not checked" if unchecked else ""]
    return ", ".join(part for part in parts if part)
