"""The figures of the first H200 session are what compare.py computes from results/; no directory names a machine."""

import gzip
import json
import math
import re
import statistics
from datetime import datetime
from pathlib import Path

import pytest
from support import ROOT

from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import Comparison, Line, Timing, Word
from specbench.record.directory import read_manifest, read_requests, read_summary
from specbench.record.format import Request, value_at

RESULTS = ROOT / "results" / "h200-smollm2-135m"
LOADS = (1, 4, 8)
BASES, CANDIDATES = ("01", "04", "05", "08"), ("02", "03", "06", "07")


def rows() -> dict[str, list[str]]:
    """The table beside these results: first cell -> the cells after it."""
    section = (RESULTS / "README.md").read_text().split("## The main comparison", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return {cells[0].strip().strip("*"): [cell.strip().strip("*") for cell in cells[1:]] for cells in lines}


def readme() -> str:
    """What is said of these results: in the repository's README, and beside them."""
    return re.sub(r"\s+", " ", "".join((folder / "README.md").read_text() for folder in (ROOT, RESULTS)))


def measured(run: Path) -> list[Request]:
    return [row for row in read_requests(run) if row.phase == "measured"]


def folders(mode: str, load: int, *numbers: str) -> list[Path]:
    return [RESULTS / f"{number}-{mode}-c{load}" for number in numbers]


def compared(load: int) -> Comparison:
    bases, candidates = folders("baseline", load, *BASES), folders("ngram", load, *CANDIDATES)
    return compare(bases, candidates, Options(accept_floor=True))


def ratio(line: Line) -> str:
    """One line of a comparison as the README writes it, without its verdict."""
    interval = line.interval
    return f"{interval.ratio:.2f} ({interval.low:.2f}–{interval.high:.2f})"


def told(line: Line) -> str:
    assert line.verdict is not None
    return f"{ratio(line)} {line.verdict.value}"


@pytest.mark.parametrize("load", LOADS)
def test_ratios_intervals_and_verdicts_are_recomputed(load: int) -> None:
    table, e2el = rows(), compared(load).metrics["e2el"]
    for name, line in [("overall", e2el.overall), *e2el.families.items()]:
        assert table[name][LOADS.index(load)] == told(line)


@pytest.mark.parametrize("load", LOADS)
def test_throughput_and_the_baseline_against_itself_are_recomputed(load: int) -> None:
    table, column = rows(), LOADS.index(load)
    rates = [
        statistics.mean(read_summary(one).throughput.tokens_per_s for one in folders(mode, load, *numbers))
        for mode, numbers in (("baseline", BASES), ("ngram", CANDIDATES))
    ]
    assert table["tokens/s, mean of four"][column] == " → ".join(f"{rate:,.0f}" for rate in rates)
    itself = compare(
        folders("baseline", load, "01", "08"), folders("baseline", load, "04", "05"),
        Options(allow_same_mode=True, accept_floor=True),
    )  # fmt: skip
    line = itself.metrics["e2el"].overall
    assert table["baseline against baseline"][column] == told(line)
    assert itself.verdict.verdict is Word.NO_DIFFERENCE and (line.interval.low or 0) < 1


def test_no_machine_is_named() -> None:
    named = re.compile(rb"/(?:tmp|root|home|work)/|GPU-[0-9a-f]{8}-|-fc-")
    for path in (ROOT / "results").glob("h200-*/**/*"):
        if path.is_file():
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            assert not named.search(content), path


def test_faults_on_the_real_server_had_the_outcomes_of_the_design() -> None:
    def outcomes(name: str) -> dict[str, int]:
        summary = read_summary(RESULTS / "faults" / name)
        assert summary.status == "aborted"
        return dict(summary.requests.outcomes)

    assert outcomes("sigterm-ngram") == {"connect_error": 8, "inactive": 4, "ok": 78}
    assert outcomes("sigkill-baseline") == {"connect_error": 2, "disconnected": 3, "ok": 162}


def test_the_agreement_of_both_clients_is_told_as_measured() -> None:
    text = readme()
    for mode in ("baseline", "ngram"):
        alone, eight = json.loads((RESULTS / f"agreement-{mode}.json").read_text())
        assert (alone["concurrency"], eight["concurrency"]) == (1, 8)
        figures = [f"{one['e2el_ratio']:.3f} ± {one['e2el_standard_error']:.3f}" for one in (alone, eight)]
        between = " at one user and " if mode == "baseline" else " and "
        assert f"{mode} {figures[0]}{between}{figures[1]}" in text


def test_cases_and_counters_in_the_readme_are_recomputed() -> None:
    text = readme()
    cases = compared(1).metrics["e2el"].cases
    ratios = {name: cases[name].ratio for name in ("copy-1", "copy-2", "copy-3")}
    assert f"take {ratios['copy-1']:.2f} and {ratios['copy-2']:.2f} of the time" in text
    assert f"takes {ratios['copy-3']:.1f} times as long" in text
    summaries = [read_summary(one) for one in folders("ngram", 1, *CANDIDATES)]
    assert {f"{one.server.acceptance_rate:.0%}" for one in summaries} == {"47%"} and "47% of the drafted" in text
    assert {f"{one.server.draft_coverage:.0%}" for one in summaries} == {"19%"} and "in 19% of the steps" in text
    chunks = summaries[0].tokens_per_chunk.families
    assert f"Explanations ({chunks['explain']:.1f} tokens a chunk) and short answers ({chunks['short']:.1f})" in text
    base = [(read_summary(one).metrics.overall["tpot_s"].mean or 0) * 1e3 for one in folders("baseline", 1, *BASES)]
    assert f"where a token takes {statistics.mean(base):.1f} ms" in text
    spreads = [compared(load).metrics["e2el"].overall.spread for load in LOADS]
    assert f"scatter by {min(spreads) * 100:.0f} to {max(spreads) * 100:.0f}% (standard deviation)" in text
    per_chunk: dict[str, list[float]] = {"copy-1": [], "copy-2": []}
    for row in measured(RESULTS / "02-ngram-c1"):
        if row.case in per_chunk:
            per_chunk[row.case].append((row.completion_tokens or 0) / row.chunks)
    one, two = (statistics.mean(values) for values in per_chunk.values())
    assert f"({one:.1f} and {two:.1f} tokens a chunk)" in text


def test_what_the_baseline_s_short_answers_do_is_told_as_measured() -> None:
    """With only full answers to copy-2: the project's own t on deployment means, over mean logs per case."""

    def mean_log(run: Path) -> float:
        logs: dict[str, list[float]] = {}
        for row in measured(run):
            assert row.e2el_s is not None
            if row.case != "copy-2" or row.completion_tokens == 90:
                logs.setdefault(row.case, []).append(math.log(row.e2el_s))
        return statistics.mean(statistics.mean(values) for values in logs.values())

    def short(mode: str, load: int, numbers: tuple[str, ...]) -> int:
        rows = [row for run in folders(mode, load, *numbers) for row in measured(run) if row.case == "copy-2"]
        assert len(rows) == 40 and {row.completion_tokens for row in rows} <= {20, 90}
        return sum(row.completion_tokens == 20 for row in rows)

    assert short("baseline", 8, BASES) == 4 and short("baseline", 4, BASES) == 3
    assert short("ngram", 8, CANDIDATES) == short("ngram", 4, CANDIDATES) == 0
    base, candidate = ([mean_log(run) for run in folders(*which)] for which in (
        ("baseline", 8, *BASES), ("ngram", 8, *CANDIDATES)
    ))  # fmt: skip
    effect = statistics.mean(candidate) - statistics.mean(base)
    half = 2.447 * math.sqrt((statistics.variance(base) + statistics.variance(candidate)) / 4)  # t, 6 df
    said = "the ratio is {:.2f} ({:.2f}–{:.2f})".format(*(math.exp(effect + shift) for shift in (0, -half, half)))
    text, interval = readme(), compared(8).metrics["e2el"].overall.interval
    assert said in text and f"its interval starts at {interval.low:.3f}" in text
    assert "four of the baseline's 40 answers to `copy-2` stop after 20 tokens" in text
    assert "in 7 of 80 answers at 4 and 8 users, and ngram in none" in text


def test_the_expected_answers_are_told_as_measured() -> None:
    assert "right in 120 of 240 requests of either mode at each load" in readme()
    for load in LOADS:
        expected = compared(load).expect
        assert expected is not None
        counts = [expected.pairs, expected.base_passed, expected.candidate_passed]
        assert counts == [240, 120, 120] and expected.cases["copy-2"].base_passed == 0


def test_the_host_s_own_speed_is_told_as_measured() -> None:
    samples = [tuple(map(float, line.split()[:2])) for line in (RESULTS / "host.txt").read_text().splitlines()]

    def median_ms(first: Path, last: Path) -> float:
        start, end = read_manifest(first).started, read_manifest(last).ended
        since, until = (datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp() for time in (start, end))
        return statistics.median(ms for second, ms in samples if since <= second <= until)

    varied = RESULTS / "varied" / "1-baseline-c1"
    slow, all_runs = median_ms(varied, varied), median_ms(RESULTS / "01-baseline-c1", RESULTS / "08-baseline-c8")
    text = readme()
    assert f"took {slow:.1f} ms in the first minutes on this machine and {all_runs:.1f} ms in the median" in text
    runs = sorted(RESULTS.glob("0*-c?"))
    slowed = [ms for ms in (median_ms(run, run) for run in runs) if ms > 5]
    assert len(runs) == 24 and len(slowed) == 3 and all(6 <= round(ms) <= 8 for ms in slowed)
    assert "6 to 8 ms in three of its 24 runs" in text


def test_a_hundred_other_prompts_are_told_as_measured() -> None:
    def line(load: int) -> list[str]:
        runs = [RESULTS / "varied" / f"2-{mode}-c{load}" for mode in ("baseline", "ngram")]
        found = compare(runs[:1], runs[1:], Options(accept_floor=True)).metrics["e2el"]
        assert len(found.cases) == 100
        return [f"{found.families[name].interval.ratio:.2f}" for name in ("copy", "explain", "short")]

    text = readme()
    assert "{}, {} and {} at one user".format(*line(1)) in text and "{}, {} and {} at 8,".format(*line(8)) in text
    for load in (1, 8):
        both = [[RESULTS / "varied" / f"{n}-{mode}-c{load}" for n in (1, 2)] for mode in ("baseline", "ngram")]
        assert compare(both[0], both[1], Options(accept_floor=True)).verdict.timing is Timing.NO_DIFFERENCE


def test_more_drafts_are_told_as_measured() -> None:
    base = folders("baseline", 1, "08")
    found = [
        compare(base, [RESULTS / name], Options()).metrics["e2el"].families
        for name in ("k/3-ngram-c1", "07-ngram-c1", "k/8-ngram-c1")
    ]
    copying, explaining = (
        [f"{one[family].interval.ratio:.2f}" for one in found] for family in ("copy", "explain")
    )
    text = readme()
    assert "k = 3, 5 and 8 copying takes {}, {} and {} of its time".format(*copying) in text
    assert "explanations {}, {} and {}".format(*explaining) in text
    for k in (3, 8):
        assert value_at(read_manifest(RESULTS / f"k/{k}-ngram-c1"), "server.record.num_speculative_tokens") == k


def test_the_capture_trap_in_the_docs_is_recomputed() -> None:
    text = (ROOT / "docs" / "confounds.md").read_text()
    for label, folder, numbers in (
        ("ngram, default cap (16)", RESULTS / "capture-size-default", ("02-ngram", "03-ngram")),
        ("ngram, cap 48", RESULTS, ("02-ngram", "03-ngram", "06-ngram", "07-ngram")),
        ("baseline, default cap (16)", RESULTS / "capture-size-default", ("01-baseline", "04-baseline")),
        ("baseline, cap 48", RESULTS, ("01-baseline", "04-baseline", "05-baseline", "08-baseline")),
    ):
        summaries = [read_summary(folder / f"{number}-c8") for number in numbers]
        rates = ", ".join(f"{summary.throughput.tokens_per_s:,.0f}" for summary in summaries)
        times = ", ".join(
            f"{(summary.metrics.families['explain']['e2el_s'].p50 or 0) * 1e3:,.0f}" for summary in summaries
        )
        assert f"| {label} | {rates} | {times} ms |" in text
    trap = RESULTS / "capture-size-default"
    found = compare(
        [trap / "01-baseline-c8", trap / "04-baseline-c8"], [trap / "02-ngram-c8", trap / "03-ngram-c8"],
        Options(accept_floor=True),
    )  # fmt: skip
    assert found.verdict.verdict is Word.SUSPECT and found.verdict.gates == ["capture size"]

    capped, ours = found.metrics["e2el"], compared(8).metrics["e2el"]
    said = re.sub(r"\s+", " ", text)
    point, _, interval = ratio(capped.overall).partition(" (")
    whole = (
        f"takes {point} times as long as baseline overall (95% interval {interval}, with ours {ratio(ours.overall)}"
    )
    assert whole in said
    for family, words in (("explain", "explanations {}"), ("copy", "copying {}")):
        assert f"{words.format(ratio(capped.families[family]))} instead of {ratio(ours.families[family])}" in said
    assert f"takes {point} times as long overall at 8 users ({interval}" in readme()
    assert f"explanations {ratio(capped.families['explain']).replace(' ', ' times ')}" in readme()
    copied = capped.cases["copy-1"].ratio, ours.cases["copy-1"].ratio
    assert "`copy-1` still takes {:.2f} of the time, instead of {:.2f}".format(*copied) in said
