"""The figures of a run under flat names, for systems that sort runs by one: e2el_s_p50, copy_tpot_s_p50.

A name is the path of the figure in summary.json, joined with _; what a summary does not hold has no figure.
"""

import re

from specbench.record.format import Distribution, Summary

_OF_METRICS = ("ttft_s", "e2el_s", "tpot_s")
_OF_DISTRIBUTION = ("p50", "p95", "mean")
_OF_SERVER = ("acceptance_rate", "tokens_per_step", "draft_coverage", "mean_acceptance_length")
_MOST_FAMILIES = 50

Figures = dict[str, float | int | str]


def summary_figures(summary: Summary) -> Figures:
    """The figures of one result directory, overall and by family. Times are in seconds."""
    figures: Figures = _distributions(summary.metrics.overall)
    for family, metrics in list(summary.metrics.families.items())[:_MOST_FAMILIES]:
        figures |= {f"{flat_name(family)}_{name}": value for name, value in _distributions(metrics).items()}
    if summary.throughput.tokens_per_s is not None:
        figures["tokens_per_s"] = summary.throughput.tokens_per_s
    for name in _OF_SERVER:
        value = getattr(summary.server, name)
        if value is not None:
            figures[name] = value
    return figures | {"requests_ok": summary.requests.ok, "requests_scheduled": summary.requests.scheduled}


def flat_name(text: str) -> str:
    """A family's or mode's name with _ for whatever is neither letter nor digit."""
    return re.sub(r"\W", "_", text)


def _distributions(metrics: dict[str, Distribution]) -> Figures:
    found = {
        f"{metric}_{statistic}": getattr(metrics[metric], statistic)
        for metric in _OF_METRICS
        if metric in metrics
        for statistic in _OF_DISTRIBUTION
    }
    return {name: value for name, value in found.items() if value is not None}
