"""The tables of docs/forecast.md are recomputed, and the published forecasts are as good as they have to be."""

import statistics
from functools import cache

import pytest
from support import ROOT

from benchmarks import forecast_check
from specbench.lookup.checking import Check
from specbench.lookup.cost import read_cost
from specbench.lookup.table import cost_table, markdown_table

DOCUMENT = (ROOT / "docs" / "forecast.md").read_text()
MOST_MEDIAN_ERROR = {"1": 0.07, "4": 0.04, "8": 0.04}
MOST_FAMILY_ERROR = 0.15


@cache
def checks() -> list[tuple[str, Check]]:
    return list(forecast_check.published_checks())


def chosen(part: str) -> list[Check]:
    found = [checked for name, checked in checks() if part in name]
    assert found, part
    return found


def table_after(marker: str) -> str:
    """The Markdown table that follows a marker of docs/forecast.md."""
    return DOCUMENT.split(f"<!-- {marker}: benchmarks/forecast_check.py -->\n", 1)[1].strip().split("\n\n", 1)[0]


def test_the_table_of_checks() -> None:
    assert table_after("checks") == forecast_check.table(checks())


def test_the_table_of_costs() -> None:
    assert table_after("cost") == markdown_table(cost_table(read_cost(forecast_check.PUBLISHED)))


@pytest.mark.parametrize("load", MOST_MEDIAN_ERROR)
def test_cases_of_deployments_that_did_not_give_the_cost(load: str) -> None:
    halves = [checked for checked in chosen("deployments") if checked.load == load]
    assert len(halves) == 2
    for half in halves:
        assert len(half.cases) == 9
        assert half.median_error <= MOST_MEDIAN_ERROR[load]
    errors = [abs(case.error) for half in halves for case in half.cases]
    assert statistics.median(errors) <= MOST_MEDIAN_ERROR[load]


def test_families_of_prompts_that_did_not_give_the_cost() -> None:
    for checked in chosen("varied prompts, pair 2"):
        assert len(checked.cases) == 100
        assert all(abs(family.error) <= MOST_FAMILY_ERROR for family in checked.families)


def test_other_k() -> None:
    for checked in chosen("cost from k = 5"):
        assert checked.median_error <= 0.03
        assert all(abs(family.error) <= 0.05 for family in checked.families)
        assert all(replayed == counted for replayed, counted in checked.drafts)


def test_drafts_are_forecast_exactly_where_outputs_do_not_vary() -> None:
    at_one_user = [checked for _, checked in checks() if checked.load == "1"]
    assert len(at_one_user) == 6
    assert all(replayed == counted for checked in at_one_user for replayed, counted in checked.drafts)
    under_load = [pair for _, checked in checks() if checked.load != "1" for pair in checked.drafts]
    assert all(abs(replayed / counted - 1) <= 0.03 for replayed, counted in under_load)


def test_the_limits_hold_what_was_measured() -> None:
    """Families and overall, without the pair whose host changed its speed between the modes: 40 ratios, 95% limits."""
    families = [
        family for name, checked in checks() if "slow host" not in name for family in checked.families
    ]
    assert len(families) == 40
    outside = [
        family.name
        for family in families
        if not (family.predicted.low or 0) <= family.measured <= (family.predicted.high or 0)
    ]
    assert len(outside) <= 2


def test_the_figures_in_the_text() -> None:
    eight = next(checked for checked in chosen("deployments") if checked.load == "8")
    (replayed, first), (_, second) = eight.drafts
    assert f"{replayed} drafts where the servers counted {second} and {first}" in DOCUMENT
    slow, steady = (
        [abs(family.error) for checked in chosen(f"varied prompts, pair {pair}") for family in checked.families]
        for pair in "12"
    )
    worse = sum(one > other for one, other in zip(slow, steady, strict=True))
    assert f"{worse} of its 8 ratios are farther off" in DOCUMENT
