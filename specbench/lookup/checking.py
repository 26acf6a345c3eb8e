"""Forecasts held against what was measured: the evidence of docs/forecast.md, and of whoever measures more."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from specbench.lookup.answers import read_answers, recorded_setting
from specbench.lookup.figures import CostRecord, Estimate, Figures
from specbench.lookup.forecast import forecast
from specbench.record.directory import read_manifest, read_requests, read_summary


class Checked(NamedTuple):
    """One ratio of E2EL as it was predicted (n-gram / baseline) and as it was measured."""

    name: str
    predicted: Estimate
    measured: float

    @property
    def error(self) -> float:
        """Measured over predicted, less one: 0.05 where the ratio came out 5% larger than predicted."""
        return self.measured / self.predicted.ratio - 1


class Check(NamedTuple):
    """The forecast of some deployments: its ratios by family (with `overall`) and by case, and the counters."""

    load: str
    families: list[Checked]
    cases: list[Checked]
    drafts: list[tuple[int, int]]
    """Per candidate: drafts by the replay of the given outputs, and as that server counted them."""

    @property
    def median_error(self) -> float:
        """Of the cases, in absolute value."""
        return float(np.median([abs(each.error) for each in self.cases]))

    @property
    def largest_error(self) -> float:
        """Of the cases, in absolute value."""
        return max(abs(each.error) for each in self.cases)


def check(cost: CostRecord, outputs: Sequence[Path], base: Sequence[Path], candidate: Sequence[Path]) -> Check:
    """Hold the forecast from `outputs` and `cost` against what `candidate` took compared with `base`.

    Args:
        cost: what a step costs, from other deployments than `candidate`.
        outputs: result directories whose answers are replayed under the candidate's setting.
        base, candidate: result directories of one load, measured in the two modes.

    Raises UserError where `cost` does not hold that load, or a directory cannot be read.
    """
    manifest = read_manifest(candidate[0])
    load, setting = str(manifest.concurrency), recorded_setting(candidate[0], manifest)
    read = [read_answers(directory) for directory in outputs]
    answers = replace(read[0], answers=[answer for each in read for answer in each.answers])
    at_load = CostRecord(cost.source, cost.model, cost.num_speculative_tokens, {load: cost.loads[load]})
    one = forecast(answers, [setting], at_load).settings[0]
    before, after = _case_logs(base), _case_logs(candidate)
    measured = {case: after[case] - before[case] for case in one.cases}
    cases_of: dict[str, list[str]] = {"overall": list(one.cases)}
    for case, family in {answer.case: answer.family for answer in answers.answers}.items():
        cases_of.setdefault(family, []).append(case)
    drafts = round(one.overall.drafts / len(outputs))
    return Check(
        load,
        [
            _checked(name, figures, load, [measured[case] for case in cases_of[name]])
            for name, figures in [*one.families.items(), ("overall", one.overall)]
        ],
        [_checked(case, figures, load, [measured[case]]) for case, figures in one.cases.items()],
        [(drafts, int(read_summary(run).server.drafts or 0)) for run in candidate],
    )


def _checked(name: str, predicted: Figures, load: str, logs: Sequence[float]) -> Checked:
    assert predicted.e2el_ratio is not msgspec.UNSET
    return Checked(name, predicted.e2el_ratio[load], math.exp(float(np.mean(logs))))


def _case_logs(directories: Sequence[Path]) -> dict[str, float]:
    """By case: the mean over deployments of the mean log E2EL of its requests."""
    by_case: dict[str, list[float]] = defaultdict(list)
    for directory in directories:
        run: dict[str, list[float]] = defaultdict(list)
        for row in read_requests(directory):
            if row.phase == "measured" and row.outcome == "ok" and row.e2el_s:
                run[row.case].append(math.log(row.e2el_s))
        for case, logs in run.items():
            by_case[case].append(float(np.mean(logs)))
    return {case: float(np.mean(logs)) for case, logs in by_case.items()}
