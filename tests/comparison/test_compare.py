"""The table, the JSON and the exit codes of compare.py.

tests/golden holds whole outputs; after a wanted change: UPDATE_GOLDEN=1 python -m pytest tests/test_compare.py
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest
from support import ROOT

import compare
from benchmarks.simulated_runs import NINE, write_run
from specbench.comparison import assessment
from specbench.comparison.assessment import Options
from specbench.comparison.format import FORMAT, Comparison
from specbench.comparison.sides import METRICS

GOLDEN = ROOT / "tests" / "golden"
RECORDED = ROOT / "tests" / "recordings" / "vllm-0.11.2"
MANY = [(f"{family}-{n}", family) for family in ("chat", "code", "edit") for n in range(110)]
ONE_OF_THREE = {"copy": -0.35}

Document = dict[str, Any]


def compare_directories(bases: list[Path], candidates: list[Path], options: Options | None = None) -> Document:
    """The comparison as its JSON holds it."""
    document: Document = msgspec.to_builtins(assessment.compare(bases, candidates, options or Options()))
    return document


def run(*arguments: str | Path, code: int) -> None:
    assert compare.main([str(argument) for argument in arguments]) == code


def vary(every: int) -> Callable[[str, int], str]:
    """An output of copy-1 that is another one in each of `every` repeats in turn."""
    return lambda case, repeat: f"{case} {repeat % every if case == 'copy-1' else 0}"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that directory names in outputs are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- whole outputs


def one_pair() -> list[str]:
    write_run(Path("baseline-c1"), repeats=10, expect={"short-1": "answer", "short-2": "Paris"})
    write_run(
        Path("ngram-c1"), mode="ngram", repeats=10, effect=ONE_OF_THREE, order=1, seed=2,
        expect={"short-1": "answer", "short-2": "Paris"},
    )  # fmt: skip
    return ["baseline-c1", "ngram-c1"]


def four_deployments(base: Mapping[str, Any] | None = None, **ngram: Any) -> list[str]:
    shifts = (0.01, -0.012, 0.008, -0.006)
    for order, (name, shift) in enumerate(zip(("baseline", "ngram", "ngram2", "baseline2"), shifts, strict=True)):
        side = {"effect": ONE_OF_THREE, **ngram} if name.startswith("ngram") else dict(base or {})
        mode = name.removesuffix("2")
        seeds = {"seed": order, "schedule_seed": int(name.endswith("2"))}
        write_run(Path(f"{name}-c1"), mode=mode, repeats=5, order=order, deployment=shift, **seeds, **side)
    return ["baseline-c1", "ngram-c1", "--and", "baseline2-c1", "ngram2-c1"]


def three_gates() -> list[str]:
    one_pair_of(repeats=5, summary={"server": {"preemptions": 2}, "client": {"cpu_share": 0.7}}, edit=newer_driver)
    return ["baseline-c1", "ngram-c1"]


def newer_driver(manifest: Document, summary: Document, rows: list[Document]) -> None:
    manifest["server"]["record"]["driver"] = "590.1"


def one_pair_of(base: Mapping[str, Any] | None = None, **ngram: Any) -> None:
    shared = {"repeats": ngram.pop("repeats", 10), "cases": ngram.pop("cases", NINE)}
    write_run(Path("baseline-c1"), **shared, **(base or {}))
    write_run(Path("ngram-c1"), **shared, **{"mode": "ngram", "order": 1, "seed": 2, **ngram})


def outputs_in_part_different() -> list[str]:
    def partly(case: str, repeat: int) -> str:
        return "New." if case == "short-1" else vary(2)(case, repeat)

    one_pair_of({"outputs": vary(2)}, outputs=partly)
    return ["baseline-c1", "ngram-c1", "--accept-floor", "--show", "short-1"]


def many_cases_once() -> list[str]:
    for order, mode in enumerate(("baseline", "ngram", "ngram", "baseline")):
        seed = int(order > 1)
        write_run(
            Path(f"{mode}{seed}"), mode=mode, cases=MANY, repeats=1, order=order, seed=order, schedule_seed=seed,
            effect=-0.1 if mode == "ngram" else 0, spread=0.2, deployment=0.01 * order,
        )  # fmt: skip
    return ["baseline0", "ngram0", "--and", "baseline1", "ngram1", "--mix", "code=0.6,chat=0.3,edit=0.1"]


def families_that_differ() -> list[str]:
    return four_deployments(effect={"copy": -0.35, "explain": 0.3})


def deployments_that_spread() -> list[str]:
    for order, shift in enumerate((0.08, -0.06, 0.09, -0.1)):
        mode, seed = ("baseline", "ngram", "ngram", "baseline")[order], int(order > 1)
        write_run(
            Path(f"{mode}{seed}"), mode=mode, repeats=5, order=order, seed=order, schedule_seed=seed, deployment=shift,
        )  # fmt: skip
    return ["baseline0", "ngram0", "--and", "baseline1", "ngram1"]


def a_server_that_says_nothing() -> list[str]:
    def silence(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"].update(record=None, cache_config=None, version=None)
        manifest["mode_verified"] = {"how": "not verified", "detail": ""}
        summary["server"] = {}

    one_pair_of({"edit": silence, "token_ids": False}, edit=silence, token_ids=False, repeats=2)
    return ["baseline-c1", "ngram-c1"]


def base_and_candidate_exchanged() -> list[str]:
    return one_pair()[::-1]


def deployments_that_do_not_alternate() -> list[str]:
    for order, name in enumerate(("baseline", "baseline2", "ngram", "ngram2")):
        write_run(Path(name), mode=name.removesuffix("2"), repeats=5, order=order, seed=order)
    return ["baseline", "ngram", "--and", "baseline2", "ngram2"]


GOLDENS: dict[str, tuple[Callable[[], list[str]], int]] = {
    "one_pair": (one_pair, 0),
    "four_deployments": (four_deployments, 0),
    "three_gates": (three_gates, 1),
    "outputs_in_part_different": (outputs_in_part_different, 1),
    "many_cases_once": (many_cases_once, 0),
    "families_that_differ": (families_that_differ, 0),
    "deployments_that_spread": (deployments_that_spread, 0),
    "a_server_that_says_nothing": (a_server_that_says_nothing, 0),
    "base_and_candidate_exchanged": (base_and_candidate_exchanged, 0),
    "deployments_that_do_not_alternate": (deployments_that_do_not_alternate, 0),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_output(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, code = GOLDENS[name]
    run(*make(), code=code)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(printed)
    assert printed == golden.read_text()


def test_every_golden_file_has_its_test() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(GOLDENS)


def test_markdown_holds_the_same_table_and_sentences(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*four_deployments(), "--markdown", "table.md", code=0)
    printed, written = capsys.readouterr().out, Path("table.md").read_text()
    for row in re.findall(r"^(?:E2EL|TTFT|TPOT|tokens).*$", printed, flags=re.MULTILINE):
        cells = re.split(r"\s{2,}", row.removesuffix(" *"))
        assert any(all(cell in line for cell in cells) for line in written.splitlines()), row
    assert "- Depends: on for copy (30% less), no clear difference for explain" in written
    widths = {line.count("|") - line.count("\\|") for line in written.splitlines() if line.startswith("|")}
    assert widths == {8}


def test_one_pair_has_no_interval_and_no_verdict_anywhere(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*one_pair(), "--json", "out.json", "--markdown", "table.md", code=0)
    printed, written = capsys.readouterr().out, Path("table.md").read_text()
    result = json.loads(Path("out.json").read_text())
    assert result["verdict"]["verdict"] is None and result["verdict"]["timing"] is None
    assert set(result["verdict"]["families"].values()) == {None}
    for line in summaries(result["metrics"]):
        assert line["low"] is line["high"] is None
    for text in (printed, written):
        said = " ".join(text.split())
        assert "one deployment of each mode describes these two; deploy both again in the reverse order" in said
        assert "interval" not in said and "faster" not in said and "spread" not in said


def test_the_json_is_read_back_as_it_was_written(here: Path) -> None:
    run(*four_deployments(), "--json", "out.json", code=0)
    read = msgspec.json.decode(Path("out.json").read_bytes(), type=Comparison)
    written = assessment.compare(
        [Path("baseline-c1"), Path("baseline2-c1")], [Path("ngram-c1"), Path("ngram2-c1")]
    )
    assert read == written and read.primary.name == "overall"


# ---- the numbers, recomputed


def recomputed(paths: list[Path], metric: str) -> dict[str, dict[str, float]]:
    """Median and mean log per family and overall, from requests.jsonl alone: by jq where there is one."""
    tpot = "(.completion_tokens - (.first_tokens // 1)) as $n | if $n >= 1 then .decode_s / $n else null end"
    value = {"e2el": ".e2el_s", "ttft": ".ttft_s", "tpot": tpot}[metric]
    middle = "sort | if length % 2 == 1 then .[(length - 1) / 2] else (.[length / 2 - 1] + .[length / 2]) / 2 end"
    numbers = f"{{median: ({middle}), mean_log: (map(log) | add / length)}}"
    program = f"""
        map(select(.phase == "measured") | {{family, value: ({value})}} | select(.value != null))
        | [(group_by(.family)[] | {{key: .[0].family, value: (map(.value) | {numbers})}}),
           {{key: "overall", value: (map(.value) | {numbers})}}] | from_entries"""
    if jq := shutil.which("jq"):
        done = subprocess.run(
            [jq, "-s", program, *(str(path / "requests.jsonl") for path in paths)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        result: dict[str, dict[str, float]] = json.loads(done.stdout)
        return result
    values: dict[str, list[float]] = defaultdict(list)
    for path in paths:
        for row in map(json.loads, (path / "requests.jsonl").read_text().splitlines()):
            later = row["completion_tokens"] - (row["first_tokens"] or 1)
            tpot_s = row["decode_s"] / later if later >= 1 else None
            number = {"e2el": row["e2el_s"], "ttft": row["ttft_s"], "tpot": tpot_s}[metric]
            if row["phase"] == "measured" and number:
                values[row["family"]].append(number)
                values["overall"].append(number)
    return {name: {"median": median(of), "mean_log": sum(map(math.log, of)) / len(of)} for name, of in values.items()}


@pytest.mark.parametrize("metric", METRICS)
def test_medians_and_ratios_are_what_jq_computes(metric: str, here: Path) -> None:
    arguments = four_deployments()
    result = compare_directories([Path("baseline-c1"), Path("baseline2-c1")], [Path("ngram-c1"), Path("ngram2-c1")])
    base = recomputed([Path(name) for name in arguments if name.startswith("baseline")], metric)
    candidate = recomputed([Path(name) for name in arguments if name.startswith("ngram")], metric)
    lines = {**result["metrics"][metric]["families"], "overall": result["metrics"][metric]["overall"]}
    assert lines.keys() == base.keys()
    for name, line in lines.items():
        assert line["base_median_s"] == pytest.approx(base[name]["median"], rel=1e-12)
        assert line["candidate_median_s"] == pytest.approx(candidate[name]["median"], rel=1e-12)
        ratio = math.exp(candidate[name]["mean_log"] - base[name]["mean_log"])
        assert line["interval"]["ratio"] == pytest.approx(ratio, rel=1e-12)


def test_the_printed_ratio_is_that_of_the_two_printed_means(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*one_pair(), "--json", "out.json", code=0)
    copy = json.loads(Path("out.json").read_text())["metrics"]["e2el"]["families"]["copy"]
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("E2EL copy"))
    milliseconds = [float(number) for number in re.findall(r"([\d.]+) ms", row)]
    interval = copy["interval"]
    assert milliseconds == pytest.approx([1000 * interval["base"], 1000 * interval["candidate"]], rel=5e-3)
    assert milliseconds[1] / milliseconds[0] == pytest.approx(interval["ratio"], rel=5e-3)
    assert copy["base_median_s"] != interval["base"]


def summaries(value: Any) -> list[Document]:
    """Every object with a ratio, in order."""
    if isinstance(value, dict):
        own = [value] if "ratio" in value and "low" in value else []
        return own + [found for part in value.values() for found in summaries(part)]
    return []


@pytest.mark.parametrize("deployments", [1, 2])
def test_exchanging_the_sides_inverts_ratios_and_swaps_bounds(deployments: int, here: Path) -> None:
    four_deployments()
    bases, candidates = [Path("baseline-c1"), Path("baseline2-c1")], [Path("ngram-c1"), Path("ngram2-c1")]
    there = summaries(compare_directories(bases[:deployments], candidates[:deployments])["metrics"])
    back = summaries(compare_directories(candidates[:deployments], bases[:deployments])["metrics"])
    assert len(there) == len(back) == 24
    for one, two in zip(there, back, strict=True):
        assert one["ratio"] * two["ratio"] == pytest.approx(1, abs=1e-12)
        assert (one["low"] is None) == (two["low"] is None)
        if one["low"] is not None:
            assert one["low"] * two["high"] == pytest.approx(1, abs=1e-12)
            assert one["high"] * two["low"] == pytest.approx(1, abs=1e-12)


def test_tokens_per_second_is_the_mean_of_the_deployments(here: Path) -> None:
    four_deployments()
    result = compare_directories([Path("baseline-c1"), Path("baseline2-c1")], [Path("ngram-c1"), Path("ngram2-c1")])
    paths = [Path(name, "summary.json") for name in ("baseline-c1", "baseline2-c1")]
    mean = sum(json.loads(path.read_text())["throughput"]["tokens_per_s"] for path in paths) / 2
    assert result["throughput"]["base_tokens_per_s"] == pytest.approx(mean)


def test_requests_without_tpot_are_counted_not_hidden(here: Path) -> None:
    def one_token(manifest: Document, summary: Document, rows: list[Document]) -> None:
        rows[4]["completion_tokens"] = 1

    one_pair_of({"edit": one_token})
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])
    assert any("TPOT: 1 of 90 requests" in warning for warning in result["warnings"])
    assert result["metrics"]["e2el"]["requests"] == 90 and result["metrics"]["tpot"]["requests"] == 89


# ---- equality and exit codes


def verdicts(result: Document) -> dict[str, str]:
    return {case: of["verdict"] for case, of in result["equality"]["cases"].items()}


def test_text_decides_where_a_side_has_no_token_ids(here: Path) -> None:
    one_pair_of({"token_ids": False}, repeats=2)
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])
    assert {of["compared"] for of in result["equality"]["cases"].values()} == {"text"}
    assert result["exit_code"] == 0


def test_token_ids_decide_where_both_sides_have_them(here: Path) -> None:
    def other_ids(manifest: Document, summary: Document, rows: list[Document]) -> None:
        for row in rows:
            row["token_ids"] = [1, *row["token_ids"]]

    one_pair_of(edit=other_ids, repeats=5)
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])
    assert set(verdicts(result).values()) == {"changed"}
    assert result["equality"]["cases"]["copy-1"]["divergence"]["token"] == 0
    assert result["equality"]["cases"]["copy-1"]["divergence"]["character"] is None


def test_first_divergence_shows_both_continuations(here: Path) -> None:
    one_pair_of(
        {"outputs": lambda case, repeat: "The capital is Paris."},
        outputs=lambda case, repeat: "The capital is Lyon." if case == "short-1" else "The capital is Paris.",
    )
    of = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])["equality"]["cases"]["short-1"]
    assert of["divergence"] == {
        "token": 3, "character": 15, "before": "The capital is ", "base": "Paris.", "candidate": "Lyon.",
    }  # fmt: skip
    assert (of["distinct_base"], of["distinct_candidate"], of["shared"]) == (1, 1, 0)


def test_one_repeat_that_differs_has_no_floor(here: Path) -> None:
    one_pair_of(repeats=1, outputs=lambda case, repeat: "Other." if case == "copy-1" else f"The answer to {case}.")
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")], Options(accept_floor=True))
    assert verdicts(result)["copy-1"] == "cannot tell"
    assert result["exit_code"] == 1 and result["verdict"]["verdict"] == "not comparable"


FLOOR = Options(accept_floor=True)


def two_pairs_of(outputs: Callable[[str, str, int], str], **run: Any) -> Document:
    """b1, n1, n2, b2 in this order; `outputs` takes the deployment, the case and the repeat."""
    for order, name in enumerate(("b1", "n1", "n2", "b2")):
        ngram = {"mode": "ngram", "effect": -0.3} if name.startswith("n") else {}
        write_run(
            Path(name), order=order, seed=order, deployment=0.002 * order, **ngram, **run,
            outputs=lambda case, repeat, name=name: outputs(name, case, repeat),
        )  # fmt: skip
    return compare_directories([Path("b1"), Path("b2")], [Path("n1"), Path("n2")], FLOOR)


def test_a_baseline_that_differs_from_itself_is_told_and_passes(here: Path) -> None:
    def outputs(deployment: str, case: str, repeat: int) -> str:
        other = {"b1": False, "b2": repeat % 2 == 1}.get(deployment, repeat == 1)
        return f"{case} {'B' if other else 'A'}"

    cases = [(f"{family}-{number}", family) for family in ("copy", "explain", "short") for number in range(40)]
    result = two_pairs_of(outputs, cases=cases, repeats=4)
    # No case shows it alone.
    assert set(verdicts(result).values()) == {"within the baseline's variation"}
    assert "own outputs change from deployment to deployment" in result["equality"]["sentence"]
    assert result["equality"]["base_p"] < 0.025
    assert (result["exit_code"], result["verdict"]["verdict"]) == (0, "faster")


def test_cases_with_one_repeat_are_judged_together(here: Path) -> None:
    """The second deployment shows the floor; with one repeat no case can ever be told alone."""

    def one_repeat(deployment: str, case: str, repeat: int) -> str:
        number = int(case.split("-")[1])
        return f"{case} {(number + (deployment in ('b1', 'n2'))) % 2 if number % 3 == 0 else 0}"

    many = [(f"copy-{number}", "copy") for number in range(90)]
    result = two_pairs_of(one_repeat, cases=many, repeats=1)
    assert result["equality"]["verdict"] == "within the baseline's variation" and result["exit_code"] == 0


def test_outputs_that_alternate_on_both_sides_pass_with_two_repeats(here: Path) -> None:
    def outputs(case: str, repeat: int) -> str:
        return f"{case} {repeat % 2}"

    one_pair_of({"outputs": outputs}, outputs=outputs, repeats=2)
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")], FLOOR)
    assert result["equality"]["counts"] == {"within the baseline's variation": 9}
    assert (result["exit_code"], result["verdict"]["verdict"]) == (0, None)


@pytest.mark.parametrize(("changed", "passes"), [(5, False), (1, True)])
def test_accept_floor_is_advised_only_where_it_helps(
    changed: int, passes: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def outputs(case: str, repeat: int) -> str:
        return f"{case} {int(case == 'copy-1' and repeat < changed)}"

    one_pair_of({"outputs": lambda case, repeat: f"{case} 0"}, outputs=outputs)
    run("baseline-c1", "ngram-c1", code=1)
    printed = " ".join(capsys.readouterr().out.split())
    assert ("--accept-floor passes" in printed) == passes
    assert ("outputs changed in 1 case of 9" in printed) != passes
    run("baseline-c1", "ngram-c1", "--accept-floor", code=0 if passes else 1)


def test_outputs_of_which_nothing_can_be_said_name_what_would_tell(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_pair_of({"outputs": lambda *_: "A"}, outputs=lambda case, repeat: "B" if case == "copy-1" else "A", repeats=3)
    run("baseline-c1", "ngram-c1", "--accept-floor", code=1)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Not comparable: 1 case of 9 differs in too few answers for a test and in too many to be chance" in printed
    assert "; 4 answers to a case on each side (deployments times --repeats) would tell: copy-1" in printed
    assert "no change of a case is found with 80% power; use more --repeats" in printed


def test_an_output_of_the_base_alone_is_not_shown_as_the_candidate_s(here: Path) -> None:
    one_pair_of({"outputs": lambda case, repeat: "odd" if repeat == 3 else "usual"}, outputs=lambda *_: "usual")
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")], FLOOR)
    assert result["equality"]["cases"]["copy-1"]["verdict"] == "within the baseline's variation"
    assert result["equality"]["cases"]["copy-1"]["divergence"] is None


def test_divergences_are_kept_of_the_first_cases_and_shown_of_any(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(assessment, "DIVERGENCES", 2)
    one_pair_of(outputs=lambda case, _: "New." if case != "copy-1" else f"The answer to {case}.")
    run("baseline-c1", "ngram-c1", "--json", "out.json", "--show", "short-3", code=1)
    cases = json.loads(Path("out.json").read_text())["equality"]["cases"]
    assert [case for case, of in cases.items() if of["divergence"]] == ["copy-2", "copy-3"]
    assert "First divergence at token 0, character 0" in capsys.readouterr().out


@pytest.mark.parametrize(("longer", "side"), [("baseline-c1", "candidate"), ("ngram-c1", "base")])
def test_the_side_that_answered_shorter_is_named(longer: str, side: str, here: Path) -> None:
    def add(manifest: Document, summary: Document, rows: list[Document]) -> None:
        for row in rows:
            row["completion_tokens"] += 5 * (row["case"] == "copy-2")

    one_pair_of({"edit": add} if longer == "baseline-c1" else {}, **({"edit": add} if longer == "ngram-c1" else {}))
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])
    found = [warning for warning in result["warnings"] if "answered shorter" in warning]
    assert len(found) == 1 and found[0].startswith(f"The {side} answered shorter") and "copy-2" in found[0]


def test_a_mix_is_judged_by_the_families_that_it_weighs(here: Path) -> None:
    one_pair_of(effect=-0.3, outputs=lambda case, _: "New." if case == "explain-1" else f"The answer to {case}.")

    def verdict(**mix: float) -> tuple[str, int]:
        result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")], Options(mix=mix))
        return result["verdict"]["verdict"], result["exit_code"]

    assert verdict(copy=1.0, explain=0.0) == (None, 1)
    assert verdict(copy=0.9, explain=0.1) == ("not comparable", 1)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(primary="short"),
        Options(mix={"copy": 0.75, "short": 0.25}),
    ],
    ids=["overall", "family", "mix"],
)
def test_the_times_of_deployments_are_those_of_the_primary_line(options: Options, here: Path) -> None:
    four_deployments()
    bases, candidates = [Path("baseline-c1"), Path("baseline2-c1")], [Path("ngram-c1"), Path("ngram2-c1")]
    result = compare_directories(bases, candidates, options)
    metric = result["metrics"]["e2el"]
    line = metric["families"].get(options.primary, metric["overall"])
    logs = {side: [math.log(of["e2el_s"]) for of in result["deployments"] if of["side"] == side]
            for side in ("base", "candidate")}  # fmt: skip
    spread = math.sqrt(sum((one - two) ** 2 / 2 for one, two in logs.values()) / 2)
    assert spread == pytest.approx(line["spread"], rel=1e-9)
    assert sum(logs["base"]) / 2 == pytest.approx(math.log(line["interval"]["base"]), rel=1e-9)


def test_two_baselines_are_no_clear_difference(here: Path) -> None:
    for order in range(4):
        write_run(Path(f"baseline{order}"), repeats=10, order=order, seed=order, schedule_seed=order // 2)
    options = Options(allow_same_mode=True)
    bases, candidates = [Path("baseline0"), Path("baseline3")], [Path("baseline1"), Path("baseline2")]
    result = compare_directories(bases, candidates, options)
    assert (result["verdict"]["verdict"], result["exit_code"]) == ("no clear difference", 0)
    assert any("Both sides are baseline" in warning for warning in result["warnings"])


def test_a_changed_reason_to_stop_is_named(here: Path) -> None:
    def cut(manifest: Document, summary: Document, rows: list[Document]) -> None:
        for row in rows:
            if row["case"] == "explain-1":
                row["finish_reason"] = "length"

    one_pair_of(edit=cut, repeats=2)
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])
    assert any(w.startswith("The reason why an answer ended") and "explain-1" in w for w in result["warnings"])
    assert result["equality"]["cases"]["explain-1"]["finish_candidate"] == {"length": 2}


def test_expected_answers_are_counted_in_both_modes(here: Path) -> None:
    expect = {"short-1": "Paris", "short-2": "^The answer"}
    one_pair_of({"expect": expect, "outputs": lambda case, repeat: "The answer is Paris."}, expect=expect,
                outputs=lambda case, repeat: "The answer is Rome.", repeats=10)  # fmt: skip
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")])["expect"]
    assert (result["pairs"], result["base_passed"], result["candidate_passed"]) == (20, 20, 10)
    assert (result["only_base"], result["only_candidate"]) == (10, 0)
    assert result["p"] == pytest.approx(2 / 2**10)
    assert result["cases"]["short-1"] == {"checked": 10, "base_passed": 10, "candidate_passed": 0}


def test_a_mix_weighs_families(here: Path) -> None:
    four_deployments()
    options = Options(mix={"copy": 0.25, "short": 0.75})
    result = compare_directories([Path("baseline-c1")], [Path("ngram-c1")], options)
    lines = result["metrics"]["e2el"]
    logs = [math.log(lines["families"][family]["interval"]["ratio"]) for family in ("copy", "short")]
    assert math.log(lines["overall"]["interval"]["ratio"]) == pytest.approx(0.25 * logs[0] + 0.75 * logs[1])
    assert result["verdict"]["line"] == "mix"


# ---- untrusted text


def test_control_characters_of_the_model_do_not_reach_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [("evil\x1b[2J", "fam\x1b[31m\nily"), ("plain", "a|b")]
    one_pair_of(cases=cases, repeats=2, outputs=lambda case, repeat: f"\x1b]0;owned\x07{repeat}\u202e")
    run("baseline-c1", "ngram-c1", "--show", "evil\x1b[2J", "--markdown", "out.md", code=1)
    printed = capsys.readouterr().out
    for text in (printed, Path("out.md").read_text()):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    assert "\\x1b]0;owned" in printed
    assert "a\\|b" in Path("out.md").read_text()


def test_a_long_family_name_does_not_break_the_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = four_deployments(cases=(cases := [("a", "x" * 200), ("b", "y" * 200)]), base={"cases": cases})
    run(*names, code=0)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


# ---- the door


def test_the_share_of_cached_prompt_tokens_is_told_where_caching_is_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def caching(manifest: Document, summary: Document, rows: list[Document]) -> None:
        manifest["server"]["record"]["prefix_caching"] = True
        summary["server"].update(prefix_cache_queries=1000, prefix_cache_hits=450 if manifest["mode"] == "ngram" else 0)

    one_pair_of({"edit": caching}, edit=caching, repeats=2)
    run("baseline-c1", "ngram-c1", "--json", "out.json", code=0)
    assert "came from the prefix cache: base 0%, candidate 45%." in " ".join(capsys.readouterr().out.split())
    shares = [one["prefix_cache_hit_share"] for one in json.loads(Path("out.json").read_text())["deployments"]]
    assert shares == [0, 0.45]


def door(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "compare.py"), *arguments]
    return subprocess.run(command, text=True, check=False, **{"capture_output": True, **options})


def test_json_may_go_to_standard_output_or_nowhere(here: Path) -> None:
    one_pair_of(repeats=2)
    done = door("baseline-c1", "ngram-c1", "--json", "/dev/stdout")
    assert done.returncode == 0
    document, end = json.JSONDecoder().raw_decode(done.stdout)
    assert document["format"] == 2 and "E2EL overall" in done.stdout[end:]
    assert door("baseline-c1", "ngram-c1", "--json", "/dev/null").returncode == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("option", ["--json", "--markdown"])
@pytest.mark.parametrize(("name", "says"), [(".", "is a folder"), ("", "the name is empty")])
def test_an_output_that_is_no_file_is_one_sentence(option: str, name: str, says: str, here: Path) -> None:
    one_pair_of(repeats=2)
    done = door("baseline-c1", "ngram-c1", option, name)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("case", ["full", "closed", "ascii", "gone"])
def test_a_dead_terminal_loses_what_is_printed_and_nothing_else(case: str, here: Path) -> None:
    one_pair_of(repeats=2)
    command = f"{sys.executable} {ROOT / 'compare.py'} baseline-c1 ngram-c1 --json out.json"
    endings = {"full": " >/dev/full", "closed": " >&-", "ascii": "", "gone": " | true; exit ${PIPESTATUS[0]}"}
    environment = {**os.environ, **({"PYTHONIOENCODING": "ascii"} if case == "ascii" else {})}
    done = subprocess.run(
        ["bash", "-c", command + endings[case]], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert json.loads(Path("out.json").read_text())["exit_code"] == 0


BAD_OPTIONS = [
    (["--mix", "copy=0.5,short=0.4"], "sum to 0.9"),
    (["--mix", "copy=1.5,short=-0.5"], "'copy=1.5'"),
    (["--mix", "copy"], "FAMILY=WEIGHT"),
    (["--mix", "copy=nan"], "FAMILY=WEIGHT"),
    (["--mix", "copy=0.5,copy=0.5"], "each family once"),
    (["--mix", "chat=1"], "names the family 'chat', which the inventory lacks; it has copy, explain, short"),
    (["--primary", "chat"], "--primary is 'chat'; name overall or one of copy, explain, short"),
    (["--show", "copy-9"], "--show names the case 'copy-9'"),
    (["--json", "nowhere/out.json"], "cannot write nowhere/out.json"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=[" ".join(row[0]) for row in BAD_OPTIONS])
def test_a_bad_option_is_one_sentence(
    options: list[str], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_pair_of(repeats=2)
    run("baseline-c1", "ngram-c1", *options, code=2)
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.startswith("compare.py: ")
    assert printed.err.count("\n") == 1 and not printed.out


@pytest.mark.parametrize("deployment", ["baseline-c1", "ngram-c1"])
def test_an_unusable_directory_ends_with_2_and_no_traceback(deployment: str, here: Path) -> None:
    one_pair_of(repeats=2)
    Path(deployment, "requests.jsonl").write_text("not json\n")
    done = subprocess.run(
        [sys.executable, ROOT / "compare.py", "baseline-c1", "ngram-c1", "--json", "out.json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"compare.py: {deployment}/requests.jsonl line 1") and done.stderr.count("\n") == 1
    assert not Path("out.json").exists()


@pytest.mark.parametrize("option", ["--json", "--markdown"])
@pytest.mark.parametrize("file", ["baseline-c1/requests.jsonl", "ngram-c1/manifest.json", "ngram-c1/new.json"])
def test_nothing_is_written_over_what_was_measured(
    option: str, file: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_pair_of(repeats=2)
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    run("baseline-c1", "ngram-c1", option, file, code=2)
    assert f"compare.py: {option} {file} is where measurements are kept" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("summary.json", {"requests_sha256": "0" * 64}, "requests.jsonl is not the file that summary.json"),
        ("manifest.json", {"status": "interrupted"}, "manifest.json says interrupted and summary.json complete"),
        ("manifest.json", {"mode": "eagle"}, "manifest.json is not what bench.py writes"),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    file: str, change: dict[str, Any], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_pair_of(repeats=2)
    path = here / "ngram-c1" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    run("baseline-c1", "ngram-c1", code=2)
    assert says in capsys.readouterr().err


def test_the_json_is_documented_key_by_key(here: Path) -> None:
    run(*four_deployments(), "--json", "out.json", code=0)
    result = json.loads(Path("out.json").read_text())
    assert result["format"] == FORMAT == 2
    documented = (ROOT / "docs" / "comparison.md").read_text()
    by_name = {"cases", "families", "counts", "finish_base", "finish_candidate", "mix", "mode_verified"}

    def keys(value: Any) -> set[str]:
        if isinstance(value, list):
            return {key for part in value for key in keys(part)}
        if not isinstance(value, dict):
            return set()
        found = set(value)
        for key, part in value.items():
            # What stands under these is named by the user's own cases and families: look one level deeper.
            inner = list(part.values()) if key in by_name and isinstance(part, dict) else part
            found |= keys(inner)
        return found

    assert not {key for key in keys(result) if f"`{key}`" not in documented}


# ---- the real thing


def recorded_rows(mode: str, users: int) -> dict[tuple[str, int], Document]:
    lines = (RECORDED / mode / f"requests-c{users}.jsonl").read_text().splitlines()
    return {(row["case"], row["repeat"]): row for row in map(json.loads, lines)}


def recorded(path: Path, mode: str, users: int, order: int) -> Path:
    """Recorded vLLM requests in the form of a result directory, both modes in the order of the recorded baseline."""
    real, positions = recorded_rows(mode, users), recorded_rows("baseline", users)

    def replace(manifest: Document, summary: Document, rows: list[Document]) -> None:
        for row in rows:
            of = real[row["case"], row["repeat"]]
            ttft, e2el = of["ttft_ms"] / 1000, of["latency_ms"] / 1000
            row.update(ttft_s=ttft, e2el_s=e2el, decode_s=e2el - ttft, text=of["text"], token_ids=None)
            row.update(completion_tokens=of["completion_tokens"], finish_reason=of["finish_reason"])
            row["position"] = positions[row["case"], row["repeat"]]["order"]

    return write_run(path, mode=mode, repeats=10, concurrency=users, order=order, edit=replace)


@pytest.mark.parametrize("users", [1, 4, 8])
def test_recorded_runs_of_vllm(users: int, tmp_path: Path) -> None:
    base = recorded(tmp_path / "baseline", "baseline", users, 0)
    candidate = recorded(tmp_path / "ngram", "ngram", users, 1)
    result = compare_directories([base], [candidate], Options(accept_floor=True))
    words = set(verdicts(result).values())
    if users == 1:
        assert words == {"identical"}
    else:  # the baseline alone gives several outputs: that is no evidence against ngram
        assert "within the baseline's variation" in words
        assert max(of["distinct_base"] for of in result["equality"]["cases"].values()) > 1
    assert result["metrics"]["e2el"]["families"]["copy"]["interval"]["ratio"] < 1 or users > 1
    assert result["metrics"]["e2el"]["overall"]["prompts"]["low"] is None
