"""Small seeded versions of benchmarks/calibration.py: the promises of docs/statistics.md hold for this code.

Seeds are fixed, so nothing here can fail by chance. Bounds leave room for the few replicates (about 3 standard
deviations); the benchmark has the full grid.
"""

import math

import numpy as np
import pytest

from benchmarks import calibration
from benchmarks.closed_loop import FAMILY, Runs, experiments, true_effects
from specbench.comparison import equality, intervals
from specbench.comparison.estimates import LogTimes, estimate
from specbench.comparison.format import Likeness, Timing

ROWS = 400
LEVEL = 0.05  # what may be wrong
SLACK = 3 * math.sqrt(LEVEL * (1 - LEVEL) / ROWS)
BNNB = ("base", "candidate", "candidate", "base")


@pytest.mark.parametrize("users", [1, 8])
@pytest.mark.parametrize("deployments", [2, 4])
@pytest.mark.parametrize("spread", [0.01, 0.08])
def test_no_effect_is_rarely_called(users: int, deployments: int, spread: float) -> None:
    rng = np.random.default_rng(1)
    runs = experiments(rng, ROWS, deployments=deployments, users=users, repeats=10, spread=spread)
    assert calibration.called(runs).mean() <= LEVEL + SLACK


def test_the_verdict_is_what_estimate_concludes() -> None:
    """The simulations judge all replicates at once; one by one `estimate` gives the same numbers."""
    runs = experiments(np.random.default_rng(2), 5, deployments=2, users=4, repeats=5, spread=0.02, ngram=True)
    overall = calibration.judge(runs, calibration.OVERALL)
    copy = calibration.judge(runs, calibration.BY_FAMILY[0])
    words = {-1: Timing.FASTER, 1: Timing.SLOWER, 0: Timing.NO_DIFFERENCE}
    for row in range(5):
        times = LogTimes(*(part[row] for part in runs), FAMILY, ("copy", "explain", "short"), BNNB)
        result = estimate(times)
        for line, judged in ((result.overall, overall), (result.families[0], copy)):
            low, high = (math.exp(judged.effect[row] + sign * judged.half[row]) for sign in (-1, 1))
            assert (line.interval.low, line.interval.high) == (pytest.approx(low), pytest.approx(high))
            assert line.spread == pytest.approx(judged.spread[row])
            assert line.noise_share == pytest.approx(judged.share[row])
            assert line.timing is words[int(judged.sign[row])]


@pytest.mark.parametrize("users", [1, 8])
def test_luck_is_not_printed_as_precision(users: int) -> None:
    """Of the intervals by t alone the narrowest tenth covers two thirds; of what is printed, nine of ten and more."""
    rng = np.random.default_rng(3)
    runs = experiments(rng, 1000, deployments=2, users=users, repeats=10, spread=0.01)
    one = calibration.judge(runs, calibration.OVERALL)
    error = np.abs(one.effect)
    assert calibration.narrowest_covered([error], [one.student]) < 0.8
    assert calibration.narrowest_covered([error], [one.half]) >= 0.88
    assert np.median(one.half) < 1.2 * np.median(one.student)


def test_families_need_a_schedule_for_every_pair() -> None:
    """One order for all is part of every deployment alike: no number of deployments averages it out."""
    rng = np.random.default_rng(4)
    truth = true_effects(rng, users=8, repeats=10)
    covered = {}
    for own in (False, True):
        runs = experiments(
            rng, ROWS, deployments=4, users=8, repeats=10, spread=0.01, ngram=True, own_schedules=own
        )
        judged = [(calibration.judge(runs, weights), truth @ weights) for weights in calibration.BY_FAMILY]
        covered[own] = np.mean([np.abs(one.effect - effect) <= one.half for one, effect in judged])
    assert covered[True] >= 0.93 and covered[False] < 0.92


@pytest.mark.parametrize("shape", [(60, 2, 2), (300, 1, 2), (300, 1, 4)])
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.08])
def test_prompts_and_deployments_together_cover(shape: tuple[int, int, int], spread: float) -> None:
    cases, repeats, deployments = shape
    rng = np.random.default_rng(5)
    sides = [
        spread * rng.normal(size=(ROWS, deployments, 1))
        + 0.1 / math.sqrt(repeats) * rng.normal(size=(ROWS, deployments, cases))
        for _ in range(2)
    ]
    effects = (sides[1] - sides[0]).mean(1) + 0.15 * rng.normal(size=(ROWS, cases))
    weights, one = np.full(cases, 1 / cases), np.zeros(cases, dtype=np.int64)
    seen = intervals.deployment_spread(sides[0].mean(2), sides[1].mean(2))
    between = intervals.deployment_half_width(seen, deployments)
    half = np.hypot(intervals.stratified_half_width(effects, weights, one), between)
    assert (np.abs(effects.mean(1)) <= half).mean() >= 1 - LEVEL - SLACK


@pytest.mark.parametrize(("d", "power"), [(2, 0.42), (3, 0.82), (4, 0.96)])
def test_power_at_ten_percent_and_a_spread_of_three(d: int, power: float) -> None:
    assert calibration.verdict_power(0.1, 0.03, d) == pytest.approx(power, abs=0.005)
    rng = np.random.default_rng(6)
    base, candidate = (0.03 * rng.normal(size=(20_000, d)) for _ in range(2))
    half = intervals.deployment_half_width(intervals.deployment_spread(base, candidate), d)
    found = (np.abs((candidate - base).mean(1) + math.log(1.1)) > half).mean()
    assert found == pytest.approx(power, abs=0.015)


def test_a_declared_spread_that_is_another_costs_little() -> None:
    """The spreads of both experiments differ by 60%."""
    rows, rng = 2000, np.random.default_rng(7)
    now, then = (0.03 * np.exp(0.6 * rng.normal(size=rows) / math.sqrt(2)) for _ in range(2))
    before = calibration.judge(
        experiments(rng, rows, deployments=4, users=8, repeats=10, spread=then), calibration.OVERALL
    )
    runs: Runs = experiments(rng, rows, deployments=2, users=8, repeats=10, spread=now)
    earlier = intervals.Earlier(before.spread**2, 6)  # type: ignore[arg-type]
    assert (calibration.judge(runs, calibration.OVERALL, earlier).sign != 0).mean() <= 0.07


def share(judged: list[equality.Judged], *words: Likeness) -> float:
    return float(np.mean([one.verdict in words for one in judged]))


def test_an_unchanged_candidate_is_rarely_refused() -> None:
    rng = np.random.default_rng(8)
    refused = Likeness.CHANGED, Likeness.CANNOT_TELL
    assert share([calibration.judged_outputs(rng, 2, 10) for _ in range(150)], *refused) <= 0.15
    assert share([calibration.judged_outputs(rng, 4, 10) for _ in range(75)], *refused) <= 0.08


def test_changed_outputs_are_found() -> None:
    rng = np.random.default_rng(9)
    half = [calibration.judged_outputs(rng, 2, 10, 0.5, only=0) for _ in range(80)]
    assert share(half, Likeness.CHANGED) >= 0.9
    everywhere = [calibration.judged_outputs(rng, 1, 10, 0.2) for _ in range(40)]
    assert share(everywhere, Likeness.CHANGED) >= 0.9
    wholly = [calibration.judged_outputs(rng, 1, 5, 1.0, only=0) for _ in range(40)]
    assert share(wholly, Likeness.CHANGED) == 1
    assert all(judged.cases[0].verdict is Likeness.CHANGED for judged in wholly)


def test_one_repeat_with_a_second_deployment_keeps_its_level_and_finds_changes() -> None:
    rng = np.random.default_rng(10)
    alike = [calibration.judged_one_repeat(rng, 300, 0.1, 0.0) for _ in range(100)]
    assert share(alike, Likeness.CHANGED, Likeness.CANNOT_TELL) <= 0.08
    changed = [calibration.judged_one_repeat(rng, 300, 0.1, 0.1) for _ in range(30)]
    assert share(changed, Likeness.CHANGED) >= 0.95
