"""Ratios (candidate / base) with intervals that hold, or the reason why there is none.

Everything works on natural logs of times (E2EL, TTFT, TPOT), in schedule order. A statement is about a weighted mean
of case effects, so `overall`, one family and `--mix` are the same code with other weights. compare.py builds one
`Runs` per metric and load and calls `estimate`. Formulas, sources and calibration: docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Runs:
    """One metric of d deployments per side, requests in schedule order.

    `base`, `candidate`: [deployments, n] natural logs; column j is the same (case, repeat) on every row; NaN where a
    request has no value for this metric (that column is then left out of every row, and a warning says so).
    `case`: [n] case index 0..C-1. `family`: [C] index into `families`. `order`: the sides of all deployments in
    order of their start, e.g. ("base", "candidate", "candidate", "base"); None when unknown.
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
    says why and what would lift it. `assumption` is printed under the number. `base`, `candidate`: geometric means in
    the metric's unit. `median_ratio` describes, it concludes nothing.
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
    """What would sharpen the result: `bottleneck` is "requests", "cases" or "deployments"; `sentence` is ready to
    print and names numbers ("about 12 repeats instead of 5 …"); `low`, `high` its range."""

    bottleneck: str
    low: int | None
    high: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: `overall` (or the mix) or one family.

    `verdict` is one of `faster`, `slower`, `no clear difference` (d >= 2 per side, alternating), the same three with
    ` in this pair` (d = 1), or `cannot say from this pair`; `why` says what it rests on. `interval` is the Summary the
    verdict rests on. `these_requests` and `prompts` are the two statements. `redeploy_spread`: standard deviation of a
    deployment's mean log within one mode (None at d = 1), 0.03 means about 3%. `primary`: named beforehand; the rest
    read "5% each, not together".
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
    """All lines of one metric at one load; `cases[i]` is the Summary of case i (statement: this case, these
    deployments). `effective`: what the n requests are worth as independent ones (smallest over pairs); `requests`: n."""

    overall: Line
    families: tuple[Line, ...]
    cases: tuple[Summary, ...]
    requests: int
    effective: float | None
    warnings: tuple[str, ...]


def estimate(
    runs: Runs, mix: Mapping[str, float] | None = None, primary: str = "overall", target: float = 0.1
) -> Estimates:
    """Every statement of one metric at one load.

    `mix`: family -> weight (normalised here; families not named weigh 0). `primary`: "overall" or a family.
    `target`: the effect that `more` plans for (0.1 = 10%). Raises ValueError for unequal shapes or an unknown family.
    """
    raise NotImplementedError


def deployments_needed(spread: float, effect: float, power: float = 0.8) -> int:
    """Least deployments per mode that find `effect` (0.1 = 10%) when a deployment mean has standard deviation
    `spread` in logs. `test_power` gives the power of a given number."""
    raise NotImplementedError


def test_power(effect: float, spread: float, deployments: int) -> float:
    """Power of the verdict's t test, exact (noncentral t)."""
    raise NotImplementedError
