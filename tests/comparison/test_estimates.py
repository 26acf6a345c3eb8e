"""Ratios, intervals, refusals and verdicts: by hand, by published quantiles, and under exchange of the sides."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import calibration
from specbench.comparison import estimates, intervals
from specbench.comparison.estimates import (
    CANNOT_SAY,
    FASTER,
    IN_THIS_PAIR,
    NO_DIFFERENCE,
    SLOWER,
    LogTimes,
    Summary,
    estimate,
)

BNNB = ("base", "candidate", "candidate", "base")
FAMILIES = ("copy", "explain", "short")


def made(
    cases: int = 9,
    repeats: int = 10,
    effect: float = 0.0,
    pairs: int = 1,
    sd: float = 0.1,
    spread: float = 0.0,
    seed: int = 0,
    order: tuple[str, ...] | None = None,
) -> LogTimes:
    """Independent noise, a true effect in logs, three families in turn."""
    rng = np.random.default_rng(seed)
    case = np.concatenate([rng.permutation(cases) for _ in range(repeats)])
    level = np.linspace(-1, 1, cases)[case]
    base, candidate = (
        level + sd * rng.normal(size=(pairs, case.size)) + spread * rng.normal(size=(pairs, 1)) for _ in range(2)
    )
    order = order or (BNNB * pairs)[: 2 * pairs]
    return LogTimes(base, candidate + effect, case, np.arange(cases) % 3, FAMILIES, order)


def exchanged(runs: LogTimes) -> LogTimes:
    other = {"base": "candidate", "candidate": "base"}
    order = None if runs.order is None else tuple(other[side] for side in runs.order)
    return dataclasses.replace(runs, base=runs.candidate, candidate=runs.base, order=order)


def summaries(result: estimates.Estimates) -> list[Summary]:
    lines = (result.overall, *result.families)
    parts = [(line.interval, line.these_requests, line.prompts) for line in lines]
    return [summary for part in parts for summary in part] + list(result.cases)


def assert_sound(result: estimates.Estimates) -> None:
    """No number is NaN or infinite, and every interval is there or has its reason."""
    for summary in summaries(result):
        numbers = [summary.ratio, summary.low, summary.high, summary.base, summary.candidate, summary.median_ratio]
        assert all(x is None or math.isfinite(x) for x in numbers)
        assert (summary.low is None) == (summary.high is None) == (summary.reason is not None)
        if summary.low is not None and summary.high is not None and summary.ratio is not None:
            assert summary.low <= summary.ratio <= summary.high


# --- Student's t


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
    """At 3% redeploy noise two deployments find 18.5% with 80% power, three 9.7%, four 7.4%."""
    for deployments, effect in ((2, 0.185), (3, 0.097), (4, 0.0745)):
        assert calibration.verdict_power(effect, 0.03, deployments) == pytest.approx(0.8, abs=0.005)
    assert intervals.deployments_needed(0.03, 0.1) == 3
    assert intervals.deployments_needed(0.03, 0.0001) == 200
    assert intervals.deployments_needed(0.03, -0.1) <= intervals.deployments_needed(0.03, 0.1)


# --- the parts, by hand


def test_effects_and_variances_by_hand_with_unequal_repeats() -> None:
    lay = intervals.layout(np.array([1, 0, 1, 0, 1]))
    y = np.array([[1.0, 2.0, 4.0, 6.0, 7.0]])
    assert intervals.case_means(lay, y).tolist() == [[4.0, 4.0]]
    assert intervals.case_variances(lay, y).tolist() == [[8.0, 9.0]]
    assert intervals.residuals(lay, y).tolist() == [[-3.0, -2.0, 0.0, 2.0, 3.0]]


def test_one_case_has_the_interval_of_welch() -> None:
    """Welch's t with df from the df + 2 form, clipped to what the parts allow."""
    base, candidate = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[5.0, 5.5, 6.0, 6.5]])
    lay = intervals.layout(np.zeros(4, dtype=np.int64))
    v = [x.var(ddof=1) / 4 for x in (base, candidate)]
    df = min(max(sum(v) ** 2 / sum(x**2 / 5 for x in v) - 2, 3), 6)
    expected = intervals.t_quantile(0.975, df) * math.sqrt(sum(v))
    assert intervals.iid_half_width(lay, np.ones(1), base, candidate)[0] == pytest.approx(expected, rel=1e-6)


def test_batches_by_hand() -> None:
    lay = intervals.layout(np.zeros(10, dtype=np.int64))
    d = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0])
    sums = (d - d.mean()).reshape(5, 2).sum(1) / 10
    expected = intervals.t_quantile(0.975, 4) * math.sqrt(5 * sums.var(ddof=1) * 10 / 9)
    half = intervals.batch_half_width(lay, np.ones(1), np.zeros((1, 10)), d[None])
    assert half[0] == pytest.approx(expected, rel=1e-6)
    shift = d[5:].mean() - d[:5].mean()
    assert intervals.drift_allowance(lay, np.ones(1), np.zeros((1, 10)), d[None])[0] == pytest.approx(shift)


def test_inflation_of_a_known_autoregression() -> None:
    """AR(1) with coefficient .6 inflates the variance of a mean by 1.6 / .4 = 4."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 4000))
    for j in range(1, 4000):
        x[:, j] += 0.6 * x[:, j - 1]
    lay = intervals.layout(np.tile(np.arange(10), 400))
    assert np.median(intervals.inflation(lay, x)) == pytest.approx(4, rel=0.15)
    assert np.median(intervals.inflation(lay, rng.normal(size=(50, 4000)))) < 1.2


def test_deployment_interval_by_hand() -> None:
    base, candidate = np.array([0.0, 0.04]), np.array([0.2, 0.22])
    half, spread = intervals.deployment_half_width(base, candidate)
    assert spread == pytest.approx(math.sqrt((0.0008 + 0.0002) / 2))
    assert half == pytest.approx(4.30265 * spread, rel=1e-5)


# --- exchange of the sides


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10_000), st.sampled_from([(9, 10), (12, 5), (40, 1), (3, 20), (1, 60), (9, 2)]), st.integers(1, 3)
)
def test_exchanging_the_sides_inverts_every_ratio_and_swaps_the_bounds(
    seed: int, shape: tuple[int, int], pairs: int
) -> None:
    runs = made(*shape, effect=0.1, pairs=pairs, spread=0.02, seed=seed)
    there, back = summaries(estimate(runs)), summaries(estimate(exchanged(runs)))
    for one, other in zip(there, back, strict=True):
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
    words = {FASTER: SLOWER, SLOWER: FASTER, NO_DIFFERENCE: NO_DIFFERENCE}
    suffix = IN_THIS_PAIR if pairs == 1 else ""
    word, opposite = estimate(runs).overall.verdict, estimate(exchanged(runs)).overall.verdict
    assert (word == opposite == CANNOT_SAY) or word.removesuffix(suffix) == words[opposite.removesuffix(suffix)]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 14), st.integers(1, 6), st.integers(1, 3), st.sampled_from([0.0, 1e-300, 0.1, 5.0]),
    st.floats(0, 0.9), st.integers(0, 99),
)  # fmt: skip
def test_no_shape_gives_nan_or_an_exception(
    cases: int, repeats: int, pairs: int, sd: float, missing: float, seed: int
) -> None:
    runs = made(cases, repeats, pairs=pairs, sd=sd, seed=seed)
    gone = np.random.default_rng(seed).random(runs.base.shape) < missing
    assert_sound(estimate(dataclasses.replace(runs, base=np.where(gone, np.nan, runs.base))))


# --- one pair


def test_a_real_effect_in_a_pair_is_a_word_about_the_pair() -> None:
    result = estimate(made(effect=-0.3))
    assert result.overall.verdict == "faster in this pair"
    assert "reverse order" in result.overall.why
    assert result.overall.interval.low is not None and result.overall.interval.high is not None
    assert result.overall.interval.low < math.exp(-0.3) < result.overall.interval.high < 1
    assert estimate(made(effect=0.3)).overall.verdict == "slower in this pair"
    assert estimate(made()).overall.verdict == "no clear difference in this pair"
    assert result.overall.redeploy_spread is None


def test_an_effect_in_one_family_only_is_told_by_family() -> None:
    runs = made(repeats=20)
    copy = runs.family[runs.case] == 0
    result = estimate(dataclasses.replace(runs, candidate=runs.candidate - 0.5 * copy))
    words = [line.verdict for line in result.families]
    assert words == ["faster in this pair", "no clear difference in this pair", "no clear difference in this pair"]


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        (made(9, 1), "one repeat"),
        (made(9, 4), "36 requests are too few, 45 at least; use --repeats 5"),
    ],
)
def test_short_runs_are_refused_with_what_would_lift_it(runs: LogTimes, says: str) -> None:
    line = estimate(runs).overall
    assert line.verdict == CANNOT_SAY and says in line.why
    assert line.interval.ratio is not None and line.interval.low is None


def drifting(kind: str, seed: int = 3) -> LogTimes:
    runs = made(seed=seed)
    n = runs.case.size
    rng = np.random.default_rng(seed)
    slow = np.cumsum(rng.normal(size=n)) * 0.05 if kind == "random walk" else np.linspace(0, 0.4, n)
    return dataclasses.replace(runs, candidate=runs.candidate + slow)


@pytest.mark.parametrize("kind", ["random walk", "drift"])
def test_requests_that_drift_together_are_refused(kind: str) -> None:
    result = estimate(drifting(kind))
    assert result.effective is not None and result.effective < 30
    assert result.overall.verdict == CANNOT_SAY
    assert "drift together: n = 90 are worth" in result.overall.why and "--repeats" in result.overall.why
    assert result.overall.more is not None and result.overall.more.bottleneck == "requests"
    assert result.overall.more.low > 90
    assert all(case.low is None for case in result.cases)


def test_a_step_too_small_for_the_gate_still_widens_the_interval() -> None:
    runs = made(repeats=20, seed=5)
    later = np.arange(runs.case.size) >= runs.case.size // 2
    stepped = dataclasses.replace(runs, candidate=runs.candidate + 0.04 * later)
    plain, wide = estimate(runs).overall.interval, estimate(stepped).overall.interval
    assert wide.low is not None and wide.high is not None and plain.low is not None and plain.high is not None
    assert math.log(wide.high / wide.low) > math.log(plain.high / plain.low)


def test_cases_need_three_repeats_and_have_their_own_intervals() -> None:
    few = estimate(made(30, 2)).cases
    assert all(case.low is None and case.reason is not None and "--repeats" in case.reason for case in few)
    runs = made(9, 10)
    noisy = runs.case == 8
    rng = np.random.default_rng(2)
    louder = dataclasses.replace(runs, candidate=runs.candidate + noisy * rng.normal(size=(1, runs.case.size)))
    widths = [math.log(case.high / case.low) for case in estimate(louder).cases if case.high and case.low]
    assert widths[8] > 2 * max(widths[:8])


def test_identical_times_give_a_reason_and_not_a_certainty() -> None:
    result = estimate(made(sd=0.0, effect=-0.5))
    assert result.overall.verdict == CANNOT_SAY and "do not vary" in result.overall.why
    several = estimate(made(sd=0.0, effect=-0.5, pairs=2))
    assert several.overall.verdict == CANNOT_SAY and several.overall.interval.reason is not None
    assert_sound(several)


# --- prompts like these


def test_nine_prompts_get_no_statement_about_prompts() -> None:
    prompts = estimate(made(9, 10)).overall.prompts
    assert prompts.low is None and prompts.reason is not None and "12 at least" in prompts.reason


def test_prompts_with_few_and_many_cases() -> None:
    assert estimate(made(12, 10)).overall.prompts.warnings[0].startswith("fewer than 30 prompts")
    many = estimate(made(60, 5)).overall
    assert many.prompts.low is not None and many.prompts.warnings == ()
    assert "On these two deployments" in many.prompts.assumption
    assert estimate(made(60, 5)).families[0].prompts.low is not None
    assert estimate(made(30, 5)).families[0].prompts.low is None


def test_many_cases_with_one_repeat_are_a_shape_of_their_own() -> None:
    result = estimate(made(300, 1, effect=-0.2))
    assert result.overall.prompts.high is not None and result.overall.prompts.high < 1
    assert result.overall.verdict == CANNOT_SAY and "--repeats" in result.overall.why
    assert result.effective is None
    short = estimate(made(299, 1)).overall.prompts
    assert short.reason is not None and "300 prompts at least" in short.reason
    several = estimate(made(299, 1, pairs=2, effect=-0.2, spread=0.01)).overall
    assert several.prompts.low is not None and several.verdict == FASTER


def half_width(summary: Summary) -> float:
    assert summary.low is not None and summary.high is not None
    return math.log(summary.high / summary.low) / 2


def parts(runs: LogTimes) -> tuple[Any, Any, Any]:
    """Of the interval over prompts: within families, one half width per pair, and between deployments if there are."""
    lay = intervals.layout(runs.case)
    weights = np.full(len(runs.family), 1 / len(runs.family))
    means = [intervals.case_means(lay, side) for side in (runs.base, runs.candidate)]
    within = intervals.stratified_half_width((means[1] - means[0]).mean(0), weights, runs.family)
    pairs = intervals.pair_half_width(lay, weights, runs.base, runs.candidate)
    between = intervals.deployment_half_width(*(side.mean(1) for side in means))[0] if len(runs.base) > 1 else None
    return within, pairs, between


def test_prompts_over_deployments_add_the_redeploy_spread() -> None:
    runs = made(60, 5, pairs=2, spread=0.02)
    within, _, between = parts(runs)
    line = estimate(runs).overall
    assert half_width(line.prompts) == pytest.approx(math.hypot(within, between), rel=1e-9)
    assert half_width(line.prompts) > 1.05 * max(within, between)


def test_prompts_of_one_pair_add_its_noise() -> None:
    runs = made(60, 5)
    within, pairs, _ = parts(runs)
    assert half_width(estimate(runs).overall.prompts) == pytest.approx(math.hypot(within, pairs[0]), rel=1e-9)


def test_prompts_of_one_repeat_add_the_drift_of_the_run() -> None:
    runs = made(300, 1)
    ramp = np.linspace(-0.2, 0.2, 300)
    runs = dataclasses.replace(runs, candidate=runs.candidate + ramp)
    within, _, _ = parts(runs)
    # The halves of the run lie 0.2 apart, which moves the mean by as much.
    assert half_width(estimate(runs).overall.prompts) > within + 0.15


def test_two_pairs_halve_the_root_of_their_summed_squares() -> None:
    runs = made(9, 10, pairs=2)
    _, pairs, _ = parts(runs)
    assert half_width(estimate(runs).overall.these_requests) == pytest.approx(math.hypot(*pairs) / 2, rel=1e-9)


def test_the_worst_pair_tells_what_the_requests_are_worth() -> None:
    runs = made(9, 10, pairs=2)
    drift = np.stack([np.zeros(90), np.sin(np.arange(90) / 8)])
    runs = dataclasses.replace(runs, candidate=runs.candidate + drift)
    worth = intervals.effective_requests(intervals.layout(runs.case), runs.base, runs.candidate)
    result = estimate(runs)
    assert result.effective == pytest.approx(worth.min(), rel=1e-9) and worth.min() < 0.5 * worth.max()
    assert result.overall.these_requests.low is None


def test_families_are_strata() -> None:
    """Families of unlike effects: what they differ by is not uncertainty."""
    runs = made(30, 10, seed=4)
    effects = np.array([-0.5, 0.6, 0.4])[runs.family][runs.case]
    prompts = estimate(dataclasses.replace(runs, candidate=runs.candidate + effects)).overall.prompts
    assert prompts.low is not None and prompts.high is not None
    assert math.log(prompts.high / prompts.low) / 2 < 0.1


def test_a_family_of_one_prompt_is_named() -> None:
    runs = dataclasses.replace(made(20, 5), family=np.array([0] + [1] * 19))
    reason = estimate(runs).overall.prompts.reason
    assert reason is not None and "one prompt" in reason


# --- verdict over deployments


def test_two_deployments_conclude_with_their_spread() -> None:
    line = estimate(made(pairs=2, effect=-0.4, spread=0.02)).overall
    assert line.verdict == "faster" and line.redeploy_spread is not None
    assert "2 deployments per mode" in line.why and "2 df" in line.interval.assumption
    assert estimate(made(pairs=3, effect=0.4, spread=0.02)).overall.verdict == "slower"
    assert estimate(made(pairs=2, spread=0.02)).overall.verdict == "no clear difference"


def test_redeploys_that_differ_overrule_a_pair_that_looks_overwhelming() -> None:
    """Seen on an H200 at 8 users: 2.10, 1.38 and 1.38, each tight, together no clear difference."""
    runs = made(pairs=3, sd=0.02)
    base = runs.base + np.log([[1.0], [0.5], [0.52]])
    candidate = runs.candidate + np.log([[2.10], [0.69], [0.72]])
    line = estimate(dataclasses.replace(runs, base=base, candidate=candidate)).overall
    assert line.verdict == NO_DIFFERENCE
    assert line.more is not None and line.more.bottleneck == "deployments"
    assert line.more.high >= line.more.low > 3
    assert line.these_requests.low is not None and line.these_requests.low > 1


@pytest.mark.parametrize(
    ("order", "says"), [(("base", "base", "candidate", "candidate"), "alternat"), (None, "order of the deployments")]
)
def test_an_order_that_does_not_alternate_concludes_nothing(order: Any, says: str) -> None:
    line = estimate(dataclasses.replace(made(pairs=2, effect=-0.4), order=order)).overall
    assert line.verdict == CANNOT_SAY and says in line.why and line.interval.low is None


def test_one_side_always_first_is_warned_about() -> None:
    line = estimate(dataclasses.replace(made(pairs=2), order=("base", "candidate") * 2)).overall
    assert line.verdict == NO_DIFFERENCE and "always came first" in line.interval.warnings[0]
    assert estimate(made(pairs=2)).overall.interval.warnings == ()


@pytest.mark.parametrize("order", ["BNNB", "BNNBBN", "BNBN", "NBBN"])
def test_alternating_orders(order: str) -> None:
    assert intervals.alternates(tuple(order))
    assert not intervals.alternates(tuple("BBNN")) and not intervals.alternates(tuple("BNB"))


# --- mix, primary, missing values, what to add


def test_mix_weighs_families() -> None:
    runs = made(9, 10, sd=0.01)
    effects = np.array([-0.6, 0.3, 0.0])[runs.family][runs.case]
    runs = dataclasses.replace(runs, candidate=runs.candidate + effects)
    mixed = estimate(runs, mix={"copy": 3, "explain": 1})
    assert mixed.overall.name == "mix" and mixed.overall.primary
    assert mixed.overall.interval.ratio == pytest.approx(math.exp(-0.6 * 0.75 + 0.3 * 0.25), rel=0.01)
    only = estimate(runs, mix={"copy": 1.0})
    assert only.overall.interval == only.families[0].interval
    for bad in ({"other": 1.0}, {"copy": 0.0}, {"copy": -1.0, "short": 2.0}):
        with pytest.raises(ValueError, match="mix"):
            estimate(runs, mix=bad)


def test_one_primary_line() -> None:
    result = estimate(made(), primary="copy")
    assert [line.primary for line in (result.overall, *result.families)] == [False, True, False, False]
    with pytest.raises(ValueError, match="primary"):
        estimate(made(), primary="poems")


def test_missing_values_leave_out_the_request_on_every_row_and_are_told() -> None:
    runs = made(9, 10, pairs=2)
    base = runs.base.copy()
    base[0, 3], base[1, 7] = np.nan, np.nan
    result = estimate(dataclasses.replace(runs, base=base))
    assert result.requests == 88 and result.warnings == (
        "2 of 90 requests have no value on every side and are left out",
    )
    gone = np.where(runs.case == 4, np.nan, runs.base)
    result = estimate(dataclasses.replace(runs, base=gone))
    assert result.cases[4].ratio is None and result.cases[5].ratio is not None
    nothing = estimate(dataclasses.replace(runs, base=np.full_like(runs.base, np.nan)))
    assert nothing.overall.interval.ratio is None and nothing.overall.verdict == CANNOT_SAY


def test_a_case_with_one_value_left_shows_no_noise() -> None:
    runs = made(9, 10)
    first = np.nonzero(runs.case == 4)[0][1:]
    base = runs.base.copy()
    base[:, first] = np.nan
    result = estimate(dataclasses.replace(runs, base=base))
    assert "single value" in result.overall.why
    assert result.families[0].interval.low is not None
    assert result.cases[4].low is None and result.cases[3].low is not None


def test_nothing_to_add_once_all_is_told() -> None:
    assert estimate(made(9, 5, sd=0.2, effect=-1.0)).overall.more is None
    assert estimate(made(9, 10, pairs=2, spread=0.05, effect=-2.0)).overall.more is None


def test_unequal_shapes_are_an_error() -> None:
    runs = made()
    with pytest.raises(ValueError, match="same deployments"):
        estimate(dataclasses.replace(runs, base=runs.base[:, 1:]))


@pytest.mark.parametrize(
    ("runs", "bottleneck"),
    [
        (made(9, 5, sd=0.5), "requests"),
        (made(12, 10, pairs=2, spread=0.1, seed=1), "deployments"),
        (made(9, 10, sd=0.01), None),
    ],
)
def test_what_to_add_names_the_bottleneck(runs: LogTimes, bottleneck: str | None) -> None:
    more = estimate(runs).overall.more
    assert (more.bottleneck if more else None) == bottleneck
    if more:
        assert more.sentence and 0 < more.low <= more.high


def test_prompts_that_differ_most_ask_for_cases() -> None:
    runs = made(15, 10, pairs=2, sd=0.02, seed=1)
    effects = np.random.default_rng(1).normal(size=15)[runs.case]
    more = estimate(dataclasses.replace(runs, candidate=runs.candidate + effects)).overall.more
    assert more is not None and more.bottleneck == "cases" and more.low > 15
