"""The page: its numbers, its sentences, what it does with hostile outputs, and how a real browser shows it."""

import html.parser
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT
from support.browser import Browser, Page, find_chromium
from support.simulated_runs import EPOCH, LEVEL_S, write_run

import report
from specbench import UserError, words
from specbench.comparison.assessment import Options, compare
from specbench.files import json_bytes
from specbench.page import answer, charts, evidence, panels, provenance
from specbench.record.directory import read_requests

MODES = ("baseline", "ngram")
EFFECTS = {
    1: {"copy": -0.4, "explain": -0.05},
    4: {"copy": -0.25, "explain": 0.03, "short": 0.06},
    8: {"copy": -0.1, "explain": 0.12, "short": 0.15},
}
HOSTILE = (
    "</pre><script>document.title='owned'</script><img src=https://127.0.0.1:9/x onerror=\"document.title='owned'\">"
    "\x1b[31m\u202eevil\u2066\u200b\U000e0041{{ 7 * 7 }}<svg onload=\"document.title='owned'\">"
)

SECRET = "not-for-any-eyes"


def write_experiment(
    folder: Path,
    loads: tuple[int, ...] = (1, 4, 8),
    order: str = "BNNB",
    outputs: Callable[[str, int, str, int], str] = lambda case, repeat, mode, load: f"The answer to {case}.",
    **options: Any,
) -> Path:
    """An experiment folder as experiment.py leaves it: simulated result directories, compare.py's own JSON."""
    deployments: list[dict[str, Any]] = []
    for index, letter in enumerate(order):
        mode = "baseline" if letter == "B" else "ngram"
        name = f"{index + 1:02d}-{mode}"
        started = EPOCH + timedelta(minutes=20 * index)
        for load in loads:
            write_run(
                folder / f"{name}-c{load}", mode=mode, order=index, concurrency=load, repeats=6, seed=10 * index + load,
                effect=EFFECTS[load] if mode == "ngram" else 0.0, deployment=0.004 * (-1) ** (index // 2),
                outputs=lambda case, repeat, mode=mode, load=load: outputs(case, repeat, mode, load), **options,
            )  # fmt: skip
        deployments.append(
            {
                "index": index + 1, "name": name, "mode": mode, "status": "done", "compile_cache": "warm",
                "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"), "ready_s": 61.5,
                "loads": {
                    str(load): {"directory": f"{name}-c{load}", "status": "done", "seconds": 180.0} for load in loads
                },
                "proof": {"proven": ["port 8000 is closed"], "not_proven": ["GPU memory (nvidia-smi was not there)"]},
            }
        )  # fmt: skip
    settings = {"target": "vllm", "order": order, "concurrency": list(loads), "repeats": 6, "launcher_options": []}
    comparisons = {}
    for load in loads:
        sides = [[f"{d['name']}-c{load}" for d in deployments if d["mode"] == mode] for mode in MODES]
        result = compare(*([folder / name for name in side] for side in sides), Options(accept_floor=True))
        # experiment.py compares inside the folder: names without it.
        (folder / f"compare-c{load}.json").write_text(json_bytes(result).decode().replace(f"{folder}/", ""))
        pairs = list(zip(*sides, strict=True))
        comparisons[str(load)] = {"json": f"compare-c{load}.json", "pairs": pairs}
    document = {
        "format": 1, "settings": settings, "status": "complete", "deployments": deployments, "comparisons": comparisons,
    }  # fmt: skip
    (folder / "experiment.json").write_bytes(json_bytes(document))
    return folder


def outputs_of_the_experiment(case: str, repeat: int, mode: str, load: int) -> str:
    """One load identical, one within the floor, one with hostile and endless outputs of ngram alone."""
    if load == 4 and case == "explain-1":
        return f"variant {repeat % 2}"
    if load == 8 and case == "copy-1" and mode == "ngram":
        return HOSTILE + "w" * 100_000 * (repeat == 0)
    return f"The answer to {case}."


def hostile_server(manifest: dict[str, Any], summary: dict[str, Any], _: Any) -> None:
    """A server that puts markup and what it was told in secret into everything that it says of itself."""
    said = HOSTILE.replace("evil", "server")
    manifest["server"]["version"] += said
    record = manifest["server"]["record"]
    record["driver"] = record["cuda"] = said
    record["gpus"] = [{"name": said, "memory_mib": 1}]
    record["argv"] += ["--api-key", SECRET, "--note", said]
    record["environment"] = {"HF_TOKEN": SECRET, "NOTE": said}
    manifest["mode_verified"]["detail"] = said
    manifest["command"] += [f"--api-key={SECRET}"]
    summary["warnings"] = [said]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "trial"
    return write_experiment(folder, outputs=outputs_of_the_experiment, edit=hostile_server)


@pytest.fixture(scope="module")
def page(experiment: Path) -> str:
    assert report.main([str(experiment)]) == 0
    return (experiment / "report.html").read_text()


class Tables(html.parser.HTMLParser):
    """Every table as rows of cell texts, by the label of the region around it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._label = ""
        self._cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("role") == "region":
            self._label = str(dict(attrs)["aria-label"])
        if tag == "tr":
            self.tables.setdefault(self._label, []).append([])
        if tag in ("td", "th"):
            self._cell = []

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.tables[self._label][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None


# ---- numbers


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
            assert cell.startswith(f"{candidate / base:.3f} ")
            assert f"{line['interval']['low']:.3f}–{line['interval']['high']:.3f}" in cell
            assert line["verdict"] in cell
    assert "not comparable" in rows["copy"][3] and "times alone: faster" in rows["copy"][3]
    assert rows["Gates"][1] == "✓ none fired"
    assert "Outputs vary in 1 of 9 cases, no more than baseline differs from itself" in page
    assert "do not give the same outputs in 1 of 9 cases" in page


def test_tables_below_hold_the_numbers_of_the_directories(experiment: Path, page: str) -> None:
    tables = Tables(page).tables
    e2el = [r.e2el_s for p in experiment.glob("*-ngram-c8") for r in read_requests(p) if r.family == "short"]
    row = next(row for row in tables["Ratios in numbers"] if row[:3] == ["8 users", "E2EL", "short"])
    assert row[4] == words.duration(float(np.median([value for value in e2el if value])))
    rates = [
        json.loads((path / "summary.json").read_text())["throughput"]["tokens_per_s"]
        for path in experiment.glob("*-baseline-c4")
    ]
    row = next(row for row in tables["Throughput"] if row[0] == "4 users")
    assert row[1] == f"{np.mean(rates):,.1f}"
    row = next(row for row in tables["Output equality by load"] if row[0] == "4 users")
    # One of nine cases has two outputs, six each of twelve: 6·6·2 of 12·11 pairs differ.
    assert row[2:4] == ["8 of 9", f"{72 / 132 / 9:.1%}"]
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


def test_the_redeploy_bar_is_one_spread_to_either_side() -> None:
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


# ---- sentences


def line(timing: str, ratio: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    interval = {"ratio": ratio, "low": low, "high": high, "reason": "too few"}
    return {"name": "overall", "primary": True, "timing": timing, "interval": interval}


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (line("faster", 0.79, 0.74, 0.85), "21% less time per request (95% interval: 15% to 26% less)"),
        (line("slower", 1.062, 1.012, 1.112), "6.2% more time per request (95% interval: 1.2% to 11% more)"),
        (line("no clear difference", 1, 0.9, 1.05), "between 10% less and 5.0% more time per request (95% interval)"),
        (line("cannot say from this pair", 0.87), "13% less time per request, with no interval: too few"),
        (line("cannot say from this pair", None), "nothing to say of time: too few"),
    ],
)
def test_the_effect_in_words(of: dict[str, Any], said: str) -> None:
    assert answer.time_said(of) == said


@pytest.mark.parametrize(
    ("verdict", "kind", "lead"),
    [
        ("faster", "good", "Yes"),
        ("slower", "bad", "No"),
        ("no clear difference", "same", "No clear difference"),
        ("depends", "same", "Depends"),
        (None, "unknown", "No verdict"),
        ("not comparable", "stop", "Not comparable"),
        ("suspect", "stop", "Suspect"),
    ],
)
def test_every_verdict_has_an_answer(verdict: str | None, kind: str, lead: str) -> None:
    families = {name: {**line("faster", 0.7), "name": name, "primary": False} for name in ("copy", "short")}
    result = {
        "verdict": {"verdict": verdict, "timing": "faster"},
        "base": {"mode": "baseline"},
        "candidate": {"mode": "ngram"},
        "cases": 9,
        "gates": [{"name": "preemptions", "state": "fired"}],
        "equality": {"verdict": "changed", "cases": {"copy-1": {"passes": False}}, "counts": {"identical": 8}},
        "metrics": {"e2el": {"overall": line("faster", 0.8, 0.7, 0.9), "families": families}},
    }
    said = answer.answer(result)
    assert (said["kind"], said["lead"]) == (kind, lead)
    assert "20% less time per request" in said["time"]
    assert bool(said["families"]) == (kind != "stop")


def test_a_gate_that_fires_at_two_loads_is_told_once(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1, 4), order="BN", summary={"server": {"preemptions": 3}})
    assert report.main([str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert text.count("<b>preemptions</b>") == 1 and "1 user: 01-baseline-c1" in text and "4 users: 01-" in text
    assert all(cell.startswith("! 1 fired") for cell in Tables(text).tables["Decision table"][-1][1:])


# ---- input


def test_loose_directories_are_compared_by_load(tmp_path: Path) -> None:
    for index, mode in enumerate(MODES):
        for load in (1, 4):
            write_run(tmp_path / f"{mode}-c{load}", mode=mode, order=index, concurrency=load)
    out = tmp_path / "page.html"
    directories = [str(path) for path in sorted(tmp_path.iterdir())]
    assert report.main([*directories, "--out", str(out)]) == 0
    assert Tables(out.read_text()).tables["Decision table"][0] == ["Family", "1 user", "4 users"]
    assert report.main([*directories[:3], "--out", str(out)]) == 2  # one load has no ngram


def test_an_experiment_without_its_comparisons_is_compared_again(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,))
    assert report.main([str(folder), "--out", str(tmp_path / "stored.html")]) == 0
    (folder / "compare-c1.json").unlink()
    assert report.main([str(folder), "--out", str(tmp_path / "again.html")]) == 0
    stored, again = (Tables((tmp_path / name).read_text()).tables for name in ("stored.html", "again.html"))
    assert stored == again


def test_loads_of_other_prompts_repeats_or_models_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_model(manifest: dict[str, Any], *_: Any) -> None:
        manifest["server"]["model"]["id"] = "other"

    shapes: dict[str, dict[str, Any]] = {
        "inventory": {"cases": [("x-1", "x"), ("x-2", "x")]}, "number of repeats": {"repeats": 3},
        "model": {"edit": other_model},
    }  # fmt: skip
    for what, shape in shapes.items():
        directories = []
        for index, mode in enumerate(MODES):
            directories += [
                write_run(tmp_path / what / f"{mode}-c1", mode=mode, order=index),
                write_run(tmp_path / what / f"{mode}-c4", mode=mode, order=index, concurrency=4, **shape),
            ]
        assert report.main([*map(str, directories), "--out", str(tmp_path / "p.html")]) == 2
        said = capsys.readouterr().err
        assert f"differ in {what}; give each its own page" in said and said.count("\n") == 1


def test_one_pair_is_said_of_the_load_that_has_one(tmp_path: Path) -> None:
    directories = [write_run(tmp_path / f"{mode}-c1", mode=mode, order=order) for order, mode in enumerate(MODES)]
    for order, mode in enumerate(("baseline", "ngram", "ngram", "baseline")):
        directories.append(write_run(tmp_path / f"{order}-c4", mode=mode, order=order, concurrency=4, seed=order))
    out = tmp_path / "p.html"
    assert report.main([*map(str, directories), "--out", str(out)]) == 0
    text = out.read_text()
    assert "1 or 2 deployments per mode" in text and text.count("one deployment of each mode describes these two") >= 1


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "format": (lambda of: of.update(format=3), "has format 3, this version reads 1 and 2"),
    "no settings": (lambda of: of.pop("settings"), "missing required field `settings`"),
    "no target": (lambda of: of["settings"].pop("target"), "missing required field `target`"),
    "text for loads": (lambda of: of["settings"].update(concurrency="1"), "Expected `array`, got `str`"),
    "no deployments": (lambda of: of.update(deployments=[]), "lists no deployment that was measured"),
    "text for seconds": (lambda of: of["deployments"][0].update(ready_s="x"), "Expected `float | null`, got `str`"),
    "no time": (lambda of: of["deployments"][0].update(started="x"), "Invalid isoformat string"),
    "no time zone": (lambda of: of["deployments"][0].update(started="2026-01-01"), "`started` has no time zone"),
    "no pairs": (lambda of: of["comparisons"]["1"].update(pairs=[]), "length >= 1"),
    "a run outside": (
        lambda of: of["deployments"][0]["loads"]["1"].update(directory="../../secret"), "matching regex"
    ),
    "a comparison outside": (lambda of: of["comparisons"]["1"].update(json="/etc/passwd"), "matching regex"),
    "a pair outside": (lambda of: of["comparisons"]["1"].update(pairs=[["..", "02-ngram-c1"]]), "matching regex"),
    "endless": (lambda of: of["deployments"][0].update(ready_s=1e308), "`float` <= 1000000000.0"),
    "a number of many digits": (lambda of: of["settings"].update(repeats=10**400), "experiment.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_experiment_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    edit, words = EDITS[name]
    document = json.loads((folder / "experiment.json").read_text())
    edit(document)
    (folder / "experiment.json").write_text(json.dumps(document))
    assert report.main([str(folder)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.startswith("report.py: ") and said.count("\n") == 1


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("name", ["experiment.json", "compare-c1.json", "01-baseline-c1/manifest.json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"null", b"[]", b"7", nested(100_000), b'{"format": ' + nested(100_000) + b"}"],
    ids=["empty", "cut off", "no text", "null", "list", "number", "deep", "deep inside"],
)
def test_a_damaged_file_is_one_sentence(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    (folder / name).write_bytes(content)
    assert report.main([str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("report.py: ") and name in said and said.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_a_record_nested_to_the_limit_of_json_is_shown_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a server says of itself is kept as it came: however deep, no traceback."""
    for depth in (50, 400, 900):
        deep: Any = "bottom"
        for _ in range(depth):
            deep = [deep]

        def edit(manifest: dict[str, Any], *_: Any, deep: Any = deep) -> None:
            manifest["server"]["record"]["environment"] = None
            manifest["server"]["record"]["gpus"] = deep

        folder = tmp_path / str(depth)
        directories = [write_run(folder / mode, mode=mode, order=order, edit=edit) for order, mode in enumerate(MODES)]
        code = report.main([*map(str, directories), "--out", str(folder / "p.html")])
        said = capsys.readouterr().err
        assert (code, said) == (0, "") or (code == 2 and said.count("\n") == 1)


def test_a_request_that_took_for_ever_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def edit(_: Any, __: Any, rows: list[dict[str, Any]]) -> None:
        rows[3]["e2el_s"] = rows[3]["decode_s"] = 1e308

    directories = [
        write_run(tmp_path / mode, mode=mode, order=order, edit=edit if order else None)
        for order, mode in enumerate(MODES)
    ]
    assert report.main([*map(str, directories), "--out", str(tmp_path / "p.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_comparison_that_lacks_a_key_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    for key in ("metrics", "equality", "deployments"):
        whole = json.loads((folder / "compare-c1.json").read_text())
        (folder / "compare-c1.json").write_text(json.dumps({name: of for name, of in whole.items() if name != key}))
        assert report.main([str(folder)]) == 2
        assert f"lacks a key ('{key}')" in capsys.readouterr().err
        (folder / "compare-c1.json").write_text(json.dumps(whole))


def test_the_command_to_do_it_again_has_what_was_given(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    document = json.loads((folder / "experiment.json").read_text())
    document["settings"] |= {
        "target": "polyaxon", "project": "acme/p", "owner": "acme", "queue": "a/q", "max_tokens": 72,
        "launcher_options": ["--model", "m"],
    }  # fmt: skip
    (folder / "experiment.json").write_text(json.dumps(document))
    assert provenance.commands(evidence.gather([folder])) == [
        f"python experiment.py --target polyaxon --out {folder}-again --order BN --concurrency 1 --repeats 6 "
        f"--prompts {folder}/prompts.jsonl --max-tokens 72 -p acme/p --owner acme --queue a/q -- --model m"
    ]


def test_the_command_to_do_it_again_works_from_the_readme_s_folder() -> None:
    """The published experiment's prompts file is where the command says, whatever folder report.py was started in."""
    published = ROOT / "results" / "h200-smollm2-135m"
    (command,) = provenance.commands(evidence.gather([published]))
    words = shlex.split(command)
    assert (ROOT / words[words.index("--prompts") + 1]).is_file()
    assert words[words.index("--out") + 1] == "results/h200-smollm2-135m-again"


def test_without_the_page_s_packages_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "vl_convert.py").write_text("raise ModuleNotFoundError('not here', name='vl_convert')")
    run = subprocess.run(
        [sys.executable, str(ROOT / "report.py"), "x"], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr == "report.py: the page needs vl_convert: pip install -r requirements-demo.txt\n"


def test_what_cannot_be_shown_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1, 4), order="BN")
    document = json.loads((folder / "experiment.json").read_text())
    document["comparisons"].pop("4")
    document["status"] = "stopped"
    (folder / "experiment.json").write_text(json.dumps(document))
    assert report.main([str(folder)]) == 0
    assert "Anything at 4 users: not compared (the experiment is stopped)." in (folder / "report.html").read_text()
    assert report.main([str(folder), "--out", str(tmp_path / "nowhere" / "p.html")]) == 2
    assert "name another file with --out" in capsys.readouterr().err
    document["comparisons"] = {}
    (folder / "experiment.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="no comparison yet, its experiment is stopped; go on with"):
        evidence.gather([folder])
    with pytest.raises(UserError, match=r"neither experiment\.json nor manifest\.json"):
        evidence.gather([tmp_path])


# ---- hostile outputs


def test_outputs_are_escaped_made_visible_and_cut(page: str) -> None:
    assert "<script" not in page and "<img" not in page and "<svg onload" not in page
    assert "&lt;script&gt;" in page and "{{ 7 * 7 }}" in page
    assert "\\x1b[31m\\u202eevil\\u2066\\u200b\\U000e0041" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", page)
    assert "w" * (evidence.CLAMP + 1) not in page
    assert f"the first {evidence.CLAMP:,} of {len(HOSTILE) + 100_000:,} characters" in page
    assert len(page.encode()) < 2_000_000


def test_nothing_that_lets_anyone_in_is_on_the_page(page: str) -> None:
    assert SECRET not in page and "REDACTED" in page


def test_cases_that_differ_most_and_outputs_given_most_stand_first(tmp_path: Path) -> None:
    def outputs(case: str, repeat: int, mode: str, load: int) -> str:
        if case == "copy-1":  # within the floor
            return str(repeat % 2)
        if case == "short-3" and mode == "ngram":
            return f"new {repeat if repeat < 2 else 'usual'}"
        return "old"

    load = evidence.gather([write_experiment(tmp_path / "x", loads=(1,), outputs=outputs)]).loads[0]
    assert list(load.outputs) == ["short-3", "copy-1"]
    assert [output.text for output in load.outputs["short-3"]][:2] == ["old", "new usual"]


def test_no_text_leaves_outputs_out(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.html"
    assert report.main([str(experiment), "--no-text", "--out", str(out)]) == 0
    text = out.read_text()
    assert "left out by --no-text" in text and "First divergence" in text
    assert "evil" not in text and "variant 1" not in text and "The answer to" not in text


def test_hostile_names_are_harmless_too(tmp_path: Path) -> None:
    family = "<script>document.title='owned'</script>\u202e"
    cases = [(f"{family}-{number}", family) for number in range(3)]
    for index, mode in enumerate(MODES):
        write_run(
            tmp_path / mode, mode=mode, cases=cases, order=index,
            outputs=lambda case, repeat, mode=mode: mode + "<b>" * (repeat % 2),
        )  # fmt: skip
    out = tmp_path / "p.html"
    assert report.main([str(tmp_path / "baseline"), str(tmp_path / "ngram"), "--out", str(out)]) == 0
    assert "<script" not in out.read_text() and "\u202e" not in out.read_text()


# ---- looks


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_is_aa_in_both_schemes(scheme: int) -> None:
    template = (ROOT / "specbench" / "page" / "report.html.j2").read_text()
    blocks = re.findall(r":root \{(.*?)\}", template, flags=re.S)
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    pairs = [(front, back) for front in ("ink", "muted") for back in ("page", "panel")]
    pairs += [(kind, f"{kind}-bg") for kind in ("good", "bad", "same", "stop")]
    for front, back in [*pairs, ("ink", "mark"), ("base", "panel"), ("candidate", "panel")]:
        low, high = sorted((luminance(colors[front]), luminance(colors[back])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{front} on {back}"


@pytest.fixture(scope="module")
def browser(not_available: Callable[[str], Any]) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        not_available("Debian's chromium (apt-get install chromium)")
    with Browser(program) as running:
        yield running


@pytest.fixture(scope="module")
def opened(browser: Browser, page: str, experiment: Path) -> Callable[[int, bool], Page]:
    """The page in a window of a width and a scheme, everything folded out, every tab kept."""
    tabs: dict[tuple[int, bool], Page] = {}

    def at(width: int, dark: bool) -> Page:
        if (width, dark) not in tabs:
            tab = browser.open(experiment / "report.html", width=width, dark=dark)
            tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            tabs[width, dark] = tab
        return tabs[width, dark]

    return at


WINDOWS = [(360, False), (390, True), (1440, False), (1440, True)]


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_nothing_is_wider_than_the_window(opened: Callable[[int, bool], Page], width: int, dark: bool) -> None:
    tab = opened(width, dark)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    outside = tab.evaluate(
        f"[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll, svg, .skip')"
        f" && one.getBoundingClientRect().right > {width}).map(one => one.outerHTML.slice(0, 80))"
    )
    assert outside == []


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_no_script_runs_no_request_leaves_nothing_is_reported(
    opened: Callable[[int, bool], Page], width: int, dark: bool
) -> None:
    tab = opened(width, dark)
    assert tab.evaluate("document.title") == "Should n-gram be turned on?"
    assert tab.events("Log.entryAdded") == [] and tab.events("Runtime.exceptionThrown") == []
    assert tab.events("Runtime.consoleAPICalled") == []
    urls = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]
    assert [url.rpartition("/")[2] for url in urls] == ["report.html"]


def test_no_two_parts_share_an_id(page: str) -> None:
    """Two charts' clip paths of one name would cut each other off."""
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and any("clip" in one for one in ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_table_and_charts_are_there_and_themed(opened: Callable[[int, bool], Page]) -> None:
    light, dark = opened(1440, False), opened(1440, True)
    assert light.evaluate("document.querySelectorAll('.decision tbody tr').length") == 5
    drawn = "[...document.querySelectorAll('svg.chart')].filter(one => one.getBoundingClientRect().height > 60).length"
    assert light.evaluate(drawn) >= 3 + 27 + 5 + 3 + 1 + 3
    ink = "getComputedStyle(document.querySelector('#ratios svg text')).fill"
    assert light.evaluate(ink) != dark.evaluate(ink)


def test_a_screen_reader_and_a_keyboard_find_their_way(opened: Callable[[int, bool], Page]) -> None:
    tab = opened(1440, False)
    every = "[...document.querySelectorAll('{}')].every(one => {})".format
    assert tab.evaluate(every("th", "one.scope"))
    assert tab.evaluate(every("svg", "one.ariaHidden || one.ariaLabel.length > 20"))
    assert tab.evaluate(every(".scroll", "one.tabIndex === 0 && one.ariaLabel"))
    assert tab.evaluate(every("nav a", "document.querySelector(one.hash)"))
    # A verdict is words, never a colour or a sign alone.
    assert tab.evaluate(every(".verdict", "/[a-z]{3}/i.test(one.textContent)"))
    headings = tab.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => one.tagName[1]).join('')")
    assert headings.startswith("12") and headings.count("1") == 1


def test_it_prints(opened: Callable[[int, bool], Page]) -> None:
    assert opened(1440, False).pdf().startswith(b"%PDF")
