"""The arithmetic of 95% intervals: quantiles of Student's t, spread over deployments and cases, noise within a run.

Everything works on natural logs of times. Arrays end in [cases, repeats] (NaN where a request has no value) or in
[deployments], and take any leading axes: deployments in compare.py, replicates in benchmarks/calibration.py.
Formulas, sources and calibration: docs/statistics.md.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specbench.student import t_quantile

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BLOCKS = 20, 10, 5  # contiguous blocks of a run: noise that is forgotten within one of them is accounted for
MOST_DEPLOYMENTS = 200  # beyond this a plan is no plan
# The variance between deployments is taken to be at least this many times the noise within the runs: on an H200 noise
# was about a third of it at 4 and 8 users, and a much larger share is luck (docs/statistics.md, section 2).
LEAST_TIMES_NOISE = 3.0


# ---- Student's t


@lru_cache(maxsize=8)
def _t_curve(p: float) -> Any:
    """log t(p) as a polynomial in 1/df: smooth, so 17 nodes reach a relative error below 3e-5."""
    curve = np.vectorize(lambda x: math.log(t_quantile(p, 1 / x)))
    return np.polynomial.Chebyshev.interpolate(curve, 16, domain=[0, 1])


def t_quantiles(df: npt.ArrayLike, p: float = 0.975) -> Floats:
    """`t_quantile` for an array of degrees of freedom >= 1, fast."""
    return np.asarray(np.exp(_t_curve(p)(1 / np.maximum(np.asarray(df, dtype=np.float64), 1.0))))


def satterthwaite(parts: Floats, df: Floats) -> tuple[Floats, Floats]:
    """Sum of independent variance parts [..., k] and its effective df (Welch 1947, the df + 2 form), clipped to
    what its parts allow."""
    total = parts.sum(-1)
    spread = np.maximum((parts**2 / (df + 2)).sum(-1), 1e-300)
    return total, np.clip(total**2 / spread - 2, df.min(), df.sum())


# ---- between deployments, between cases


class Earlier(NamedTuple):
    """What earlier experiments showed of the variance of a deployment's mean, and on how many degrees of freedom."""

    variance: float
    df: int


def deployment_spread(base: Floats, candidate: Floats) -> Floats:
    """Standard deviation of a deployment's mean log within its mode, from means [..., d] of both sides; 2d - 2 df."""
    return np.asarray(np.sqrt((base.var(-1, ddof=1) + candidate.var(-1, ddof=1)) / 2))


def deployment_half_width(spread: Floats, deployments: int, earlier: Earlier | None = None) -> Floats:
    """Half width of the effect over any deployments: t on 2d - 2 degrees of freedom, and those of earlier ones."""
    df = 2 * deployments - 2
    if earlier is not None:
        spread = np.sqrt((df * spread**2 + earlier.df * earlier.variance) / (df + earlier.df))
        df += earlier.df
    return np.asarray(t_quantiles(df) * spread * math.sqrt(2 / deployments))


def stratified_half_width(effects: Floats, weights: Floats, family: Ints) -> Floats:
    """Half width over prompts: case effects [..., cases] vary within their family (Cochran, Sampling Techniques). Each
    family with weight needs two cases."""
    parts, dfs = [], []
    for number in np.unique(family[weights > 0]):
        mine = family == number
        size = mine.sum()
        parts.append(weights[mine].sum() ** 2 * effects[..., mine].var(-1, ddof=1) / size)
        dfs.append(size - 1.0)
    variance, df = satterthwaite(np.stack(parts, -1), np.array(dfs))
    return np.asarray(t_quantiles(df) * np.sqrt(variance))


# ---- noise within a run


class Noise(NamedTuple):
    """Variance of a run's weighted mean that the noise within it gives (mean over the runs), and its degrees of
    freedom; the last axis holds one of each for independent requests and for each number of blocks."""

    variance: Floats
    df: Floats


def case_means(y: Floats) -> Floats:
    """[..., cases, repeats] to [..., cases], over the values that are there; every case has one at least."""
    return np.asarray(np.nanmean(y, axis=-1) if np.isnan(y).any() else y.mean(-1))


def noise_within(y: Floats, position: Ints, weights: Floats) -> Noise | None:
    """Noise within runs [..., runs, cases, repeats] whose requests stood at `position` in their schedules; None where
    no case was repeated.

    A request moves the weighted mean by its residual from its case's mean, times weight / repeats. Summed over
    contiguous blocks of the run, whatever is forgotten within a block is in the variance of those sums (batch means:
    Law and Kelton; clusters: Cameron and Miller 2015). What every run shows at the same time, as when the closed loop
    fills and drains, is no noise and is taken off.
    """
    repeats = (~np.isnan(y)).reshape(-1, *y.shape[-2:])[0].sum(-1)
    used = weights > 0
    n, cases, runs = int(repeats[used].sum()), int(used.sum()), y.shape[-3]
    if n == cases:
        return None
    moved = np.nan_to_num(y - case_means(y)[..., None]) * (weights / repeats)[:, None]
    in_time = np.argsort(position.reshape(*position.shape[:-2], -1))
    moved = np.take_along_axis(moved.reshape(*y.shape[:-2], -1), in_time, -1)
    variances, dfs = [moved.var(-2, ddof=1).sum(-1)], [(runs - 1) * (n - cases)]  # each request a block of its own
    for blocks in BLOCKS:
        if n >= 3 * blocks:
            sums = np.stack([part.sum(-1) for part in np.array_split(moved, blocks, axis=-1)], -1)
            variances.append(blocks * sums.var(-2, ddof=1).sum(-1) / (blocks - 1))
            dfs.append((runs - 1) * (blocks - 1))
    # Residuals from a case's mean are smaller than the errors.
    return Noise(np.stack(variances, -1) * n / (n - cases), np.array(dfs, dtype=np.float64))


def noise_share(base: Floats, candidate: Floats, position: Ints, weights: Floats, spread: Floats) -> Floats | None:
    """The share of the variance between deployments, `spread` squared, that noise within the runs of a mode gives."""
    sides = [noise_within(side, position, weights) for side in (base, candidate)]
    variances = [side.variance for side in sides if side is not None]
    if not variances:
        return None
    return np.asarray(np.minimum(1.0, np.mean(variances, axis=0).max(-1) / np.maximum(spread**2, 1e-300)))


def least_half_width(base: Floats, candidate: Floats, position: Ints, weights: Floats) -> Floats:
    """Half width below which the interval of an effect over deployments would be luck; 0 where no case was repeated.

    It is the widest that the noise within the pairs gives if the variance between deployments is LEAST_TIMES_NOISE
    times the noise. Both runs of a pair have one schedule, so what the order of requests does to both is no noise.
    """
    noise = noise_within(candidate - base, position, weights)
    if noise is None:
        return np.zeros(base.shape[:-3])
    halves = t_quantiles(noise.df) * np.sqrt(LEAST_TIMES_NOISE * noise.variance / base.shape[-3])
    return np.asarray(halves.max(-1))


# ---- planning


def deployments_needed(spread: float, effect: float) -> int:
    """Least deployments per mode (2 to MOST_DEPLOYMENTS) whose t test finds `effect` (0.1 = 10%) with 80% power."""
    d = np.arange(2, MOST_DEPLOYMENTS + 1)
    found = np.nonzero(least_effect(spread, d) <= abs(math.log1p(effect)))[0]
    return int(d[found[0]]) if found.size else MOST_DEPLOYMENTS


def least_effect(spread: float, deployments: Ints | int) -> Floats:
    """The effect in logs that the t test finds with about 80% power (77 to 80%, exactly)."""
    df = 2 * np.asarray(deployments) - 2
    return np.asarray((t_quantiles(df) + t_quantiles(df, 0.8)) * spread * np.sqrt(2 / np.asarray(deployments)))


def spread_limit(spread: float, df: int) -> float:
    """80% upper limit of a standard deviation (Browne 1995; chi-square by Wilson and Hilferty 1931)."""
    return spread / math.sqrt((1 - 2 / (9 * df) - 0.8416 * math.sqrt(2 / (9 * df))) ** 3)
