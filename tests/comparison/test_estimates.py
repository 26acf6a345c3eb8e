"""Ratios, intervals and their reasons: with known effects, and under exchange of the sides."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.comparison import estimates, intervals
from specbench.comparison.advice import Plan
from specbench.comparison.estimates import ONE_PAIR, LogTimes, estimate
from specbench.comparison.format import Interval, Timing
from specbench.comparison.intervals import Earlier

BNNB = ("base", "candidate", "candidate", "base")
FAMILIES = ("copy", "explain", "short")
PLAN = Plan(start_s=60, run_s=30)


def made(
    cases: int = 9,
    repeats: int = 10,
    effect: float = 0.0,
    pairs: int = 2,
    sd: float = 0.1,
    spread: float = 0.0,
    seed: int = 0,
    order: tuple[str, ...] | None = None,
) -> LogTimes:
    """Independent noise, a true effect in logs, three families in turn, a schedule for every pair."""
    rng = np.random.default_rng(seed)
    shape = (pairs, cases, repeats)
    level = np.linspace(-1, 1, cases)[:, None]
    base, candidate = (level + sd * rng.normal(size=shape) + spread * rng.normal(size=(pairs, 1, 1)) for _ in range(2))
    position = np.stack([rng.permutation(cases * repeats).reshape(cases, repeats) for _ in range(pairs)])
    order = order or (BNNB * pairs)[: 2 * pairs]
    return LogTimes(base, candidate + effect, position, np.arange(cases) % 3, FAMILIES, order)


def exchanged(times: LogTimes) -> LogTimes:
    other = {"base": "candidate", "candidate": "base"}
    order = tuple(other[side] for side in times.order)
    return dataclasses.replace(times, base=times.candidate, candidate=times.base, order=order)


def all_intervals(result: estimates.Estimates) -> list[Interval]:
    lines = (result.overall, *result.families)
    return [interval for line in lines for interval in (line.interval, line.prompts)]


def half_width(interval: Interval) -> float:
    assert interval.low is not None and interval.high is not None
    return math.log(interval.high / interval.low) / 2


def assert_sound(result: estimates.Estimates) -> None:
    """No number is NaN or infinite, and every interval is there or has its reason."""
    for one in all_intervals(result):
        numbers = [one.ratio, one.low, one.high, one.base, one.candidate, one.median_ratio]
        assert all(x is None or math.isfinite(x) for x in numbers)
        assert (one.low is None) == (one.high is None) == (one.reason is not None)
        if one.low is not None and one.high is not None and one.ratio is not None:
            assert one.low <= one.ratio <= one.high


# ---- exchange of the sides, and every shape


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10_000), st.sampled_from([(9, 10), (12, 5), (40, 1), (3, 20), (1, 60), (9, 2)]), st.integers(1, 3)
)
def test_exchanging_the_sides_inverts_every_ratio_and_swaps_the_bounds(
    seed: int, shape: tuple[int, int], pairs: int
) -> None:
    times = made(*shape, effect=0.1, pairs=pairs, spread=0.02, seed=seed)
    there, back = estimate(times), estimate(exchanged(times))
    for one, other in zip(all_intervals(there), all_intervals(back), strict=True):
        if one.ratio is None or other.ratio is None:
            assert one.ratio is other.ratio and shape[0] == 1  # one case leaves two families without any
            continue
        assert one.ratio * other.ratio == pytest.approx(1, abs=1e-12)
        assert (one.reason is None) == (other.reason is None)
        assert one.median_ratio is not None and other.median_ratio is not None
        assert one.median_ratio * other.median_ratio == pytest.approx(1, abs=1e-12)
        if one.low is not None and other.high is not None and one.high is not None and other.low is not None:
            assert one.low * other.high == pytest.approx(1, abs=1e-12)
            assert one.high * other.low == pytest.approx(1, abs=1e-12)
    opposite = {Timing.FASTER: Timing.SLOWER, Timing.SLOWER: Timing.FASTER, Timing.NO_DIFFERENCE: Timing.NO_DIFFERENCE}
    assert back.overall.timing is (None if there.overall.timing is None else opposite[there.overall.timing])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 14), st.integers(1, 6), st.integers(1, 3), st.sampled_from([0.0, 1e-300, 0.1, 5.0]),
    st.floats(0, 0.9), st.integers(0, 99),
)  # fmt: skip
def test_no_shape_gives_nan_or_an_exception(
    cases: int, repeats: int, pairs: int, sd: float, missing: float, seed: int
) -> None:
    times = made(cases, repeats, pairs=pairs, sd=sd, seed=seed)
    gone = np.random.default_rng(seed).random(times.base.shape) < missing
    assert_sound(estimate(dataclasses.replace(times, base=np.where(gone, np.nan, times.base)), plan=PLAN))


# ---- one pair


def test_one_pair_has_ratios_and_neither_interval_nor_verdict() -> None:
    result = estimate(made(pairs=1, effect=-0.3, sd=0.01), plan=PLAN)
    for line in (result.overall, *result.families):
        assert line.interval.ratio == pytest.approx(math.exp(-0.3), rel=0.02)
        assert line.timing is line.spread is line.noise_share is line.advice is None
        assert line.why == line.interval.reason == line.prompts.reason == ONE_PAIR
    assert "deploy both again in the reverse order" in ONE_PAIR


# ---- several deployments


def test_two_deployments_conclude_with_their_spread() -> None:
    line = estimate(made(effect=-0.4, spread=0.02)).overall
    assert line.timing is Timing.FASTER and line.spread is not None
    assert "2 deployments of each mode" in line.why and "2 degrees of freedom" in line.interval.assumption
    assert estimate(made(pairs=3, effect=0.4, spread=0.02)).overall.timing is Timing.SLOWER
    assert estimate(made(spread=0.02)).overall.timing is Timing.NO_DIFFERENCE


def test_an_effect_in_one_family_only_is_told_by_family() -> None:
    times = made(repeats=20, sd=0.02, spread=0.01)
    copy = (times.family == 0)[:, None]
    result = estimate(dataclasses.replace(times, candidate=times.candidate - 0.5 * copy))
    assert [line.timing for line in result.families] == [Timing.FASTER, Timing.NO_DIFFERENCE, Timing.NO_DIFFERENCE]


def test_deployments_that_differ_overrule_a_pair_that_looks_overwhelming() -> None:
    """Seen on an H200 at 8 users: 2.10, 1.38 and 1.38, together no clear difference."""
    times = made(pairs=3, sd=0.02)
    base = times.base + np.log([2, 1, 1.04])[:, None, None]
    candidate = times.candidate + np.log([4.20, 1.38, 1.44])[:, None, None]
    line = estimate(dataclasses.replace(times, base=base, candidate=candidate), plan=PLAN).overall
    assert line.timing is Timing.NO_DIFFERENCE
    assert line.advice is not None and line.advice.cheaper == "deployments"
    assert line.advice.most_deployments >= line.advice.deployments > 3


def test_deployments_alike_by_luck_do_not_narrow_the_interval_below_the_noise_within() -> None:
    """All deployments have exactly one mean; the requests still scatter by 10%."""
    times = made(pairs=2)
    level = [side - side.mean(axis=(1, 2), keepdims=True) for side in (times.base, times.candidate)]
    line = estimate(dataclasses.replace(times, base=level[0], candidate=level[1])).overall
    assert line.spread == pytest.approx(0, abs=1e-9)
    iid = 1.96 * math.sqrt(intervals.LEAST_TIMES_NOISE * 0.01 / 90)
    assert half_width(line.interval) > iid and line.timing is Timing.NO_DIFFERENCE


def test_the_share_of_noise_is_all_without_a_spread_and_little_beside_a_large_one() -> None:
    alike, apart = (estimate(made(pairs=6, spread=spread, seed=3)).overall for spread in (0.0, 0.2))
    assert alike.noise_share is not None and alike.noise_share > 0.5
    assert apart.noise_share is not None and apart.noise_share < 0.05
    assert estimate(made(40, 1)).overall.noise_share is None


@pytest.mark.parametrize("order", ["BBNN", "BNBN", "NBNB"])
def test_an_order_that_does_not_alternate_concludes_nothing(order: str) -> None:
    names = {"B": "base", "N": "candidate"}
    line = estimate(made(effect=-0.4, order=tuple(names[letter] for letter in order)), plan=PLAN).overall
    assert line.timing is None and "did not alternate" in line.why and line.interval.low is None
    assert line.prompts.low is None and line.advice is None


def test_identical_times_give_a_reason_and_not_a_certainty() -> None:
    several = estimate(made(sd=0.0, effect=-0.5))
    assert several.overall.timing is None and "do not vary" in str(several.overall.interval.reason)
    assert_sound(several)


# ---- earlier experiments


def test_an_earlier_spread_narrows_the_interval_and_is_declared() -> None:
    times = made(sd=0.02)
    shift = np.array([-0.03, 0.03])[:, None, None]
    times = dataclasses.replace(times, base=times.base + shift, candidate=times.candidate - shift)
    alone = estimate(times).overall
    both = estimate(times, earlier={"overall": Earlier(0.03**2, 6)})
    assert half_width(both.overall.interval) < half_width(alone.interval)
    assert "--spread-from declares" in both.overall.interval.assumption
    assert "3.0% on 6 degrees of freedom" in both.overall.interval.assumption
    assert "8 degrees of freedom" in both.overall.interval.assumption
    assert "--spread-from" not in both.families[0].interval.assumption


# ---- prompts like these


def test_few_prompts_get_no_statement_about_other_prompts() -> None:
    prompts = estimate(made(9, 10)).overall.prompts
    assert prompts.low is None and "from fewer than 12, and here are 9" in str(prompts.reason)


def test_prompts_with_few_and_many_cases() -> None:
    assert "fewer than 30" in estimate(made(12, 10)).overall.prompts.warnings[0]
    many = estimate(made(60, 5))
    assert many.overall.prompts.low is not None and many.overall.prompts.warnings == []
    assert many.families[0].prompts.low is not None
    assert estimate(made(30, 5)).families[0].prompts.low is None


def test_prompts_add_the_spread_of_cases_to_that_of_deployments() -> None:
    times = made(60, 5, spread=0.02)
    weights = np.full(60, 1 / 60)
    means = [side.mean(-1) for side in (times.base, times.candidate)]
    cases = intervals.stratified_half_width((means[1] - means[0]).mean(0), weights, times.family)
    line = estimate(times).overall
    assert half_width(line.prompts) == pytest.approx(math.hypot(cases, half_width(line.interval)), rel=1e-9)


def test_families_are_strata() -> None:
    """Families of unlike effects: what they differ by is not uncertainty."""
    times = made(30, 10, seed=4, spread=0.005)
    effects = np.array([-0.5, 0.6, 0.4])[times.family][:, None]
    prompts = estimate(dataclasses.replace(times, candidate=times.candidate + effects)).overall.prompts
    assert half_width(prompts) < 0.1


def test_a_family_of_one_prompt_is_named() -> None:
    times = dataclasses.replace(made(20, 5), family=np.array([0] + [1] * 19))
    assert "a family with one prompt" in str(estimate(times).overall.prompts.reason)


# ---- mix, primary, missing values


def test_mix_weighs_families() -> None:
    times = made(sd=0.01)
    effects = np.array([-0.6, 0.3, 0.0])[times.family][:, None]
    times = dataclasses.replace(times, candidate=times.candidate + effects)
    mixed = estimate(times, mix={"copy": 3, "explain": 1})
    assert mixed.overall.name == "mix" and mixed.overall.primary
    assert mixed.overall.interval.ratio == pytest.approx(math.exp(-0.6 * 0.75 + 0.3 * 0.25), rel=0.01)
    only = estimate(times, mix={"copy": 1.0})
    assert only.overall.interval == only.families[0].interval
    bad: Any
    for bad in ({"other": 1.0}, {"copy": 0.0}, {"copy": -1.0, "short": 2.0}):
        with pytest.raises(ValueError, match="mix"):
            estimate(times, mix=bad)


def test_one_primary_line() -> None:
    result = estimate(made(), primary="copy")
    assert [line.primary for line in (result.overall, *result.families)] == [False, True, False, False]
    with pytest.raises(ValueError, match="primary"):
        estimate(made(), primary="poems")


def test_missing_values_leave_out_the_request_on_every_row_and_are_told() -> None:
    times = made()
    base = times.base.copy()
    base[0, 0, 3], base[1, 0, 7] = np.nan, np.nan
    result = estimate(dataclasses.replace(times, base=base))
    assert result.requests == 88
    assert result.warnings == ("2 of 90 requests have no value on every side and are left out",)
    kept = np.delete(times.candidate[:, 0], [3, 7], axis=1) - np.delete(times.base[:, 0], [3, 7], axis=1)
    assert result.cases[0] == pytest.approx(math.exp(kept.mean()))
    gone = times.base.copy()
    gone[:, 4] = np.nan
    result = estimate(dataclasses.replace(times, base=gone))
    assert np.isnan(result.cases[4]) and np.isfinite(result.cases[5])
    nothing = estimate(dataclasses.replace(times, base=np.full_like(times.base, np.nan)))
    assert nothing.overall.interval.ratio is None and nothing.overall.timing is None


def test_unequal_shapes_are_an_error() -> None:
    times = made()
    with pytest.raises(ValueError, match="same deployments"):
        estimate(dataclasses.replace(times, base=times.base[:, 1:]))
