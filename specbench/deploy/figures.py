"""The figures of an experiment under flat names, for Polyaxon: c8_ngram_copy_e2el_s_p50, c8_copy_e2el_ratio.

`c8`: at 8 users. Figures of one mode are the mean over its deployments, named as in summary.json.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from specbench.deploy.given import Given
from specbench.deploy.state import MODES, STATE, State
from specbench.polyaxon.tracking import surrounding_run, track
from specbench.record.directory import read_summary
from specbench.record.figures import Figures, flat_name, summary_figures

PAGE = "report.html"


def track_experiment(given: Given, state: State) -> None:
    """Send a complete experiment's figures, page and JSON to Polyaxon, inside a run or where --track asks for it."""
    if given.track is False or (given.track is None and surrounding_run() is None):
        return
    names = [PAGE, STATE]
    for comparison in state.comparisons.values():
        names += [name for name in (comparison.json, comparison.markdown, comparison.text) if name is not None]
    files = {name: given.out / name for name in names if (given.out / name).exists()}
    project = given.project or state.settings.project or None
    figures = experiment_figures(given.out, state)
    track(f"experiment-{state.id}", figures, files, project=project, insecure_http=given.insecure_http)


def experiment_figures(folder: Path, state: State) -> Figures:
    """Everything that a complete experiment measured and concluded."""
    figures: Figures = {"status": state.status, "order": state.settings.order}
    for load in state.settings.concurrency:
        figures |= {f"c{load}_{name}": value for name, value in _of_modes(folder, state, load).items()}
        result = json.loads((folder / state.comparisons[load].json).read_bytes())
        figures |= {f"c{load}_{name}": value for name, value in _of_comparison(result).items()}
    return figures


def _of_modes(folder: Path, state: State, load: int) -> Figures:
    figures: Figures = {}
    for letter, mode in MODES.items():
        places = [place for place, other in enumerate(state.settings.order, start=1) if other == letter]
        names = [state.directory(place, load) for place in places]
        runs = [summary_figures(read_summary(folder / name)) for name in names if name is not None]
        for name in runs[0] if runs else ():
            values = [run[name] for run in runs if name in run]
            if len(values) == len(runs):
                figures[f"{mode}_{name}"] = fmean(value for value in values if not isinstance(value, str))
    return figures


def _of_comparison(result: dict[str, Any]) -> Figures:
    """Ratios (ngram / baseline) and verdicts of compare.py's JSON."""
    figures: Figures = {"verdict": str(result["verdict"]["verdict"] or "no verdict")}
    for metric, lines in result["metrics"].items():
        named = {"": lines["overall"], **{f"{flat_name(family)}_": line for family, line in lines["families"].items()}}
        for prefix, line in named.items():
            values = {name: line["interval"][name] for name in ("ratio", "low", "high")}
            figures |= {f"{prefix}{metric}_{name}": value for name, value in values.items() if value is not None}
            if metric == "e2el" and prefix and line["verdict"]:
                figures[f"{prefix}verdict"] = str(line["verdict"])
    return figures
