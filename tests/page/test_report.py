"""report.py: what it reads, and one sentence for what cannot be shown."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.simulated_experiment import MODES, Tables, write_experiment

import report
from benchmarks.simulated_runs import write_run
from specbench import UserError
from specbench.deploy.state import read_state
from specbench.page import evidence, provenance


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
    pages = [(tmp_path / name).read_text().replace(f"{folder}/", "") for name in ("stored.html", "again.html")]
    stored, again = (Tables(page).tables for page in pages)
    assert stored == again


def test_loads_of_other_prompts_or_models_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_model(manifest: dict[str, Any], *_: Any) -> None:
        manifest["server"]["model"]["id"] = "other"

    shapes: dict[str, dict[str, Any]] = {
        "inventory": {"cases": [("x-1", "x"), ("x-2", "x")]}, "model": {"edit": other_model},
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
    assert "1 to 2 deployments of each mode" in text
    assert text.count('class="verdict unknown lead"') == 1
    assert "Deploy both modes once more, in the reverse order" in text


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
        assert f"missing required field `{key}`" in capsys.readouterr().err
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
    state = evidence.Evidence(published, read_state(published), [], [])
    (command,) = provenance.commands(state)
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


# ---- what the reader asks for


def decision_row(path: Path, name: str) -> list[str]:
    return next(row for row in Tables(path.read_text()).tables["Decision table"] if row[0].startswith(name))


def test_a_mix_is_the_reader_s_traffic(tmp_path: Path) -> None:
    """The stored comparison gives way to one with the weights; its line is the primary one."""
    folder, out = write_experiment(tmp_path / "x", loads=(1,)), tmp_path / "mix.html"
    assert report.main([str(folder), "--mix", "copy=1,explain=0,short=0", "--out", str(out)]) == 0
    copied, mixed = decision_row(out, "copy"), decision_row(out, "mix")
    assert mixed[0] == "mixprimary"
    assert copied[1].split()[:2] == mixed[1].split()[:2]
    assert report.main([str(folder), "--out", str(out)]) == 0
    assert decision_row(out, "overall")[0] == "overallprimary"


def test_a_family_can_be_the_primary_line(tmp_path: Path) -> None:
    folder, out = write_experiment(tmp_path / "x", loads=(1,)), tmp_path / "p.html"
    assert report.main([str(folder), "--primary", "copy", "--out", str(out)]) == 0
    assert decision_row(out, "copy")[0] == "copyprimary" and decision_row(out, "overall")[0] == "overall"
    assert "Yes: 33% less time" in re.sub(r"<[^>]+>", "", out.read_text())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mix", "copy=2"], "with a weight from 0 to 1"),
        (["--mix", "copy=0.5"], "sum to 0.5"),
        (["--mix", "poems=1"], "which the inventory lacks"),
        (["--primary", "poems"], "name overall or one of"),
        (["--out", "{folder}"], "is a folder: name a file"),
        (["--out", "{folder}/prompts.jsonl"], "holds prompts or requests"),
        (["--out", "{folder}/01-baseline-c1/requests.jsonl"], "where measurements are kept"),
        (["--out", "{folder}/02-ngram-c1/page.html"], "where measurements are kept"),
        (["--out", "{folder}/experiment.json"], "where measurements are kept"),
        (["--out", "{folder}/nowhere/page.html"], "its folder does not exist"),
    ],
)
def test_options_that_cannot_be_followed_are_one_sentence(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    (folder / "prompts.jsonl").write_text("{}\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert report.main([str(folder), *(option.format(folder=folder) for option in options)]) == 2
    said = capsys.readouterr().err
    assert words in said and said.startswith("report.py: ") and said.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def run_script(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, str(ROOT / "report.py"), *arguments]
    return subprocess.run(command, capture_output="stdout" not in options, check=False, **options)


def test_an_empty_name_is_one_sentence() -> None:
    for arguments in ([""], ["x", "--out", ""]):
        run = run_script(*arguments)
        assert run.returncode == 2 and b"the name is empty" in run.stderr and run.stderr.count(b"\n") == 1


def test_a_page_goes_to_a_device_and_a_dead_terminal_loses_nothing(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "x", loads=(1,), order="BN")
    piped = run_script(str(folder), "--out", "/dev/stdout")
    assert piped.returncode == 0
    assert piped.stdout.startswith(b"<!doctype html>") and piped.stdout.rstrip().endswith(b"</html>")
    assert run_script(str(folder), "--out", "/dev/null").returncode == 0 and Path("/dev/null").is_char_device()
    with open("/dev/full", "wb") as full:
        assert run_script(str(folder), stdout=full, stderr=subprocess.DEVNULL).returncode == 0
    assert (folder / "report.html").read_text().rstrip().endswith("</html>")
