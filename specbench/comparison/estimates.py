"""Ratios (candidate / base) with intervals that hold, or the reason why there is none.

Everything works on natural logs of times (E2EL, TTFT, TPOT). A statement is about a weighted mean of case effects, so
overall, one family and --mix are the same code with other weights. assessment.py builds one `LogTimes` per metric and
calls `estimate`. One deployment of each mode describes these two and concludes nothing: its ratios have no interval.
Formulas, sources and calibration: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specbench.comparison.advice import Plan, advise
from specbench.comparison.format import Interval, Line, Timing
from specbench.comparison.intervals import (
    Earlier,
    Floats,
    Ints,
    case_means,
    deployment_half_width,
    deployment_spread,
    least_half_width,
    noise_share,
    stratified_half_width,
)
from specbench.record.order import alternates

MIN_CASES = 12  # fewer prompts cannot show the shape of their effects
SYMMETRIC_CASES = 30  # from here on skewed effects are covered too

ONE_PAIR = (
    "one deployment of each mode describes these two; deploy both again in the reverse order to conclude"
)
NO_VALUE = "no request has a value for this metric on every side"
DESCRIBES = "These requests on these deployments; a ratio without an interval describes, it concludes nothing."
PROMPTS = (
    "Other prompts drawn like these, with the families in these proportions, on any deployment. Assumes that the cases "
    "are independent draws and that their effects are not strongly skewed."
)
DEPLOYMENTS = (
    "Any deployment made like these, with this inventory. Assumes that deployments are independent and spread alike in "
    "both modes; Student's t on {df} degrees of freedom."
)
DECLARED = (
    " --spread-from declares that earlier deployments spread as these do: {earlier:.1%} on {earlier_df} degrees of "
    "freedom, beside {own:.1%} on {own_df} here."
)


@dataclass(frozen=True, slots=True)
class LogTimes:
    """One metric of d deployments per side.

    `base`, `candidate`: [d, cases, repeats] natural logs; row k of both is pair k; NaN where a request has no value for
    this metric (it is then left out of every row, and a warning says so). `position`: [d, cases, repeats] where each
    request stood in the schedule of pair k. `family`: [cases] index into `families`. `order`: the sides of all
    deployments in order of their start.
    """

    base: Floats
    candidate: Floats
    position: Ints
    family: Ints
    families: tuple[str, ...]
    order: Sequence[str]


@dataclass(frozen=True, slots=True)
class Estimates:
    """All lines of one metric at one load; `cases[i]` is the ratio of case i on these deployments, NaN without values.
    `requests`: how many of a run have a value on every side."""

    overall: Line
    families: tuple[Line, ...]
    cases: Floats
    requests: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Data:
    """Cases that have values, and what every statement needs of them: means [d, cases] and effects [cases]."""

    times: LogTimes
    kept: Ints
    family: Ints
    base_means: Floats
    candidate_means: Floats
    effects: Floats
    median_effects: Floats

    @property
    def pairs(self) -> int:
        return len(self.base_means)


def estimate(
    times: LogTimes,
    mix: Mapping[str, float] | None = None,
    primary: str = "overall",
    plan: Plan | None = None,
    earlier: Mapping[str, Earlier] | None = None,
) -> Estimates:
    """Every statement of one metric at one load.

    Args:
        mix: family -> weight (normalised here; families not named weigh 0).
        primary: "overall" (the mix, where there is one) or a family.
        plan: what a deployment and a repeat cost, for advice; None: no advice.
        earlier: line -> spread of earlier experiments, to be pooled.

    Raises ValueError for unequal shapes, an unknown family or a mix without a positive weight.
    """
    if primary not in ("overall", *times.families):
        raise ValueError(f"primary names {primary}, which is no family")
    data, requests, warnings = _clean(times)
    name = "overall" if mix is None else "mix"
    if data is None:
        lines = tuple(_nothing(family, family == primary) for family in times.families)
        return Estimates(_nothing(name, primary == "overall"), lines, np.full(len(times.family), np.nan), 0, warnings)

    def line(line_name: str, weights: Floats, is_primary: bool) -> Line:
        return _line(data, line_name, weights, is_primary, plan, (earlier or {}).get(line_name))

    present = {times.families[number] for number in data.family}
    families = tuple(
        line(family, _weights(data, {family: 1.0}), family == primary)
        if family in present
        else _nothing(family, family == primary)
        for family in times.families
    )
    cases = np.full(len(times.family), np.nan)
    cases[data.kept] = np.exp(data.effects)
    return Estimates(line(name, _weights(data, mix), primary == "overall"), families, cases, requests, warnings)


def deployment_means(times: LogTimes, mix: Mapping[str, float] | None) -> dict[str, tuple[Floats, Floats]]:
    """Line -> the mean logs [d] of both sides' deployments, for the lines that have values."""
    data, _, _ = _clean(times)
    if data is None:
        return {}
    shares: dict[str, Mapping[str, float] | None] = {"overall" if mix is None else "mix": mix}
    shares |= {times.families[number]: {times.families[number]: 1.0} for number in np.unique(data.family)}
    means = {}
    for name, share in shares.items():
        weights = _weights(data, share)
        means[name] = data.base_means @ weights, data.candidate_means @ weights
    return means


def _clean(times: LogTimes) -> tuple[_Data | None, int, tuple[str, ...]]:
    """Leave out (case, repeat) with a missing value on any side; the data, how many requests are left, and warnings."""
    if times.base.shape != times.candidate.shape or times.base.shape != times.position.shape:
        raise ValueError("base and candidate need the same deployments, cases and repeats")
    whole = np.asarray(np.isfinite(np.concatenate([times.base, times.candidate])).all(axis=0))
    lost = int((~whole).sum())
    warnings = (f"{lost} of {whole.size} requests have no value on every side and are left out",) if lost else ()
    kept = np.flatnonzero(whole.any(1))
    if not kept.size:
        return None, 0, warnings
    if lost:
        base, candidate = (np.where(whole, side, np.nan)[:, kept] for side in (times.base, times.candidate))
        times = replace(times, base=base, candidate=candidate, position=times.position[:, kept])
    means = case_means(times.base), case_means(times.candidate)
    medians = np.nanmedian(times.candidate, axis=-1) - np.nanmedian(times.base, axis=-1)
    effects = (means[1] - means[0]).mean(0)
    data = _Data(times, kept, times.family[kept], *means, effects, medians.mean(0))
    return data, int(whole.sum()), warnings


def _weights(data: _Data, mix: Mapping[str, float] | None) -> Floats:
    """Weight of every case: equal, or each family's share of the mix spread evenly over its cases."""
    if mix is None:
        return np.full(len(data.family), 1 / len(data.family))
    families = data.times.families
    unknown = sorted(set(mix) - set(families))
    present = {families[number] for number in data.family}
    if unknown or min(mix.values(), default=0.0) < 0 or not sum(mix.get(name, 0.0) for name in present):
        raise ValueError(f"mix names {', '.join(unknown) or 'no family with a positive weight'}")
    sizes = np.bincount(data.family, minlength=len(families))
    share = np.array([mix.get(name, 0.0) for name in families])[data.family] / sizes[data.family]
    return np.asarray(share / share.sum())


def _nothing(name: str, primary: bool) -> Line:
    nothing = Interval(None, None, None, NO_VALUE, DESCRIBES, None, None, None)
    return Line(name, primary, None, None, NO_VALUE, nothing, nothing, None, None, None)


def _line(data: _Data, name: str, weights: Floats, primary: bool, plan: Plan | None, earlier: Earlier | None) -> Line:
    if data.pairs == 1:
        these, others = (_interval(data, weights, None, ONE_PAIR, assumption) for assumption in (DESCRIBES, PROMPTS))
        return Line(name, primary, None, None, ONE_PAIR, these, others, None, None, None)
    spread = float(deployment_spread(data.base_means @ weights, data.candidate_means @ weights))
    runs = data.times.base, data.times.candidate, data.times.position, weights
    share = noise_share(*runs, np.asarray(spread))
    known_share = None if share is None else float(share)
    half = max(float(deployment_half_width(np.asarray(spread), data.pairs, earlier)), float(least_half_width(*runs)))
    reason = _order_reason(data.times.order)
    interval = _interval(data, weights, half, reason, _assumption(data.pairs, spread, earlier))
    timing = timing_of(interval)
    advice = None
    if plan is not None and timing is Timing.NO_DIFFERENCE:
        advice = advise(plan, spread, known_share, data.pairs, data.times.base.shape[2])
    why = reason or f"{data.pairs} deployments of each mode, which spread by {spread:.1%}"
    prompts = _prompts(data, weights, half, reason)
    return Line(name, primary, None, timing, why, interval, prompts, spread, known_share, advice)


def timing_of(interval: Interval) -> Timing | None:
    """Which side of 1 the whole interval lies on; None without an interval."""
    if interval.low is None or interval.high is None:
        return None
    if interval.high < 1:
        return Timing.FASTER
    return Timing.SLOWER if interval.low > 1 else Timing.NO_DIFFERENCE


def _interval(
    data: _Data, weights: Floats, half: float | None, reason: str | None, assumption: str, *warnings: str
) -> Interval:
    effect, median = float(data.effects @ weights), float(data.median_effects @ weights)
    if reason is None and half is not None and half <= 1e-12:
        reason = "the times do not vary at all, so there is no noise to judge by; check the input"
    low, high = (None, None) if half is None or reason else (math.exp(effect - half), math.exp(effect + half))
    base, candidate = (float((means @ weights).mean()) for means in (data.base_means, data.candidate_means))
    means = math.exp(base), math.exp(candidate)
    return Interval(math.exp(effect), low, high, reason, assumption, *means, math.exp(median), list(warnings))


def _assumption(pairs: int, spread: float, earlier: Earlier | None) -> str:
    df = 2 * pairs - 2
    if earlier is None:
        return DEPLOYMENTS.format(df=df)
    seen = {"earlier": math.sqrt(earlier.variance), "earlier_df": earlier.df, "own": spread, "own_df": df}
    return DEPLOYMENTS.format(df=df + earlier.df) + DECLARED.format(**seen)


def _order_reason(order: Sequence[str]) -> str | None:
    if alternates(order):
        return None
    return (
        f"the deployments did not alternate ({', '.join(order)}), so a drift of the device would look like an effect; "
        "deploy again in the order base, candidate, candidate, base"
    )


def _prompts(data: _Data, weights: Floats, deployment_half: float, reason: str | None) -> Interval:
    """Other prompts, on any deployment: the spread of the cases beside that of the deployments."""
    used = weights > 0
    cases = int(used.sum())
    if cases < MIN_CASES:
        reason = f"nothing can be said about other prompts from fewer than {MIN_CASES}, and here are {cases}; add cases"
    elif np.bincount(data.family[used])[np.unique(data.family[used])].min() < 2:
        reason = "a family with one prompt does not show how much its prompts differ; add a case to it"
    if reason:
        return _interval(data, weights, None, reason, PROMPTS)
    half = math.hypot(float(stratified_half_width(data.effects, weights, data.family)), deployment_half)
    few = (
        f"The interval over prompts like these rests on {cases} of them, fewer than {SYMMETRIC_CASES}: it holds only "
        "if their effects are spread symmetrically.",
    )
    return _interval(data, weights, half, None, PROMPTS, *(few if cases < SYMMETRIC_CASES else ()))
