"""Experiments of every shape: each gives a page that is right, and no wider than its window."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.browser import Browser
from support.simulated_experiment import Tables, write_experiment

import report

FAMILIES = [f"family-{number:03d}" for number in range(100)]


def half_done(folder: Path) -> None:
    """Interrupted at the last deployment: one load compared, one in progress, one not begun."""
    write_experiment(folder)
    document = json.loads((folder / "experiment.json").read_text())
    for load in ("4", "8"):
        document["comparisons"].pop(load)
    last = document["deployments"][-1]
    last |= {"status": "interrupted", "proof": None, "ready_s": None, "compile_cache": None}
    last["loads"] = {"1": last["loads"]["1"], "4": {"directory": "04-baseline-c4", "status": "unfinished"}}
    document["status"] = "interrupted"
    (folder / "experiment.json").write_text(json.dumps(document))


def no_gate_checked(folder: Path) -> None:
    """A server that says nothing of itself, and a client that nobody watched."""

    def silent(manifest: dict[str, Any], summary: dict[str, Any], _: Any) -> None:
        manifest["server"] |= {"record": None, "cache_config": None, "version": None, "engine": None}
        manifest["mode_verified"] = {"how": "not verified", "detail": "--mode"}
        for section in ("server", "client"):
            known = summary[section].items()
            summary[section] = {name: [] if isinstance(value, list) else None for name, value in known}

    write_experiment(folder, edit=silent)


def hundred_families(folder: Path) -> None:
    cases = [(f"{family}-{number}", family) for family in FAMILIES for number in (1, 2)]
    effect = {family: (number - 50) / 100 for number, family in enumerate(FAMILIES)}
    write_experiment(folder, loads=(1, 8), cases=cases, effect=effect)


SHAPES: dict[str, Callable[[Path], Any]] = {
    "half done": half_done,
    "one load": lambda folder: write_experiment(folder, loads=(4,)),
    "one family": lambda folder: write_experiment(folder, cases=[(f"copy-{n}", "copy") for n in range(5)]),
    "one case": lambda folder: write_experiment(folder, loads=(1,), cases=[("copy-1", "copy")]),
    "a hundred families": hundred_families,
    "no gate checked": no_gate_checked,
    "one pair": lambda folder: write_experiment(folder, order="BN"),
    "eight loads": lambda folder: write_experiment(folder, loads=(1, 2, 3, 4, 5, 6, 7, 8), effect=0.1),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a shape, made once."""
    made: dict[str, Path] = {}

    def page_of(shape: str) -> Path:
        if shape not in made:
            folder = tmp_path_factory.mktemp("shape") / "x"
            SHAPES[shape](folder)
            assert report.main([str(folder)]) == 0
            made[shape] = folder / "report.html"
        return made[shape]

    return page_of


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_its_answer_and_fits_the_window(
    shape: str, pages: Callable[[str], Path], browser: Browser
) -> None:
    for width in (390, 1280):
        tab = browser.open(pages(shape), width=width)
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        assert tab.evaluate("document.querySelectorAll('.answers .lead').length") >= 1
        assert tab.evaluate("document.querySelectorAll('.next li').length") >= 1
        texts = tab.evaluate("document.body.innerText")
        assert not re.search(r"\b(None|nan|undefined|Undefined)\b", texts)
        tab.close()


def text_of(path: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", path.read_text()))


def test_an_experiment_half_done_says_how_it_goes_on(pages: Callable[[str], Path]) -> None:
    text = text_of(pages("half done"))
    assert text.count("Not compared The experiment is interrupted.") == 2
    assert "Next, 4 users and 8 users: go on with the experiment" in text
    assert re.search(r"python experiment.py --out \S+ --resume", text)
    assert "Anything at 8 users: not compared (the experiment is interrupted)." in text


def test_one_family_stands_once(pages: Callable[[str], Path]) -> None:
    """Overall says the same, so the table has one row and the gates."""
    rows = Tables(pages("one family").read_text()).tables["Decision table"]
    assert [row[0] for row in rows] == ["Family", "overallprimary", "Gates"]


def test_of_a_hundred_families_those_stand_first_that_differ_most(pages: Callable[[str], Path]) -> None:
    page = pages("a hundred families")
    tables = Tables(page.read_text()).tables
    shown = [row[0] for row in tables["Decision table"][1:-2]]
    assert len(shown) == 10 and set(shown) >= {"family-000", "family-099"}
    assert len([row for row in tables["Ratios in numbers"] if row[:2] == ["1 user", "E2EL"]]) == 101
    assert re.search(r"Depends: on for \d\d of 100 families , off for \d\d of 100 families", text_of(page))


def test_gates_that_nobody_checked_are_not_called_silent(pages: Callable[[str], Path]) -> None:
    page = pages("no gate checked")
    rows = Tables(page.read_text()).tables["Decision table"]
    assert rows[-1][1].startswith("– none checked")
    assert "no gate was checked" in text_of(page)
    assert "because the server does not report them" in text_of(page)
