"""Why one mode was faster: decode time = steps × the cost of a step, and what a step costs on each deployment.

The cost of a step is (E2EL − TTFT) / (steps − 1), so that the ratio of steps times the ratio of costs is the ratio of
decode times, of every line and case (geometric means all three). The interval of the cost comes from the same
machinery as that of E2EL.
"""

import math
from collections.abc import Mapping

import numpy as np

from specbench.comparison.estimates import DESCRIBES, Estimates, LogTimes, estimate
from specbench.comparison.format import Factors, Interval, Line, StepCost, Why
from specbench.comparison.intervals import Floats
from specbench.comparison.pairing import Pair
from specbench.comparison.sides import Run
from specbench.comparison.steps import Steps, Unknown
from specbench.lookup.cost import Steps as KindsOfSteps
from specbench.lookup.cost import fit

NOT_MODES = "the sides are not baseline and ngram"


def explain(
    pair: Pair, counted: Mapping[str, Steps | Unknown], mix: Mapping[str, float] | None, primary: str
) -> Why | str:
    """Steps and their cost per case, family and overall, or the reason why they are not known."""
    if (pair.bases[0].mode, pair.candidates[0].mode) != ("baseline", "ngram"):
        return NOT_MODES
    known: dict[str, Steps] = {}
    for name, found in counted.items():
        if isinstance(found, Unknown):
            return str(found)
        known[name] = found
    times = _LogFactors(pair, known)
    if not np.isfinite(np.concatenate([times.cost.base, times.cost.candidate])).all(axis=0).any():
        return "no answer has a second token on every side"
    steps, cost = (estimate(one, mix, primary) for one in (times.steps, times.cost))
    pairs = zip([steps.overall, *steps.families], [cost.overall, *cost.families], strict=True)
    overall, *families = (_factors(one, other) for one, other in pairs)
    by_family = {line.name: factors for line, factors in zip(cost.families, families, strict=True)}
    chosen = by_family.get(primary, overall)
    return Why(
        source=next(known[run.name].source for run in pair.candidates),
        overall=overall,
        families=by_family,
        cases={case.id: factors for case, factors in zip(pair.cases, _case_factors(steps, cost), strict=True)},
        deployments=[_step_cost(run, known[run.name]) for run in pair.runs],
        sentence=_sentence(chosen),
    )


class _LogFactors:
    """Steps and costs of both sides as logs. What has no second token, or no time after the first, is NaN in both."""

    def __init__(self, pair: Pair, known: Mapping[str, Steps]) -> None:
        shape = len(pair.cases), pair.repeats
        base, candidate = (
            [_logs(run, known[run.name]) for run in side] for side in (pair.bases, pair.candidates)
        )
        position = np.stack([run.position.reshape(shape) for run in pair.bases])
        self.steps, self.cost = (
            LogTimes(
                np.stack([one[which].reshape(shape) for one in base]),
                np.stack([one[which].reshape(shape) for one in candidate]),
                position, pair.family, pair.families, pair.order,
            )
            for which in (0, 1)
        )  # fmt: skip


def _logs(run: Run, steps: Steps) -> tuple[Floats, Floats]:
    decode_s = run.times["e2el"] - run.times["ttft"]
    whole = (steps.all > 0) & (decode_s > 0)  # False where one of them is NaN
    log_steps = np.log(np.where(whole, steps.all, np.nan))
    return log_steps, np.log(np.where(whole, decode_s, np.nan)) - log_steps


def _factors(steps: Line, cost: Line) -> Factors:
    one, other = steps.interval.ratio, cost.interval.ratio
    decode = None if one is None or other is None else one * other
    return Factors(one, cost.interval, decode, cost.spread)


def _case_factors(steps: Estimates, cost: Estimates) -> list[Factors]:
    factors = []
    for one, other in zip(steps.cases.tolist(), cost.cases.tolist(), strict=True):
        known = math.isfinite(one) and math.isfinite(other)
        ratio = other if known else None
        interval = Interval(ratio, None, None, "a single case describes", DESCRIBES, None, None, None)
        factors.append(Factors(one if known else None, interval, one * other if known else None, None))
    return factors


def _step_cost(run: Run, steps: Steps) -> StepCost:
    """What a step of one deployment takes (ms): by least squares on both kinds of steps, where they are told apart."""
    whole = np.isfinite(steps.all) & np.isfinite(run.times["ttft"]) & (run.times["e2el"] > run.times["ttft"])
    if steps.drafted is None or not whole.any():
        return StepCost(run.name, None, None)
    kinds = KindsOfSteps((steps.all - steps.drafted)[whole], steps.drafted[whole])
    cost = fit(run.name, kinds, run.times["ttft"][whole], run.times["e2el"][whole])
    return StepCost(run.name, 1000 * cost.undrafted_s, 1000 * cost.drafted_s if kinds.drafted.any() else None)


def _sentence(factors: Factors) -> str:
    cost = factors.cost.ratio
    if factors.steps is None or cost is None:
        return "nothing can be said of steps: no answer has a second token on every side"
    return (
        f"ngram takes {factors.steps:.2f} of the steps and each costs {cost:.2f} times as much; it pays above "
        f"{cost:.2f} tokens a step"
    )
