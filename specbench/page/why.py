"""Why ngram was faster or slower: the steps that drafting saves, and what a step then costs.

Steps and their cost are those of the comparison. Where it does not know them nothing is guessed, and its reason stands
on the page. What other settings would give is a replay over token ids (specbench/lookup), where these are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench import UserError
from specbench.comparison.format import Factors
from specbench.lookup.answers import Answers, read_answers, recorded_setting
from specbench.lookup.cost import cost_of
from specbench.lookup.figures import CostRecord, Forecast
from specbench.lookup.forecast import sweep
from specbench.lookup.setting import Setting
from specbench.page.evidence import Evidence, Load, Run

MOST_REQUESTS = 50_000  # of all runs: replaying more takes longer than a page should
MOST_SWEPT = 300  # answers that are replayed under every setting
EARLIER = "the comparison is of an earlier version: delete its JSON file, and the page compares again"


@dataclass(frozen=True, slots=True)
class Point:
    """One case: tokens per step after the prefill, and its measured E2EL ratio."""

    case: str
    family: str
    tokens_per_step: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: its factors, and the measured E2EL ratio."""

    factors: Factors
    e2el: float | None


@dataclass(frozen=True, slots=True)
class LoadWhy:
    """One load: `cost` is how much dearer a step is over all answers; `rows` are overall and the families."""

    label: str
    cost: float
    points: list[Point]
    rows: dict[str, Row]


@dataclass(frozen=True, slots=True)
class Why:
    """Every load, the setting where the server recorded it, and the forecast of other settings by load."""

    setting: Setting | None
    loads: list[LoadWhy]
    sweeps: dict[str, Forecast]

    @property
    def names(self) -> list[str]:
        """Of the lines: overall, then families."""
        return list(dict.fromkeys(name for load in self.loads for name in load.rows))


def explain(evidence: Evidence) -> Why | str:
    """The reason in numbers, or the sentence why there is none."""
    for load in evidence.loads:
        if load.result.why is None or load.result.why.overall.cost.ratio is None:
            return load.result.why_missing or EARLIER
    setting, sweeps = _other_settings(evidence)
    return Why(setting, [_load_why(load) for load in evidence.loads], sweeps)


def _load_why(load: Load) -> LoadWhy:
    why, metric = load.result.why, load.result.metrics["e2el"]
    assert why is not None and why.overall.cost.ratio is not None  # explain() has looked
    points = [
        Point(name, load.result.equality.cases[name].family, 1 / factors.steps, times.ratio)
        for name, times in metric.cases.items()
        if times.ratio and (factors := why.cases.get(name)) and factors.steps
    ]
    rows = {metric.overall.name: Row(why.overall, metric.overall.interval.ratio)}
    if len(why.families) > 1:
        rows |= {
            name: Row(factors, metric.families[name].interval.ratio)
            for name, factors in why.families.items()
            if name in metric.families
        }
    return LoadWhy(load.label, why.overall.cost.ratio, points, rows)


def _other_settings(evidence: Evidence) -> tuple[Setting | None, dict[str, Forecast]]:
    """The recorded setting, and the sweep of every load; nothing where token ids or costs are not known."""
    runs = evidence.runs
    sweeps: dict[str, Forecast] = {}
    setting = None
    try:
        ngram = next(run for run in runs if run.mode == "ngram")
        setting = recorded_setting(Path(ngram.name), ngram.manifest)
        if sum(run.manifest.schedule.requests for run in runs) <= MOST_REQUESTS:
            cost = cost_of("these deployments", [run.path for run in runs])
            for load in evidence.loads:
                answers = _some_answers(read_answers(_first_base(load).path))
                sweeps[load.label] = sweep(answers, _cost_at(cost, load))
    except UserError:
        return setting, {}
    return setting, sweeps


def _first_base(load: Load) -> Run:
    return next(run for run in load.runs if run.side == "base")


def _cost_at(cost: CostRecord, load: Load) -> CostRecord:
    key = str(load.users)
    return CostRecord(cost.source, cost.model, cost.num_speculative_tokens, {key: cost.loads[key]})


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
