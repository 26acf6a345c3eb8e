"""Full CUDA graphs on the H200: every figure of docs/confounds.md and of the folders' READMEs is recomputed."""

import functools
import json
import re
import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from support import ROOT

from specbench.comparison.assessment import Options, compare
from specbench.comparison.format import Comparison, Likeness, Line, Timing, Word
from specbench.lookup.answers import read_answers
from specbench.lookup.checking import check
from specbench.lookup.cost import read_cost
from specbench.lookup.forecast import forecast
from specbench.record.directory import check_unedited, read_manifest, read_requests, read_summary
from specbench.record.format import SUMMARY

RESULTS = ROOT / "results"
SHAPE = RESULTS / "h200-qwen3-4b-shape"
SHAPE_DEFAULT = SHAPE / "vllm-default"
SMALL = RESULTS / "h200-smollm2-135m-full"
SMALL_DEFAULT = RESULTS / "h200-smollm2-135m"
K3 = SMALL / "k3"
CONFOUNDS = ROOT / "docs" / "confounds.md"
LOADS = (1, 4, 8)
MODELS = {
    "Qwen3-4B's shape, full": SHAPE,
    "Qwen3-4B's shape, vllm-default": SHAPE_DEFAULT,
    "SmolLM2-135M, full": SMALL,
    "SmolLM2-135M, vllm-default": SMALL_DEFAULT,
}
READ_GB_PER_STEP = (36 * (2560 * 4096 * 2 + 2 * 2560 * 1024 + 3 * 2560 * 9728) + 151936 * 2560) * 2 / 1e9
H200_GB_PER_S = 4800


def flat(*files: Path) -> str:
    return re.sub(r"\s+", " ", "".join(file.read_text() for file in files))


def of(folder: Path, mode: str, load: int) -> list[Path]:
    return sorted(folder.glob(f"0*-{mode}-c{load}"))


@functools.cache
def compared(base: tuple[Path, str], candidate: tuple[Path, str], load: int) -> Comparison:
    same = base[1] == candidate[1]
    return compare(of(*base, load), of(*candidate, load), Options(accept_floor=True, allow_same_mode=same))


def modes(folder: Path, load: int) -> Comparison:
    return compared((folder, "baseline"), (folder, "ngram"), load)


def lines(found: Comparison) -> dict[str, Line]:
    e2el = found.metrics["e2el"]
    return {**e2el.families, "overall": e2el.overall}


def ratio(line: Line) -> str:
    interval = line.interval
    return f"{interval.ratio:.2f} ({interval.low:.2f}–{interval.high:.2f})"


def ratio_rows(folder: Path) -> list[str]:
    """A row per family and one overall: the ratio of E2EL with its interval and word, by load."""
    by_load = [lines(modes(folder, load)) for load in LOADS]
    rows = []
    for name in by_load[0]:
        cells = [f"{ratio(each[name])} {each[name].verdict.value}" for each in by_load if each[name].verdict]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def step_ms(folder: Path, load: int) -> tuple[float, float, float]:
    """ms of a baseline step, and of one of ngram without a draft and with one: means over deployments."""
    cost = read_cost(folder).loads[str(load)]
    kinds = [each.undrafted_s for each in cost.baseline], [each.undrafted_s for each in cost.ngram]
    drafted = [each.drafted_s for each in cost.ngram]
    return tuple(statistics.mean(each) * 1e3 for each in (*kinds, drafted))  # type: ignore[return-value]


def step_rows() -> list[str]:
    rows = []
    for name, folder in MODELS.items():
        cells = [" / ".join(f"{each:.2f}" for each in step_ms(folder, load)) for load in LOADS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def host_ms(log: Path, *runs: Path) -> float:
    """The median time of the fixed piece of work while `runs` were measured."""
    samples = [tuple(map(float, line.split()[:2])) for line in log.read_text().splitlines()]
    spans = [(seconds(one.started), seconds(one.ended)) for one in map(read_manifest, runs)]
    return statistics.median(ms for second, ms in samples if any(since <= second <= end for since, end in spans))


def seconds(time: str | None) -> float:
    return datetime.fromisoformat((time or "").replace("Z", "+00:00")).timestamp()


def steal_ticks(run: Path) -> int:
    manifest = read_manifest(run)
    samples = [tuple(map(float, line.split()[:3])) for line in (SMALL / "host.txt").read_text().splitlines()]
    ticks = [each[2] for each in samples if seconds(manifest.started) <= each[0] <= seconds(manifest.ended)]
    return int(ticks[-1] - ticks[0])


def test_every_published_directory_is_as_bench_left_it_and_small() -> None:
    directories = [path.parent for path in RESULTS.glob(f"h200-*/**/{SUMMARY}")]
    assert len(directories) == 78
    for directory in directories:
        check_unedited(directory, read_manifest(directory), read_summary(directory))
    assert sum(path.stat().st_size for path in RESULTS.glob("h200-*/**/*") if path.is_file()) < 12e6


@pytest.mark.parametrize("folder", [SHAPE, SHAPE_DEFAULT, SMALL], ids=lambda folder: folder.name)
@pytest.mark.parametrize("load", LOADS)
def test_the_comparisons_beside_the_data_are_this_version_s(folder: Path, load: int) -> None:
    stored = json.loads((folder / f"compare-c{load}.json").read_text())
    found = modes(folder, load)
    assert stored["verdict"]["verdict"] == found.verdict.verdict.value
    assert stored["metrics"]["e2el"]["overall"]["interval"]["ratio"] == found.metrics["e2el"].overall.interval.ratio


def test_the_ms_of_a_step_are_recomputed() -> None:
    for row in step_rows():
        assert row in CONFOUNDS.read_text(), row
        assert row in (SHAPE / "README.md").read_text() or not row.startswith("| Qwen3"), row
        assert row in (SMALL / "README.md").read_text() or not row.startswith("| Smol"), row


@pytest.mark.parametrize("folder", [SHAPE, SHAPE_DEFAULT, SMALL], ids=lambda folder: folder.name)
def test_the_ratios_are_recomputed(folder: Path) -> None:
    readme = (SMALL if folder == SMALL else SHAPE) / "README.md"
    for row in ratio_rows(folder):
        assert row in readme.read_text(), row
    if folder != SMALL:
        assert all(row in CONFOUNDS.read_text() for row in ratio_rows(folder))


def test_full_graphs_in_the_baseline_are_told_as_measured() -> None:
    found = [compared((SHAPE_DEFAULT, "baseline"), (SHAPE, "baseline"), load) for load in LOADS]
    figures = [ratio(lines(each)["overall"]) for each in found]
    assert all(each.verdict.gates == ["flags"] and each.verdict.timing is Timing.NO_DIFFERENCE for each in found)
    for text in (flat(CONFOUNDS), flat(SHAPE / "README.md")):
        assert "{} at 1 user, {} at 4 and {} at 8".format(*figures) in text
        worst = [f"{lines(each)['overall'].interval.high - 1:.0%}" for each in found]  # type: ignore[operator]
        assert "{}, {} and {} more are not excluded".format(*worst) in text


def test_what_full_graphs_give_ngram_is_told_as_measured() -> None:
    found = [lines(compared((SHAPE_DEFAULT, "ngram"), (SHAPE, "ngram"), load))["overall"] for load in LOADS]
    assert [(each.interval.high or 0) < 1 for each in found] == [True, False, False]
    for text in (flat(CONFOUNDS), flat(SHAPE / "README.md")):
        assert "over ngram with the default: overall {}, {} and {}".format(*map(ratio, found)) in text


def test_both_baselines_with_full_graphs_were_slower_at_1_user() -> None:
    means = [
        statistics.geometric_mean(
            statistics.geometric_mean(row.e2el_s or 0 for row in rows if row.case == case)
            for case in {row.case for row in rows}
        )
        for folder in (SHAPE, SHAPE_DEFAULT)
        for run in of(folder, "baseline", 1)
        for rows in [[row for row in read_requests(run) if row.phase == "measured"]]
    ]
    said = "({:.0f} and {:.0f} ms, geometric means) are slower than both with the default ({:.0f} and {:.0f} ms)"
    assert said.format(*(each * 1e3 for each in means)) in flat(SHAPE / "README.md")


def test_the_best_of_both_is_told_as_measured() -> None:
    found = [lines(compared((SHAPE_DEFAULT, "baseline"), (SHAPE, "ngram"), load)) for load in LOADS]
    text = flat(SHAPE / "README.md")
    assert "overall {}, {} and {}".format(*(ratio(each["overall"]) for each in found)) in text
    assert "`none` {}, {} and {}".format(*(ratio(each["none"]) for each in found)) in text
    spreads = [f"{modes(SHAPE_DEFAULT, load).metrics['e2el'].overall.spread:.0%}" for load in LOADS]
    assert "deployments of a mode spread by {}, {} and {}".format(*spreads) in text


def test_the_limit_of_a_step_is_told_as_computed() -> None:
    limit = READ_GB_PER_STEP / H200_GB_PER_S * 1e3
    base = [step_ms(SHAPE, load)[0] for load in LOADS]
    share = limit / statistics.mean(base)
    text = flat(SHAPE / "README.md")
    assert f"{READ_GB_PER_STEP:.1f} GB over 4.8 TB/s: {limit:.1f} ms" in text
    assert f"takes {min(base):.1f} to {max(base):.1f} ms" in text and f"{share:.0%} of a step" in text
    assert limit == pytest.approx(1.7, abs=0.05)
    cost = [step_ms(SHAPE, load) for load in LOADS]
    default = [step_ms(SHAPE_DEFAULT, load) for load in LOADS]
    undrafted = [[f"{each[1] / each[0]:.2f}" for each in rows] for rows in (cost, default)]
    for words in (text, flat(CONFOUNDS)):
        assert "{}, {} and {} times a baseline step".format(*undrafted[0]) in words
        assert "{}, {} and {} with vLLM's default".format(*undrafted[1]) in words
    gates = flat(ROOT / "specbench" / "comparison" / "gates.py")
    assert "1.7 to 1.8 times as long as a baseline step, with full graphs 1.0 to 1.5 times" in gates
    low, high = (f"{pick(map(float, rows)):.1f}" for pick, rows in ((min, undrafted[1]), (max, undrafted[1])))
    assert (low, high) == ("1.7", "1.8")
    assert [f"{pick(map(float, undrafted[0])):.1f}" for pick in (min, max)] == ["1.0", "1.5"]


def test_what_drafting_did_is_told_as_counted() -> None:
    text = flat(SHAPE / "README.md")
    for folder in (SHAPE, SHAPE_DEFAULT):
        for run in folder.glob("0*-ngram-c*"):
            server = read_summary(run).server
            assert server.acceptance_rate == 1 and f"{server.draft_coverage:.0%}" == "14%"
    assert "all 100% of the drafted tokens are accepted, with a draft in 14% of the steps" in text
    assert all(
        modes(folder, load).equality.verdict is Likeness.IDENTICAL
        for folder in (SHAPE, SHAPE_DEFAULT)
        for load in LOADS
    )
    found = forecast(read_answers(SHAPE / "01-baseline-c1")).settings[0].families
    steps = [f"{found[family].tokens_per_step:.2f}" for family in ("copy", "half", "none")]
    even = [f"{found[family].break_even:.2f}" for family in ("copy", "half", "none")]
    assert "{}, {} and {} tokens a step".format(*steps) in text
    assert "while a step costs less than {}, {} and {} times the baseline's".format(*even) in text


def test_the_host_s_speed_is_told_as_measured() -> None:
    for folder in (SHAPE, SMALL):
        runs = [run for run in sorted(folder.rglob("0*-c?")) if run.parent != K3]
        each = [host_ms(folder / "host.txt", run) for run in runs]
        whole = host_ms(folder / "host.txt", *runs)
        said = f"{whole:.1f} ms in the median, {min(each):.1f} to {max(each):.1f} ms by run"
        assert said in flat(folder / "README.md"), said


def test_at_8_users_the_small_model_concludes_nothing_and_it_is_said_with_numbers() -> None:
    found, text = modes(SMALL, 8), flat(SMALL / "README.md")
    assert found.verdict.verdict is Word.NOT_COMPARABLE
    overall = found.metrics["e2el"].overall
    assert f"overall {ratio(overall)}" in text and f"spread by {overall.spread:.0%}" in text
    host = [f"{host_ms(SMALL / 'host.txt', SMALL / name):.1f}" for name in (
        "01-baseline-c8", "02-ngram-c8", "03-ngram-c8", "04-baseline-c8")]  # fmt: skip
    assert "{}, {}, {} and {} ms".format(*host) in text
    short: Counter[str] = Counter()
    for mode in ("baseline", "ngram"):
        for run in of(SMALL, mode, 8):
            rows = [row for row in read_requests(run) if row.phase == "measured" and row.case == "copy-2"]
            short[mode] += sum(row.completion_tokens == 20 for row in rows)
            assert len(rows) == 40
    assert f"{short['ngram']} of 80 answers of ngram and {short['baseline']} of 80 of the baseline" in text


def test_the_earlier_session_beside_it_is_told_as_measured() -> None:
    text = flat(SMALL / "README.md")
    ours, earlier = lines(modes(SMALL, 1)), lines(modes(SMALL_DEFAULT, 1))
    assert f"explanations take {ratio(ours['explain'])} at 1 user instead of {ratio(earlier['explain'])}" in text
    assert f"overall {ratio(ours['overall'])} instead of {ratio(earlier['overall'])}" in text


def test_the_forecast_of_k_3_is_told_as_it_came_out() -> None:
    text = flat(SMALL / "README.md")
    cost = read_cost(SMALL)
    for load in (1, 8):
        base = SMALL_DEFAULT / "varied" / f"2-baseline-c{load}"
        checked = check(cost, [base], [base], [K3 / f"02-ngram-c{load}"])
        replayed, counted = checked.drafts[0]
        assert f"{replayed} forecast and {counted} counted at {load} user" in text
        assert f"{replayed} / {counted}" in flat(ROOT / "docs" / "forecast.md")
    worst = [steal_ticks(K3 / f"02-ngram-c{load}") for load in (1, 8)]
    others = max(steal_ticks(run) for run in SMALL.glob("0*-c?"))
    assert f"{worst[0]} and {worst[1]} steal ticks during these two runs, at most {others} in any other" in text


def readme_rows() -> list[str]:
    """The rows of the README's H200 table: both models with full graphs, and the trap at Qwen3-4B's shape."""
    rows = []
    for model, folder, families in (
        ("Qwen3-4B's shape", SHAPE, ("copy", "half", "none", "overall")),
        ("SmolLM2-135M", SMALL, ("copy", "explain", "short", "overall")),
    ):
        ratios = dict(zip(families, ratio_rows(folder), strict=True))
        assert all(row.startswith(f"| {family} |") for family, row in ratios.items())
        rows += [f"| {model}: {row.removeprefix('| ')}" for row in ratios.values()]
        steps = [" / ".join(f"{each:.2f}" for each in step_ms(folder, load)) for load in LOADS]
        rows.append(f"| {model}: ms of a step | {' | '.join(steps)} |")
    trap = [ratio(lines(modes(SHAPE_DEFAULT, load))["none"]) for load in LOADS]
    return [*rows, f"| Qwen3-4B's shape: none, vLLM's default graphs | {' | '.join(trap)} |"]


def test_the_readme_s_h200_table_and_sentences_are_recomputed() -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## Measured on an NVIDIA H200", 1)[1].split("\n## ", 1)[0]
    for row in readme_rows():
        assert row in section, row
    said = re.sub(r"\s+", " ", section)
    full, default = ([step_ms(folder, load) for load in LOADS] for folder in (SHAPE, SHAPE_DEFAULT))
    undrafted = [[f"{each[1] / each[0]:.2f}" for each in steps] for steps in (full, default)]
    assert "costs {}, {} and {} baseline steps at 1, 4 and 8 users".format(*undrafted[0]) in said
    assert "{}, {} and {} with vLLM's default graphs".format(*undrafted[1]) in said
    limit = READ_GB_PER_STEP / H200_GB_PER_S * 1e3
    base = [each[0] for each in full]
    assert f"takes {min(base):.1f} to {max(base):.1f} ms, where reading the weights takes {limit:.1f} ms" in said
    families = forecast(read_answers(SHAPE / "01-baseline-c1")).settings[0].families
    even = [f"{families[family].break_even:.2f}" for family in ("copy", "half", "none")]
    assert "{}, {} and {} tokens a step after the prefill".format(*even) in said
    baselines = [lines(compared((SHAPE_DEFAULT, "baseline"), (SHAPE, "baseline"), load))["overall"] for load in LOADS]
    assert "{}, {} and {} of its time".format(*map(ratio, baselines)) in said
    drafting = [lines(compared((SHAPE_DEFAULT, "ngram"), (SHAPE, "ngram"), load))["overall"] for load in LOADS]
    assert "Full graphs bring ngram to {}, {} and {}".format(*map(ratio, drafting)) in said
    small, earlier = (ratio(lines(modes(folder, 1))["explain"]) for folder in (SMALL, SMALL_DEFAULT))
    assert (
        f"explanations take {small} at 1 user, and {earlier} in an earlier session with vLLM's default graphs" in said
    )
    assert f"overall {ratio(lines(modes(SMALL, 8))['overall'])}" in said
    copied = [lines(modes(SHAPE, load))["copy"].interval.ratio or 0 for load in LOADS]
    assert f"A copied answer takes {min(copied):.2f} to {max(copied):.2f} of the time" in said
