"""Ratios (candidate / base) with intervals that hold, or the reason why there is none.

Everything works on natural logs of times (E2EL, TTFT, TPOT), in schedule order. A statement is about a weighted
mean of case effects, so overall, one family and --mix are the same code with other weights. compare.py builds one
`LogTimes` per metric and load and calls `estimate`. The functions above `estimate` take any leading axes (deployments
here, replicates in benchmarks/calibration.py). Formulas, sources and calibration: docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specbench.comparison.intervals import (
    BATCHES,
    MOST_DEPLOYMENTS,
    Floats,
    Ints,
    Layout,
    alternates,
    case_half_widths,
    case_means,
    case_variances,
    deployment_half_width,
    deployments_needed,
    effective_requests,
    layout,
    pair_half_width,
    spread_limit,
    stratified_half_width,
    t_quantiles,
)

MIN_REQUESTS = 45  # of a run, for any interval from one pair
MIN_EFFECTIVE = 30.0  # independent requests that a run must be worth
MIN_REPEATS_CASE = 3
MIN_CASES = 12  # fewer prompts cannot show the shape of their effects
SYMMETRIC_CASES = 30  # from here on skewed effects are covered too
MIN_CASES_ONE_REPEAT = 300  # one repeat on one pair: noise is only seen through many cases

FASTER, SLOWER, NO_DIFFERENCE = "faster", "slower", "no clear difference"
IN_THIS_PAIR = " in this pair"
CANNOT_SAY = "cannot say from this pair"

THESE_REQUESTS = (
    "These requests on these two deployments. Assumes run noise is forgotten within a fifth of the run; "
    "says nothing about a redeploy."
)
THIS_CASE = "This case on these deployments. Assumes independent repeats; says nothing about a redeploy."
PROMPTS = (
    "Prompts drawn like these, families in these proportions. Assumes cases are independent draws and their "
    "effects not strongly skewed."
)
DEPLOYMENTS = (
    "Any deployment like these, this inventory. Assumes independent redeploys, equal spread in both modes, "
    "alternating order; t on {df} df."
)


@dataclass(frozen=True, slots=True)
class LogTimes:
    """One metric of d deployments per side, requests in schedule order.

    `base`, `candidate`: [d, n] natural logs; column j is the same (case, repeat) on every row, row k of both sides
    is pair k; NaN where a request has no value for this metric (its column is then left out of every row, and a
    warning says so). `case`: [n] case index 0..C-1. `family`: [C] index into `families`. `order`: the sides of all
    deployments in order of their start, e.g. ("base", "candidate", "candidate", "base"); None when unknown.
    """

    base: Floats
    candidate: Floats
    case: Ints
    family: Ints
    families: tuple[str, ...]
    order: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A ratio, its 95% interval or the reason for none, in the manner of benchstat: warnings are data.

    `ratio` is None only when nothing was measured. `low` and `high` are both None or both set; when None, `reason`
    says why and what would lift it. `assumption` is printed under the number. `base`, `candidate`: geometric means
    in the metric's unit. `median_ratio` describes, it concludes nothing.
    """

    ratio: float | None
    low: float | None
    high: float | None
    reason: str | None
    assumption: str
    base: float | None
    candidate: float | None
    median_ratio: float | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class More:
    """What would sharpen the result: `bottleneck` is "requests", "cases" or "deployments"; `low` to `high` is how
    many of them in all (deployments: per mode); `sentence` is ready to print."""

    bottleneck: str
    low: int
    high: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: `overall` (`mix` with --mix) or one family.

    `verdict` is one of `faster`, `slower`, `no clear difference` (two or more deployments per mode, alternating),
    the same three with ` in this pair`, or `cannot say from this pair`; `why` says what it rests on. `interval` is
    the Summary that the verdict rests on; `these_requests` and `prompts` are the two statements. `redeploy_spread`:
    standard deviation of a deployment's mean log within one mode (None with one pair), 0.03 means about 3%.
    `primary`: named beforehand; the other lines read "5% each, not together".
    """

    name: str
    primary: bool
    verdict: str
    why: str
    interval: Summary
    these_requests: Summary
    prompts: Summary
    redeploy_spread: float | None
    more: More | None


@dataclass(frozen=True, slots=True)
class Estimates:
    """All lines of one metric at one load; `cases[i]` is the Summary of case i on these deployments. `requests`: n
    per run; `effective`: what they are worth as independent ones (the least of the pairs; None with one repeat)."""

    overall: Line
    families: tuple[Line, ...]
    cases: tuple[Summary, ...]
    requests: int
    effective: float | None
    warnings: tuple[str, ...]


# --- Statements about one experiment


@dataclass(frozen=True, slots=True)
class _Data:
    """Runs without missing values, and what every statement needs of them: `base_means`, `candidate_means` [d, C],
    `effects` and `median_effects` [C] averaged over the pairs."""

    base: Floats
    candidate: Floats
    base_means: Floats
    candidate_means: Floats
    effects: Floats
    median_effects: Floats
    lay: Layout
    family: Ints
    effective: float
    order: tuple[str, ...] | None

    @property
    def pairs(self) -> int:
        return int(self.base.shape[0])

    @property
    def requests(self) -> int:
        return int(self.base.shape[1])

    @property
    def one_repeat(self) -> bool:
        return bool(self.lay.repeats.max() == 1)


def _medians(lay: Layout, y: Floats) -> Floats:
    """Median per case, [d, n] to [d, C]."""
    ranked = np.stack([row[np.lexsort((row, lay.case))] for row in y])
    below = lay.starts + ((lay.repeats - 1) // 2).astype(np.int64)
    above = lay.starts + (lay.repeats // 2).astype(np.int64)
    return np.asarray((ranked[:, below] + ranked[:, above]) / 2)


def _summary(
    data: _Data, weights: Floats, half: float | None, reason: str | None, assumption: str, *warnings: str
) -> Summary:
    base = float((data.base_means @ weights).mean())
    candidate = float((data.candidate_means @ weights).mean())
    effect, median = float(data.effects @ weights), float(data.median_effects @ weights)
    if half is not None and half <= 1e-12:
        half, reason = None, "the times do not vary at all, so there is no noise to judge by; check the input"
    low, high = (None, None) if half is None else (math.exp(effect - half), math.exp(effect + half))
    return Summary(
        math.exp(effect), low, high, reason, assumption, math.exp(base), math.exp(candidate), math.exp(median),
        warnings,
    )  # fmt: skip


def _repeats_for(data: _Data, requests: float) -> int:
    """Repeats of this inventory that make `requests` requests, at least one more than now."""
    cases = len(data.lay.repeats)
    return max(math.ceil(requests / cases), int(data.lay.repeats.max()) + 1)


def _refusal(data: _Data, weights: Floats) -> str | None:
    """Why no interval can come from the noise within these runs, and what would lift it."""
    n = data.requests
    if data.one_repeat:
        return "one repeat cannot tell noise from differences between cases; use --repeats 5 or more"
    if n < MIN_REQUESTS:
        repeats = _repeats_for(data, MIN_REQUESTS)
        return f"{n} requests are too few, {MIN_REQUESTS} at least; use --repeats {repeats}"
    if data.lay.repeats[weights > 0].min() < 2:
        return "a case has a single value, which shows no noise; use more --repeats"
    if data.effective < MIN_EFFECTIVE:
        wanted = MIN_EFFECTIVE * n / data.effective
        return (
            f"requests drift together: n = {n} are worth {data.effective:.0f} independent ones, "
            f"{MIN_EFFECTIVE:.0f} at least; run too short for how slowly its noise changes, "
            f"use about --repeats {_repeats_for(data, wanted)}"
        )
    return None


def _pair_half(data: _Data, weights: Floats) -> float:
    halves = pair_half_width(data.lay, weights, data.base, data.candidate)
    return float(np.sqrt((halves**2).sum()) / data.pairs)


def _these_requests(data: _Data, weights: Floats) -> Summary:
    reason = _refusal(data, weights)
    assumption = THESE_REQUESTS if data.pairs == 1 else THESE_REQUESTS.replace("two deployments", "deployments")
    return _summary(data, weights, None if reason else _pair_half(data, weights), reason, assumption)


def _one_repeat_half(data: _Data, weights: Floats, half: float) -> float:
    """One repeat on one pair: case differences around their family, in schedule order, stand in for noise."""
    means = np.bincount(data.family, data.effects) / np.maximum(np.bincount(data.family), 1)
    moved = ((data.effects - means[data.family]) * weights)[data.lay.case]
    sums = np.array([part.sum() for part in np.array_split(moved, BATCHES)])
    used = weights > 0
    spare = used.sum() / max(used.sum() - len(np.unique(data.family[used])), 1)
    batches = float(t_quantiles(BATCHES - 1)) * math.sqrt(BATCHES * sums.var(ddof=1) * spare)
    return max(half, batches) + 4 * abs(float(moved[len(moved) // 2 :].sum()))


def _too_few_cases(data: _Data, weights: Floats) -> str | None:
    used = weights > 0
    cases = int(used.sum())
    if cases < MIN_CASES:
        return f"{cases} prompts are too few to know their shape, {MIN_CASES} at least; add cases"
    if np.bincount(data.family[used])[np.unique(data.family[used])].min() < 2:
        return "a family with one prompt says nothing about its spread; add a case to it"
    if data.pairs == 1 and data.one_repeat and cases < MIN_CASES_ONE_REPEAT:
        return (
            f"one repeat of {cases} prompts on one pair, {MIN_CASES_ONE_REPEAT} prompts at least; "
            "use --repeats 5 or a second pair of deployments"
        )
    if data.pairs == 1 and not data.one_repeat:
        return _refusal(data, weights)
    return None


def _prompts(data: _Data, weights: Floats, deployment_half: float | None) -> Summary:
    """Prompts like these: case spread, and on top the noise of one pair or the spread of several deployments."""
    assumption = PROMPTS if data.pairs > 1 else PROMPTS + " On these two deployments."
    reason = _too_few_cases(data, weights)
    if reason is None and data.pairs > 1 and deployment_half is None:
        reason = "deployments do not alternate; redeploy in the order base, candidate, candidate, base"
    if reason:
        return _summary(data, weights, None, reason, assumption)
    half = float(stratified_half_width(data.effects, weights, data.family))
    if deployment_half is not None:
        half = math.hypot(half, deployment_half)
    elif data.one_repeat:
        half = _one_repeat_half(data, weights, half)
    else:
        half = math.hypot(half, _pair_half(data, weights))
    few = int((weights > 0).sum()) < SYMMETRIC_CASES
    warning = ("fewer than 30 prompts: holds only if their effects are spread symmetrically",) if few else ()
    return _summary(data, weights, half, None, assumption, *warning)


def _order_reason(data: _Data) -> str | None:
    if data.order is None:
        return "the order of the deployments is unknown; a drift would look like an effect"
    if not alternates(data.order):
        return (
            f"the deployments did not alternate ({', '.join(data.order)}): a drift would look like an effect; "
            "redeploy in the order base, candidate, candidate, base"
        )
    return None


def _order_warning(order: tuple[str, ...]) -> tuple[str, ...]:
    sides = [sum(i for i, side in enumerate(order) if side == name) for name in sorted(set(order))]
    if len(sides) == 2 and 2 * abs(sides[0] - sides[1]) >= len(order):
        return ("one side always came first: a steady drift counts as its effect; reverse every other pair",)
    return ()


def _deployments(data: _Data, weights: Floats) -> tuple[Summary, float, float]:
    """The statement over deployments, its half width and the redeploy spread."""
    half, spread = deployment_half_width(data.base_means @ weights, data.candidate_means @ weights)
    reason = _order_reason(data)
    warnings = () if reason or data.order is None else _order_warning(data.order)
    assumption = DEPLOYMENTS.format(df=2 * data.pairs - 2)
    summary = _summary(data, weights, None if reason else float(half), reason, assumption, *warnings)
    return summary, float(half), float(spread)


def _word(summary: Summary) -> str:
    if summary.low is None or summary.high is None:
        return CANNOT_SAY
    if summary.high < 1:
        return FASTER
    return SLOWER if summary.low > 1 else NO_DIFFERENCE


def _told(summary: Summary) -> bool:
    return _word(summary) in (FASTER, SLOWER)


def _more_requests(data: _Data, half: float | None, goal: float) -> More | None:
    n = data.requests
    if half is None:
        if data.one_repeat:
            return None
        wanted = max(MIN_REQUESTS, MIN_EFFECTIVE * n / data.effective)
    elif half > goal:
        wanted = n * (half / goal) ** 2
    else:
        return None
    repeats = _repeats_for(data, wanted)
    total = repeats * len(data.lay.repeats)
    return More("requests", total, total, f"about --repeats {repeats} ({total} requests a run instead of {n})")


def _more(data: _Data, line: Line, half: float | None, case_half: float | None, target: float) -> More | None:
    """What to add so that an effect of `target` would show; names the widest part of the interval. None when both
    the deployments and the prompts have already told."""
    if _told(line.interval) and (line.prompts.low is None or _told(line.prompts)):
        return None
    goal = math.log1p(target)
    within = None if line.these_requests.low is None else _half(line.these_requests)
    if half is None or line.redeploy_spread is None:
        return _more_requests(data, within, goal)
    if max(half, case_half or 0.0, within or 0.0) <= goal:
        return None
    if case_half is not None and case_half > max(half, within or 0.0):
        cases = math.ceil(len(data.lay.repeats) * (case_half / goal) ** 2)
        now = len(data.lay.repeats)
        return More("cases", cases, cases, f"about {cases} cases instead of {now} (prompts differ most)")
    if within is not None and within > half:
        return _more_requests(data, within, goal)
    low = deployments_needed(line.redeploy_spread, target)
    high = deployments_needed(spread_limit(line.redeploy_spread, 2 * data.pairs - 2), target)
    most = f"{MOST_DEPLOYMENTS} or more" if high == MOST_DEPLOYMENTS else str(high)
    number = most if low == high else f"{low} to {most}"
    sentence = (
        f"{number} deployments per mode would find {target:.0%} with 80% power, at a redeploy spread of "
        f"{line.redeploy_spread:.1%} (known from {data.pairs} per mode); more requests do not shrink it"
    )
    return More("deployments", low, high, sentence)


def _half(summary: Summary) -> float:
    assert summary.low is not None and summary.high is not None
    return math.log(summary.high / summary.low) / 2


def _line(data: _Data, name: str, weights: Floats, primary: bool, target: float) -> Line:
    these = _these_requests(data, weights)
    spread = half = None
    interval = these
    if data.pairs > 1:
        interval, half, spread = _deployments(data, weights)
    prompts = _prompts(data, weights, half if interval.low is not None else None)
    word = _word(interval)
    why = interval.reason or ""
    if word != CANNOT_SAY and data.pairs == 1:
        word += IN_THIS_PAIR
        why = "one deployment per mode; redeploy in reverse order to conclude"
    elif word != CANNOT_SAY:
        why = f"{data.pairs} deployments per mode, redeploy spread {spread:.1%}"
    elif data.pairs == 1:
        why += "; redeploy in reverse order to conclude"
    line = Line(name, primary, word, why, interval, these, prompts, spread, None)
    case_half = None
    if prompts.low is not None:
        case_half = float(stratified_half_width(data.effects, weights, data.family))
    more = _more(data, line, half, case_half, target)
    return Line(name, primary, word, why, interval, these, prompts, spread, more)


def _case_summaries(data: _Data) -> list[Summary]:
    lay = data.lay
    half = np.sqrt((case_half_widths(lay, data.base, data.candidate) ** 2).sum(0)) / data.pairs
    constant = (case_variances(lay, data.base) + case_variances(lay, data.candidate)).min(0) <= 1e-24
    ratios, lows, highs = (np.exp(data.effects + sign * half).tolist() for sign in (0, -1, 1))
    levels = [np.exp(side.mean(0)).tolist() for side in (data.base_means, data.candidate_means)]
    medians = np.exp(data.median_effects).tolist()
    refusal = _refusal(data, np.where(lay.repeats == lay.repeats.max(), 1.0, 0.0))
    result = []
    for i, ratio in enumerate(ratios):
        reason = refusal
        if lay.repeats[i] < MIN_REPEATS_CASE:
            reason = f"{lay.repeats[i]:.0f} repeats, a case needs {MIN_REPEATS_CASE}; use --repeats 5"
        elif reason is None and constant[i]:
            reason = "the times do not vary at all, so there is no noise to judge by"
        low, high = (None, None) if reason else (lows[i], highs[i])
        case = Summary(ratio, low, high, reason, THIS_CASE, levels[0][i], levels[1][i], medians[i])
        result.append(case)
    return result


NO_VALUE = Summary(
    ratio=None,
    low=None,
    high=None,
    reason="no request of it has a value for this metric on every side",
    assumption=THIS_CASE,
    base=None,
    candidate=None,
    median_ratio=None,
)


def _clean(runs: LogTimes) -> tuple[_Data | None, Ints, tuple[str, ...]]:
    """Drop columns with a missing value; returns the data, the cases that are left, and warnings."""
    if runs.base.shape != runs.candidate.shape or runs.base.shape[1:] != runs.case.shape:
        raise ValueError("base and candidate need the same deployments and requests")
    whole = np.asarray(np.isfinite(np.concatenate([runs.base, runs.candidate])).all(axis=0))
    cases = np.unique(runs.case[whole])
    case = np.searchsorted(cases, runs.case[whole])
    lost = int((~whole).sum())
    warnings = (f"{lost} of {whole.size} requests have no value on every side and are left out",) if lost else ()
    if not cases.size:
        return None, cases, warnings
    base, candidate = runs.base[:, whole], runs.candidate[:, whole]
    lay = layout(case.astype(np.int64))
    effective = float(effective_requests(lay, base, candidate).min())
    means = case_means(lay, base), case_means(lay, candidate)
    medians = _medians(lay, candidate) - _medians(lay, base)
    data = _Data(
        *(base, candidate, *means, (means[1] - means[0]).mean(0), medians.mean(0)),
        *(lay, runs.family[cases], effective, runs.order),
    )
    return data, cases, warnings


def _weights(data: _Data, families: tuple[str, ...], mix: Mapping[str, float] | None) -> Floats:
    """Weight of every case: equal, or each family's share of the mix spread evenly over its cases."""
    if mix is None:
        return np.full(len(data.family), 1 / len(data.family))
    unknown = sorted(set(mix) - set(families))
    present = {families[f] for f in data.family}
    if unknown or min(mix.values(), default=0.0) < 0 or not sum(mix.get(name, 0.0) for name in present):
        raise ValueError(f"mix names {', '.join(unknown) or 'no family with a positive weight'}")
    sizes = np.bincount(data.family, minlength=len(families))
    share = np.array([mix.get(name, 0.0) for name in families])[data.family] / sizes[data.family]
    return np.asarray(share / share.sum())


def _nothing(name: str, primary: bool) -> Line:
    return Line(name, primary, CANNOT_SAY, NO_VALUE.reason or "", NO_VALUE, NO_VALUE, NO_VALUE, None, None)


def estimate(
    runs: LogTimes, mix: Mapping[str, float] | None = None, primary: str = "overall", target: float = 0.1
) -> Estimates:
    """Every statement of one metric at one load.

    `mix`: family -> weight (normalised here; families not named weigh 0). `primary`: "overall" (the mix, where
    there is one) or a family. `target`: the effect that `more` plans for (0.1 = 10%). Raises ValueError for unequal
    shapes, an unknown family or a mix without a positive weight.
    """
    if primary not in ("overall", *runs.families):
        raise ValueError(f"primary names {primary}, which is no family")
    data, kept, warnings = _clean(runs)
    name = "overall" if mix is None else "mix"
    if data is None:
        lines = tuple(_nothing(family, family == primary) for family in runs.families)
        cases = (NO_VALUE,) * len(runs.family)
        return Estimates(_nothing(name, primary == "overall"), lines, cases, 0, None, warnings)
    overall = _line(data, name, _weights(data, runs.families, mix), primary == "overall", target)
    present = {runs.families[f] for f in data.family}
    families = tuple(
        _line(data, family, _weights(data, runs.families, {family: 1.0}), family == primary, target)
        if family in present
        else _nothing(family, family == primary)
        for family in runs.families
    )
    every = [NO_VALUE] * len(runs.family)
    for i, summary in zip(kept, _case_summaries(data), strict=True):
        every[i] = summary
    effective = None if data.one_repeat else data.effective
    return Estimates(overall, families, tuple(every), data.requests, effective, warnings)
