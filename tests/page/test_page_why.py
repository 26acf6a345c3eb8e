"""The section Why, on the published H200 experiment, whose server gave token ids."""

import math
import re
from pathlib import Path

import pytest
from support.simulated_experiment import Tables, write_experiment

from specbench.lookup.setting import ARTICLE
from specbench.page import why_charts
from specbench.page.evidence import Evidence, gather
from specbench.page.why import EARLIER, Why, explain


@pytest.fixture(scope="module")
def evidence(published: Path) -> Evidence:
    return gather([published.parent])


@pytest.fixture(scope="module")
def why(evidence: Evidence) -> Why:
    found = explain(evidence)
    assert isinstance(found, Why)
    return found


def test_every_case_is_a_point_of_what_was_measured(evidence: Evidence, why: Why) -> None:
    for load, reason in zip(evidence.loads, why.loads, strict=True):
        measured = {name: case.ratio for name, case in load.result.metrics["e2el"].cases.items()}
        assert {point.case: point.ratio for point in reason.points} == measured
        assert all(1 <= point.tokens_per_step <= 1 + ARTICLE[0] for point in reason.points)


def test_steps_times_cost_are_the_ratio_of_decode_time(why: Why) -> None:
    """Steps are fewer and each costs more; the first token draws the ratio of E2EL from there towards 1."""
    assert why.setting == ARTICLE and why.names == ["overall", "copy", "explain", "short"]
    for load in why.loads:
        for row in load.rows.values():
            factors = row.factors
            assert factors.steps is not None and factors.cost.ratio is not None and row.e2el is not None
            assert factors.steps < 1 < factors.cost.ratio
            assert factors.decode == pytest.approx(factors.steps * factors.cost.ratio)
            assert row.e2el == pytest.approx(factors.decode, rel=0.2)


def test_the_two_factors_stand_in_the_table(published: Path, why: Why) -> None:
    text = published.read_text()
    for load in why.loads:
        copied = load.rows["copy"].factors
        assert f"{copied.steps:.2f} × {copied.cost.ratio:.2f}" in text
        assert f"{load.cost:.2f} times as much at {load.label}" in re.sub(r"\s+", " ", text)


def test_the_line_of_a_load_is_its_cost_over_tokens_per_step(why: Why) -> None:
    svg = why_charts.reasons(why.loads)
    assert svg is not None and all(f">{load.label}<" in svg for load in why.loads)
    for load in why.loads:
        (left, right) = why_charts._line(load, 4.0)
        assert right["y"] * right["x"] == pytest.approx(load.cost, rel=1e-4)
        assert left["y"] * left["x"] == pytest.approx(load.cost, rel=1e-4)


def test_every_setting_is_a_cell_and_the_article_s_is_marked(why: Why) -> None:
    for label, one in why.sweeps.items():
        svg = why_charts.heat_map(one, label)
        cells = re.findall(r">(\d\.\d\d)(\*?)<", svg)
        assert len(cells) == len(one.settings) and [mark for _, mark in cells].count("*") == 1
        article = one.find(ARTICLE)
        assert article is not None and isinstance(article.overall.e2el_ratio, dict)
        (estimate,) = article.overall.e2el_ratio.values()
        assert [value for value, mark in cells if mark] == [f"{estimate.ratio:.2f}"]
        assert math.isfinite(estimate.ratio)


def test_without_ids_nothing_is_guessed(tmp_path: Path) -> None:
    """The reason stands there, and what the server counted; no chart of steps."""
    import report

    folder = write_experiment(tmp_path / "x", loads=(1,), token_ids=False)
    assert report.main([str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert "How many steps were saved is not known here: " in text
    assert "1.30 tokens per step and 45% of drafted tokens accepted at 1 user" in re.sub(r"\s+", " ", text)
    assert "Steps × cost of a step, against" not in text and "Acceptance" in Tables(text).tables


def test_a_page_of_very_many_requests_sweeps_nothing(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.page.why.MOST_REQUESTS", 100)
    found = explain(evidence)
    assert isinstance(found, Why) and found.sweeps == {}


def test_a_comparison_of_an_earlier_version_knows_no_steps(evidence: Evidence) -> None:
    """Its JSON lacks them: the page says how to have them."""
    for load in evidence.loads:
        load.result.why = None
    assert explain(evidence) == EARLIER
