"""The whole page, rendered from its template."""

from pathlib import Path

import jinja2

from specbench.page.answer import answer, fired_gates, verdict_look
from specbench.page.evidence import CASES_SHOWN, METRICS, Evidence, families_of
from specbench.page.figures import harmless, prose, shown
from specbench.page.panels import FAMILIES_DRAWN, ecdf_panels, forest_panels, load_charts, load_panels, timeline_panels
from specbench.page.provenance import commands, flags, limits, settings
from specbench.record.provenance import now, tool
from specbench.redaction import redacted
from specbench.words import chance, duration, number, percent

OUTPUTS_SHOWN = 6  # distinct outputs that are shown, per case

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
    for function in (redacted, duration, number, percent, chance, shown, prose, zip):
        environment.filters[function.__name__] = function
    first = evidence.loads[0]
    runs = [run for load in evidence.loads for run in load.runs]
    return environment.get_template("report.html.j2").render(
        evidence=evidence,
        loads=evidence.loads,
        runs=runs,
        base=first.result["base"]["mode"] or "base",
        candidate=first.result["candidate"]["mode"] or "candidate",
        lines=[*families_of(first), first.result["metrics"]["e2el"]["overall"]["name"]],
        answers=[answer(load.result) for load in evidence.loads],
        fired=fired_gates(evidence.loads),
        look=verdict_look,
        metrics=METRICS,
        forest=forest_panels(evidence.loads),
        by_load=load_panels(evidence.loads),
        panels=[load_charts(load) for load in evidence.loads],
        timeline=timeline_panels(evidence),
        ecdf={metric: list(ecdf_panels(evidence.loads, metric)) for metric in METRICS},
        settings=settings(runs),
        flags=flags(runs),
        commands=commands(evidence),
        limits=limits(evidence),
        text=text,
        outputs_shown=OUTPUTS_SHOWN,
        cases_shown=CASES_SHOWN,
        families_drawn=FAMILIES_DRAWN,
        made=now(),
        tool=tool(),
    )
