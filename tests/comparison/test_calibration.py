"""Four hundred seeded replicates of the main shapes: the promises of docs/statistics.md hold for this code.

Bounds leave room for Monte Carlo error (about 3 standard deviations at 400 replicates); benchmarks/calibration.py
has the full grid.
"""

import math

import numpy as np
import pytest

from benchmarks import calibration
from specbench.comparison import equality, estimates, intervals

ROWS = 400
LEVEL = 0.05  # what may be wrong
SLACK = 3 * math.sqrt(LEVEL * (1 - LEVEL) / ROWS)

SHAPES = [(9, 5), (9, 10), (9, 20), (60, 2), (9, 50)]
KINDS = ["none", "t3", "AR .3", "AR .6", "slow", "drift", "step", "bursts", "recorded 1", "recorded 4", "recorded 8"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_printed_interval_of_a_pair_is_rarely_wrong(shape: tuple[int, int], kind: str) -> None:
    cases, repeats = shape
    rng = np.random.default_rng(1)
    lay = calibration.shuffled(rng, cases, repeats)
    base, candidate, _ = calibration.two_runs(rng, ROWS, lay, kind)
    weights = np.full(cases, 1 / cases)
    error = np.abs(intervals.case_means(lay, candidate - base) @ weights)
    half = intervals.pair_half_width(lay, weights, base, candidate)
    printed = intervals.effective_requests(lay, base, candidate) >= estimates.MIN_EFFECTIVE
    assert (printed & (error > half)).mean() <= LEVEL + SLACK
    if kind == "none":
        assert (error <= half).mean() >= 0.95
        assert printed.mean() >= (0.45 if cases * repeats == 45 else 0.9)
        assert np.median(half / intervals.iid_half_width(lay, weights, base, candidate)) < 2.4
    if (kind == "slow" and cases * repeats < 200) or (kind == "recorded 1" and cases * repeats < 100):
        assert printed.mean() < 0.15, "a run that short cannot know such noise"


def test_independence_would_be_wrong_here() -> None:
    """The iid interval fails as docs/statistics.md says, so the simulations are known to be hard enough."""
    rng = np.random.default_rng(2)
    lay = calibration.shuffled(rng, 9, 10)
    weights = np.full(9, 1 / 9)
    covered = {}
    for kind in ("none", "AR .3", "slow"):
        base, candidate, _ = calibration.two_runs(rng, ROWS, lay, kind)
        error = np.abs(intervals.case_means(lay, candidate - base) @ weights)
        covered[kind] = (error <= intervals.iid_half_width(lay, weights, base, candidate)).mean()
    assert covered["none"] == pytest.approx(0.95, abs=0.035)
    assert covered["AR .3"] == pytest.approx(0.87, abs=0.05)
    assert covered["slow"] == pytest.approx(0.44, abs=0.08)


@pytest.mark.parametrize("kind", ["none", "AR .3"])
def test_case_intervals_cover(kind: str) -> None:
    rng = np.random.default_rng(3)
    for repeats in (3, 5, 10):
        lay = calibration.shuffled(rng, 9, repeats)
        base, candidate, _ = calibration.two_runs(rng, ROWS, lay, kind)
        error = np.abs(intervals.case_means(lay, candidate - base))
        assert (error <= intervals.case_half_widths(lay, base, candidate)).mean() >= 0.94


@pytest.mark.parametrize("shape", [(9, 10, 2), (60, 2, 2), (300, 1, 2), (300, 1, 4)])
@pytest.mark.parametrize("spread", [0.0, 0.03, 0.08])
def test_prompts_and_deployments_together_cover(shape: tuple[int, int, int], spread: float) -> None:
    cases, repeats, d = shape
    rng = np.random.default_rng(4)
    sides = [
        spread * rng.normal(size=(ROWS, d, 1)) + 0.1 / math.sqrt(repeats) * rng.normal(size=(ROWS, d, cases))
        for _ in range(2)
    ]
    effects = (sides[1] - sides[0]).mean(1) + 0.15 * rng.normal(size=(ROWS, cases))
    weights, one = np.full(cases, 1 / cases), np.zeros(cases, dtype=np.int64)
    between = intervals.deployment_half_width(sides[0].mean(2), sides[1].mean(2))[0]
    half = np.hypot(intervals.stratified_half_width(effects, weights, one), between)
    assert (np.abs(effects.mean(1)) <= half).mean() >= 1 - LEVEL - SLACK


@pytest.mark.parametrize(("cases", "repeats", "kind"), [(300, 1, "drift"), (60, 2, "AR .3")])
def test_prompts_of_one_pair_are_rarely_wrong(cases: int, repeats: int, kind: str) -> None:
    rows = 200
    _, covers, printed = calibration._prompts_one_pair(np.random.default_rng(11), rows, cases, repeats, kind)
    assert printed.mean() > 0.3
    assert (printed & ~covers).mean() <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / rows)


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.02, 0.03, 0.05, 0.08])
def test_false_verdicts_over_deployments_are_five_percent_at_every_redeploy_noise(d: int, spread: float) -> None:
    rows = 20_000
    rng = np.random.default_rng(5)
    base, candidate = (math.hypot(spread, 0.005) * rng.normal(size=(rows, d)) for _ in range(2))
    half, _ = intervals.deployment_half_width(base, candidate)
    false = (np.abs((candidate - base).mean(1)) > half).mean()
    assert false == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / rows))


@pytest.mark.parametrize(("d", "power"), [(2, 0.42), (3, 0.82), (4, 0.96)])
def test_power_at_ten_percent_and_three_percent_redeploy_noise(d: int, power: float) -> None:
    assert calibration.verdict_power(0.1, 0.03, d) == pytest.approx(power, abs=0.005)
    rng = np.random.default_rng(6)
    base, candidate = (0.03 * rng.normal(size=(20_000, d)) for _ in range(2))
    half, _ = intervals.deployment_half_width(base, candidate + math.log(1.1))
    found = (np.abs((candidate - base).mean(1) + math.log(1.1)) > half).mean()
    assert found == pytest.approx(power, abs=0.015)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("kind", ["none", "slow"])
def test_no_effect_gives_no_false_words(d: int, kind: str) -> None:
    """Through `estimate`, deployments alike: at most 5% `faster` or `slower` per line."""
    rng = np.random.default_rng(7)
    words = np.zeros((ROWS, 4), dtype=bool)
    for row in range(ROWS):
        lay = calibration.shuffled(rng, 9, 10)
        base, candidate, _ = calibration.two_runs(rng, d, lay, kind)
        order = ("base", "candidate", "candidate", "base")[: 2 * d]
        runs = estimates.LogTimes(base, candidate, lay.case, np.arange(9) % 3, ("a", "b", "c"), order)
        result = estimates.estimate(runs)
        lines = (result.overall, *result.families)
        words[row] = [line.verdict.startswith((estimates.FASTER, estimates.SLOWER)) for line in lines]
    assert (words.mean(0) <= LEVEL + SLACK).all()


def share(judged: list[equality.Equality], word: str) -> float:
    return float(np.mean([one.verdict == word for one in judged]))


@pytest.mark.parametrize(("d", "repeats"), [(1, 5), (1, 10), (2, 5)])
def test_outputs_that_vary_alike_are_rarely_called_different(d: int, repeats: int) -> None:
    rng = np.random.default_rng(8)
    judged = [calibration.judged_outputs(rng, d, repeats, "null") for _ in range(ROWS)]
    assert share(judged, equality.DIFFERENT) <= LEVEL + SLACK
    assert share(judged, equality.WITHIN) >= 0.85


def test_changed_outputs_are_found() -> None:
    rng = np.random.default_rng(9)
    everywhere = [calibration.judged_outputs(rng, 1, 10, "20% new") for _ in range(50)]
    assert share(everywhere, equality.DIFFERENT) >= 0.95
    one = [calibration.judged_outputs(rng, 1, 5, "wholly new", only=0) for _ in range(50)]
    assert share(one, equality.DIFFERENT) == 1
    assert all(judged.cases[0].verdict == equality.DIFFERENT for judged in one)


def test_one_repeat_with_a_second_deployment_keeps_its_level_and_finds_changes() -> None:
    rng = np.random.default_rng(10)
    alike = [calibration.judged_one_repeat(rng, 300, 0.1, 0.0) for _ in range(100)]
    assert share(alike, equality.DIFFERENT) <= 0.08
    changed = [calibration.judged_one_repeat(rng, 300, 0.1, 0.1) for _ in range(30)]
    assert share(changed, equality.DIFFERENT) >= 0.95
