"""What would sharpen a result: the cheaper of more deployments and more repeats."""

import math

import pytest

from specbench.comparison.advice import Plan, advise
from specbench.comparison.intervals import least_effect


def test_noise_within_the_runs_asks_for_repeats_where_a_start_is_dear() -> None:
    advice = advise(Plan(start_s=600, run_s=10), spread=0.05, noise_share=0.95, pairs=2, repeats=10)
    assert advice is not None and advice.cheaper == "repeats"
    assert advice.repeats is not None and advice.repeats_minutes is not None
    left = 0.05 * math.sqrt(0.05 + 0.95 * 10 / advice.repeats)
    assert least_effect(left, 2) <= math.log(1.1) < least_effect(0.05, 2)
    assert advice.repeats_minutes == pytest.approx(4 * (600 + advice.repeats) / 60)
    assert f"the cheaper way is --repeats {advice.repeats}" in advice.sentence


def test_a_spread_between_deployments_asks_for_deployments() -> None:
    advice = advise(Plan(start_s=60, run_s=60), spread=0.05, noise_share=0.1, pairs=2, repeats=10)
    assert advice is not None and advice.cheaper == "deployments" and advice.repeats is None
    assert advice.deployments_minutes == pytest.approx(2 * (advice.deployments - 2) * 2)
    assert least_effect(0.05, advice.deployments) <= math.log(1.1)
    assert "no number of repeats would do" in advice.sentence


def test_nothing_is_advised_where_ten_percent_would_have_been_found() -> None:
    assert advise(Plan(60, 60), spread=0.01, noise_share=0.5, pairs=2, repeats=10) is None
