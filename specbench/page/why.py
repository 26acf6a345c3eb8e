"""Why ngram was faster or slower: the steps that drafting saves, and what a step then costs.

Both are known where the server gave token ids: the drafting is replayed over them (specbench/lookup), and decode time
is steps times their cost. Where they are not known nothing is guessed, and the reason stands on the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench import UserError
from specbench.lookup.answers import Answers, read_answers, recorded_setting
from specbench.lookup.cost import cost_of
from specbench.lookup.figures import CostRecord, Estimate, Figures, Forecast
from specbench.lookup.forecast import forecast, sweep
from specbench.lookup.setting import Setting
from specbench.page.evidence import Evidence, Load, Run

MOST_REQUESTS = 50_000  # of all runs: replaying more takes longer than a page should
ALL = "all answers"
MOST_SWEPT = 300  # answers that are replayed under every setting


@dataclass(frozen=True, slots=True)
class Point:
    """One case: tokens per step after the prefill, and its measured E2EL ratio."""

    case: str
    family: str
    tokens_per_step: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Factors:
    """Steps of ngram per step of the baseline, cost of a step against the baseline's, and both E2EL ratios."""

    steps: float
    cost: float
    predicted: float
    measured: float | None


@dataclass(frozen=True, slots=True)
class LoadWhy:
    """One load: `cost` is how much dearer a step is over all its answers, `factors` by family, and of all answers."""

    label: str
    cost: float
    points: list[Point]
    factors: dict[str, Factors]


@dataclass(frozen=True, slots=True)
class Why:
    """Every load, and the forecast of other settings at each (by label)."""

    setting: Setting
    loads: list[LoadWhy]
    sweeps: dict[str, Forecast]

    @property
    def names(self) -> list[str]:
        """Of the lines: all answers, then families."""
        return list(dict.fromkeys(name for load in self.loads for name in load.factors))


def explain(evidence: Evidence) -> Why | str:
    """The reason in numbers, or the sentence why there is none."""
    runs = evidence.runs
    if sum(run.manifest.schedule.requests for run in runs) > MOST_REQUESTS:
        return "There are too many requests to replay for a page; forecast.py does it"
    ngram = next((run for run in runs if run.mode == "ngram" and run.side == "candidate"), None)
    if ngram is None or any(load.result.base.mode != "baseline" for load in evidence.loads):
        return "Steps are compared between baseline and ngram only"
    try:
        setting = recorded_setting(Path(ngram.name), ngram.manifest)
        cost = cost_of("these deployments", [run.path for run in runs])
        loads, sweeps = [], {}
        for load in evidence.loads:
            answers = read_answers(_first_base(load).path)
            loads.append(_load_why(load, forecast(answers, [setting], cost)))
            sweeps[load.label] = sweep(_some_answers(answers), _cost_at(cost, load))
    except UserError as error:
        return str(error)
    return Why(setting, loads, sweeps)


def _first_base(load: Load) -> Run:
    return next(run for run in load.runs if run.side == "base")


def _cost_at(cost: CostRecord, load: Load) -> CostRecord:
    key = str(load.users)
    return CostRecord(cost.source, cost.model, cost.num_speculative_tokens, {key: cost.loads[key]})


def _load_why(load: Load, one: Forecast) -> LoadWhy:
    figures = one.settings[0]
    metric = load.result.metrics["e2el"]
    points = [
        Point(name, load.result.equality.cases[name].family, case.break_even, times.ratio)
        for name, times in metric.cases.items()
        if times.ratio and (case := figures.cases.get(name)) and case.break_even
    ]
    overall = None if metric.overall.name == "mix" else metric.overall.interval.ratio
    lines = [
        (ALL, figures.overall, overall),
        *((name, each, metric.families[name].interval.ratio) for name, each in figures.families.items()),
    ]
    key = str(load.users)
    factors = {
        name: Factors(1 / each.break_even, _estimate(each, key).step_cost_ratio, _estimate(each, key).ratio, measured)
        for name, each, measured in lines
        if each.break_even
    }
    return LoadWhy(load.label, _estimate(figures.overall, key).step_cost_ratio, points, factors)


def _estimate(figures: Figures, load: str) -> Estimate:
    assert isinstance(figures.e2el_ratio, dict)  # there is a cost for every load
    return figures.e2el_ratio[load]


def _some_answers(answers: Answers) -> Answers:
    """One answer of every case, or of as many as a page replays, spread over the families."""
    first = {answer.case: answer for answer in reversed(answers.answers)}
    by_family: dict[str, list[str]] = {}
    for answer in first.values():
        by_family.setdefault(answer.family, []).append(answer.case)
    each = max(1, MOST_SWEPT // len(by_family))
    kept = [first[case] for cases in by_family.values() for case in _spread(sorted(cases), each)]
    return Answers(answers.source, kept, answers.model, answers.max_model_len)


def _spread(cases: Sequence[str], most: int) -> Sequence[str]:
    return cases if len(cases) <= most else [cases[number * len(cases) // most] for number in range(most)]
