"""The page's numbers: every one is from the result directories or from the comparison."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.simulated_experiment import MODES, Tables

import report
from benchmarks.simulated_runs import LEVEL_S, write_run
from specbench import words
from specbench.comparison.verdict import change
from specbench.page import charts, evidence, panels
from specbench.record.directory import read_requests


def geometric_mean(folder: Path, mode: str, load: int, family: str) -> float:
    times = [
        np.log(request.e2el_s)
        for path in sorted(folder.glob(f"*-{mode}-c{load}"))
        for request in read_requests(path)
        if request.family == family and request.e2el_s
    ]
    return float(np.exp(np.mean(times)))


def test_decision_table_holds_the_ratios_of_the_requests(experiment: Path, page: str) -> None:
    rows = {row[0]: row for row in Tables(page).tables["Decision table"]}
    assert rows["Family"][1:] == ["1 user", "4 users", "8 users"]
    for family in LEVEL_S:
        for column, load in enumerate((1, 4, 8), start=1):
            base, candidate = (geometric_mean(experiment, mode, load, family) for mode in MODES)
            result = json.loads((experiment / f"compare-c{load}.json").read_text())
            line = result["metrics"]["e2el"]["families"][family]
            cell = rows[family][column]
            ratio = candidate / base
            assert cell.startswith(f"{change(ratio)} ") and f" {ratio:.3f} " in cell
            assert f"{line['interval']['low']:.3f}–{line['interval']['high']:.3f}" in cell
            assert line["verdict"] in cell
    assert "not comparable" in rows["copy"][3] and "times alone: faster" in rows["copy"][3]
    assert rows["Gates"][1] == "✓ none fired1 of 18 not checked"  # made-up answers: their drafting cannot be audited


def test_tables_below_hold_the_numbers_of_the_directories(experiment: Path, page: str) -> None:
    tables = Tables(page).tables
    row = next(row for row in tables["Ratios in numbers"] if row[:3] == ["8 users", "E2EL", "short"])
    base, candidate = (geometric_mean(experiment, mode, 8, "short") for mode in MODES)
    # One figure, one meaning: the ratio is the quotient of the times beside it.
    assert row[3:6] == [words.duration(base), words.duration(candidate), f"{candidate / base:.3f}"]
    rates = [
        json.loads((path / "summary.json").read_text())["throughput"]["tokens_per_s"]
        for path in experiment.glob("*-baseline-c4")
    ]
    row = next(row for row in tables["Throughput"] if row[0] == "4 users")
    assert row[1] == f"{np.mean(rates):,.1f}"
    row = next(row for row in tables["Output equality by load"] if row[0] == "4 users")
    # One of nine cases has two outputs, six each of twelve: 6·6·2 of 12·11 pairs differ.
    assert row[1:4] == ["within the baseline's variation", "8 of 9", f"{72 / 132 / 9:.1%}"]
    row = next(row for row in tables["Acceptance"] if row[0] == "02-ngram-c1")
    assert row[1:6] == ["45.0%", "3.25", "20.0%", "1.30", "400"]
    row = next(row for row in tables["Client health"] if row[0] == "04-baseline-c8")
    assert row[1:4] == ["8%", "0.10 ms", "0.60 ms"]


def test_ecdf_steps_are_the_shares_of_the_times() -> None:
    assert charts.steps(np.array([0.3, 0.1, 0.2, 0.4])) == [(0.1, 0.0), (0.1, 0.25), (0.2, 0.5), (0.3, 0.75), (0.4, 1)]
    many = np.random.default_rng(0).lognormal(0, 1, 100_000)
    drawn = charts.steps(many)
    assert len(drawn) <= charts.STEPS + 1
    for time, share in drawn[1:]:
        assert share == pytest.approx(float(np.mean(many <= time)), abs=1e-9)


def test_an_axis_of_time_leaves_out_one_stray_request_in_two_hundred() -> None:
    times = np.append(np.full(999, 0.1), 9.0)
    assert charts.time_domain([times])[1] < 0.2


def bars(svg: str) -> list[tuple[str, float]]:
    """(fill, width) of every bar of a chart."""
    drawn = []
    for path, fill in re.findall(r'<path d="M([^"]*)Z" fill="([^"]*)"', svg):
        across = [float(x) for x in re.findall(r"-?[\d.]+", path)[::2]]
        drawn.append((fill, max(across) - min(across)))
    return drawn


def test_the_timeline_tells_modes_by_colour(experiment: Path) -> None:
    drawn = bars(panels.timeline_panels(evidence.gather([experiment]))[1])
    fills = [fill for fill, _ in drawn]
    # BNNB: each starts up, then runs at three loads.
    runs = {"baseline": ["var(--base)"] * 3, "ngram": ["var(--candidate)"] * 3}
    modes = ("baseline", "ngram", "ngram", "baseline")
    assert fills == [fill for mode in modes for fill in ["var(--grid)", *runs[mode]]]


def test_the_spread_s_bar_is_one_spread_to_either_side() -> None:
    widths = []
    for spread in (0.05, 0.1):
        effect = charts.Effect("overall", 1.0, 0.9, 1.1, spread, True)
        svg = charts.forest({"": [effect]}, (0.7, 1.4), "Ratio of candidate to base")
        widths += [width for fill, width in bars(svg) if fill == "var(--muted)"]
        interval = re.search(r'x2="([\d.]+)" y2="0" stroke="var\(--ink\)" stroke-width="2"', svg)
        assert interval is not None
        per_log = float(interval[1]) / np.log(1.1 / 0.9)
        assert widths[-1] == pytest.approx(2 * spread * per_log, rel=0.01)
    assert len(widths) == 2


def test_an_experiment_of_many_requests_stays_small(tmp_path: Path) -> None:
    cases = [(f"{family}-{number}", family) for family in LEVEL_S for number in range(250)]
    for index, mode in enumerate(MODES):
        run = {"cases": cases, "repeats": 6, "order": index, "outputs": lambda _, repeat: str(repeat)}
        write_run(tmp_path / mode, mode=mode, **run)
    assert report.main([str(tmp_path / "baseline"), str(tmp_path / "ngram"), "--out", str(tmp_path / "p.html")]) == 0
    assert (tmp_path / "p.html").stat().st_size < 1_000_000


def test_the_charts_against_load_show_what_the_ratios_are_made_of(experiment: Path) -> None:
    """A geometric mean per deployment, whose quotient is the ratio in the table."""
    loads = evidence.gather([experiment]).loads
    for load in loads:
        logs = {
            side: np.mean([np.log(run.geometric_mean("e2el", None)) for run in load.runs if run.side == side])
            for side in ("base", "candidate")
        }
        ratio = load.result.metrics["e2el"].overall.interval.ratio
        assert float(np.exp(logs["candidate"] - logs["base"])) == pytest.approx(ratio)
    titles = [title for title, _ in panels.by_load_panels(loads)]
    assert titles[:3] == ["E2EL, geometric mean", "TTFT, geometric mean", "TPOT, geometric mean"]


def test_a_mean_over_families_is_weighed_as_the_mix_says(experiment: Path) -> None:
    run = evidence.gather([experiment]).loads[0].runs[0]
    means = {family: float(np.log(times).mean()) for family, times in run.times["e2el"].items()}
    expected = np.exp(0.25 * means["copy"] + 0.75 * means["short"])
    assert run.geometric_mean("e2el", {"copy": 0.25, "short": 0.75}) == pytest.approx(expected)
    assert run.geometric_mean("e2el", {"nowhere": 1.0}) is None


def test_every_axis_says_where_it_starts(experiment: Path) -> None:
    """Axes of times that start at 0 say so once on the page, the others name their start."""
    loads = evidence.gather([experiment]).loads
    drawn = [panels.load_charts(load).drift for load in loads] + [svg for _, svg in panels.ecdf_panels(loads, "e2el")]
    assert all("starts at " in svg for svg in drawn)
    assert all("starts at 0" in svg for _, svg in panels.by_load_panels(loads))
