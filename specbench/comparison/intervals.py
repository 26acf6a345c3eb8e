"""Half widths of 95% intervals: quantiles of Student's t, where the requests of a case lie, noise within a run.

Everything works on natural logs of times, in schedule order, and takes any leading axes (deployments in compare.py,
replicates in benchmarks/calibration.py). Formulas, sources and calibration: docs/statistics.md.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specbench.student import t_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BATCHES = 5  # contiguous batches of a run; noise that is forgotten within one of them is accounted for
MOST_DEPLOYMENTS = 200  # beyond this a plan is no plan


# --- Student's t


@lru_cache(maxsize=8)
def _t_curve(p: float) -> Any:
    """log t(p) as a polynomial in 1/df: smooth, so 17 nodes reach a relative error below 3e-5."""
    curve = np.vectorize(lambda x: math.log(t_quantile(p, 1 / x)))
    return np.polynomial.Chebyshev.interpolate(curve, 16, domain=[0, 1])


def t_quantiles(df: npt.ArrayLike, p: float = 0.975) -> Floats:
    """`t_quantile` for an array of degrees of freedom >= 1, fast."""
    return np.asarray(np.exp(_t_curve(p)(1 / np.maximum(np.asarray(df, dtype=np.float64), 1.0))))


def deployments_needed(spread: float, effect: float) -> int:
    """Least deployments per mode (2 to MOST_DEPLOYMENTS) whose t test finds `effect` (0.1 = 10%) with 80% power."""
    d = np.arange(2, MOST_DEPLOYMENTS + 1)
    reach = (t_quantiles(2 * d - 2) + t_quantiles(2 * d - 2, 0.8)) * spread * np.sqrt(2 / d)
    found = np.nonzero(reach <= abs(math.log1p(effect)))[0]
    return int(d[found[0]]) if found.size else MOST_DEPLOYMENTS


def spread_limit(spread: float, df: int) -> float:
    """80% upper limit of a standard deviation (Browne 1995; chi-square by Wilson and Hilferty 1931)."""
    return spread / math.sqrt((1 - 2 / (9 * df) - 0.8416 * math.sqrt(2 / (9 * df))) ** 3)


# --- One pair: noise within its runs


class Layout(NamedTuple):
    """Where the requests of each case lie in the schedule: `case` [n], `order` [n] sorts by case, `starts` [C]
    into that order, `repeats` [C]. Every case has at least one request."""

    case: Ints
    order: Ints
    starts: Ints
    repeats: Floats


def layout(case: Ints) -> Layout:
    repeats = np.bincount(case)
    starts = np.concatenate([[0], np.cumsum(repeats)[:-1]])
    return Layout(case, np.argsort(case, kind="stable"), starts, repeats.astype(np.float64))


def case_means(lay: Layout, y: Floats) -> Floats:
    """[..., n] in schedule order to [..., C]."""
    return np.asarray(np.add.reduceat(y[..., lay.order], lay.starts, axis=-1) / lay.repeats)


def residuals(lay: Layout, y: Floats) -> Floats:
    return np.asarray(y - case_means(lay, y)[..., lay.case])


def case_variances(lay: Layout, y: Floats) -> Floats:
    """Variance of one request per case, R - 1 in the divisor; 0 for a single repeat."""
    squares = case_means(lay, residuals(lay, y) ** 2) * lay.repeats
    return np.asarray(squares / np.maximum(lay.repeats - 1, 1))


def satterthwaite(parts: Floats, df: Floats) -> tuple[Floats, Floats]:
    """Sum of independent variance parts [..., k] and its effective df (Welch 1947, the df + 2 form), clipped to
    what its parts allow."""
    total = parts.sum(-1)
    spread = np.maximum((parts**2 / (df + 2)).sum(-1), 1e-300)
    return total, np.clip(total**2 / spread - 2, df.min(), df.sum())


def inflation(lay: Layout, y: Floats) -> Floats:
    """How many requests of this series are worth one independent request: 1 + 2 sum of autocorrelations.

    Residuals are scaled by their case; the sum stops with the initial positive sequence (Geyer 1992).
    """
    n = y.shape[-1]
    scale = np.sqrt(case_variances(lay, y))
    e = residuals(lay, y) / np.where(scale > 0, scale, 1)[..., lay.case]
    power = np.abs(np.fft.rfft(e - e.mean(-1, keepdims=True), 2 * n)) ** 2
    r = np.fft.irfft(power)[..., :n]
    r = r / np.maximum(r[..., :1], 1e-300)
    lags = 2 * max(1, n // 4)
    pairs = r[..., 0:lags:2] + r[..., 1:lags:2]
    positive = np.cumprod(pairs > 0, axis=-1)
    return np.asarray(np.maximum(1.0, 2 * (pairs * positive).sum(-1) - 1))


def effective_requests(lay: Layout, base: Floats, candidate: Floats) -> Floats:
    """n over the largest inflation of the paired differences, the base and the candidate. Short runs hide slow
    noise from one series; three looks let through a third as many of them."""
    worst = np.maximum(inflation(lay, base), inflation(lay, candidate))
    return np.asarray(base.shape[-1] / np.maximum(worst, inflation(lay, candidate - base)))


def iid_half_width(lay: Layout, weights: Floats, base: Floats, candidate: Floats) -> Floats:
    """Half width if repeats were independent: every case with its own two variances."""
    used = weights > 0
    scale = weights[used] ** 2 / lay.repeats[used]
    parts = [case_variances(lay, side)[..., used] * scale for side in (base, candidate)]
    variance, df = satterthwaite(np.concatenate(parts, -1), np.tile(np.maximum(lay.repeats[used] - 1, 1), 2))
    return np.asarray(t_quantiles(df) * np.sqrt(variance))


def _influence(lay: Layout, weights: Floats, base: Floats, candidate: Floats) -> Floats:
    """What each position of the schedule adds to the effect, around the effect itself."""
    return np.asarray(residuals(lay, candidate - base) * (weights / lay.repeats)[lay.case])


def batch_half_width(lay: Layout, weights: Floats, base: Floats, candidate: Floats) -> Floats:
    """Half width from five contiguous batches of the schedule (batch means; clusters): whatever is forgotten within
    a fifth of the run is in it."""
    moved = _influence(lay, weights, base, candidate)
    sums = np.stack([part.sum(-1) for part in np.array_split(moved, BATCHES, axis=-1)], -1)
    used = weights > 0
    n, cases = lay.repeats[used].sum(), used.sum()
    return np.asarray(t_quantiles(BATCHES - 1) * np.sqrt(BATCHES * sums.var(-1, ddof=1) * n / max(n - cases, 1)))


def drift_allowance(lay: Layout, weights: Floats, base: Floats, candidate: Floats) -> Floats:
    """The shift of the effect between the halves of the run. A drift or a step moves the mean by about as much, and
    batches within the run cannot see that."""
    moved = _influence(lay, weights, base, candidate)
    return np.asarray(4 * np.abs(moved[..., moved.shape[-1] // 2 :].sum(-1)))


def pair_half_width(lay: Layout, weights: Floats, base: Floats, candidate: Floats) -> Floats:
    """The wider of independent repeats and five batches, and the drift on top."""
    runs = lay, weights, base, candidate
    return np.asarray(np.maximum(iid_half_width(*runs), batch_half_width(*runs)) + drift_allowance(*runs))


def case_half_widths(lay: Layout, base: Floats, candidate: Floats) -> Floats:
    """Half width of every case, [..., C]: its own two variances (pooled over cases they would cover 75% of the noisy
    ones), and the drift of the whole run on top."""
    df = np.maximum(lay.repeats - 1, 1)
    parts = np.stack([case_variances(lay, side) / lay.repeats for side in (base, candidate)], -1)
    total = parts.sum(-1)
    spread = np.maximum((parts**2).sum(-1) / (df + 2), 1e-300)
    own = t_quantiles(np.clip(total**2 / spread - 2, df, 2 * df)) * np.sqrt(total)
    everywhere = np.full(len(df), 1 / len(df))
    return np.asarray(own + drift_allowance(lay, everywhere, base, candidate)[..., None])


# --- Many cases, several deployments


def stratified_half_width(effects: Floats, weights: Floats, family: Ints) -> Floats:
    """Half width over prompts: case effects [..., C] vary within their family (Cochran, Sampling Techniques). Each
    family with weight needs two cases."""
    parts, dfs = [], []
    for f in np.unique(family[weights > 0]):
        mine = family == f
        size = mine.sum()
        parts.append(weights[mine].sum() ** 2 * effects[..., mine].var(-1, ddof=1) / size)
        dfs.append(size - 1.0)
    variance, df = satterthwaite(np.stack(parts, -1), np.array(dfs))
    return np.asarray(t_quantiles(df) * np.sqrt(variance))


def deployment_half_width(base: Floats, candidate: Floats) -> tuple[Floats, Floats]:
    """Half width and redeploy spread from deployment means [..., d] of both sides: t on 2d - 2 df."""
    d = base.shape[-1]
    spread = np.sqrt((base.var(-1, ddof=1) + candidate.var(-1, ddof=1)) / 2)
    return np.asarray(t_quantiles(2 * d - 2) * spread * math.sqrt(2 / d)), spread


def alternates(order: tuple[str, ...]) -> bool:
    """Each two successive deployments are one of each side, as in base, candidate, candidate, base."""
    couples = zip(order[0::2], order[1::2], strict=False)
    return len(order) % 2 == 0 and all(first != second for first, second in couples)
