"""The README's H200 figures are what compare.py computes from results/, and the directories hold no machine's names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from compare import Options, compare
from specbench.results import read_summary

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "h200-smollm2-135m"
LOADS = (1, 4, 8)
BASES, CANDIDATES = ("01", "04", "05"), ("02", "03", "06")


def rows() -> dict[str, list[str]]:
    """The README's H200 table: first cell -> the cells after it."""
    section = (ROOT / "README.md").read_text().split("## Measured on an NVIDIA H200", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return {cells[0].strip().strip("*"): [cell.strip().strip("*") for cell in cells[1:]] for cells in lines}


def compared(load: int) -> dict[str, Any]:
    bases = [RESULTS / f"{number}-baseline-c{load}" for number in BASES]
    candidates = [RESULTS / f"{number}-ngram-c{load}" for number in CANDIDATES]
    return compare(bases, candidates, Options(accept_floor=True))


@pytest.mark.parametrize("load", LOADS)
def test_ratios_intervals_and_verdicts_are_recomputed(load: int) -> None:
    table, e2el = rows(), compared(load)["metrics"]["e2el"]
    for name, line in [("overall", e2el["overall"]), *e2el["families"].items()]:
        interval = line["interval"]
        expected = f"{interval['ratio']:.2f} ({interval['low']:.2f}–{interval['high']:.2f}) {line['verdict']}"
        assert table[name][LOADS.index(load)] == expected


@pytest.mark.parametrize("load", LOADS)
def test_throughput_and_self_comparison_are_recomputed(load: int) -> None:
    table, column = rows(), LOADS.index(load)
    rates = [
        sum(read_summary(RESULTS / f"{number}-{mode}-c{load}")["throughput"]["tokens_per_s"] for number in numbers) / 3
        for mode, numbers in (("baseline", BASES), ("ngram", CANDIDATES))
    ]
    assert table["tokens/s, mean of three"][column] == " → ".join(f"{rate:,.0f}" for rate in rates)
    itself = [
        compare([RESULTS / f"{one}-baseline-c{load}"], [RESULTS / f"{other}-baseline-c{load}"],
                Options(allow_same_mode=True, accept_floor=True))["metrics"]["e2el"]["overall"]
        for one, other in (("01", "04"), ("04", "05"))
    ]  # fmt: skip
    assert table["baseline against baseline"][column] == ", ".join(
        f"{line['interval']['ratio']:.2f}" for line in itself
    )
    assert {line["timing"] for line in itself} == {"cannot say from this pair"}


def test_no_machine_is_named() -> None:
    for path in RESULTS.rglob("*"):
        if path.is_file():
            assert not re.search(r"/(?:tmp|root|home|work)/|GPU-[0-9a-f]{8}-", path.read_text()), path


def test_faults_on_the_real_server_had_the_outcomes_of_the_design() -> None:
    def outcomes(name: str) -> dict[str, int]:
        summary = read_summary(RESULTS / "faults" / name)
        assert summary["status"] == "aborted"
        return dict(summary["requests"]["outcomes"])

    assert outcomes("sigterm-ngram") == {"connect_error": 8, "inactive": 4, "ok": 78}
    assert outcomes("sigkill-baseline") == {"connect_error": 2, "disconnected": 3, "ok": 162}


def test_the_agreement_of_both_clients_is_told_as_measured() -> None:
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    for mode in ("baseline", "ngram"):
        alone, eight = json.loads((RESULTS / f"agreement-{mode}.json").read_text())
        assert (alone["concurrency"], eight["concurrency"]) == (1, 8)
        figures = [f"{one['e2el_ratio']:.3f} ± {one['e2el_standard_error']:.3f}" for one in (alone, eight)]
        between = " at one user and " if mode == "baseline" else " and "
        assert f"{mode} {figures[0]}{between}{figures[1]}" in text


def test_cases_and_counters_in_the_readme_are_recomputed() -> None:
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    cases = compared(1)["metrics"]["e2el"]["cases"]
    ratios = {name: cases[name]["ratio"] for name in ("copy-1", "copy-2", "copy-3")}
    assert f"take {ratios['copy-1']:.2f} and {ratios['copy-2']:.2f} of the time" in text
    assert f"takes {ratios['copy-3']:.1f} times as long" in text
    summaries = [read_summary(RESULTS / f"{number}-ngram-c1") for number in CANDIDATES]
    assert {f"{one['server']['acceptance_rate']:.0%}" for one in summaries} == {"47%"} and "47% of the drafted" in text
    assert {f"{one['server']['draft_coverage']:.0%}" for one in summaries} == {"19%"} and "in 19% of the steps" in text
    chunks = summaries[0]["tokens_per_chunk"]["families"]
    assert f"Explanations ({chunks['explain']:.1f} tokens a chunk) and short answers ({chunks['short']:.1f})" in text
    base = [read_summary(RESULTS / f"{number}-baseline-c1") for number in BASES]
    assert {round(one["metrics"]["overall"]["tpot_s"]["mean"] * 1e3, 1) for one in base} <= {1.8, 1.9}


def test_the_capture_trap_in_the_docs_is_recomputed() -> None:
    text = (ROOT / "docs" / "confounds.md").read_text()
    for label, folder, numbers in (
        ("ngram, default cap (16)", RESULTS / "capture-size-default", ("02-ngram", "03-ngram")),
        ("ngram, cap 48", RESULTS, ("02-ngram", "03-ngram", "06-ngram")),
        ("baseline, default cap (16)", RESULTS / "capture-size-default", ("01-baseline", "04-baseline")),
        ("baseline, cap 48", RESULTS, ("01-baseline", "04-baseline", "05-baseline")),
    ):
        summaries = [read_summary(folder / f"{number}-c8") for number in numbers]
        rates = ", ".join(f"{summary['throughput']['tokens_per_s']:,.0f}" for summary in summaries)
        times = ", ".join(
            f"{summary['metrics']['families']['explain']['e2el_s']['p50'] * 1e3:,.0f}" for summary in summaries
        )
        assert f"| {label} | {rates} | {times} ms |" in text
    trap = RESULTS / "capture-size-default"
    found = compare(
        [trap / "01-baseline-c8", trap / "04-baseline-c8"], [trap / "02-ngram-c8", trap / "03-ngram-c8"],
        Options(accept_floor=True),
    )  # fmt: skip
    interval = found["metrics"]["e2el"]["families"]["explain"]["interval"]
    assert (
        f"{interval['low']:.2f}–{interval['high']:.2f}" in text
        and found["verdict"]["verdict"] == "suspect: capture size"
    )
