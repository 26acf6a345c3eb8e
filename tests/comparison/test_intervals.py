"""The arithmetic of intervals: by hand, by published quantiles, and where noise is known."""

import math

import numpy as np
import pytest

from benchmarks.calibration import verdict_power
from specbench.comparison import intervals
from specbench.comparison.intervals import Earlier


@pytest.mark.parametrize(
    ("p", "df", "value"),
    [
        *((0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 4, 2.77645), (0.975, 10, 2.22814), (0.975, 120, 1.97993)),
        *((0.8, 2, 1.06066), (0.8, 10, 0.87906)),
    ],
)
def test_t_quantiles_are_the_printed_ones(p: float, df: float, value: float) -> None:
    assert intervals.t_quantile(p, df) == pytest.approx(value, rel=1e-5)
    assert intervals.t_quantiles(df, p) == pytest.approx(value, rel=1e-5)


def test_power_and_deployments_are_those_of_the_design() -> None:
    """At a spread of 3% two deployments find 18.5% with 80% power, three 9.7%, four 7.4%."""
    for deployments, effect in ((2, 0.185), (3, 0.097), (4, 0.0745)):
        assert verdict_power(effect, 0.03, deployments) == pytest.approx(0.8, abs=0.005)
        assert math.expm1(intervals.least_effect(0.03, deployments)) == pytest.approx(effect, abs=0.012)
    assert intervals.deployments_needed(0.03, 0.1) == 3
    assert intervals.deployments_needed(0.03, 0.0001) == intervals.MOST_DEPLOYMENTS
    assert intervals.deployments_needed(0.03, -0.1) <= intervals.deployments_needed(0.03, 0.1)


def test_six_more_degrees_of_freedom_nearly_halve_what_two_deployments_find() -> None:
    """As docs/statistics.md says of --spread-from at a spread of 3%: 18.5% becomes about 10%."""
    assert verdict_power(0.101, 0.03, 2, extra_df=6) == pytest.approx(0.8, abs=0.01)


def test_deployment_interval_by_hand() -> None:
    base, candidate = np.array([0.0, 0.04]), np.array([0.2, 0.22])
    spread = intervals.deployment_spread(base, candidate)
    assert spread == pytest.approx(math.sqrt((0.0008 + 0.0002) / 2))
    assert intervals.deployment_half_width(spread, 2) == pytest.approx(4.30265 * spread, rel=1e-5)
    pooled = math.sqrt((2 * spread**2 + 6 * 0.03**2) / 8)
    half = intervals.deployment_half_width(spread, 2, Earlier(0.03**2, 6))
    assert half == pytest.approx(intervals.t_quantile(0.975, 8) * pooled, rel=1e-6)


def test_noise_within_runs_by_hand() -> None:
    """Two pairs, one case, four repeats: every request is a block of its own where there are fewer than 15."""
    rng = np.random.default_rng(0)
    base, candidate = rng.normal(size=(2, 2, 1, 4))
    position = np.tile(np.arange(4), (2, 1, 1))
    noise = intervals.noise_within(base, position, np.ones(1))
    assert noise is not None and noise.df.tolist() == [3.0]
    residuals = base - base.mean(-1, keepdims=True)
    expected = residuals.var(axis=0, ddof=1).sum() / 16 * 4 / 3
    assert noise.variance[0] == pytest.approx(expected)
    other = intervals.noise_within(candidate, position, np.ones(1))
    differences = intervals.noise_within(candidate - base, position, np.ones(1))
    assert other is not None and differences is not None
    wanted = intervals.t_quantile(0.975, 3) * math.sqrt(intervals.LEAST_TIMES_NOISE * differences.variance[0] / 2)
    runs = base, candidate, position, np.ones(1)
    assert intervals.least_half_width(*runs) == pytest.approx(wanted, rel=1e-5)
    both = (noise.variance[0] + other.variance[0]) / 2
    assert intervals.noise_share(*runs, np.asarray(2.0)) == pytest.approx(both / 4)
    assert intervals.noise_share(*runs, np.asarray(0.0)) == 1


def shuffled(rng: np.random.Generator) -> np.ndarray:
    return np.argsort(rng.random((4, 90)), axis=1).reshape(4, 9, 10)


def test_what_all_runs_show_at_the_same_time_is_no_noise() -> None:
    """The closed loop fills and drains in every run alike."""
    rng = np.random.default_rng(1)
    y, weights = 0.01 * rng.normal(size=(4, 9, 10)), np.full(9, 1 / 9)
    position = np.broadcast_to(shuffled(rng)[:1], y.shape)
    plain = intervals.noise_within(y, position, weights)
    filled = intervals.noise_within(y - np.where(position > 80, 0.5, 0.0), position, weights)
    assert plain is not None and filled is not None
    np.testing.assert_allclose(filled.variance, plain.variance)


def test_what_the_order_of_requests_does_to_both_runs_of_a_pair_is_no_noise_of_the_effect() -> None:
    rng = np.random.default_rng(2)
    base, candidate = 0.001 * rng.normal(size=(2, 4, 9, 10))
    order, position, weights = 0.1 * rng.normal(size=(4, 9, 10)), shuffled(rng), np.full(9, 1 / 9)
    plain = intervals.least_half_width(base, candidate, position, weights)
    assert intervals.least_half_width(base + order, candidate + order, position, weights) == pytest.approx(plain)


def test_slow_noise_is_seen_by_long_blocks() -> None:
    """AR(1) with coefficient .6 makes the variance of a mean (1 + .6) / (1 - .6) = 4 times that of white noise."""
    rng = np.random.default_rng(3)
    series = rng.normal(size=(200, 1000))
    for j in range(1, 1000):
        series[:, j] += 0.6 * series[:, j - 1]
    y = series.reshape(200, 100, 10).swapaxes(1, 2)  # ten cases in turn, a hundred repeats
    position = np.tile(np.arange(1000).reshape(100, 10).T, (200, 1, 1))
    noise = intervals.noise_within(y, position, np.full(10, 0.1))
    assert noise is not None
    white, *_, longest = noise.variance
    assert longest / white == pytest.approx(4, rel=0.1)


def test_one_repeat_shows_no_noise() -> None:
    y, position, weights = np.zeros((2, 9, 1)), np.tile(np.arange(9)[:, None], (2, 1, 1)), np.full(9, 1 / 9)
    assert intervals.noise_within(y, position, weights) is None
    assert intervals.noise_share(y, y, position, weights, np.asarray(0.1)) is None
    assert intervals.least_half_width(y, y, position, weights) == 0


def test_the_upper_limit_of_a_spread_is_that_of_chi_square() -> None:
    """80% upper limit on 2 and 6 degrees of freedom: 2.12 and 1.40 times the spread seen."""
    assert intervals.spread_limit(1.0, 2) == pytest.approx(2.12, rel=0.02)
    assert intervals.spread_limit(1.0, 6) == pytest.approx(1.40, rel=0.01)
